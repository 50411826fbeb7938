"""The benchmark measures what it says; how fast anything is, is not a matter for tests."""

from __future__ import annotations

from functools import partial

import pytest
import torch
import torch.nn.functional as F

from freewheel.bench import _contenders as contenders, _speed
from freewheel.bench._network import network, stages_of
from freewheel.bench._pipelining import SCHEDULES, pipelining_runs
from freewheel.bench._team import Team, make_batches
from spread import exhaustive

CUT = (30, 50)


def echo(batch_size, cut, rank, port):
    return {"echo": lambda batches: float(len(batches) * batch_size), "fail": lambda batches: 1 / 0}


def test_a_team_answers_and_its_failures_are_told():
    team = Team("echo", echo)
    try:
        assert team.prepare(4, CUT, 7) == ["echo", "fail"]
        assert team.turn("echo", 5) == 20.0
        with pytest.raises(RuntimeError, match=r"a contender of 'echo' failed(.|\n)*ZeroDivisionError"):
            team.turn("fail", 1)
    finally:
        team.stop()
    assert not any(process.is_alive() for process in team._processes)


def test_every_contender_of_one_process_trains():
    batches = make_batches(2, 2)
    for make in (contenders.freewheel_runs, contenders.pytorch_runs):
        for name, turn in make(2, CUT, 0, 0).items():
            assert turn(batches) > 0, name


def gradients_checked(batch_size, cut, rank, port):
    """For each schedule, a turn that returns how far its gradients are from those of plain PyTorch."""

    def distance(scheduled, micro, batches):
        x, target = batches[0]
        scheduled.backward(x, target)
        scheduled.modules.zero_grad()
        scheduled.backward(x, target)  # what is prepared in the first step is used again
        model = network()
        for part, wanted in zip(x.chunk(micro), target.chunk(micro)):
            (F.cross_entropy(model(part), wanted) / micro).backward()
        plain = {name: p.grad for name, p in model.named_parameters()}
        found = {n: p.grad for m in scheduled.modules for n, p in m.stage.named_parameters()}
        assert found
        return max(float((found[name] - plain[name]).norm() / plain[name].norm()) for name in found)

    made = pipelining_runs(batch_size, cut, rank, port)
    return {name: partial(distance, turn, int(name.rpartition("=")[2])) for name, turn in made.items()}


@exhaustive
def test_every_schedule_of_torch_computes_the_gradient():
    """Cut where a shortcut takes every second pixel: gloo sends contiguous tensors alone."""
    team = Team("torch pipelining", gradients_checked, ranks=2)
    try:
        names = team.prepare(8, (33, 47), 1)
        assert {name.rpartition(",")[0] for name in names} == set(SCHEDULES)
        assert {name: team.turn(name, 1) for name in names if team.turn(name, 1) > 1e-4} == {}
    finally:
        team.stop()


def test_the_cut_network_is_the_whole_network():
    model, stages = network(), stages_of(CUT)
    x = torch.randn(3, 3, 32, 32)
    model.eval()
    for stage in stages:
        stage.eval()
    assert torch.equal(stages[1](stages[0](x)), model(x))


def test_by_hand_is_bp():
    """The loop that bookkeeping is measured against does the same training."""
    batches = make_batches(4, 3)
    made = {}
    real = contenders.stages_of
    by_plan = lambda cut: contenders.timed_trainer(contenders.stages_of(cut), "bp", "simulate")  # noqa: E731
    for name, make in (("hand", contenders._by_hand), ("bp", by_plan)):
        kept = []
        contenders.stages_of = lambda cut, kept=kept: kept.append(real(cut)) or kept[0]
        try:
            turn = make(CUT)
        finally:
            contenders.stages_of = real
        turn(batches)
        if name == "hand":  # the trainer's turn has a short pass before and after
            turn(batches)
            turn(batches)
        made[name] = [p.detach() for s in kept[0] for p in s.parameters()]
    assert all(torch.equal(a, b) for a, b in zip(made["hand"], made["bp"]))


def test_ratios_compare_with_the_best_of_each_kind():
    seconds = {
        "freewheel: bp, simulate": 4.0,
        "freewheel: pipedream, simulate": 5.0,
        "freewheel: pipedream, threads": 2.5,
        "freewheel: fdg, threads": 2.0,
        "freewheel: pipedream, processes": 2.0,
        "freewheel: pipedream, threads, traced": 2.525,
        "freewheel: pipedream, processes, traced": 2.04,
        f"freewheel: {contenders.BY_HAND}": 3.9,
        "PyTorch: 1 core": 4.0,
        f"PyTorch: {_speed.cores()} cores": 3.0,
        "freewheel, compiled: pipedream, simulate": 1.8,
        "freewheel, compiled: pipedream, threads": 1.0,
        "freewheel, compiled: pipedream, processes": 1.5,
        "PyTorch, compiled: 1 core": 2.0,
        f"PyTorch, compiled: {_speed.cores()} cores": 1.3,
        "torch pipelining: GPipe, M=2": 8.0,
        "torch pipelining: 1F1B, M=2": 6.0,
    }
    rows = [_speed._row(*name.split(": ", 1), [s], 4) for name, s in seconds.items()]
    over = {"sequential": 2.5, "bp_all_cores": 1.5, "bp_best": 1.5, "torch_pipelining": 3.0}
    assert _speed._ratios(rows) == over
    assert _speed._processes(rows) == 1.25
    assert _speed._compiled(rows) == {"sequential": 1.8, "bp_all_cores": 1.3}
    assert _speed._bookkeeping(rows) == pytest.approx(0.025)
    assert _speed._tracing(rows) == pytest.approx({"threads": 0.01, "processes": 0.02})
