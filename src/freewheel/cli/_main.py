"""The entry point of the console script; cyclopts and rich are imported only when it is called."""

from __future__ import annotations

import os
import sys

NEEDED = ("cyclopts", "rich", "tomli_w")


def main() -> None:
    """Run the command line; prints one clear line where a library is missing."""
    try:
        from freewheel.cli._app import command_line
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write(f"freewheel's command line needs {error.name}: pip install 'freewheel[cli]'\n")
        sys.exit(1)
    try:
        sys.exit(command_line(sys.argv[1:]))
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush when Python ends
        sys.exit(1)
