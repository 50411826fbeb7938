"""`runtime="auto"`: the runtime that is chosen, the reason, and the same weights."""

from __future__ import annotations

import sys

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from freewheel.split import SplitReport, Stages
from rows import batches, network, same_bits, tensors, trainer
from spread import needs_cuda


@pytest.fixture(autouse=True)
def guarded(monkeypatch, tmp_path):
    script = tmp_path / "guarded.py"
    script.write_text("if __name__ == '__main__':\n    train()\n")
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)


def split(seconds: float, k: int = 2) -> Stages:
    """A network whose stages take this long, as a split has measured it."""
    modules = network(k)
    report = SplitReport(costs=(seconds / 2, seconds)[-k:], unit="s", names=(("a",), ("b",))[-k:])
    return Stages(modules, model=nn.Sequential(*modules), report=report)


@pytest.mark.parametrize(
    ("stages", "options", "name", "reason"),
    [
        (lambda: split(0.004), {}, "processes", "a step of a stage takes up to 4 ms"),
        (lambda: split(0.2), {}, "threads", "a step of a stage takes up to 200 ms"),
        (lambda: network(2), {}, "threads", "the split has not measured how long a step takes"),
        (lambda: split(0.004, 1), {}, "threads", "there is one stage"),
        (
            lambda: split(0.004),
            {"loss": lambda out, y: F.cross_entropy(out, y)},
            "threads",
            "loss cannot be sent to another process",
        ),
        (lambda: network(2), {"method": "hogwild", "optimizer": torch.optim.SGD}, "processes", ""),
        (lambda: network(2), {"runtime": "simulate"}, "simulate", ""),
    ],
)
def test_what_is_chosen_on_cores(stages, options, name, reason):
    made = trainer(stages(), **{"method": "pipedream", "runtime": "auto", **options})
    assert made.runtime == (name, reason)
    assert made.config.runtime == name
    assert all(stage.blueprint.options.config.runtime == name for stage in made._stages)


@pytest.mark.parametrize("content", ["train()", None])
def test_processes_are_for_scripts_that_workers_can_load(monkeypatch, tmp_path, content):
    script = tmp_path / "script.py"
    if content is not None:
        script.write_text(content)
    monkeypatch.setattr(sys.modules["__main__"], "__file__", str(script), raising=False)
    made = trainer(split(0.004), "pipedream", runtime="auto")
    assert made.runtime == ("threads", "the script has no `if __name__ == '__main__':`, which processes need")


def test_auto_trains_to_the_same_bits():
    results = []
    for runtime in ("simulate", "auto"):
        made = trainer(network(2), "pipedream", runtime=runtime)
        made.fit(batches(8))
        results.append(tensors(*made.stages))
    assert same_bits(*results)


@needs_cuda
def test_what_is_chosen_on_a_gpu():
    def chosen(method, stages, **options):
        return trainer(stages, method, runtime="auto", **options).runtime

    on_gpu = [stage.cuda() for stage in network(2)]
    assert chosen("fdg", on_gpu) == ("graph", "all stages are on cuda:0")
    assert chosen("fdg", [on_gpu[0], network(2)[1]]).name == "threads"
    assert chosen(fw.DGL(hidden=8, replay=3), on_gpu) == ("threads", "refused: replay=3 with runtime='graph'")
    recurrent = [nn.LSTM(6, 6).cuda(), nn.Linear(6, 3).cuda()]
    assert chosen("fdg", recurrent) == ("threads", "a graph of a recurrent layer would have every time step")
    assert chosen("bp", on_gpu, replicas=2) == ("threads", "refused: runtime='graph' with replicas=2")
