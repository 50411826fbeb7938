"""`python -m freewheel.doctor NAME`: try one thing, and say in a line of JSON what was found."""

from __future__ import annotations

import json
import sys

from freewheel.doctor._work import WORK, AbsentError


def main(name: str) -> None:
    """Try it; an error is found, too, unless it ends the process."""
    try:
        found = {"works": True, "note": WORK[name]()}
    except AbsentError as error:
        found = {"works": None, "note": f"{error}"}
    except Exception as error:
        first = next((line for line in f"{error}".splitlines() if line.strip()), "")
        found = {"works": False, "note": f"{type(error).__name__}: {first.strip()}".removesuffix(": ")}
    print(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
