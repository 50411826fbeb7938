"""`freewheel evaluate`: what cannot be scored is refused in one line."""

from __future__ import annotations

import pytest
import torch

from command_line import freewheel, good

NET = """import torch
from torch import nn

def make():
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))

def loaders():
    x = torch.randn(100, 8, generator=torch.Generator().manual_seed(0))
    batches = list(zip(x.split(20), x[:, :3].argmax(1).split(20)))
    return batches[:4], batches[4:]
"""


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """A network of one's own, and the folder of a run with it."""
    folder = tmp_path_factory.mktemp("own")
    net = folder / f"net_in_{folder.name}.py"  # modules stay loaded, so each has a name of its own
    net.write_text(NET)
    own = ("--model", f"{net}:make", "--data", f"{net}:loaders", "-k", "2", "--split", "parameters")
    good("train", *own, "--epochs", "1", "--no-compare", "-q", "--run-dir", str(folder / "run"))
    return net, folder / "run"


def test_weights_of_another_network_are_not_loaded(trained):
    """Its file has been changed since the training, which is written here the other way round."""
    net, folder = trained
    path = folder / "weights.pt"
    whole = path.read_bytes()
    torch.save({**torch.load(path), "0.weight": torch.zeros(24, 8)}, path)
    try:
        result = freewheel("evaluate", str(folder))
    finally:
        path.write_bytes(whole)
    now = f"0.weight is (24, 8) there and (16, 8) in {net}:make as it is now; undo what has changed since the training"
    assert (result.exit_code, result.stderr) == (2, f"error: {path}: {now}\n")
    assert "test accuracy" in good("evaluate", str(folder))


@pytest.mark.parametrize("left", [0, 100, 1000])
def test_damaged_weights_are_named(left, trained):
    _, folder = trained
    path = folder / "weights.pt"
    whole = path.read_bytes()
    path.write_bytes(whole[:left])
    try:
        result = freewheel("evaluate", str(folder))
    finally:
        path.write_bytes(whole)
    said = f"error: {path}: that is not what Freewheel has written; restore it, or train again\n"
    assert (result.exit_code, result.stderr) == (2, said)
