"""The command line: `freewheel methods`, `plan`, `train` and `bench`."""

from freewheel.cli._main import main

__all__ = ["main"]
