"""`freewheel train`: train a network in stages."""

from __future__ import annotations

from itertools import chain

from freewheel.cli._end import run_names
from freewheel.cli._output import INTERRUPTED, print_line
from freewheel.cli._ranks import follows, silenced
from freewheel.cli._run import Summary, run, write_results
from freewheel.cli._runs import run_several
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions


def train(options: TrainOptions = TrainOptions()) -> int:  # noqa: B008
    """Train a network in stages; with no options, on digits, in seconds."""
    settings = resolve(silenced(options) if follows() else options)
    summary: Summary = (run_several if run_names(settings.options) else run)(settings)
    if follows():
        return 0
    if not options.quiet:
        summary.print_tables()
    for line in chain(summary.lines(), write_results(summary)):
        print_line(line)
    return INTERRUPTED if summary.interrupted else 0
