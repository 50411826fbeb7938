"""The entry of the console script; typer and rich are looked for only when it is called."""

from __future__ import annotations

import sys

NEEDED = ("typer", "rich")


def main() -> None:
    """Runs the command line; one clear line where typer or rich is missing."""
    try:
        from freewheel.cli._app import app
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in NEEDED:
            raise
        sys.stderr.write("freewheel's command line needs typer and rich: pip install 'freewheel[cli]'\n")
        sys.exit(1)
    app(prog_name="freewheel")
