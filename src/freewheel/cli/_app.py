"""The cyclopts app: its commands, and how errors are reported."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from cyclopts import App, CoercionError, CycloptsError, Group, MissingArgumentError, Parameter

import freewheel
from freewheel.cli._bench import bench
from freewheel.cli._doctor import doctor
from freewheel.cli._evaluate import evaluate
from freewheel.cli._methods import methods
from freewheel.cli._output import INTERRUPTED, print_line
from freewheel.cli._plan import plan
from freewheel.cli._ranks import follows, reports_errors
from freewheel.cli._recipes import recipes
from freewheel.cli._report import report
from freewheel.cli._reproduce import reproduce
from freewheel.cli._resume import fill_in
from freewheel.cli._train import train
from freewheel.cli._watch import watch
from freewheel.runtime import LostError, StageError, rank_and_size

ERROR = 2
WANTED = {int: "a whole number", float: "a number"}


def _shown_default(value: object) -> str | None:
    """A default as help shows it; nothing for what is off or empty."""
    return None if value in (None, ()) or value is False else str(value)


app = App(
    name="freewheel",
    help="Train a network cut into K stages without making the stages wait for each other.\n\n"
    "Begin with: freewheel train",
    help_format="plaintext",
    version=f"freewheel {freewheel.__version__}",
    default_parameter=Parameter(negative_iterable=(), show_default=_shown_default, allow_repeating=True),
    result_action="return_value",
    print_error=False,
    exit_on_error=False,
    suppress_keyboard_interrupt=False,
)
app.command(train, config=fill_in, sort_key=1)
app.command(evaluate, sort_key=1)
app.command(report, sort_key=1)
app.command(watch, sort_key=1)
app.command(plan, sort_key=2)
app.command(methods, sort_key=3)
app.command(recipes, sort_key=3)
app.command(doctor, sort_key=4)
app.command(bench)
app.command(reproduce, sort_key=5)


@app.meta.default
def _global(
    *tokens: Annotated[str, Parameter(show=False, allow_leading_hyphen=True)],
    debug: Annotated[
        bool,
        Parameter(help="Show the traceback of an error.", negative=(), group=Group("Every command", sort_key=99)),
    ] = False,
) -> int:
    """Run a command; an error is one line, `error: …`, and exit code 2."""
    run: Callable[..., int | None] = app
    try:
        return run(tokens) or 0
    except KeyboardInterrupt:
        if not follows():
            print_line("interrupted", error=True)
        return INTERRUPTED
    except BrokenPipeError:
        raise  # the reader has gone, as in `freewheel plan … | head`
    except (CycloptsError, ValueError, TypeError, OSError, ImportError, StageError, LostError) as error:
        if debug:
            raise
        _report(_usage(error) if isinstance(error, CycloptsError) else str(error) or type(error).__name__)
        return ERROR


def command_line(arguments: Sequence[str]) -> int:
    """Run a command line, and return its exit code."""
    return app.meta(arguments) or 0


def _report(message: str) -> None:
    if reports_errors():
        rank = f"rank {rank_and_size()[0]}: " if follows() else ""
        print_line(f"{rank}error: {message}", error=True)


def _usage(error: CycloptsError) -> str:
    """What is wrong with a command line, in one line."""
    command = " ".join(["freewheel", *(error.command_chain or ())])
    error.verbose = False
    message = " ".join(str(error).split())
    if isinstance(error, CoercionError) and error.token is not None and error.target_type in WANTED:
        message = f"{error.token.keyword} {error.token.value}: give {WANTED[error.target_type]}."
    if isinstance(error, MissingArgumentError) and error.argument is not None:
        message = f"{error.argument.name}: give a value."
    return f"{message} See {command} --help"
