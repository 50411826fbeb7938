"""What a stage keeps, frees and leaves alone."""

from __future__ import annotations

import gc
import subprocess
import sys
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import freewheel as fw
from rows import LOCAL, ROWS, batches, network, same_bits, tensors, trainer


def test_old_versions_and_graphs_are_freed_as_soon_as_nothing_needs_them():
    """At every moment no more weights and graphs are held than the plan's memory table says."""
    for row in ROWS:
        made = trainer(network(4), row.make(4))
        if made.plan.schedule.credit.name == "forward":
            continue
        allowed = made.plan.memory()
        most = [[0, 0, 0] for _ in allowed]
        for stage, seen in zip(made._stages, most):
            verbs = {name: getattr(stage, name) for name in ("forward", "recompute", "backward", "update")}

            def watch(verb, stage=stage, seen=seen):
                def wrapped(*args, **kwargs):
                    out = verb(*args, **kwargs)
                    held = (len(stage._stored), len(stage._graphs), stage.weights.copies)
                    seen[:] = map(max, seen, held)
                    return out

                return wrapped

            for name, verb in verbs.items():
                setattr(stage, name, watch(verb))
        made.fit(batches(20))
        assert [tuple(seen) for seen in most] == [tuple(m) for m in allowed], row


def test_forward_gradients_keep_seeds_alone():
    """A batch leaves no tensor behind until its update, unless tangents are kept: then those of m + 1 batches."""
    for checkpoint, expected in ((True, (0, 0, 0)), (False, (3, 2, 1))):
        stages = [nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)]
        made = trainer(stages, fw.AsyncFGD(scale=0.1, checkpoint=checkpoint))
        most = [0, 0, 0]
        for stage in made._stages:

            def forward(*args, verb=stage.forward, stage=stage, most=most):
                out = verb(*args)
                sets = [
                    held for pending in stage._batches.values() for held in pending.passed.tangents.values() if held
                ]
                most[stage.index] = max(most[stage.index], len(sets))
                return out

            stage.forward = forward
        made.fit(batches(9))
        assert tuple(most) == expected


def test_nothing_of_a_run_outlives_it():
    """What is left of a weight is the weight, its momentum, and what a correction remembers between updates."""

    def held():
        gc.collect()
        return sum(issubclass(type(o), torch.Tensor) and o.shape == (37, 6) for o in gc.get_objects())

    gc.collect()
    gc.freeze()  # what was there before is not looked at again and again
    try:
        for row in ROWS:
            before = held()
            made = trainer([nn.Linear(6, 37), nn.Linear(37, 6), nn.Linear(6, 3)], row.make(3))
            made.fit(batches(9))
            remembers = 2 if row.name == "pipemare" else 0
            assert held() - before == 2 + remembers, row
            del made
    finally:
        gc.unfreeze()


def test_a_graph_is_never_edited_behind_autograds_back():
    """The version check that would catch an in-place edit of a saved weight stays on, and has nothing to say."""
    for row in ROWS:
        trainer([nn.Linear(6, 6), nn.Linear(6, 6), nn.Linear(6, 3)], row.make(3)).fit(batches(12))


def test_frozen_parameters_and_parameterless_stages():
    stages = [nn.Flatten(), nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3), nn.Identity()]
    stages[1].bias.requires_grad_(False)
    for p in stages[3].parameters():
        p.requires_grad_(False)
    before = tensors(*stages)
    for row in ROWS:
        for runtime in LOCAL:
            made = trainer(stages, row.make(5), runtime=runtime)
            made.fit(batches(6))
            assert [o is None for o in made.optimizers] == [True, False, True, True, True]
    after = tensors(*stages)
    assert not torch.equal(before[0], after[0])
    assert same_bits(before[1:], after[1:])


def test_an_integer_input_goes_through():
    stages = [nn.Embedding(10, 6), nn.Flatten(), nn.Linear(12, 3)]
    loader = [(torch.randint(10, (4, 2)), torch.randint(3, (4,))) for _ in range(6)]
    for row in ROWS:
        trainer(stages, row.make(3), runtime="threads").fit(loader)


def test_a_passenger_goes_through_untouched_stages():
    """A stage may ignore part of its input, or return its input itself."""

    class Skip(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            x, skip = x if isinstance(x, tuple) else (x, x)
            return self.linear(x), skip

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, pair):
            return self.linear(pair[0] + pair[1])

    for row in ROWS:
        if row.make(3).pipeline(3).credit.name == "feedback":
            continue  # for plain stacks alone
        for runtime in LOCAL:
            trainer([Skip(), Skip(), Last()], row.make(3), runtime=runtime).fit(batches(6))


def test_whole_numbers_travel_beside_what_is_learned():
    """Gradients come for floating-point tensors alone, and find theirs wherever whole numbers stand before them."""

    class Beside(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)

        def forward(self, x):
            ids, x = x if isinstance(x, tuple) else (torch.arange(len(x)), x)
            return ids, self.linear(x)

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 3)

        def forward(self, pair):
            return self.linear(pair[1]) + pair[0][:, None] * 0.1

    for row in ROWS:
        if row.make(3).pipeline(3).credit.name == "feedback":
            continue  # for plain stacks alone
        stages = [Beside(), Beside(), Last()]
        before = tensors(*stages)
        trainer(stages, row.make(3), runtime="threads").fit(batches(9))
        pairs = zip(before, tensors(*stages))  # a norm that follows, in a head, takes a bias away
        assert not any(torch.equal(a, b) for a, b in pairs if a.dim() > 1), row


def test_running_statistics_count_every_batch_once():
    for row in ROWS:
        if row.make(3).pipeline(3).micro > 1:
            continue
        stages = network(3)
        trainer(stages, row.make(3)).fit(batches(10))
        norms = [m for s in stages for m in s.modules() if isinstance(m, nn.BatchNorm1d)]
        assert [int(m.num_batches_tracked) for m in norms] == [10, 10], row


def test_parameter_groups_and_a_scheduler_step_per_update():
    def grouped(parameters):
        matrices = [p for p in parameters if p.dim() > 1]
        vectors = [p for p in parameters if p.dim() <= 1]
        return torch.optim.SGD([{"params": matrices, "lr": 0.1}, {"params": vectors, "lr": 0.2, "momentum": 0.5}], lr=1)

    made = trainer(
        network(3), "pipedream", optimizer=grouped, scheduler=partial(torch.optim.lr_scheduler.StepLR, step_size=4)
    )
    made.fit(batches(9))
    for optimizer in made.optimizers:
        assert [g["lr"] for g in optimizer.param_groups] == pytest.approx([0.001, 0.002])


def test_a_dict_of_factories_by_stage():
    sgd, adam = partial(torch.optim.SGD, lr=0.1), partial(torch.optim.Adam, lr=0.1)
    made = trainer([nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 3)], "pipedream", optimizer={0: sgd, 2: adam})
    made.fit(batches(3))
    assert [type(o).__name__ for o in made.optimizers] == ["SGD", "NoneType", "Adam"]


def test_clipping_by_stage_limits_each_stage():
    stages = [nn.Linear(6, 6), nn.Linear(6, 3)]
    before = tensors(*stages)
    sgd = partial(torch.optim.SGD, lr=1.0)
    trainer(stages, "pipedream", optimizer=sgd, clip=1e-3).fit(batches(1))
    after = tensors(*stages)
    for k in (0, 2):
        step = torch.cat([(a - b).flatten() for a, b in zip(after[k : k + 2], before[k : k + 2])]).norm()
        assert step.item() == pytest.approx(1e-3, rel=1e-2)


@pytest.mark.usefixtures("cpu_bfloat16")
@pytest.mark.parametrize(
    "name",
    ["bp", "ddg", "fr", "pipedream", "fdg", "dsp", "gpipe", "dgl", "dni", "fa", "sdfa", fw.AsyncFGD(scale=0.1)],
    ids=str,
)
def test_autocast_runs_in_bfloat16_and_agrees_between_runtimes(name):
    class Note(nn.Module):
        seen = None

        def forward(self, x):
            Note.seen = x.dtype
            return x

    results = []
    for runtime in LOCAL:
        torch.manual_seed(0)
        stages = [nn.Sequential(nn.Linear(6, 16), Note(), nn.ReLU()), nn.Linear(16, 3)]
        trainer(stages, name, runtime=runtime, autocast=torch.bfloat16).fit(batches(12))
        results.append(tensors(*stages))
    assert Note.seen is torch.bfloat16
    assert results[0][0].dtype is torch.float32
    assert same_bits(*results)


@pytest.mark.usefixtures("cpu_bfloat16")
def test_a_race_of_one_worker_equals_bp_in_bfloat16():
    def trained(method):
        stages = network(2)
        trainer(stages, method, autocast=torch.bfloat16).fit(batches(6))
        return tensors(*stages)

    assert same_bits(trained("bp"), trained(fw.Hogwild(workers=1)))
    assert same_bits(trained("bp"), trained(fw.AsyncLU(forward_workers=1, backward_workers=1, queue=0)))


@pytest.mark.usefixtures("cpu_bfloat16")
def test_forward_gradients_in_bfloat16_are_near_those_in_float32():
    def moved(autocast):
        stages = network(3)
        for stage in stages:
            for module in stage.modules():
                module.training = not isinstance(module, nn.Dropout)
        before = tensors(*stages)
        sgd = partial(torch.optim.SGD, lr=1.0)
        trainer(stages, fw.FGD(), autocast=autocast, optimizer=sgd).fit(batches(1))
        return torch.cat([(a - b).flatten() for a, b in zip(tensors(*stages), before)])

    wide, narrow = moved(None), moved(torch.bfloat16)
    assert (wide - narrow).norm() < 0.05 * wide.norm()


def test_random_numbers_belong_to_the_batch_and_the_stage():
    """A stage sees the same dropout masks whatever the method, the runtime and the other stages are."""

    class Masks(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(6, 6)
            self.masks: dict[float, torch.Tensor] = {}

        def forward(self, x):
            out = F.dropout(torch.ones(4, 50), 0.5)
            noise = torch.rand(3) + torch.randn(3) + torch.randint(5, (3,)) + torch.randperm(3)
            key = round(x.sum().item(), 3) if not self.masks else len(self.masks)
            self.masks[key] = torch.cat([out.flatten(), noise])
            return self.linear(x)

    seen = []
    for method in ("bp", "pipedream", "fdg"):
        for runtime in LOCAL:
            stages = [nn.Linear(6, 6), Masks(), nn.Linear(6, 3)]
            trainer(stages, method, runtime=runtime).fit(batches(5))
            seen.append(list(stages[1].masks.values()))
    assert len(seen[0]) == 5
    assert not torch.equal(seen[0][0], seen[0][1])
    assert all(same_bits(seen[0], other) for other in seen[1:])


def test_a_module_that_edits_its_input_gets_a_copy():
    given = batches(6)
    kept = [x.clone() for x, _ in given]
    for row in ROWS:
        trainer([nn.ReLU(inplace=True), nn.Linear(6, 3)], row.make(2)).fit(given)
    assert same_bits(kept, [x for x, _ in given])


@pytest.mark.parametrize("kind", [nn.RNN, nn.GRU, nn.LSTM])
def test_recurrent_stages_learn_late(kind):
    class Layer(nn.Module):
        def __init__(self, inputs) -> None:
            super().__init__()
            self.cell = kind(inputs, 5, batch_first=True)

        def forward(self, x):
            return self.cell(x)[0]

    class Last(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.linear = nn.Linear(5, 3)

        def forward(self, x):
            return self.linear(x[:, -1])

    loader = [(torch.randn(4, 3, 2), torch.randint(3, (4,))) for _ in range(6)]
    for method in ("pipedream", "dsp", "fdg", "pipemare"):
        results = []
        for runtime in LOCAL:
            torch.manual_seed(0)
            stages = [Layer(2), Layer(5), Last()]
            trainer(stages, method, runtime=runtime).fit(loader)
            results.append(tensors(*stages))
        assert same_bits(*results)


def test_threads_that_are_the_first_to_draw_do_not_get_in_each_others_way():
    """In a process of its own: what is registered for random numbers is registered once."""
    program = (
        "import threading, torch\n"
        "from freewheel.stage import SeededDraws\n"
        "barrier, errors = threading.Barrier(8), []\n"
        "def draw():\n"
        "    barrier.wait()\n"
        "    try:\n"
        "        with SeededDraws(1): errors.append(torch.rand(1).item())\n"
        "    except Exception as error: errors.append(error)\n"
        "threads = [threading.Thread(target=draw) for _ in range(8)]\n"
        "[t.start() for t in threads]\n"
        "[t.join() for t in threads]\n"
        "assert len(set(errors)) == 1, errors\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=200)


def test_lazy_modules_are_refused_before_they_get_their_shape():
    trainer = fw.Trainer([nn.LazyLinear(4), nn.Linear(4, 2)], loss=F.cross_entropy, optimizer=torch.optim.SGD)
    with pytest.raises(ValueError, match=r"parameter 'weight' of stages\[0\] has no shape yet \(a lazy module\)"):
        trainer.fit([(torch.zeros(3, 5), torch.zeros(3).long())])


def test_an_edit_of_the_input_that_begins_later_is_refused():
    class Later(nn.Module):
        calls = 0

        def forward(self, x):
            self.calls += 1
            return x.mul_(2) if self.calls > 2 else x * 2

    stages = [nn.Sequential(Later(), nn.Linear(3, 3)), nn.Linear(3, 2)]
    loader = [(torch.ones(4, 3), torch.zeros(4).long()) for _ in range(4)]
    with pytest.raises(fw.StageError, match=r"stages\[0\] changes its input in place in batch 2, but not in the first"):
        trainer(stages, "bp", runtime="simulate").fit(loader)
