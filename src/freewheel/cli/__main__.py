"""`python -m freewheel.cli`, for where the script is not on the path."""

from freewheel.cli import main

if __name__ == "__main__":
    main()
