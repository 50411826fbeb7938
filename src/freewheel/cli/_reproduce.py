"""`freewheel reproduce`: the tables and pictures of the papers, ours beside theirs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import INTERRUPTED, new_table, print_line, print_table

if TYPE_CHECKING:
    from freewheel.reproduce import Report


def reproduce(
    name: Annotated[
        str | None, Parameter(group=OPTIONS, help="A table or picture of a paper, such as fdg-table3; see --list.")
    ] = None,
    /,
    *,
    list: Annotated[bool, declare(OPTIONS, "", "List all names, and end.", negative=())] = False,
    quick: Annotated[
        bool, declare(OPTIONS, "", "A scaled-down version that ends within minutes on two cores.", negative=())
    ] = False,
    cells: Annotated[
        tuple[str, ...],
        declare(OPTIONS, "PATTERN", "Only cells with this in their name, such as 'K=2*FDG'; repeatable."),
    ] = (),
    seeds: Annotated[int | None, declare(OPTIONS, "N", "Runs of each; default: as many as the paper has.")] = None,
    device: Annotated[str, declare(OPTIONS, "cpu|cuda", "Where to train.")] = "cpu",
    data_root: Annotated[
        Path | None, declare(OPTIONS, "DIR", "Folder with the data sets, and pretrained weights in `weights`.")
    ] = None,
    run_dir: Annotated[
        Path, declare(OPTIONS, "DIR", "Folder for results; what is there is not measured again.")
    ] = Path("runs"),
    compile: Annotated[bool, declare(OPTIONS, "", "Compile every stage.", negative=())] = False,
    jobs: Annotated[
        int, declare(OPTIONS, "N", "Trainings at a time, each in a process of its own; what measures time runs alone.")
    ] = 1,
) -> int:
    """Measure a table or picture of a paper again, and print our numbers beside the paper's.

    Results are saved as they come. After Ctrl-C the same command goes on where it stopped.
    """
    from freewheel import reproduce as package
    from freewheel.cli._reproduce_progress import progress

    if list or name is None:
        if name is not None:
            raise ValueError(f"{name} with --list, which lists all names: give one of the two")
        show_list()
        return 0
    with progress() as watcher:
        report = package.reproduce(
            name,
            quick=quick,
            cells=cells,
            seeds=seeds,
            device=device,
            data_root=data_root,
            run_dir=run_dir,
            compile=compile,
            jobs=jobs,
            watcher=watcher,
        )
    show_report(report, run_dir)
    if report.interrupted:
        print_line("interrupted: the same command goes on where this one stopped", error=True)
        return INTERRUPTED
    return 0


def show_list() -> None:
    """Print every experiment: its name, paper, content, cells and cost."""
    from freewheel.reproduce import EXPERIMENTS

    table = new_table(
        "name", "paper", "what", "cells", "runs", "epochs", right=("cells", "runs", "epochs"), wrap=("what",)
    )
    for experiment in EXPERIMENTS.values():
        paper = experiment.table
        jobs = [(job, experiment.seeds if job.seeded else 1) for job in experiment.jobs]
        runs, epochs = sum(count for _, count in jobs), sum(job.epochs * count for job, count in jobs)
        cost = f"{epochs:,}" if epochs else "–"
        place = f"{paper.paper}, {paper.where}"
        table.add_row(experiment.name, place, experiment.what, str(len(experiment.cells)), f"{runs:,}", cost)
    print_table(table)
    print_line("epochs: those of all trainings; – where speed, memory or a plan is measured, which takes minutes")


def show_report(report: Report, run_dir: Path) -> None:
    """Print the heading, a line for each cell, and where the files are."""
    from freewheel.reproduce._markdown import HEADINGS, heading, line

    for text in heading(report):
        print_line(text)
    names = [name or f"{'row' if not i else 'column'}" for i, name in enumerate(HEADINGS)]
    table = new_table(*names, right=("paper", "ours", "difference", "runs", "time"), wrap=("row", "column", "ours"))
    last = ""
    for row in report.rows:
        first, *rest = line(row)
        table.add_row("" if first == last else first, *rest)
        last = first
    print_table(table)
    for note in report.experiment.table.notes:
        print_line(f"note: {note}")
    for error in dict.fromkeys(report.errors.values()):
        print_line(f"no result: {error}")
    folder = run_dir / f"reproduce-{report.experiment.name}{'-quick' * report.quick}"
    print_line(f"wrote {', '.join(sorted(path.name for path in folder.iterdir() if path.is_file()))} in {folder}")
