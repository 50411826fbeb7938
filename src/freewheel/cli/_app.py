"""The typer app: its commands, and what a person sees of an error."""

from __future__ import annotations

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

import freewheel
from freewheel.cli._bench import bench
from freewheel.cli._methods import methods
from freewheel.cli._output import say
from freewheel.cli._plan import plan
from freewheel.cli._ranks import follows, is_ours
from freewheel.cli._train import train
from freewheel.runtime import LostError, StageError, rank_and_size

INTERRUPTED = 130


class FriendlyGroup(TyperGroup):
    """A group whose commands answer a wrong argument with one line, `error: …`, and exit code 2."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; `--debug` lets errors through with their traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            if not follows():
                say("interrupted", error=True)
            raise typer.Exit(INTERRUPTED) from None
        except BrokenPipeError:
            raise  # whoever was reading has gone, as in `freewheel plan … | head`
        except (ValueError, TypeError, OSError, ImportError, StageError, LostError) as error:
            if ctx.params.get("debug"):
                raise
            if is_ours():
                who = f"rank {rank_and_size()[0]}: " if follows() else ""
                say(f"{who}error: {str(error) or type(error).__name__}", error=True)
            raise typer.Exit(2) from None


app = typer.Typer(
    cls=FriendlyGroup,
    help="Train a network cut into K stages without making the stages wait for each other.",
    epilog="Begin with: freewheel train",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)


def _version(asked: bool) -> None:
    if asked:
        say(f"freewheel {freewheel.__version__}")
        raise typer.Exit


@app.callback()
def _top(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """The options before the command; the group reads `debug` itself."""


app.command()(methods)
app.command()(plan)
app.command()(train)
app.add_typer(bench, name="bench")
