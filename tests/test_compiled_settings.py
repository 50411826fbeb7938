"""What is a constant of compiled code: when it changes, the code is compiled again, or the run is refused."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune, weight_norm

import freewheel as fw
from freewheel.stage import Held, Holders
from rows import batches, same_bits, tensors, trainer
from spread import exhaustive

pytestmark = pytest.mark.timeout(1200)  # the compiler shares the cores with other tests
SCALE = 1.0
SCALES = {"scale": 1.0}


class Calls(nn.Module):
    """Calls a function."""

    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x)


class Slope:
    """An object that is called."""

    def __init__(self) -> None:
        self.scale = 1.0

    def __call__(self, x: Tensor) -> Tensor:
        return self.scale * x


@dataclass(slots=True)
class Slots:
    """An object without a dict."""

    scale: float = 1.0


class Holds(nn.Module):
    """Holds a number, an array or an object."""

    factor = 1.0

    def __init__(self, held: Any) -> None:
        super().__init__()
        self.held = held

    def forward(self, x: Tensor) -> Tensor:
        return self.factor * x

    def one(self, x: Tensor) -> Tensor:
        return x.tanh()

    def other(self, x: Tensor) -> Tensor:
        return x.sigmoid()


def by_global(x: Tensor) -> Tensor:
    return SCALE * x


def by_global_dict(x: Tensor) -> Tensor:
    return SCALES["scale"] * by_global(x)


def closure() -> tuple[Callable[[Tensor], Tensor], Callable[[], None]]:
    scale = 1.0

    def change() -> None:
        nonlocal scale
        scale = 3.0

    return lambda x: scale * x, change


@pytest.mark.parametrize(
    ("held", "after"),
    [
        *((kind(1.0), kind(3.0)) for kind in (float, complex, np.float64, np.float32, Slots)),
        (np.ones(3), np.zeros(3)),
        (torch.tanh, torch.sigmoid),
        (torch.Tensor.tanh, torch.Tensor.sigmoid),
        (torch.device("cpu"), torch.device("meta")),
    ],
    ids=lambda value: type(value).__name__,
)
def test_what_a_module_holds_is_part_of_the_form(held: Any, after: Any) -> None:
    """Values that are none of Python's own, and objects with slots, were not, and code went on with the old ones."""
    module = Holds(held)
    before = Held(Holders({"": module}), 0).form()
    assert before == Held(Holders({"": module}), 0).form()
    module.held = after
    assert before != Held(Holders({"": module}), 0).form()


def change_global(monkeypatch: Any) -> None:
    monkeypatch.setitem(globals(), "SCALE", 3.0)


@pytest.mark.parametrize(
    ("make", "change"),
    [
        (lambda: Calls(Slope()), lambda m, patch: setattr(m.function, "scale", 3.0)),
        (lambda: Holds(Slots()), lambda m, patch: setattr(m.held, "scale", 3.0)),
        (lambda: Holds(None), lambda m, patch: patch.setattr(Holds, "factor", 3.0)),
        (lambda: Calls(by_global), lambda m, patch: change_global(patch)),
        (lambda: Calls(by_global_dict), lambda m, patch: patch.setitem(SCALES, "scale", 3.0)),
        (lambda: Calls(by_global_dict), lambda m, patch: change_global(patch)),
        (lambda: Calls(partial(F.leaky_relu, negative_slope=0.1)), lambda m, patch: m.function.keywords.clear()),
        (lambda: nn.Sequential(Calls(torch.tanh)), lambda m, patch: setattr(m[0], "function", by_global)),
    ],
    ids=["callable object", "slots", "class", "global", "dict", "global of a function", "partial", "function"],
)
def test_what_the_code_of_a_module_reads_is_part_of_the_form(make, change, monkeypatch) -> None:
    module = make()
    before = Held(Holders({"": module}), 0).form()
    change(module, monkeypatch)
    assert before != Held(Holders({"": module}), 0).form()


def test_a_method_a_closure_and_a_head() -> None:
    module, (function, change) = Holds(None), closure()
    forms = [Held(Holders({"": module}), 0).form()]
    for held in (module.one, module.other, function):
        module.held = held
        forms.append(Held(Holders({"": module}), 0).form())
    change()
    forms.append(Held(Holders({"": module}), 0).form())
    assert len(set(forms)) == 5
    stage, head = nn.Dropout(0.1), nn.Dropout(0.2)  # of two modules with the same names, one was not seen
    before = Held(Holders({"": stage, "head": head}), 0).form()
    stage.p = 0.3
    assert Held(Holders({"": stage, "head": head}), 0).form() != before


def test_the_order_of_a_set_is_not_a_setting() -> None:
    module = Holds({f"name {i}" for i in range(50)})
    before = Held(Holders({"": module}), 0).form()
    module.held = {f"name {i}" for i in reversed(range(50))}
    assert Held(Holders({"": module}), 0).form() == before


class Beta(nn.Module):
    """A loss with a setting."""

    beta = 0.0

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(out, target) + self.beta * out.square().mean()


def pair(middle: nn.Module) -> list[nn.Module]:
    torch.manual_seed(0)
    return [nn.Sequential(nn.Linear(6, 4), middle), nn.Linear(4, 3)]


def close(ours: list[Tensor], theirs: list[Tensor]) -> None:
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-5)


def test_a_setting_of_the_loss_is_changed_between_fits() -> None:
    """The loss was compiled once, with its first settings."""

    def run(compile: bool) -> list[Tensor]:
        stages, loss = pair(nn.Tanh()), Beta()
        made = trainer(stages, "pipedream", compile=compile, loss=loss)
        made.fit(batches(3))
        loss.beta = 3.0
        made.fit(batches(3))
        return tensors(*stages)

    close(run(True), run(False))


class Counts(nn.Module):
    """A loss that counts its calls."""

    calls = 0

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return self.calls * F.cross_entropy(out, target)


def test_a_loss_that_counts_or_records_is_refused() -> None:
    """It was compiled with the count of its first call."""
    seen = []

    def records(out: Tensor, target: Tensor) -> Tensor:
        seen.append(out.detach())
        return F.cross_entropy(out, target)

    for loss, name in ((Counts(), "loss.calls"), (records, "the length of loss.function.seen")):
        stages = pair(nn.Tanh())
        before = tensors(*stages)
        with pytest.raises(fw.StageError, match=rf"{name} of stages\[1\] changes in forward"):
            trainer(stages, "dfa", compile=True, loss=loss).fit(batches(1))
        assert same_bits(before, tensors(*stages))
    assert seen == []


def test_a_setting_that_a_callback_changes_is_refused() -> None:
    """Compiled code went on with the old one without a word."""
    stages = pair(Calls(Slope()))

    def change(end: fw.EpochEnd) -> None:
        stages[0][1].function.scale = 3.0  # pyright: ignore

    line = r"1.function.scale of stages\[0\] has changed during a fit, .* call fit once for each setting"
    with pytest.raises(ValueError, match=line):
        trainer(stages, "bp", compile=True).fit(batches(2), epochs=2, callbacks=[change])


def test_a_permutation_as_an_index() -> None:
    """As in mixup; Inductor failed to match a pattern of its own."""

    def run(compile: bool) -> list[Tensor]:
        stages = pair(Calls(lambda x: 0.7 * x + 0.3 * x[torch.randperm(len(x))]))
        trainer(stages, "pipedream", compile=compile).fit(batches(3))
        return tensors(*stages)

    close(run(True), run(False))


@exhaustive
@pytest.mark.parametrize("make", [weight_norm, partial(prune.l1_unstructured, name="weight", amount=5)])
@pytest.mark.filterwarnings("ignore:.*weight_norm.* is deprecated")
def test_a_weight_that_a_hook_computes_was_computed_without_gradients(make) -> None:
    """After an evaluation, or in a copy, the weight was taken for one that the module holds."""

    def run(compile: bool) -> list[Tensor]:
        stages = pair(make(nn.Linear(4, 4)))
        with torch.no_grad():
            stages[0](torch.zeros(2, 6))
        trainer(stages, "pipedream", compile=compile, check=True).fit(batches(3))
        return tensors(*stages)

    close(run(True), run(False))
