"""Whether `freewheel train` compiles the stages, where neither that nor the runtime is asked for."""

from __future__ import annotations

from typing import NamedTuple

import freewheel
from freewheel.cli._own import is_own
from freewheel.cli._settings import Settings

BATCHES = 20_000  # compiling takes up to a minute or two, and saves from tenths of a millisecond to some a batch


class Compiling(NamedTuple):
    """Whether stages are compiled, and why; without a reason, it was asked for."""

    compiles: bool
    reason: str = ""

    def __str__(self) -> str:
        return f"{'yes' if self.compiles else 'no'}: {self.reason}"


def choose_compiling(settings: Settings, trainer: freewheel.Trainer, updates: int) -> Compiling:
    """Choose by the runtime, the network, the method and the batches of the whole run."""
    asked, model = settings.options.compile, str(settings.options.model)
    if asked is not None:
        return Compiling(asked)
    if trainer.config.runtime != "graph":
        return Compiling(False, f"only CUDA graphs are compiled without --compile, not {trainer.config.runtime}")
    if is_own(model):
        return Compiling(False, "a network of one's own is compiled only with --compile")
    if updates < BATCHES:
        return Compiling(False, f"{updates:,} batches do not pay for it, {BATCHES:,} do")
    from freewheel.stage._inductor import check_compiler  # takes a second or two

    try:
        settings.pipeline.credit.check_compiled()
        check_compiler(settings.devices[0])
    except ValueError as error:
        return Compiling(False, f"refused: {str(error).partition(':')[0]}")
    return Compiling(True, f"{updates:,} batches pay for it")
