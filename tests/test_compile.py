"""`compile=True`: the same training within rounding, and the same bits on every runtime."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import freewheel as fw
from rows import ROWS, batches, network, same_bits, tensors, trainer
from spread import exhaustive

COMPILED = [row for row in ROWS if fw.plan(row.make(2), k=2).schedule.credit.name in ("chain", "synthetic")]
ONE = "pipedream"


def trained(method: fw.Method | str, k: int = 2, *, runtime: str = "simulate", compile: bool = True, **options) -> list:
    """The weights after batches of two sizes, in a network with BatchNorm, dropout and a stage that edits its input."""
    modules = network(k)
    trainer(modules, method, runtime=runtime, compile=compile, **options).fit(batches(9))
    return tensors(*modules)


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


@exhaustive
@pytest.mark.parametrize("row", COMPILED, ids=str)
def test_compiled_steps_are_those_of_eager_execution_on_both_local_runtimes(row) -> None:
    compiled = trained(row.make(3), 3)
    close(compiled, trained(row.make(3), 3, compile=False))
    assert same_bits(compiled, trained(row.make(3), 3, runtime="threads"))
