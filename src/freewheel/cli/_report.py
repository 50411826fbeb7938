"""`freewheel report`: the page of a run, or of several side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from freewheel._files import write_text
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import check_file, print_line
from freewheel.report import page, report_data
from freewheel.runs import Run, each_once, newest_run

PAGE = "report.html"


def report(
    *runs: Annotated[Path, declare(OPTIONS, "RUN", "Folders of runs; default: the newest in runs.")],
    out: Annotated[
        Path | None, declare(OPTIONS, "FILE", "Where the page goes; default: report.html in the first folder.")
    ] = None,
) -> int:
    """Draw a run, or several side by side, in one HTML page that needs no network."""
    check_file("--out", out)
    found = [Run.open(folder) for folder in each_once(runs or (newest_run(),))]
    path = found[0].folder / PAGE if out is None else out
    html = page(report_data(found))
    write_text(path, html)
    print_line(f"wrote {path}: {len(html.encode()) / 1e6:.2f} MB, open it in a browser")
    return 0
