"""The `graph` runtime: CUDA graphs compute what `simulate` computes, bit for bit."""

from __future__ import annotations

from copy import deepcopy
from functools import partial

import pytest
import torch
from torch import nn

import freewheel as fw
from checkpoints import resume, saved_at
from freewheel._seeds import seed_of
from freewheel.runtime._drawn import AHEAD, SeedTable
from rows import OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from spread import needs_cuda

FAMILIES = ("chain", "aligned", "local", "feedback", "forward")
CREDITS = {row: fw.plan(row.make(3), k=3).schedule.credit for row in ROWS}
CAPTURED = [
    row for row, credit in CREDITS.items() if credit.name in FAMILIES and row.name not in ("dgl-replay", "fgd-dp")
]
REFUSED = [row for row in ROWS if row not in CAPTURED and row.name != "fgd-dp"]
COSINE = partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=60)
BOTH = ("simulate", "graph")


EVEN = [*batches(29, small=9), *batches(1, size=6)]  # so even that launches are repeated, but for the last batch


def trained(method, runtime, stages=None, loader=None, epochs=2, **options):
    stages = [stage.cuda() for stage in stages or network(3)]
    made = trainer(stages, method, runtime=runtime, **{"scheduler": COSINE, **options})
    history = made.fit(loader or EVEN, epochs=epochs, validate=batches(3) if loader is None else None)
    return tensors(*stages), history.losses, history.metrics


def assert_same(wanted, found):
    assert same_bits(wanted[0], found[0])
    assert wanted[1:] == found[1:]


@pytest.fixture
def replays(monkeypatch):
    """Counts the replays of graphs."""
    replay, counted = torch.cuda.CUDAGraph.replay, []
    monkeypatch.setattr(torch.cuda.CUDAGraph, "replay", lambda graph: counted.append(graph) or replay(graph))
    return counted


@needs_cuda
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("row", CAPTURED, ids=str)
def test_graph_equals_simulate_bit_for_bit(row, optimizer, replays):
    assert_same(*(trained(row.make(3), runtime, optimizer=OPTIMIZERS[optimizer]) for runtime in BOTH))
    assert len(replays) > 1.5 * 3 * 60  # of 3 stages and 60 batches, more than one computation each


@needs_cuda
@pytest.mark.parametrize(
    "optimizer",
    [
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, dampening=0.3),
        partial(torch.optim.SGD, lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-3),
        partial(torch.optim.SGD, lr=0.01, maximize=True),
        partial(torch.optim.AdamW, lr=0.01, weight_decay=0.1, amsgrad=True),
        partial(torch.optim.Adam, lr=0.01, betas=(0.5, 0.9), foreach=False),
        partial(torch.optim.RMSprop, lr=0.01, momentum=0.5),
    ],
    ids=["dampening", "nesterov", "maximize", "amsgrad", "one-by-one", "rmsprop"],
)
def test_every_form_of_an_optimizer(optimizer):
    assert_same(*(trained("fdg", runtime, optimizer=optimizer) for runtime in BOTH))


@needs_cuda
@pytest.mark.parametrize(
    "options",
    [
        {"scheduler": partial(torch.optim.lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=100)},  # moves the momentum
        {"scheduler": partial(torch.optim.lr_scheduler.StepLR, step_size=1), "scheduler_every": "epoch"},
        {"clip": 0.1},
        {"accumulate": 2},
        {"autocast": torch.bfloat16},
        {"slack": 2},
    ],
    ids=str,
)
@pytest.mark.parametrize("method", ["pipedream", "dsp"])
def test_options(method, options):
    assert_same(*(trained(method, runtime, **options) for runtime in BOTH))


@needs_cuda
def test_clipping_by_the_global_norm():
    assert_same(*(trained(fw.GPipe(micro=3), runtime, clip=0.1, clip_scope="global") for runtime in BOTH))


@needs_cuda
@pytest.mark.parametrize("method", ["pipedream", "fdg", "fr", "dgl"])
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_convolutions(method, layout):
    def stages():
        torch.manual_seed(0)
        net = fw.models.build("resnet-20", num_classes=10).to(memory_format=layout)
        return list(fw.split(net, 3, by="parameters"))

    g = torch.Generator().manual_seed(1)
    loader = [(torch.randn(8, 3, 32, 32, generator=g), torch.randint(10, (8,), generator=g)) for _ in range(8)]
    loader = [(x.to(memory_format=layout), y) for x, y in loader]
    assert_same(*(trained(method, runtime, stages(), loader, epochs=1) for runtime in BOTH))


@needs_cuda
@pytest.mark.parametrize("device", ["cpu", "cuda", "pinned"])
def test_a_loader_that_fills_one_buffer(device):
    class Refills:
        def __iter__(self):
            x, y = torch.empty(9, 6), torch.empty(9, dtype=torch.long)
            x, y = (x.pin_memory(), y.pin_memory()) if device == "pinned" else (x.to(device), y.to(device))
            for a, b in batches(25, small=9):
                x.copy_(a), y.copy_(b)
                yield x, y

    wanted = trained("pipedream", "simulate", loader=batches(25, small=9))
    assert_same(wanted, trained("pipedream", "graph", loader=Refills()))


@needs_cuda
@pytest.mark.parametrize("method", ["pipedream", "dsp", "pipemare"])
@pytest.mark.parametrize(("first", "second"), [("graph", "graph"), ("graph", "simulate"), ("simulate", "graph")])
def test_save_and_resume_across_runtimes(method, first, second, tmp_path):
    def stages(seed=0):
        return [stage.cuda() for stage in network(3, seed)]

    begun = trainer(stages(), method, runtime=first, scheduler=COSINE)
    begun.fit(batches(30), epochs=2, save_to=tmp_path, save_every=11)
    path = next(iter(saved_at(tmp_path).values()))
    again = resume(path, stages(77), method, runtime=second, scheduler=COSINE)
    again.fit(batches(30), epochs=2)
    wanted = trained(method, "simulate", loader=batches(30))[0]
    assert same_bits(wanted, tensors(*begun.stages))
    assert same_bits(wanted, tensors(*again.stages))


@needs_cuda
def test_modules_may_change_between_fits():
    results = []
    for runtime in BOTH:
        stages = [stage.cuda() for stage in network(3)]
        made = trainer(stages, "pipedream", runtime=runtime)
        made.fit(batches(10))
        stages[0][0][3].p = 0.6  # a dropout
        made.fit(batches(10))
        stages[2][0].requires_grad_(False)
        made.fit(batches(10))
        results.append(tensors(*stages))
    assert same_bits(*results)


@needs_cuda
@pytest.mark.parametrize("row", CAPTURED, ids=str)
def test_a_second_fit_begins_anew(row):
    results = []
    for runtime in BOTH:
        stages = [stage.cuda() for stage in network(3)]
        made = trainer(stages, row.make(3), runtime=runtime)
        for seed in (1, 2):
            made.fit(batches(10, seed=seed))
        results.append(tensors(*stages))
    assert same_bits(*results)


@needs_cuda
def test_a_module_of_the_user_that_changes_during_a_fit_is_refused():
    class Own(nn.Sequential):
        scale = 1.0

    stages = [Own(stage).cuda() for stage in network(3)]
    with pytest.raises(ValueError, match=r"scale of stages\[1\] has changed during a fit"):
        trainer(stages, "fdg", runtime="graph").fit(
            batches(5), epochs=3, callbacks=[lambda end: setattr(stages[1], "scale", 2.0)]
        )


@needs_cuda
def test_a_copy_of_a_trainer_goes_on_by_itself():
    stages = [stage.cuda() for stage in network(3)]
    made = trainer(stages, "pipedream", runtime="graph")
    made.fit(batches(8))
    copy = deepcopy(made)
    made.fit(batches(8, seed=2))
    copy.fit(batches(8, seed=2))
    assert same_bits(tensors(*made.stages), tensors(*copy.stages))


class Waits(nn.Module):
    def forward(self, x):
        return x * 2 if x.sum().item() > 0 else x


class Counts(nn.Module):
    calls = 0

    def forward(self, x):
        self.calls += 1
        return x * self.calls


@needs_cuda
@pytest.mark.parametrize(
    ("layer", "words"),
    [
        (Waits, r"the forward of stages\[1\] cannot be captured as a CUDA graph .*use runtime='threads'"),
        (Counts, r"1.calls of stages\[1\] changes in forward, which a CUDA graph .*use runtime='threads'"),
    ],
)
def test_what_cannot_be_captured_is_refused_before_a_weight_changes(layer, words):
    stages = [nn.Linear(6, 4).cuda(), nn.Sequential(nn.Linear(4, 3), layer()).cuda()]
    before = tensors(*stages)
    made = trainer(stages, "pipedream", runtime="graph")
    with pytest.raises(fw.StageError, match=words):
        made.fit(batches(3))
    assert same_bits(before, tensors(*stages))
    torch.cuda.synchronize()
    torch.cuda.empty_cache()  # refused by an allocator that is still in a capture
    torch.randn(3, device="cuda")  # and by a generator


@needs_cuda
def test_the_memory_of_graphs_is_given_back_after_a_fit():
    made = trainer([nn.Linear(6, 2**12).cuda(), nn.Linear(2**12, 3).cuda()], "fdg", runtime="graph")
    data = [(torch.randn(2**12, 6), torch.randint(3, (2**12,))) for _ in range(8)]
    torch.cuda.reset_peak_memory_stats()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_reserved()
    made.fit(data, epochs=2)
    assert torch.cuda.max_memory_reserved() > before + (200 << 20)
    assert torch.cuda.memory_reserved() < before + (60 << 20)


@needs_cuda
def test_sparse_gradients_are_not_captured():
    def stages():
        torch.manual_seed(0)
        return [nn.Embedding(20, 6, sparse=True), nn.Sequential(nn.Flatten(), nn.Linear(18, 3))]

    g = torch.Generator().manual_seed(1)
    loader = [(torch.randint(20, (5, 3), generator=g), torch.randint(3, (5,), generator=g)) for _ in range(12)]
    sgd = partial(torch.optim.SGD, lr=0.1)
    assert_same(*(trained("pipedream", runtime, stages(), loader, optimizer=sgd) for runtime in BOTH))


@pytest.mark.parametrize("row", REFUSED, ids=str)
def test_what_it_does_not_take_is_refused_by_name(row):
    credit = CREDITS[row]
    with pytest.raises(ValueError, match=r"runtime='graph'.*use runtime='threads'"):
        credit.check_captured(fw.plan(row.make(3), k=3).schedule)


@needs_cuda
@pytest.mark.parametrize(
    "method",
    [
        fw.AsyncFGD(scale=lambda epoch: {"*.bias": 0.1 * epoch, "*": 0.2}),
        fw.AsyncFGD(scale=0.1, direction=lambda batch, stage, named: {n: w.cos() + batch for n, w in named.items()}),
        fw.AsyncFGD(scale=0.1, tangents=3, distribution="rademacher"),
        fw.Pipeline(credit=fw.Forward(scale=0.1, each="micro"), delays=(2, 1, 0), micro=2),
        fw.FGDSync(scale=0.1, micro=2, checkpoint=False),
    ],
    ids=["scale", "direction", "rademacher", "each", "kept"],
)
def test_options_of_forward_gradients(method):
    assert_same(*(trained(method, runtime, epochs=3) for runtime in BOTH))


@needs_cuda
@pytest.mark.parametrize("perturb", ["weights", "activations"])
def test_weights_that_are_used_twice_have_one_tangent(perturb):
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(6, 6)

        def forward(self, x):
            return self.layer(torch.relu(self.layer(x)))

    def stages():
        torch.manual_seed(0)
        return [Twice(), nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 3))]

    method = fw.AsyncFGD(scale=0.1, perturb=perturb)
    assert_same(*(trained(method, runtime, stages(), batches(12)) for runtime in BOTH))


def test_seeds_are_those_of_each_batch():
    key, table = (7, 1, 0, 3), SeedTable(torch.device("cpu"), every=3)
    numbers = [*range(1, 1 + 3 * 2 * AHEAD, 3), 2000, 2003, 2009, 4]  # some batches of the slot were not replayed
    for batch in numbers:
        table.fill(batch, key)
        table.take()
        assert table.seed.item() == seed_of(7, 1, batch, 3)


def test_it_needs_a_gpu():
    with pytest.raises(ValueError, match=r"runtime='graph' with stages on cpu: it needs all stages on one CUDA device"):
        trainer(network(2), "pipedream", runtime="graph").fit(batches(3))


@needs_cuda
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "method",
    [fw.AsyncFGD(scale=0.1), fw.FGDSync(micro=2), fw.AsyncFGD(scale=0.1, tangents=2)],  # the last is not compiled
    ids=["asyncfgd", "micro", "tangents"],
)
def test_tangents_drawn_inside_kernels(method, optimizer, replays):
    def stages():
        torch.manual_seed(0)
        return [
            nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()),
            nn.Sequential(nn.Linear(8, 8), nn.ReLU()),
            nn.Linear(8, 3),
        ]

    loader = [*batches(11), *batches(1, size=4)]
    options = {"optimizer": OPTIMIZERS[optimizer], "epochs": 3, "compile": True}
    assert_same(*(trained(method, runtime, stages(), loader, **options) for runtime in BOTH))
    assert len(replays) > 1.5 * 3 * 30
