"""What `freewheel reproduce` makes of a training: its numbers, and what is a divergence."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

import freewheel as fw
from freewheel.recipes import Recipe
from freewheel.reproduce import EXPERIMENTS
from freewheel.reproduce._networks import DIGITS_NET, Net, Source
from freewheel.reproduce.experiments._nets import NETS
from freewheel.reproduce.jobs import Context, Training, training

RECIPE = Recipe(
    name="tiny",
    paper="tiny",
    source="here",
    methods=("bp",),
    data=("digits",),
    models=("digits-cnn",),
    epochs=1,
    batch_size=32,
    lr=0.05,
)
FEW = Source(title="digits", name="digits", options=(("train_limit", 128), ("test_limit", 64)))


@pytest.mark.parametrize(("method", "k"), [(fw.BP(), 1), (fw.FDG(), 2), (fw.AsyncLU(), 1)])
def test_only_an_infinite_loss_is_a_divergence(method, k, monkeypatch):
    """Any error with the word loss in it was one, and was kept as the result of the job."""

    def infinite(output, target):
        return torch.nn.functional.cross_entropy(output, target) * float("inf")

    def broken(output, target):
        raise RuntimeError("nll_loss is not implemented here")

    job = Training(net=DIGITS_NET, source=FEW, recipe=RECIPE, method=method, k=k)
    monkeypatch.setattr(training, "F", SimpleNamespace(cross_entropy=infinite))
    assert job.run(Context(), 0)["diverged"]
    monkeypatch.setattr(training, "F", SimpleNamespace(cross_entropy=broken))
    with pytest.raises(fw.StageError, match="nll_loss is not implemented here"):
        job.run(Context(), 0)


def test_a_scaled_down_network_has_a_name_of_its_own():
    """It was replaced by one of the same name: "LSTM for LSTM"."""
    job = EXPERIMENTS["async-table6"].jobs[0]
    small, replaced = job.quick()
    assert "LSTM of 32 for LSTM" in replaced
    assert small.title != job.title


def test_equal_accuracies_are_equal_numbers():
    """Means over batches differ by 1e-8: tables had "5.00 ± 9.4e-08", and a later epoch was the best one."""
    epochs = [
        fw.Epoch(
            epoch=i,
            batches=4 * i + 4,
            samples=128,
            loss=1.0,
            validation=fw.Score(loss=1.0, metric=share, samples=360),
            seconds=1.0,
            images_per_second=128.0,
            busy=(1.0,),
            staleness=(0.0,),
        )
        for i, share in enumerate((0.5, 0.95, 0.95 + 2e-8))
    ]
    found = training.measures(fw.History(epochs), None)
    assert (found["best"], found["last"], found["error"], found["epochs"]) == (95.0, 95.0, 5.0, 2)


@pytest.mark.parametrize("k", [2, 3, 4])
@pytest.mark.parametrize("name", ["ResNet-20", "ResNet-56", "WRN-28-10"])
def test_stages_have_equal_numbers_of_layers(name, k):
    """Norms, activations and pools were counted: the last of four stages of WRN-28-10 had no convolution."""
    model = NETS[name].build(None, {}, 0)
    stages = NETS[name].cut(model, None, k, "cpu")
    layers = [[model.get_submodule(layer) for layer in names] for names in stages.report.names]
    sizes = [sum(any(p.dim() > 1 for p in layer.parameters()) for layer in each) for each in layers]
    assert len(sizes) == k
    assert max(sizes) - min(sizes) <= 1


def test_a_network_with_nested_blocks_is_cut():
    """The layers within its residual blocks were miscounted, and MobileNetV2 could not stand for its relative."""
    net = Net(title="MobileNetV2", model="mobilenet-v2")
    model = net.build(None, {}, 0)
    stages = net.cut(model, None, 4, "cpu")
    assert len(stages) == 4
    image = out = torch.randn(1, 3, 32, 32)
    with torch.no_grad():
        for module in (model, *stages):
            module.eval()
        for stage in stages:
            out = stage(out)  # a cut within a residual block would pass two tensors on
        assert out.equal(model(image))
