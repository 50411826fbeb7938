"""What cannot be split is refused in one line that names the culprit and the way out."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from freewheel.split import split

BY_HAND = r"a list of stages is always accepted: fw\.Trainer"


def three():
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 4))


class Named(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem, self.body, self.head = (
            nn.Linear(4, 4),
            nn.Sequential(nn.Linear(4, 4), nn.ReLU()),
            nn.Linear(4, 4),
        )
        self.spare = nn.Linear(4, 4)

    def forward(self, x):
        return self.head(self.body(self.stem(x)))


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        if x.sum() > 0:
            return self.a(x)
        return self.b(x)


class BranchesOnMode(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        x = self.a(x)
        return (self.b(x), x) if self.training else self.b(x)


class OwnPrecision(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            h = self.b(h)
        return self.c(torch.tanh(h.float()))


class DecidesOnValues(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = self.a(x)
        while h.norm() > 1:
            h = h / 2
        return self.c(torch.tanh(self.b(h)))


class DropsLayers(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.tanh(self.a(x))
        if torch.rand([]) < 0.5:
            h = torch.tanh(self.b(h))
        return self.c(h)


class OneByOne(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(4, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, x):
        h = torch.stack([torch.tanh(self.a(sample)) for sample in x])
        return self.c(torch.tanh(self.b(h)))


class Twice(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.norm, self.b = nn.Linear(4, 4), nn.BatchNorm1d(4, affine=False), nn.Linear(4, 4)

    def forward(self, x):
        return self.norm(self.b(self.norm(self.a(x))))


class Counts(nn.Module):
    """Forward depends on how often it was called."""

    def __init__(self):
        super().__init__()
        self.a, self.b, self.calls = nn.Linear(4, 4), nn.Linear(4, 4), [0]

    def forward(self, x):
        self.calls[0] += 1
        return self.b(self.a(x) * self.calls[0])


class Pair(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(4, 4)

    def forward(self, x, y):
        return self.a(x) + y


class Lstm(nn.Module):
    def __init__(self):
        super().__init__()
        self.rnn, self.fc = nn.LSTM(4, 4), nn.Linear(4, 4)

    def forward(self, x):
        return self.fc(self.rnn(x)[0])


X = torch.ones(2, 4)

REFUSED = [
    # the model
    (ValueError, r"Branches.forward cannot be traced \(test_split_errors.py, line \d+: if x.sum\(\) > 0:\)",
     lambda: split(Branches(), 2, example=X)),
    (ValueError, BY_HAND, lambda: split(Branches(), 2, by="parameters")),
    (ValueError, r"another path in training than in evaluation .*" + BY_HAND,
     lambda: split(BranchesOnMode(), 2, example=X)),
    (ValueError, r"the submodule 'norm' is used in stage 0 and in stage 1", lambda: split(Twice(), at=["b"])),
    (ValueError, r"h = self.b\(h\)\): 'b' is called under autocast.*" + BY_HAND,
     lambda: split(OwnPrecision(), 2, example=X)),
    (ValueError, r"while h.norm\(\) > 1.*reads the values of a tensor.*" + BY_HAND,
     lambda: split(DecidesOnValues(), 2, example=X)),
    (ValueError, r"if torch.rand.*reads the values of a tensor.*" + BY_HAND,
     lambda: split(DropsLayers(), 2, example=X)),
    (ValueError, r"something from the number, the length or the values of the samples.*" + BY_HAND,
     lambda: split(OneByOne(), 2, example=X)),
    (ValueError, r"traced Counts.forward computes something else than the model",
     lambda: split(Counts(), 2, example=X)),
    (TypeError, r"model must be a nn.Module, not list: a list of stages needs no split",
     lambda: split([nn.Linear(4, 4)], 1)),
    (TypeError, r"model must be a nn.Module, not function", lambda: split(split, 2)),
    (TypeError, r"model is a DataParallel", lambda: split(nn.DataParallel(three()), 2, example=X)),
    (ValueError, r"'0.weight' has no shape yet",
     lambda: split(nn.Sequential(nn.LazyLinear(3), nn.ReLU()), 2)),
    (ValueError, r"has no layers", lambda: split(nn.Sequential(), 2, by="parameters")),
    # k
    (TypeError, r"k=2.0: give a whole number, 1 or more", lambda: split(three(), 2.0)),
    (TypeError, r"k=True: give a whole number, 1 or more", lambda: split(three(), True)),
    (ValueError, r"k=0: give 1 or more", lambda: split(three(), 0)),
    (ValueError, r"k is missing", lambda: split(three())),
    (ValueError, r"k=4: Sequential has 3 layers, which form at most 3 stages; give k <= 3.*" + BY_HAND,
     lambda: split(three(), 4, by="parameters")),
    (ValueError, r"k=9: Named has 4 layers", lambda: split(Named(), 9, example=X)),
    # by
    (ValueError, r"unknown by 'tme': did you mean 'time'\?", lambda: split(three(), 2, by="tme", example=X)),
    (ValueError, r"by='parameters' and at both", lambda: split(three(), by="parameters", at=["1"])),
    # example
    (ValueError, r"example is missing: by='time'", lambda: split(three(), 2)),
    (ValueError, r"example is missing: Pair.forward takes several",
     lambda: split(Pair(), 2, by="parameters")),
    (ValueError, r"example: model\(example\) failed in training mode with RuntimeError: mat1 and mat2",
     lambda: split(three(), 2, example=torch.ones(2, 5))),
    (ValueError, r"example: model\(\*example\) failed in training mode with TypeError",
     lambda: split(three(), 2, example=(X, X))),
    (ValueError, r"example: model\(\*\*example\) failed", lambda: split(Pair(), 2, example={"x": X, "z": X})),
    (TypeError, r"example must be a tensor, or a tuple or dict of tensors, not int",
     lambda: split(three(), 2, example=3)),
    (TypeError, r"example\[1\] must be a tensor, .* not NoneType",
     lambda: split(Pair(), 2, example=(X, None))),
    (ValueError, r"example is empty", lambda: split(three(), 2, example=())),
    (ValueError, r"no stage can begin at 'fc': .*may be several tensors: give example=",
     lambda: split(Lstm(), at=["fc"])),
    # at
    (ValueError, r"unknown submodule in at 'bdy': did you mean 'body'\?", lambda: split(Named(), at=["bdy"])),
    (ValueError, r"at: 'head' and 'body' are out of execution order",
     lambda: split(Named(), at=["head", "body"])),
    (ValueError, r"at: 'body' and 'body.0' begin at the same layer",
     lambda: split(Named(), at=["body", "body.0"])),
    (ValueError, r"at names 'body' twice", lambda: split(Named(), at=["body", "body"])),
    (ValueError, r"at: 'spare' is never called", lambda: split(Named(), at=["spare"])),
    (ValueError, r"at: nothing comes before 'stem'", lambda: split(Named(), at=["stem"])),
    (ValueError, r"at: '1.a' is inside '1', which is kept whole",
     lambda: split(nn.Sequential(nn.ReLU(), Branches()), at=["1.a"])),
    (TypeError, r"at='body': give names of submodules, as in at=", lambda: split(Named(), at="body")),
    (TypeError, r"at=1: give names of submodules", lambda: split(Named(), at=[1])),
    (ValueError, r"k=4 but at makes 3 stages: leave k out or give k=3",
     lambda: split(Named(), 4, at=["body", "head"])),
    # balance
    (ValueError, r"balance=\[1, 1\] adds up to 2, but Sequential has 3 units",
     lambda: split(three(), balance=[1, 1])),
    (ValueError, r"balance\[1\]=0: give 1 or more", lambda: split(three(), balance=[3, 0])),
    (ValueError, r"balance\[1\]=-1: give 1 or more", lambda: split(three(), balance=[4, -1])),
    (TypeError, r"balance\[0\]=1.5: give a whole number",
     lambda: split(three(), balance=[1.5, 1.5])),
    (TypeError, r"balance=3: give numbers of units, as in", lambda: split(three(), balance=3)),
    (ValueError, r"balance is empty", lambda: split(three(), balance=[])),
    (ValueError, r"k=3 but balance makes 2 stages", lambda: split(three(), 3, balance=[1, 2])),
    (ValueError, r"at and balance both", lambda: split(three(), at=["1"], balance=[1, 2])),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "message", "attempt"), REFUSED, ids=[row[1][:40] for row in REFUSED])
def test_refused_in_one_line(kind, message, attempt):
    with pytest.raises(kind, match=message) as caught:
        attempt()
    assert "\n" not in str(caught.value)


def test_tied_parameters_in_one_stage_are_fine():
    model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 5, bias=False), nn.Linear(5, 5))
    model[1].weight = model[0].weight
    stages = split(model, at=["2"])
    assert set(stages[0].state_dict()) == {"0.weight", "1.weight"}


def test_a_model_with_hooks_of_its_own_is_refused():
    model = three()
    model.register_forward_hook(lambda *args: None)
    with pytest.raises(ValueError, match="model has hooks of its own"):
        split(model, 2, example=X)


def test_compiled_and_scripted_models_are_refused():
    class OptimizedModule(nn.Module):
        """Stands for what torch.compile returns."""

    with pytest.raises(TypeError, match="model is a OptimizedModule, which hides its layers"):
        split(OptimizedModule(), 2)


def test_a_failed_split_leaves_the_model_as_it_was():
    model = BranchesOnMode().eval()
    with pytest.raises(ValueError, match="another path"):
        split(model, 2, example=X)
    assert not any(m.training for m in model.modules())
