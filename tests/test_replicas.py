"""Data-parallel replicas: the averaged gradient by definition, the same bits on every runtime, clear refusals."""

from __future__ import annotations

import os
import re
import signal
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

import freewheel as fw
from freewheel.runtime import LostError, StageError
from freewheel.runtime._replicas import Peers
from reference import SGD, Gradient, Reference, distance
from rows import ROWS, batches, network, same_bits, tensors, trainer
from spread import exhaustive, rarely, spread
from test_torchrun import torchrun

BY_NAME = {row.name: row for row in ROWS}
NAMES = ("bp", "gpipe", "pipedream", "fdg", "dsp", "pipemare", "fgd", "asyncfgd", "fgd-dp", "dgl")
EIGHT = partial(batches, 8, size=21, small=20)  # shards of unequal lengths, none of one sample


def double(*, norm: bool = True, drop: float = 0.0) -> list[nn.Module]:
    """Two stages in float64."""
    torch.manual_seed(0)
    first = [nn.Linear(6, 8), nn.Tanh(), *([nn.BatchNorm1d(8)] if norm else []), *([nn.Dropout(drop)] if drop else [])]
    return [nn.Sequential(*first).double(), nn.Sequential(nn.Linear(8, 3)).double()]


def pairs(count: int = 9, size: int = 11) -> list[tuple[Tensor, Tensor]]:
    """Batches in float64."""
    return [(x.double(), y) for x, y in batches(count, size=size)]


def fitted(stages: list[nn.Module], method: str | fw.Method, data=None, **options) -> list[Tensor]:
    """All tensors after a fit."""
    trainer(stages, method, **options).fit(EIGHT() if data is None else data, epochs=2)
    return tensors(*stages)


# Against the definition. ------------------------------------------------------------------------------------------


class Team(Reference):
    """Replicas by definition: each has its own batches and the team's weights, which learn from the weighted sum."""

    def __init__(self, stages, batches, replicas: int, **options) -> None:
        super().__init__(stages, batches, **options)
        self.parts = [len(y) for _, y in batches]
        split = [list(zip(x.tensor_split(replicas), y.tensor_split(replicas))) for x, y in batches]
        self.members = [Member(stages, [shards[r] for shards in split], **options) for r in range(replicas)]
        for member in self.members:
            member.version = self.version

    def gradient(self, k: int, n: int) -> Gradient:
        total: dict[str, Tensor] = {}
        for member in self.members:
            part = len(member.batches[n][1]) / self.parts[n]
            for name, g in member.gradient(k, n).weights.items():
                total[name] = total.get(name, 0) + part * g
        return Gradient(total, torch.zeros(0))


class Member(Reference):
    """One replica; its `version` is the team's."""


LATE = {
    "bp": (fw.BP(), {"delays": (0, 0)}),
    "pipedream": (fw.PipeDream(), {"delays": (1, 0)}),
    "fdg": (fw.FDG(shrink=0.5), {"delays": (2, 0), "order": "backward", "shrink": 0.5}),
    "dsp": (fw.DSP(p=(1, 0), m=(2, 0)), {"delays": (2, 0), "weights": "recompute"}),
    "pipemare": (fw.PipeMare(anneal=5), {"delays": (1, 0), "weights": "current", "decay": torch.e**-2}),
    "compensated": (
        fw.Pipeline(delays=(2, 2), corrections=[fw.DelayCompensation(0.5)]),
        {"delays": (2, 2), "compensation": 0.5},
    ),
    "accumulated": (fw.Pipeline(delays=(1, 0), corrections=[fw.Accumulate(3)]), {"delays": (1, 0), "every": 3}),
}


@spread(name=LATE, replicas=[2, 3])
def test_weights_are_those_of_the_averaged_gradient(name, replicas):
    method, definition = LATE[name]
    data, stages = pairs(), double()
    trainer(stages, method, replicas=replicas, optimizer=partial(torch.optim.SGD, lr=0.1, momentum=0.9)).fit(data)
    rule, options = SGD(0.1, 0.9), {"loss": F.cross_entropy, **definition}
    assert distance(stages, Team(double(), data, replicas, rule=rule, **options).train()) < 1e-10
    assert distance(stages, Reference(double(), data, rule=rule, **options).train()) > 1e-6  # BatchNorm sees shards


@pytest.mark.parametrize("options", [{}, {"clip": 0.05}, {"clip": 0.05, "clip_scope": "global"}], ids=str)
@pytest.mark.parametrize("method", [fw.BP(), fw.GPipe(micro=2), fw.OneFOneB(micro=3)], ids=lambda m: m.name)
def test_without_batch_norm_and_delay_it_is_the_whole_batch(method, options):
    found, histories = [], []
    for how in ({"method": "bp"}, {"method": method, "replicas": 2}, {"method": method, "replicas": 3}):
        stages = double(norm=False)
        histories.append(trainer(stages, **how, **options).fit(pairs(size=12), epochs=2))
        found.append(tensors(*stages))
    for other, history in zip(found[1:], histories[1:]):
        assert max((a - b).abs().max() for a, b in zip(found[0], other)) < 1e-12
        assert history.losses == pytest.approx(histories[0].losses, abs=1e-12)
        assert [epoch.samples for epoch in history.epochs] == [epoch.samples for epoch in histories[0].epochs]


@pytest.mark.parametrize("replicas", [2, 3])
def test_replicas_have_the_dropout_of_micro_batches(replicas):
    ours, theirs = double(drop=0.3), double(drop=0.3)
    fitted(ours, "bp", pairs(), replicas=replicas)
    fitted(theirs, fw.GPipe(micro=replicas), pairs())
    assert distance(ours, [dict(stage.named_parameters()) for stage in theirs]) < 1e-12


FORWARD = {
    "fgd": (fw.FGD(scale=0.1), (0, 0)),
    "fgd-dp": (fw.FGDDP(scale=0.1), (0, 0)),
    "asyncfgd": (fw.AsyncFGD(scale=0.1), (1, 0)),
}


@spread(name=FORWARD, replicas=[2, 3])
def test_forward_gradients_are_those_of_pieces_with_their_own_tangents(name, replicas):
    method, delays = FORWARD[name]
    pieces = fw.Forward(scale=0.1, each="micro")
    alone = fw.Pipeline(credit=pieces, delays=delays, micro=replicas)
    found = fitted(double(norm=False, drop=0.3), method, pairs(), replicas=replicas)
    wanted = fitted(double(norm=False, drop=0.3), alone, pairs())
    assert max((a - b).abs().max() for a, b in zip(found, wanted)) < 1e-12
    other = fitted(double(norm=False, drop=0.3), method, pairs(), replicas=5 - replicas)
    assert max((a - b).abs().max() for a, b in zip(found, other)) > 1e-6


@pytest.mark.parametrize("tangents", [1, 3])
def test_forward_gradients_exchange_numbers_alone(monkeypatch, tangents):
    sizes = set()

    def put(self, share, real=Peers.put):
        sizes.add(sum(leaf.numel() for leaf in tree_leaves(share) if isinstance(leaf, Tensor)))
        real(self, share)

    monkeypatch.setattr(Peers, "put", put)
    fitted(network(2), fw.AsyncFGD(tangents=tangents, scale=0.1), replicas=3)
    assert sizes == {tangents}


class Gate(nn.Module):
    """Uses its second weight for some inputs only."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.always, self.rarely = (nn.Parameter(torch.randn(6, 3, dtype=torch.float64)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        y = x @ self.always
        return y + x.sin() @ self.rarely if x[0, 0] > 0 else y


def test_a_weight_that_one_replica_alone_uses_is_trained_in_all():
    data, gate, plain = pairs(12, size=8), Gate(), Gate()
    uses = {tuple(bool(part[0, 0] > 0) for part in x.tensor_split(2)) for x, _ in data}
    assert len(uses) == 4  # by none, by either and by both
    fitted([gate], "bp", data, replicas=2, optimizer=partial(torch.optim.SGD, lr=0.1), clip=0.3)
    for x, y in data * 2:
        plain.zero_grad()
        for part, target in zip(x.tensor_split(2), y.tensor_split(2)):
            (F.cross_entropy(plain(part), target) * len(part) / len(x)).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.3)
        with torch.no_grad():
            for weight in plain.parameters():
                weight -= 0 if weight.grad is None else 0.1 * weight.grad
    assert max((a - b).abs().max() for a, b in zip(tensors(gate), tensors(plain))) < 1e-10


def test_statistics_are_those_of_the_first_replica():
    stages, ((x, y), *_) = double(), pairs()
    expected = double()[0]
    trainer(stages, "bp", replicas=2).fit([(x, y)])
    expected(x.tensor_split(2)[0])
    assert torch.allclose(stages[0][2].running_mean, expected[2].running_mean, atol=1e-15)


def test_every_fit_begins_with_copies_of_the_first_replica():
    data, stages, others = pairs(), double(), double()
    made, fresh = (
        trainer(modules, "pipedream", replicas=2, optimizer=partial(torch.optim.SGD, lr=0.1))
        for modules in (stages, others)
    )
    made.fit(data)
    for stage, start in zip(stages, double()):
        stage.load_state_dict(start.state_dict())  # as a user may, who sees this replica alone
    made.fit(data)
    fresh.fit(data)
    assert same_bits(tensors(*stages), tensors(*others))


# The same bits everywhere. ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "replicas"),
    [
        *((name, 2) for name in NAMES if name != "asyncfgd"),
        rarely("gpipe", 3),
        rarely("fdg", 3),
        rarely("asyncfgd", 2),
        ("asyncfgd", 3),
    ],
)
def test_threads_equal_simulate_bit_for_bit(name, replicas):
    make, slow = BY_NAME[name].make, {0: (0.3, 1.0), 1: (0.3, 1.0)}
    found = fitted(network(2), make(2), replicas=replicas, runtime="threads", slow=slow)
    assert same_bits(found, fitted(network(2), make(2), replicas=replicas))
    assert not same_bits(found, fitted(network(2), make(2)))


@pytest.mark.parametrize("name", ["gpipe", "fdg", "asyncfgd"])
def test_processes_equal_simulate_bit_for_bit(name):
    out = []
    for runtime in ("simulate", "processes"):
        stages = network(2)
        made = trainer(stages, BY_NAME[name].make(2), replicas=2, runtime=runtime, timeout=60)
        history = made.fit(EIGHT(), epochs=2, validate=batches(3, seed=9))
        out.append((tensors(*stages), history.losses, history.metrics, [e.samples for e in history.epochs]))
    assert same_bits(out[0][0], out[1][0])
    assert out[0][1:] == out[1][1:]


SCRIPT = """
import os
import torch
import torch.distributed as dist
import freewheel as fw
from rows import batches, network, same_bits, tensors, trainer

for method in (fw.PipeDream(), fw.FGDDP(scale=0.1)):
    out = []
    for runtime in ("simulate", "torchrun"):
        stages = network(2)
        made = trainer(stages, method, replicas=2, runtime=runtime, transport="gloo", timeout=60)
        history = made.fit(batches(8, size=21, small=20), epochs=2, validate=batches(3, seed=9))
        out.append((tensors(*stages), history.losses, history.metrics))
    if not same_bits(out[0][0], out[1][0]) or out[0][1:] != out[1][1:]:
        print(f"rank {os.environ['RANK']}: {method.name} differs", flush=True)
mesh, rank = made.mesh(), int(os.environ["RANK"])
total = torch.tensor([float(rank)])
dist.all_reduce(total, group=mesh.get_group("replica"))  # ranks 0 and 2 have stage 0, 1 and 3 stage 1
if mesh.mesh_dim_names != ("replica", "stage") or mesh.mesh.tolist() != [[0, 1], [2, 3]] or total != 2 + rank % 2 * 2:
    print(f"rank {rank}: the mesh is {mesh}, and the sum {total}", flush=True)
dist.destroy_process_group()
print(f"rank {os.environ['RANK']} done", flush=True)
"""


@exhaustive
def test_torchrun_equals_simulate_bit_for_bit_and_is_a_mesh(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = torchrun("--nproc-per-node=4", str(script))
    told = sorted(re.findall(r"rank \d(?: done|: .*)", done.stdout))
    assert told == [f"rank {r} done" for r in range(4)], done.stdout[-3000:]


@pytest.mark.parametrize("name", ["gpipe", "dsp", "pipemare", "asyncfgd"])
def test_saved_by_one_runtime_and_taken_up_by_another(tmp_path, name):
    method = BY_NAME[name].make(2)
    expected = fitted(network(2), method, replicas=2)
    saved = trainer(network(2), method, replicas=2, runtime="threads")
    history = saved.fit(EIGHT(), epochs=2, save_to=tmp_path, save_every=6)
    *_, before, end = sorted(os.listdir(tmp_path))
    stages = network(2, seed=5)
    again = trainer(stages, method, make=partial(fw.Trainer.resume, tmp_path / before), replicas=2)
    assert again.unfinished == 2
    assert again.fit(EIGHT(), epochs=2).losses == history.losses
    assert same_bits(tensors(*stages), expected)
    alone = trainer(network(2, seed=5), method, make=partial(fw.Trainer.resume, tmp_path / end))
    assert same_bits(tensors(*alone.stages), expected)


class Centred(nn.Module):
    """Takes a running mean off its input, in training too."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Tensor) -> Tensor:
        mean = self.mean.clone()
        self.mean.lerp_(x.detach().mean(0), 0.1)
        return x - mean


def test_every_replica_takes_up_its_own_buffers(tmp_path):
    first, again = ([nn.Sequential(Centred(), *network(2)[0]), network(2)[1]] for _ in range(2))
    trainer(first, "fdg", replicas=2).fit(EIGHT(), epochs=2, save_to=tmp_path, save_every=6)
    *_, before, _ = sorted(os.listdir(tmp_path))
    trainer(again, "fdg", make=partial(fw.Trainer.resume, tmp_path / before), replicas=2).fit(EIGHT(), epochs=2)
    assert same_bits(tensors(*first), tensors(*again))


def test_batches_in_flight_belong_to_as_many_replicas(tmp_path):
    trainer(network(2), "pipedream", replicas=2).fit(EIGHT(), epochs=2, save_to=tmp_path, save_every=6)
    *_, before, _ = sorted(os.listdir(tmp_path))
    with pytest.raises(ValueError, match=r"replicas=1, but .* has batches in flight that resume only with replicas=2"):
        trainer(network(2), "pipedream", make=partial(fw.Trainer.resume, tmp_path / before))


def test_losses_of_all_replicas_go_on_with_another_number_of_them(tmp_path):
    """A drained checkpoint in the middle of an epoch: the epoch's loss counts every sample once."""
    data = pairs(9, size=12)
    full = trainer(double(norm=False), "bp").fit(data, epochs=1)
    trainer(double(norm=False), "bp", replicas=2).fit(data, epochs=1, save_to=tmp_path, save_every=5)
    *_, before, _ = sorted(os.listdir(tmp_path))
    for replicas in (1, 2, 3):
        again = trainer(double(norm=False), "bp", make=partial(fw.Trainer.resume, tmp_path / before), replicas=replicas)
        found = again.fit(data, epochs=1)
        assert found.losses == pytest.approx(full.losses, abs=1e-12)
        assert found.epochs[0].samples == full.epochs[0].samples


# Plans and errors. ------------------------------------------------------------------------------------------------


def test_a_plan_says_when_replicas_wait_for_each_other():
    plan = trainer(network(2), "pipedream", replicas=3).plan
    assert "replicas=3" in str(plan).splitlines()[0]
    assert fw.Plan.parse(str(plan)) == plan
    assert fw.Plan.parse(plan.text()) == plan
    assert "B0@0 r0> >r0 U0@0" in plan.text().splitlines()[1]
    with pytest.raises(ValueError, match="the contributions of the other replicas have not been received"):
        fw.Plan.parse(plan.text().replace(" r1> >r1", "", 1))
    with pytest.raises(ValueError, match="it waits forever: no r1 comes"):
        fw.Plan.parse(plan.text().replace(" r1> >r1", " >r1", 1))
    with pytest.raises(ValueError, match="there are no other replicas"):
        fw.Plan.parse(plan.text().replace(" replicas=3", "", 1))


class Trouble(nn.Module):
    """Fails where it meets a certain value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1e3:
            raise KeyError("boom")
        return x


@pytest.mark.parametrize(
    ("runtime", "where"), [("simulate", ""), ("threads", ""), ("processes", r" \(rank 2, pid \d+ on \S+\)")]
)
def test_an_error_names_the_replica(runtime, where):
    data = EIGHT()
    data[3][0][-1] = 1e6
    stages = network(2)
    stages[0].insert(0, Trouble())
    text = rf"stage 0, replica 1{where} failed in the forward of batch 3: KeyError: 'boom'"
    with pytest.raises(StageError, match=text) as found:
        trainer(stages, "fdg", replicas=2, runtime=runtime, timeout=60).fit(data)
    assert (found.value.stage, found.value.replica, found.value.batch) == (0, 1, 3)


class Killer(nn.Module):
    """Ends its process where it meets a certain value."""

    def forward(self, x: Tensor) -> Tensor:
        if x.max() > 1e3:
            os.kill(os.getpid(), signal.SIGKILL)
        return x


def test_a_lost_process_is_called_by_its_replica():
    data = EIGHT()
    data[3][0][-1] = 1e6
    stages = network(2)
    stages[0].insert(0, Killer())
    text = r"stage 0, replica 1 \(rank 2, pid \d+ on \S+\) was ended by signal 9"
    with pytest.raises(LostError, match=text):
        trainer(stages, "fdg", replicas=2, runtime="processes", timeout=60).fit(data)


REFUSED = {
    "replicas 0": (lambda: trainer(network(2), "bp", replicas=0), "replicas=0: give 1 or more"),
    "activations": (
        lambda: trainer(network(2), fw.AsyncFGD(perturb="activations"), replicas=2),
        "perturb='activations' with replicas=2",
    ),
    "direction": (
        lambda: trainer(network(2), fw.FGD(direction=lambda n, k, p: p), replicas=2),
        "direction with replicas=2: every replica has its own tangents; leave it out",
    ),
    "steps": (lambda: trainer(network(2), fw.FGD(steps=2), replicas=2), "steps=2 with replicas=2"),
    "fgd-dp": (
        lambda: trainer(network(2), fw.FGDDP(replicas=4), replicas=3),
        "replicas=4 of 'fgd-dp' and replicas=3 of the trainer",
    ),
    "small batch": (
        lambda: trainer(network(2), "bp", replicas=3).fit([(torch.randn(2, 6), torch.zeros(2, dtype=torch.int64))]),
        "replicas=3, but batch 0 has 2 samples: each replica needs one",
    ),
    "no rows": (
        lambda: trainer(network(2), "bp", replicas=2).fit([(torch.randn(4, 6), torch.zeros(3, dtype=torch.int64))]),
        "replicas=2 cuts a batch along its first dimension, but this input is not a tensor of 3 rows",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_sense_is_refused(case):
    make, text = REFUSED[case]
    with pytest.raises(ValueError, match=re.escape(text)):
        make()


def test_one_process_is_no_mesh():
    with pytest.raises(
        RuntimeError, match="mesh with runtime='simulate': only the processes of 'torchrun' form a mesh"
    ):
        trainer(network(2), "bp", replicas=2).mesh()


def test_torchrun_needs_a_process_for_each_stage_of_each_replica(monkeypatch):
    for name, value in (("RANK", "0"), ("WORLD_SIZE", "2"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "1")):
        monkeypatch.setenv(name, value)
    text = "torchrun started 2 processes for 2 stages in each of 3 replicas: each stage needs one, so start 6"
    with pytest.raises(ValueError, match=text):
        trainer(network(2), "bp", replicas=3, runtime="torchrun")
