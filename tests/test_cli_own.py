"""`freewheel train` with a network, data and a loss of one's own."""

from __future__ import annotations

import sys
from functools import partial

import pytest
import torch

import freewheel as fw
from test_cli_train import good, run

FILE = """
import torch
import torch.nn.functional as F
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.a, self.b, self.c = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, x):
        return self.c(self.b(self.a(x).relu()).relu()).squeeze(1)

def make():
    return Net()

def for_digits(num_classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, num_classes))

def loaders():
    g = torch.Generator().manual_seed(0)
    x = torch.randn(96, 6, generator=g)
    pairs = [(x[i : i + 16], x[i : i + 16].sum(1)) for i in range(0, 96, 16)]
    return pairs[:4], pairs[4:]

def unsized():
    train, test = loaders()
    class Loader:
        def __iter__(self):
            return iter(train)
    return Loader(), test

def alone():
    return loaders()[0]

def loss(out, y):
    return F.mse_loss(out, y)

number = 3
"""
BRIEF = ("--epochs", "2", "-k", "2", "--split", "parameters", "--threads", "1")


@pytest.fixture
def file(tmp_path, monkeypatch):
    path = tmp_path / "own_net_of_tests.py"
    path.write_text(FILE)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.delitem(sys.modules, path.stem, raising=False)
    monkeypatch.chdir(tmp_path)
    yield path.name
    sys.modules.pop(path.stem, None)


@pytest.mark.parametrize("runtime", ["threads", "processes"])
def test_trains_what_the_functions_make(file, runtime, tmp_path):
    own = ("--model", f"{file}:make", "--data", f"{file}:loaders", "--loss", f"{file}:loss")
    said = good(*own, *BRIEF, "--schedule", "constant", "--runtime", runtime, "--save", "weights.pt", "--no-run")
    assert f"{file}:loaders: 4 batches to train, 2 to test" in said
    module = sys.modules["own_net_of_tests"]
    torch.manual_seed(0)
    model = module.make()
    sgd = partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=5e-4)
    stages = fw.split(model, 2, by="parameters")
    trainer = fw.Trainer(stages, loss=module.loss, optimizer=sgd, runtime="simulate", threads=1)
    history = trainer.fit(module.loaders()[0], 2, validate=module.loaders()[1])
    assert f"test loss {history.epochs[-1].validation.loss:.4f} (32 samples) after 2 epochs" in said
    weights = torch.load("weights.pt")
    assert all(torch.equal(weights[name], w) for name, w in model.state_dict().items())
    again = good("--config", "weights.config.toml", "--save", "again.pt")
    assert f"{file}:make" in again
    assert all(torch.equal(weights[name], w) for name, w in torch.load("again.pt").items())


def test_a_network_of_ones_own_on_named_data(file):
    said = good("--model", f"{file}:for_digits", "--limit", "100", "--no-compare", *BRIEF)
    assert "1,210 parameters" in said  # 64 x 16 + 16 + 16 x 10 + 10


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--model", "nothing.py:make"), "nothing.py:make: there is no such file"),
        (("--model", "FILE"), "name a function of the file, such as own_net_of_tests.py:make"),
        (("--data", "FILE", "--model", "FILE:make"), "such as own_net_of_tests.py:loaders"),
        (("--loss", "FILE"), "such as own_net_of_tests.py:loss"),
        (("--model", "FILE:nothing"), "has no function 'nothing'"),
        (("--model", "FILE:number"), "has no function 'number'"),
        (("--model", "FILE:loaders"), "it must return a torch.nn.Module"),
        (("--data", "FILE:loaders"), "without --model: say which network to train"),
        (("--data", "FILE:alone", "--model", "FILE:make"), "it returned a list; return two loaders, (train, test)"),
        (("--data", "FILE:loaders", "--model", "FILE:make", "--limit", "3"), "the function decides that"),
        (("--model", "FILE:make", "--hidden", "3"), "the function decides that"),
        (("--data", "FILE:unsized", "--model", "FILE:make"), "has no length; give constant"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(file, arguments, words):
    done = run(*(each.replace("FILE", file) for each in arguments), "--no-compare", "--epochs", "1")
    assert words in done.output
    assert done.output.startswith("error: ")
