"""What keeps the memory of forward gradients small changes no value."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._inductor import inductor_prims
from torch.autograd.forward_ad import unpack_dual
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx

import freewheel as fw
from freewheel.credit import _dual_stage
from freewheel.tangents import _compiled, dual, enter_level, leave_level
from freewheel.tangents._late_draws import draw_late
from freewheel.tangents._pooling import max_pool2d
from rows import same_bits, tensors, trainer
from spread import exhaustive

WIDTH = 128
POOLS = [
    {"kernel_size": 3, "stride": 2, "padding": 1},
    {"kernel_size": 2},
    {"kernel_size": (3, 2), "stride": (1, 3), "padding": (0, 1)},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True},
    {"kernel_size": 5},
    {"kernel_size": 3, "dilation": 2},
]


@pytest.fixture
def level() -> Iterator[None]:
    enter_level()
    yield
    leave_level()


@pytest.mark.parametrize("special", [(), (math.nan,), (-math.inf,), (-math.inf, math.nan)], ids=str)
@pytest.mark.parametrize("options", POOLS, ids=str)
def test_max_pooling_chooses_as_torch_does(options: dict, special: tuple[float, ...], level: None) -> None:
    """Few different values, so that many windows have several largest ones."""
    torch.manual_seed(0)
    for shape in ((2, 3, 9, 8), (3, 7, 7)):
        x, dx = torch.randint(-2, 3, shape).double(), torch.randn(shape, dtype=torch.double)
        for value in special:
            x[torch.rand(shape) < 0.6] = value
        ours, theirs = (unpack_dual(pool(dual(x, dx), **options)) for pool in (max_pool2d, F.max_pool2d))
        torch.testing.assert_close(ours.tangent, theirs.tangent, rtol=0, atol=0)
        torch.testing.assert_close(ours.primal, theirs.primal, rtol=0, atol=0, equal_nan=True)


def test_max_pooling_with_indices_is_left_to_torch(level: None) -> None:
    assert len(max_pool2d(dual(torch.randn(1, 4, 4), torch.randn(1, 4, 4)), 2, return_indices=True)) == 2


def drawn_first(late: bool) -> GraphModule:
    """Two layers whose large weights are drawn before anything else, unless they are drawn late."""

    def run(x: Tensor, seed: Tensor) -> Tensor:
        first, second = (inductor_prims.random([WIDTH, WIDTH], seed + i, "randn") for i in (1, 2))
        return x @ x @ first @ second

    module = make_fx(run, tracing_mode="fake")(torch.eye(WIDTH), torch.tensor(5))
    if late:
        draw_late(module.graph, [n for n in module.graph.nodes if n.op == "placeholder"][1:])
    module.recompile()
    return module


def test_tangents_are_drawn_after_the_product_before_their_use() -> None:
    module, draw = drawn_first(late=True), inductor_prims.random
    kinds = [n.target for n in module.graph.nodes if n.target in (torch.ops.aten.mm.default, draw)]
    assert kinds == [torch.ops.aten.mm.default, draw] * 2 + [torch.ops.aten.mm.default]
    for node in module.graph.find_nodes(op="call_function", target=draw):
        seen, todo = set(), [node]
        while todo:
            seen |= {(each := todo.pop()).target}
            todo += each.all_input_nodes
        assert torch.ops.aten.mm.default in seen  # no scheduler can move it forward


@pytest.mark.parametrize("value", [1.0, math.nan, math.inf])
def test_the_seed_of_a_late_draw_is_the_same(value: float) -> None:
    seeds: list[list[int]] = [[], []]
    for late, seen in enumerate(seeds):

        def note(size: list[int], seed: Tensor, kind: str, seen: list[int] = seen) -> Tensor:
            seen.append(int(seed))
            return torch.eye(*size)

        module = drawn_first(bool(late))
        for node in module.graph.find_nodes(op="call_function", target=inductor_prims.random):
            node.target = note
        module.recompile()
        module(torch.full((WIDTH, WIDTH), value), torch.tensor(5))
    assert seeds == [[6, 7], [6, 7]]


@exhaustive
def test_drawing_late_changes_no_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_dual_stage, "COUNTS", ["cpu", "cuda"])

    def train() -> list[Tensor]:
        torch.manual_seed(0)
        stage = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, 3))
        trainer([stage], fw.FGD(), compile=True).fit([(torch.randn(2, WIDTH), torch.tensor([0, 1]))] * 3)
        return tensors(stage)

    late = train()
    monkeypatch.setattr(_compiled, "draw_late", lambda graph, given: None)
    assert same_bits(late, train())


def test_what_is_changed_in_place_keeps_its_order() -> None:
    def run(x: Tensor, seed: Tensor) -> Tensor:
        before = seed + 1
        other = before * 3
        before.mul_(2)
        return x @ x + other + before

    x, seed = torch.eye(2), torch.tensor(5.0)
    graph = make_fx(run)(x, seed)
    draw_late(graph.graph, [n for n in graph.graph.nodes if n.op == "placeholder"][1:])
    graph.recompile()
    assert torch.equal(graph(x, seed), run(x, seed))
