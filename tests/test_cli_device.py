"""`freewheel train --device`: what it chooses, and how it says so."""

from __future__ import annotations

from typing import NamedTuple

import pytest
import torch
import torch.nn.functional as F

from command_line import freewheel, good
from freewheel._config import RunConfig
from spread import exhaustive, needs_cuda

pytest.importorskip("cyclopts")
from freewheel.cli._compiling import choose_compiling
from freewheel.cli._settings import resolve
from freewheel.cli._train_options import TrainOptions


@needs_cuda
def test_the_command_line_chooses_and_says_so(tmp_path):
    pytest.importorskip("sklearn")
    brief = ("train", "--epochs", "1", "--limit", "300", "--at", "pool", "--threads", "1", "--device", "cuda")
    lines = good(*brief, "--save", str(tmp_path / "a.pt")).splitlines()
    assert any(line.startswith("data     digits: ") and line.endswith(", on cuda:0 (0 MB)") for line in lines)
    assert "runtime  graph: 2 stages, 1 thread each; chosen: all stages are on cuda:0" in lines
    assert "compile  no: 5 batches do not pay for it, 20,000 do" in lines
    good(*brief, "--no-compare", "--runtime", "simulate", "--save", str(tmp_path / "b.pt"))
    a, b = (torch.load(tmp_path / f"{name}.pt") for name in "ab")
    assert all(torch.equal(a[name], b[name]) for name in a)


class Chosen(NamedTuple):
    """What of a trainer the choice depends on."""

    config: RunConfig


@pytest.mark.parametrize(
    ("arguments", "runtime", "updates", "compiles", "reason"),
    [
        ({}, "graph", 20_000, True, "20,000 batches pay for it"),
        ({}, "graph", 400, False, "400 batches do not pay for it, 20,000 do"),
        ({}, "threads", 20_000, False, "only CUDA graphs are compiled without --compile, not threads"),
        ({"model": "net.py:make"}, "graph", 20_000, False, "a network of one's own is compiled only with --compile"),
        ({"compile": True}, "threads", 1, True, ""),
        ({"compile": False}, "graph", 20_000, False, ""),
        ({"runtime": "graph"}, "graph", 20_000, False, ""),
    ],
    ids=str,
)
def test_stages_are_compiled_where_that_pays(arguments, runtime, updates, compiles, reason):
    settings = resolve(TrainOptions(**{"runtime": "auto", **arguments}))
    config = RunConfig(loss=F.cross_entropy, optimizer=torch.optim.SGD, runtime=runtime)
    assert choose_compiling(settings, Chosen(config), updates) == (compiles, reason)


@exhaustive
def test_the_command_line_says_why_it_chose_a_runtime():
    brief = ("train", "--epochs", "1", "--limit", "100", "--no-compare", "--runtime", "auto", "--threads", "1")
    text = good(*brief, "--stages", "2", "--split", "parameters")
    assert "runtime  threads: 2 stages, 1 thread each; chosen: the split has not measured how long a step takes" in text


def test_the_command_line_refuses_a_device_that_is_not_there():
    result = freewheel("train", "--device", "cuda:99")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: --device cuda:99: torch sees ")
