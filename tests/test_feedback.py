"""Fixed random feedback: against hand computations, whatever the cut; what is refused; the angle to the gradient."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import partial
from itertools import combinations, pairwise

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, strategies as st
from torch import Tensor, nn

import freewheel as fw
from by_hand import ByHand
from freewheel.credit.feedback import ERROR
from freewheel.feedback import FeedbackWeights
from freewheel.plan import GRADIENT, Plan, Schedule
from rows import batches, same_bits, tensors, trainer
from spread import spread

METHODS = {"fa": fw.FA, "dfa": fw.DFA, "sdfa": fw.SDFA, "drtp": fw.DRTP}
LR, MOMENTUM = 0.3, 0.5
SGD = partial(torch.optim.SGD, lr=LR, momentum=MOMENTUM)


def mlp() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Linear(6, 7), nn.Tanh(), nn.Linear(7, 5), nn.Tanh(), nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)
    ).double()


def conv() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.Tanh(),
        nn.AvgPool2d(2),
        nn.Conv2d(4, 3, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(12, 3),
    ).double()


NETS = {"mlp": (mlp, (6,)), "conv": (conv, (2, 8, 8))}


def data(shape: Sequence[int], count: int = 6) -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(5)
    return [
        (torch.randn(n, *shape, generator=g).double(), torch.randint(3, (n,), generator=g)) for n in [8, 5, 8] * count
    ][:count]


def stages_of(net: nn.Sequential, cuts: Sequence[int]) -> list[nn.Module]:
    return [net[a:b] for a, b in pairwise((0, *cuts, len(net)))]


def drawn(net: nn.Sequential, name: str, shape: Sequence[int]) -> dict[int, Tensor]:
    """Feedback weights for every layer but the first."""
    g, x, out = torch.Generator().manual_seed(9), torch.zeros(1, *shape).double(), {}
    number = 0
    for layer in net:
        if isinstance(layer, (nn.Linear, nn.Conv2d)):
            size = layer.weight.shape if name == "fa" else (3, *x.shape[1:])
            if number:
                out[number] = torch.randn(*size, generator=g, dtype=torch.float64)
            number += 1
        x = layer(x)
    return out


def delays_of(stages: Sequence[nn.Module], delays: Sequence[int]) -> list[int]:
    weighted = [[m for m in stage.modules() if isinstance(m, (nn.Linear, nn.Conv2d))] for stage in stages]
    return [late for layers, late in zip(weighted, delays) for _ in layers]


def far(net: nn.Module, expected: Sequence[Tensor]) -> float:
    return max((p.detach() - w).abs().max().item() for p, w in zip(net.parameters(), expected, strict=True))


# Cuts in front of layers, and within blocks: behind a layer, behind an activation, around one.
CUTS = {"mlp": [(), (2,), (3,), (2, 4), (1, 6), (3, 4)], "conv": [(), (3,), (2,), (3, 6), (1, 5)]}
CASES = [(net, cuts) for net in NETS for cuts in CUTS[net]]


@spread(least=22, case=CASES, name=METHODS, late=[False, True])
def test_by_hand(case, name, late):
    kind, cuts = case
    make, shape = NETS[kind]
    net = make()
    stages, own = stages_of(net, cuts), drawn(net, name, shape)
    k = len(stages)
    if late and name == "drtp":
        method: fw.Method = fw.Pipeline(credit=fw.Feedback(signal="target", own=own), delays=tuple(range(k))[::-1])
    elif late:
        method = METHODS[name](own=own, pipelined=True)
    else:
        method = METHODS[name](own=own)
    delays = method.pipeline(k).delays
    assert any(delays) == (late and k > 1)
    hand = ByHand(net, name, own, delays_of(stages, delays), LR, MOMENTUM)
    expected = hand.train(data(shape))
    before = tensors(net)
    trainer(stages, method, optimizer=SGD).fit(data(shape))
    assert not same_bits(before, tensors(net))
    assert far(net, expected) < 1e-10


def test_the_hand_computation_is_backpropagation_without_feedback():
    """With the true weights it is what autograd gives: the reference itself can be trusted."""
    for make, shape in NETS.values():
        net = make()
        layers = len([m for m in net if isinstance(m, (nn.Linear, nn.Conv2d))])
        hand = ByHand(net, "bp", {}, [0] * layers, LR, MOMENTUM)
        expected = hand.train(data(shape))
        optimizer = SGD(net.parameters())
        for x, y in data(shape):
            optimizer.zero_grad()
            F.cross_entropy(net(x), y).backward()
            optimizer.step()
        assert far(net, expected) < 1e-10


@pytest.mark.parametrize("kind", NETS)
def test_fa_with_the_true_weights_is_backpropagation(kind):
    make, shape = NETS[kind]
    plain, net = make(), make()
    trainer(stages_of(plain, (2, 4)), "bp", optimizer=SGD).fit(data(shape))
    layers = [m for m in net if isinstance(m, (nn.Linear, nn.Conv2d))]
    own = {number: layer.weight for number, layer in enumerate(layers)}  # the weights themselves, as they change
    trainer(stages_of(net, (2, 4)), fw.FA(own=own), optimizer=SGD).fit(data(shape))
    assert far(net, [p.detach() for p in plain.parameters()]) < 1e-12


def normed() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(
        nn.BatchNorm2d(2),
        nn.Conv2d(2, 4, 3, padding=1, bias=False),
        nn.BatchNorm2d(4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 4, 3, padding=1, groups=2, dilation=1),
        nn.PReLU(4),
        nn.Flatten(),
        nn.Linear(64, 8),
        nn.LayerNorm(8),
        nn.Sequential(nn.GELU(), nn.Linear(8, 3)),
        nn.LogSoftmax(1),
    ).double()


@pytest.mark.parametrize("name", METHODS)
def test_the_cut_changes_nothing(name):
    """The same weights wherever the network is cut, blocks or layers of norms in two stages included."""
    whole = normed()
    trainer([whole], METHODS[name](), optimizer=SGD, loss=F.nll_loss).fit(data((2, 8, 8)))
    expected = [p.detach() for p in whole.parameters()]
    for cuts in [(c,) for c in range(1, len(whole))] + list(combinations(range(1, len(whole)), 2))[::6]:
        net = normed()
        trainer(stages_of(net, cuts), METHODS[name](), optimizer=SGD, loss=F.nll_loss).fit(data((2, 8, 8)))
        assert far(net, expected) < 1e-12, cuts


@pytest.mark.parametrize("weights", ["stash", "recompute", "predict", "current"])
@pytest.mark.parametrize("signal", ["error", "sign", "target"])
def test_feedback_may_be_late_in_any_way(signal, weights):
    """A late stage without a momentum of its own: with a step of zero all of them see the same weights."""
    pipeline = partial(fw.Pipeline, credit=fw.Feedback(signal=signal), order="backward")
    found = []
    for delays in ((0, 0, 0), (3, 3, 1)):
        net = mlp()
        start = tensors(net)
        method = pipeline(delays=delays, weights=weights)
        made = trainer(stages_of(net, (2, 5)), method, optimizer=partial(torch.optim.SGD, lr=1e-9))
        made.fit(data((6,), 5))
        found.append([(a - b) * 1e9 for a, b in zip(tensors(net), start)])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*found))
    assert all(bool(move.abs().max() > 1e-3) for move in found[0])


def test_messages_are_those_that_are_needed():
    def sends(stages: Sequence[nn.Module], method: fw.Method) -> set[str]:
        plan = trainer(stages, method).plan
        return {action.op.channel for actions in plan.streams for action in actions if action.op.is_send}

    whole, cut = (2, 4), (2, 3)
    assert sends(stages_of(mlp(), whole), fw.DFA()) == {"a", "e"}
    assert sends(stages_of(mlp(), cut), fw.DFA()) == {"a", "e", "g"}
    assert sends(stages_of(mlp(), whole), fw.DRTP()) == {"a"}
    assert sends(stages_of(mlp(), cut), fw.DRTP()) == {"a", "g"}
    assert sends([nn.Flatten(), *stages_of(mlp(), whole)], fw.DRTP()) == {
        "a"
    }  # nothing learns in front of the first layer


def test_locks():
    assert fw.plan("fa", k=3).locks == {"forward", "backward", "update"}
    assert fw.plan("dfa", k=3).locks == fw.plan("sdfa", k=3).locks == {"forward", "update"}
    for method in (fw.FA(pipelined=True), fw.DFA(pipelined=True), fw.SDFA(pipelined=True), fw.DRTP()):
        assert fw.plan(method, k=3, batches=14).locks == frozenset()
    assert fw.plan("dfa", k=3, pipelined=True).delays == (2, 1, 0)


def test_an_error_goes_from_the_last_stage_to_all():
    text = fw.plan("dfa", k=3, batches=1).text().splitlines()
    assert text[1:] == [
        "stage 0  F0@0 a0> >e0 B0@0 U0@0",
        "stage 1  >a0 F0@0 a0> >e0 B0@0 U0@0",
        "stage 2  >a0 F0@0 e0> B0@0 U0@0",
    ]
    plan = fw.plan("dfa", k=2, batches=2).text()
    with pytest.raises(fw.PlanError, match="its error has not been received"):
        Plan.parse(plan.replace(">e0 B0@0 U0@0", "B0@0 >e0 U0@0"))
    with pytest.raises(fw.PlanError, match="its forward has not been done"):
        Plan.parse(plan.replace(">a0 F0@0 e0>", ">a0 e0> F0@0"))


@given(
    delays=st.lists(st.integers(0, 4), min_size=1, max_size=4).map(lambda d: tuple(sorted(d, reverse=True))),
    order=st.sampled_from(["forward", "backward"]),
    weights=st.sampled_from(["stash", "recompute", "current", "predict"]),
    taught=st.booleans(),
    joined=st.booleans(),
    norms=st.booleans(),
    batches=st.integers(1, 10),
)
def test_plans_of_feedback_never_get_stuck(delays, order, weights, taught, joined, norms, batches):
    schedule = Schedule(
        credit=fw.Feedback(signal="target" if taught else "error", joined=joined),
        delays=delays,
        order=order,
        weights=weights,
        norms=norms and not any(delays),
    )
    plan = Plan.build(schedule, batches)
    assert Plan.parse(str(plan)) == plan
    ops = [action.op for actions in plan.streams for action in actions]
    assert ops.count(ERROR.send) == (0 if taught or len(delays) == 1 else batches)
    assert ops.count(ERROR.receive) == (0 if taught else batches * (len(delays) - 1))
    assert ops.count(GRADIENT.send) == (batches * (len(delays) - 1) if joined else 0)


@pytest.mark.parametrize("name", METHODS)
def test_replicas_learn_as_one(name):
    """Each from half of a batch; the division by the number of samples is by that of all."""
    alone, shared = mlp(), mlp()
    trainer(stages_of(alone, (2,)), METHODS[name](), optimizer=SGD).fit(data((6,)))
    trainer(stages_of(shared, (2,)), METHODS[name](), optimizer=SGD, replicas=2).fit(data((6,)))
    assert far(shared, [p.detach() for p in alone.parameters()]) < 1e-10


def test_feedback_weights_belong_to_seed_and_layer():
    def of(layer: int, seed: int = 0, bound: float | None = None, dtype: torch.dtype = torch.float64) -> Tensor:
        feedback = fw.Feedback(signal="error", bound=bound)
        return FeedbackWeights(feedback, seed).of(layer, (10, 8, 25), torch.zeros(1, dtype=dtype))

    assert torch.equal(of(1), of(1))
    assert torch.equal(of(1).float(), of(1, dtype=torch.float32))
    for other in (of(2), of(1, seed=1)):
        assert abs(torch.corrcoef(torch.stack([of(1).flatten(), other.flatten()]))[0, 1].item()) < 0.1
    for weights, bound in ((of(1), math.sqrt(6 / 200)), (of(1, bound=0.25), 0.25)):
        # 2000 numbers evenly spread: their largest, mean and variance.
        assert 0.99 * bound < weights.abs().max().item() <= bound
        assert abs(weights.mean().item()) < 4 * bound / math.sqrt(3 * 2000)
        assert weights.var().item() == pytest.approx(bound**2 / 3, rel=0.1)


def test_seeds_change_what_is_learned():
    found = []
    for seed in (0, 0, 1):
        net = mlp()
        trainer([net], "dfa", seed=seed).fit(data((6,)))
        found.append(tensors(net))
    assert same_bits(found[0], found[1])
    assert not same_bits(found[0], found[2])


def test_an_embedding_in_front_learns_too():
    for name, method in METHODS.items():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Linear(12, 5), nn.Tanh(), nn.Linear(5, 3))
        before = net[0].weight.detach().clone()
        trainer([net], method()).fit([(torch.randint(10, (8, 2)), torch.randint(3, (8,)))])
        assert not torch.equal(before, net[0].weight), name


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return x + torch.tanh(self.linear(x))


class Sized(nn.Module):
    """A line, although the tensor is asked for its size."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x):
        x = torch.tanh(self.first(x)).view(x.size(0), 2, 3)
        return self.last(x.reshape(x.shape[0], -1))


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return self.linear(x) if x.sum() > 0 else self.linear(-x)


def test_a_module_that_is_a_line_is_followed():
    torch.manual_seed(0)
    custom, head = Sized(), nn.Linear(6, 3)
    plain = nn.Sequential(nn.Linear(6, 6), nn.Tanh(), nn.Linear(6, 6), nn.Linear(6, 3))
    for ours, theirs in zip([plain[0], plain[2], plain[3]], [custom.first, custom.last, head]):
        ours.load_state_dict(theirs.state_dict())
    trainer([custom, head], "dfa").fit(batches(5))
    trainer([plain], "dfa").fit(batches(5))
    expected = [custom.first.weight, custom.last.weight, head.weight]
    for ours, theirs in zip([plain[0], plain[2], plain[3]], expected):
        assert torch.allclose(ours.weight, theirs, atol=1e-6)


def shared() -> list[nn.Module]:
    layer = nn.Linear(6, 6)
    return [nn.Sequential(layer, nn.Tanh(), layer, nn.Linear(6, 3))]


REFUSED = [
    (
        "dfa",
        lambda: [Residual(), nn.Linear(6, 3)],
        r"stages\[0\] \(Residual\) is not a plain stack of layers: at 'add'",
    ),
    ("drtp", lambda: [nn.Sequential(nn.Linear(6, 6), Residual()), nn.Linear(6, 3)], r"stages\[0\]\.1 \(Residual\)"),
    ("sdfa", lambda: [Branches(), nn.Linear(6, 3)], r"stages\[0\] \(Branches\).* cannot be traced"),
    ("dfa", shared, r"stages\[0\]\.2 shares its weights with stages\[0\]\.0"),
    (
        "fa",
        lambda: [nn.LSTM(6, 6), nn.Linear(6, 3)],
        r"stages\[0\] is a LSTM: feedback supports Linear, Conv2d",
    ),
    ("dfa", lambda: [nn.Linear(6, 6), nn.MultiheadAttention(6, 2)], r"stages\[1\] is a MultiheadAttention"),
    (
        "fa",
        lambda: [nn.Conv2d(1, 1, 3, padding=1, padding_mode="circular")],
        r"stages\[0\] has non-zero or uneven padding",
    ),
    ("fa", lambda: [nn.Conv2d(1, 1, 2, padding="same")], r"stages\[0\] has non-zero or uneven padding"),
    ("dfa", lambda: [nn.BatchNorm1d(6)], "no stage has a Linear or Conv2d layer"),
]


@pytest.mark.parametrize(("name", "make", "words"), REFUSED)
def test_what_has_no_feedback_is_refused_by_name(name, make, words):
    with pytest.raises((TypeError, ValueError), match=words) as caught:
        trainer(make(), name)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("weights", ["stash", "recompute", "current"])
def test_fa_goes_with_any_weights(weights):
    """With a step too small to matter, late gradients are those of the weights at the start, whichever they are."""
    moves = []
    for delays in ((0, 0), (2, 0)):
        net = mlp()
        start = tensors(net)
        method = fw.Pipeline(credit=fw.Aligned(), delays=delays, weights=weights)
        trainer(stages_of(net, (3,)), method, optimizer=partial(torch.optim.SGD, lr=1e-9)).fit(data((6,)))
        moves.append([(a - b) * 1e9 for a, b in zip(tensors(net), start)])
    assert all(torch.allclose(a, b, rtol=1e-4, atol=1e-5) for a, b in zip(*moves))
    assert all(bool(move.abs().max() > 1e-3) for move in moves[0])


def test_fa_takes_any_graph():
    trainer([Residual(), nn.Linear(6, 3)], "fa").fit(batches(3))
    trainer(shared(), "fa").fit(batches(3))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fw.DFA(bound=0), "bound=0: give the largest feedback weight"),
        (lambda: fw.DFA(bound=math.inf), "bound=inf"),
        (lambda: fw.FA(pipelined=1), "pipelined=1: give True or False"),
        (lambda: fw.FA(own=[1]), r"own=\[1\]: give feedback weights by layer number"),
        (lambda: fw.FA(own={-1: torch.zeros(1)}), "own: layer=-1: give 0 or more"),
        (lambda: fw.FA(own={1: 3}), r"own\[1\]=3: give a tensor"),
        (lambda: fw.Feedback(signal="errors"), "signal 'errors'"),
        (
            lambda: fw.Pipeline(credit="feedback", delays=(0,), micro=2),
            "micro=2: credit='feedback' has no micro-batches",
        ),
        (
            lambda: fw.Pipeline(credit="feedback", delays=(0,), corrections=[fw.Shrink(0.5)]),
            "Shrink has no meaning with credit='feedback'",
        ),
    ],
)
def test_bad_arguments_are_refused(make, words):
    with pytest.raises((TypeError, ValueError), match=words):
        make()


def test_what_shows_only_in_training_is_told_by_stage():
    stages = [nn.Linear(6, 5), nn.Linear(5, 3)]
    own = {1: torch.zeros(4, 4)}
    with pytest.raises(
        fw.StageError, match=r"own\[1\] has the shape \(4, 4\), but the feedback of layer 1 has \(3, 5\)"
    ):
        trainer(stages, fw.DFA(own=own)).fit(batches(1))
    with pytest.raises(
        fw.StageError, match=r"the target is a torch.int64 tensor of shape \(9, 1\): under 'drtp' give a class"
    ):
        trainer(stages, "drtp", loss=lambda out, y: out.mean()).fit([(torch.randn(9, 6), torch.zeros(9, 1).long())])

    class Pair(nn.Module):
        def forward(self, x):
            return x, x

    with pytest.raises(fw.StageError, match="under credit='feedback' return one tensor"):
        trainer([nn.Sequential(nn.Linear(6, 3), Pair())], "dfa", loss=lambda out, y: out[0].mean()).fit(batches(1))


def test_targets_may_be_numbers():
    """One for each output: DRTP then sends them as they are."""
    net = mlp()
    own = drawn(net, "drtp", (6,))
    classes = data((6,))
    numbers = [(x, F.one_hot(y, 3).double()) for x, y in classes]
    found = []
    for loader in (classes, numbers):
        net = mlp()
        trainer([net], fw.DRTP(own=own), optimizer=SGD).fit(loader)
        found.append(tensors(net))
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found))


# ---- the angle to the true gradient ----


def degrees(a: Tensor, b: Tensor) -> float:
    return math.degrees(math.acos((a @ b / (a.norm() * b.norm())).item()))


@pytest.mark.parametrize("name", METHODS)
def test_the_angle_to_the_gradient_by_hand(name):
    net = mlp()
    own = drawn(net, name, (6,))
    x, y = data((6,))[0]
    before = tensors(net)
    made = trainer(stages_of(net, (3,)), METHODS[name](own=own), optimizer=SGD)
    angles = fw.alignment(made, (x, y))
    assert same_bits(before, tensors(net))
    flat = [
        [torch.cat([w.flatten(), b]) for w, b in ByHand(net, kind, own, [0] * 4, LR, MOMENTUM).gradients(0, x, y)]
        for kind in (name, "bp")
    ]
    assert list(angles) == ["stages.0.0", "stages.0.2", "stages.1.4", "stages.1.6"]
    for angle, ours, theirs in zip(angles.values(), *flat):
        assert angle == pytest.approx(degrees(ours, theirs), abs=1e-4)
    assert angles["stages.1.6"] == 0.0  # the last layer learns from the error itself


def test_the_angle_of_other_methods():
    net = mlp()
    batch = data((6,))[0]
    for method in ("bp", "pipedream", fw.Pipeline(delays=(1, 0), corrections=[fw.Accumulate(3)])):
        made = trainer(stages_of(net, (3,)), method, runtime="threads")
        assert max(fw.alignment(made, batch).values()) < 1e-5
    forward = fw.alignment(trainer([net], "fgd"), batch)
    assert all(1 < angle < 179 for angle in forward.values())


def test_the_angle_in_a_callback():
    angles: list[dict[str, float]] = []
    net = mlp()
    loader = data((6,))
    made = trainer(stages_of(net, (4,)), "dfa", runtime="threads", optimizer=SGD)
    made.fit(
        loader, epochs=2, callbacks=[lambda end: angles.append(fw.alignment(made, loader[0], end.stages)) and None]
    )
    assert len(angles) == 2
    assert angles[0] != angles[1]
    assert angles[1] == fw.alignment(made, loader[0])
