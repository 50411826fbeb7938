"""Stages on GPUs: the same promise, on the same device."""

from __future__ import annotations

import re

import pytest
import torch
from torch import nn

import freewheel as fw
from freewheel.runtime import _threads
from freewheel.runtime._channels import Channel
from freewheel.runtime._peer import PeerChannel
from freewheel.split import _clock
from freewheel.stage import SeededDraws
from rows import LOCAL, ROWS, batches, network, same_bits, tensors, trainer
from spread import needs_cuda
from test_torchrun import HERE, torchrun

pytestmark = needs_cuda


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_threads_equal_simulate_on_one_gpu(row):
    results = []
    for runtime in ("simulate", "threads"):
        stages = [stage.cuda() for stage in network(3)]
        history = trainer(stages, row.make(3), runtime=runtime).fit(batches(), epochs=2, validate=batches(3))
        results.append((tensors(*stages), history.losses, history.metrics))
        assert [epoch.busy for epoch in history.epochs] == [(), ()], "the host only launches"
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_processes_equal_simulate_on_one_gpu(row):
    results = []
    for runtime in ("simulate", "processes"):
        stages = [stage.cuda() for stage in network(2)]
        history = trainer(stages, row.make(2), runtime=runtime).fit(batches(8), epochs=2)
        results.append((tensors(*stages), history.losses))
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1] == results[1][1]


def test_nccl_carries_the_same_bits():
    """On a single GPU too, since every process says that it is on a host of its own."""
    rows = ["pipedream", "gpipe", "asyncfgd", "fdg"]
    done = torchrun("--nproc-per-node=2", str(HERE / "torchrun_rows.py"), "nccl", "12", *rows)
    assert sorted(re.findall(r"rank \d(?: done|: .*)", done.stdout)) == ["rank 0 done", "rank 1 done"], done.stdout[
        -3000:
    ]


class Noisy(nn.Module):
    """Draws on the current GPU, by its name alone, and drops out on that of its input."""

    def forward(self, x):
        return nn.functional.dropout(x, 0.5) + torch.rand(x.shape, device="cuda")


def test_a_gpu_by_name_and_by_number_is_the_same():
    results = []
    for runtime in (*LOCAL, "graph"):
        for device in ("cuda", "cuda:0", 0, torch.device("cuda")):
            stages = [nn.Sequential(stage, nn.Dropout(0.1)).to(device) for stage in network(2)]
            made = trainer(stages, "pipedream", runtime=runtime)
            made.fit(batches(8), validate=batches(2))
            results.append(tensors(*stages))
    assert all(same_bits(results[0], each) for each in results[1:])


def test_draws_by_the_name_of_a_gpu_follow_those_by_its_number():
    def drawn(*devices):
        with SeededDraws(1, 2, 3):
            return [torch.rand(64, device=device) for device in devices]

    first, second = drawn("cuda:0", "cuda")
    assert not torch.equal(first, second)
    assert same_bits([first, second], drawn("cuda", 0))


def test_a_stage_may_draw_by_the_name_of_its_gpu():
    results = []
    for runtime in (*LOCAL, "graph"):
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Linear(6, 64), Noisy()).cuda(), nn.Linear(64, 3).cuda()]
        trainer(stages, "pipedream", runtime=runtime).fit(batches(12))
        results.append(tensors(*stages))
    assert all(same_bits(results[0], each) for each in results[1:])


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs here")
@pytest.mark.parametrize("row", ROWS, ids=str)
def test_every_runtime_trains_alike_on_several_gpus(row):
    """One stage on each GPU; messages travel from GPU to GPU, and between processes through NCCL."""
    count, results = torch.cuda.device_count(), []
    for runtime in (*LOCAL, "processes"):
        stages = [stage.to(f"cuda:{i % count}") for i, stage in enumerate(network(2))]
        history = trainer(stages, row.make(2), runtime=runtime).fit(batches(8), epochs=2, validate=batches(2))
        results.append(([t.cpu() for t in tensors(*stages)], history.losses, history.metrics))
        assert torch.cuda.current_device() == 0
    for other in results[1:]:
        assert same_bits(results[0][0], other[0])
        assert results[0][1:] == other[1:]


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="no two GPUs here")
@pytest.mark.parametrize("runtime", [*LOCAL, "graph", "processes"])
def test_a_gpu_other_than_the_first(runtime):
    results = []
    for device in ("cuda:0", "cuda:1"):
        stages = [nn.Sequential(stage, Noisy()).to(device) for stage in network(2)]
        trainer(stages, "pipedream", runtime=runtime if device == "cuda:1" else "simulate").fit(batches(8))
        results.append([t.cpu() for t in tensors(*stages)])
        assert torch.cuda.current_device() == 0
    assert same_bits(*results)


def peers(stages, wire):
    gpu = stages[0].device
    return PeerChannel(wire.capacity, gpu, gpu) if wire.joins_stages else Channel(wire.capacity)


@pytest.mark.parametrize("row", ROWS, ids=str)
def test_messages_copied_on_streams_of_their_own_carry_the_same_bits(row, monkeypatch):
    """The channels of several GPUs, from one GPU to itself."""
    monkeypatch.setattr(_threads, "channel_between", peers)
    results = []
    for runtime in LOCAL:
        stages = [stage.cuda() for stage in network(3)]
        history = trainer(stages, row.make(3), runtime=runtime).fit(batches(), epochs=2, validate=batches(3))
        results.append((tensors(*stages), history.losses, history.metrics))
    assert same_bits(results[0][0], results[1][0])
    assert results[0][1:] == results[1][1:]


@pytest.mark.parametrize("method", ["pipedream", "dsp"])
def test_large_messages_copied_on_streams_of_their_own(method, monkeypatch):
    """Copies take longer than launches: without their events, a stage would read or overwrite them too early."""
    monkeypatch.setattr(_threads, "channel_between", peers)
    g, results = torch.Generator().manual_seed(1), []
    loader = [(torch.randn(512, 16, generator=g), torch.randint(3, (512,), generator=g)) for _ in range(20)]
    for runtime in LOCAL:
        torch.manual_seed(0)
        stages = [nn.Linear(16, 4096).cuda(), nn.Sequential(nn.ReLU(), nn.Linear(4096, 3)).cuda()]
        trainer(stages, method, runtime=runtime).fit(loader)
        results.append(tensors(*stages))
    assert same_bits(*results)


def test_stages_may_sit_on_different_devices():
    devices = [f"cuda:{i % torch.cuda.device_count()}" for i in range(2)] + ["cpu"]
    for runtime in LOCAL:
        stages = [stage.to(device) for stage, device in zip(network(3), devices)]
        made = trainer(stages, "pipedream", runtime=runtime)
        made.fit(batches(8))
        assert made.evaluate(batches(2)).samples == 18


def test_autocast_and_convolutions_on_a_gpu():
    for runtime in LOCAL:
        stages = [nn.Conv2d(3, 8, 3).cuda(), nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 3)).cuda()]
        loader = [(torch.randn(4, 3, 8, 8), torch.randint(3, (4,))) for _ in range(6)]
        trainer(stages, "fdg", runtime=runtime, autocast=torch.bfloat16).fit(loader)


class Attention(nn.Module):
    """A fused kernel, which has no forward derivative of its own."""

    def forward(self, x):
        return nn.functional.scaled_dot_product_attention(x, x, x, is_causal=True)


class First(nn.Module):
    """A recurrent layer's outputs."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, x):
        return self.layer(x)[0]


@pytest.mark.parametrize(
    "layer",
    [
        lambda: First(nn.LSTM(6, 6, num_layers=2, batch_first=True)),
        lambda: First(nn.GRU(6, 6, bidirectional=True, batch_first=True)),
        lambda: First(nn.RNN(6, 6, batch_first=True)),
        lambda: nn.Sequential(nn.Linear(6, 6), Attention()),
        lambda: nn.TransformerEncoderLayer(6, 2, 12, dropout=0.0, batch_first=True),
        lambda: nn.Sequential(nn.Conv1d(5, 5, 3, padding=1), nn.BatchNorm1d(5), nn.GroupNorm(5, 5)),
    ],
    ids=["lstm", "gru", "rnn", "attention", "transformer", "norms"],
)
def test_a_forward_gradient_on_a_gpu_is_the_derivative_of_reverse_mode(layer):
    torch.manual_seed(0)
    module = nn.Sequential(layer(), nn.Flatten(), nn.LazyLinear(3)).double().cuda()
    x, y = torch.randn(4, 5, 6, dtype=torch.float64), torch.randint(3, (4,))
    module(x.cuda())
    given = {name: torch.randn_like(p) for name, p in module.named_parameters()}
    with torch.backends.cudnn.flags(enabled=False):
        loss = nn.functional.cross_entropy(module(x.cuda()), y.cuda())
        true = torch.autograd.grad(loss, list(module.parameters()))
    d = sum((g * given[name]).sum() for (name, _), g in zip(module.named_parameters(), true))
    before = [p.detach().clone() for p in module.parameters()]
    step = torch.optim.SGD
    method = fw.FGD(direction=lambda batch, stage, params: given)
    trainer([module], method, optimizer=lambda params: step(params, lr=1.0)).fit([(x, y)])
    for old, (name, new) in zip(before, module.named_parameters()):
        torch.testing.assert_close(old - new, d * given[name], rtol=1e-9, atol=1e-9)


@pytest.mark.filterwarnings("ignore::UserWarning")  # Inductor gives advice on speed
def test_compiled_dual_passes_on_a_gpu(monkeypatch):
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    results = []  # of tangents that are not drawn inside kernels, which would be others than those of eager execution
    for compiled, runtime in ((False, "simulate"), (True, "simulate"), (True, "threads")):
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU()).cuda()]
        stages.append(nn.Sequential(nn.Flatten(), nn.Linear(8 * 36, 3)).cuda())
        g = torch.Generator().manual_seed(1)
        loader = [(torch.randn(4, 3, 8, 8, generator=g), torch.randint(3, (4,), generator=g)) for _ in range(6)]
        method = fw.AsyncFGD(scale=0.01, distribution="sphere")
        trainer(stages, method, runtime=runtime, compile=compiled).fit(loader)
        results.append(tensors(*stages))
    assert same_bits(results[1], results[2])
    for eager, compiled in zip(results[0], results[1]):
        torch.testing.assert_close(eager, compiled, rtol=1e-3, atol=1e-4)


def test_rademacher_tangents_agree_between_cpu_and_gpu():
    from freewheel.tangents import Drawer
    from freewheel.tangents.distributions.rademacher import Rademacher

    here, there = (Drawer(Rademacher(), torch.device(d)).draw((3, 1, 4), torch.zeros(5, 7)) for d in ("cpu", "cuda"))
    assert there.device.type == "cuda"
    assert torch.equal(here, there.cpu())


@pytest.mark.parametrize("runtime", LOCAL)
def test_stragglers_change_nothing_on_a_gpu(runtime):
    results = []
    for slow in ({}, {0: (0.5, 1.0), 2: (1.0, 0.5)}):
        stages = [stage.cuda() for stage in network(3)]
        trainer(stages, "dsp", runtime=runtime, slow=slow).fit(batches(12))
        results.append(tensors(*stages))
    assert same_bits(*results)


@pytest.mark.parametrize("by", ["time", "forward"])
def test_layers_are_measured_in_a_graph(by, monkeypatch):
    def never(*arguments):
        raise AssertionError(arguments)

    monkeypatch.setattr(_clock, "_repeated", never)
    example = torch.randn(4, 3, 9, 9, device="cuda")
    model = nn.Sequential(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Conv2d(8, 4, 3)).cuda()
    report = fw.split(model, 2, example=example, by=by).report
    assert report.unit == "s"
    assert min(report.unit_costs) > 0
    torch.randn(3, device="cuda")


def test_a_race_of_devices_is_repeatable_under_simulate_and_timed_on_threads():
    """With one GPU both copies are there, else on two."""
    found = []
    for runtime in ("simulate", "simulate", "threads"):
        model = nn.Sequential(*network(2)).to("cuda")
        history = trainer([model], fw.AsyncLU(devices=2), runtime=runtime).fit(batches(12))
        found.append((tensors(model), history.epochs[0].race))
    assert same_bits(found[0][0], found[1][0])
    assert found[0][1] == found[1][1]
    assert all(tensor.isfinite().all() for tensor in found[2][0])
    assert found[2][1].unit == "s"
    assert min(found[2][1].forward, found[2][1].backward, found[2][1].sending) > 0
