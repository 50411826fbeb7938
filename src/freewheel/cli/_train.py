"""`freewheel train`: train a network in stages."""

from __future__ import annotations

from itertools import chain

from freewheel.cli._output import INTERRUPTED, print_line
from freewheel.cli._ranks import follows, silenced
from freewheel.cli._run import run, write_results
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions


def train(options: TrainOptions = TrainOptions()) -> int:  # noqa: B008
    """Train a network in stages; with no options, on digits, in seconds."""
    if follows():
        run(resolve(silenced(options)))
        return 0
    summary = run(resolve(options))
    if not options.quiet:
        summary.print_epochs()
    for line in chain(summary.lines(), write_results(summary)):
        print_line(line)
    return INTERRUPTED if summary.history.interrupted else 0
