"""`freewheel watch`: the page of a run while it goes on, or a dashboard in the terminal."""

from __future__ import annotations

import webbrowser
from pathlib import Path
from typing import Annotated

from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import print_line
from freewheel.cli._watch_text import follow
from freewheel.watch import PORT, PageServer, Watched


def watch(
    *runs: Annotated[Path, declare(OPTIONS, "RUN", "Folders of runs; default: the newest in runs.")],
    port: Annotated[
        int | None, declare(OPTIONS, "N", f"The port of the page; 0: any that is free; default: {PORT}.")
    ] = None,
    browser: Annotated[bool, declare(OPTIONS, "", "Open the page in the browser.", name="--open", negative=())] = False,
    text: Annotated[
        bool, declare(OPTIONS, "", "Show it in the terminal instead, until the run ends.", negative=())
    ] = False,
) -> int:
    """Show a run, or several side by side, while they go on: a page for the browser, on this computer alone."""
    watched = Watched(runs)
    if not text:
        return _serve(watched, PORT if port is None else port, browser)
    if port is not None or browser:
        given = "--open" if port is None else f"--port {port}"
        raise ValueError(f"{given} with --text: there is no page then; leave one out")
    return follow(watched)


def _serve(watched: Watched, port: int, browser: bool) -> int:
    """Serve the page until Ctrl-C."""
    with PageServer(watched, port) as server:
        view = watched.look()
        print_line(f"watching {watched.name}: {server.url} (Ctrl-C ends)")
        if view.note:
            print_line(view.note)
        try:
            if browser and not webbrowser.open(server.url):
                print_line("no browser was found: open that address yourself")
            server.serve_forever()
        except KeyboardInterrupt:
            print_line(f"\nstopped watching {watched.name}{_ending(watched)}")
    return 0


def _ending(watched: Watched) -> str:
    """How the run goes, in words."""
    status = watched.look().status
    return ", which goes on" if status == "running" else f": {status}" if status else ""
