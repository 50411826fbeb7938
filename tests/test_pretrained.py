"""Weights from a file: all fit or none is loaded, the head may be new, and no code is run."""

from __future__ import annotations

import os
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from freewheel import models


@pytest.fixture
def file(tmp_path):
    return tmp_path / "weights.pt"


def values(net: nn.Module) -> dict[str, Tensor]:
    return {key: value.clone() for key, value in net.state_dict().items()}


def same(one: dict[str, Tensor], two: dict[str, Tensor]) -> bool:
    return one.keys() == two.keys() and all(torch.equal(one[key], two[key]) for key in one)


def digits(classes: int = 10, *, seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    net = models.build("digits-cnn", width=2, num_classes=classes)
    net.train()(torch.randn(5, 1, 8, 8))  # BatchNorm statistics are weights too
    return net


HEAD = ("fc.weight", "fc.bias")


def test_everything_is_loaded_where_everything_fits(file):
    source, net = digits(seed=0), digits(seed=1)
    torch.save(source.state_dict(), file)
    parameters = list(net.parameters())
    report = models.load_pretrained(net, file)
    assert same(values(net), values(source))
    assert list(map(id, net.parameters())) == list(map(id, parameters))
    assert report == models.Pretrained(loaded=tuple(source.state_dict()), new=(), ignored=())
    assert str(report) == "loaded 50 of 50 tensors; new: none; ignored: none"


@pytest.mark.parametrize("head", [None, "fc", "fc.*", "f*"])
@pytest.mark.parametrize("missing", [True, False])
def test_the_head_stays_new_where_it_is_missing_or_of_other_classes(file, head, missing):
    source, net = digits(4, seed=0), digits(10, seed=1)
    before = values(net)
    state = {k: v for k, v in source.state_dict().items() if not (missing and k in HEAD)}
    torch.save(state, file)
    report = models.load_pretrained(net, str(file), head=head)
    assert report.new == HEAD
    assert report.ignored == (() if missing else HEAD)
    after = values(net)
    for key in after:
        assert torch.equal(after[key], (before if key in HEAD else state)[key])


def test_a_head_of_which_one_part_fits_stays_new_as_a_whole(file):
    source, net = digits(seed=0), digits(seed=1)
    torch.save({**source.state_dict(), "fc.weight": torch.zeros(10, 3)}, file)
    assert models.load_pretrained(net, file).new == HEAD


def test_the_head_may_be_larger_in_the_file(file):
    source, net = digits(seed=0), digits(seed=1)
    torch.save({**source.state_dict(), "fc.norm.weight": torch.zeros(3)}, file)
    report = models.load_pretrained(net, file)
    assert report.new == HEAD
    assert report.ignored == (*HEAD, "fc.norm.weight")


def test_not_strict_loads_what_is_there(file):
    source, net = digits(seed=0), digits(seed=1)
    state = source.state_dict()
    del state["conv3.weight"]
    torch.save({**state, "mask": torch.zeros(1)}, file)
    report = models.load_pretrained(net, file, strict=False)
    assert report.new == ("conv3.weight",)
    assert report.ignored == ("mask",)
    assert str(report) == "loaded 49 of 50 tensors; new: conv3.weight; ignored: mask"


def test_a_network_without_a_linear_layer_has_no_head(file):
    net = nn.Sequential(nn.Conv2d(1, 2, 3))
    torch.save(net.state_dict(), file)
    assert models.load_pretrained(net, file).loaded == ("0.weight", "0.bias")


def test_weights_come_in_the_type_of_the_model(file):
    source, net = digits(seed=0), digits(seed=1).double()
    torch.save(source.half().state_dict(), file)
    models.load_pretrained(net, file)
    assert net.conv1.weight.dtype == torch.float64
    assert torch.equal(net.conv1.weight, source.conv1.weight.double())


def test_mobilenet_v2_may_be_numbered_in_one_row(file):
    """Convolution, BatchNorm, ReLU6, convolution, ... of a block are 0, 1, 2, 3, ... in some public files."""
    torch.manual_seed(0)
    state = {k: v for k, v in models.build("mobilenet-v2").state_dict().items() if not k.startswith("classifier")}
    norm = ("weight", "bias", "running_mean", "running_var", "num_batches_tracked")
    names = ["features.0.0.weight", *(f"features.0.1.{part}" for part in norm)]
    for block in range(1, 18):
        for layer in (0, 3) if block == 1 else (0, 3, 6):
            names += [f"features.{block}.conv.{layer}.weight"]
            names += [f"features.{block}.conv.{layer + 1}.{part}" for part in norm]
    names += ["features.18.0.weight", *(f"features.18.1.{part}" for part in norm)]
    torch.save(dict(zip(names, state.values(), strict=True)), file)

    net = models.build("mobilenet-v2")
    report = models.load_pretrained(net, file)
    assert report.loaded == tuple(state)
    assert report.new == ("classifier.1.weight", "classifier.1.bias")
    assert same({key: net.state_dict()[key] for key in state}, state)


class Harmful:
    """Makes a folder when it is unpickled."""

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (self.folder,)


def test_code_in_a_file_is_not_run(file, tmp_path):
    harm = tmp_path / "harm"
    torch.save({**digits().state_dict(), "fc.weight": Harmful(str(harm))}, file)
    with pytest.raises(ValueError) as caught:
        models.load_pretrained(digits(), file)
    assert not harm.exists()
    assert str(caught.value) == (
        f"path='{file}' is not a state dict of tensors only, and nothing else is unpickled: "
        "write one with torch.save(model.state_dict(), file)"
    )


def without(*keys: str) -> dict[str, Tensor]:
    return {key: value for key, value in digits().state_dict().items() if key not in keys}


@pytest.mark.parametrize(
    ("content", "options", "error", "message"),
    [
        (None, {}, FileNotFoundError, "there is no such file; write one with torch.save(model.state_dict(), file)"),
        (b"", {}, ValueError, "is not a state dict of tensors only"),
        (b"not weights", {}, ValueError, "is not a state dict of tensors only"),
        (b"PK\x03\x04 cut short", {}, ValueError, "is not a state dict of tensors only"),
        (nn.Linear(2, 2), {}, ValueError, "is not a state dict of tensors only"),
        ([torch.ones(2)], {}, ValueError, "holds a list instead of a state dict"),
        ({"state_dict": {}, "epoch": 3}, {}, ValueError, "maps names to tensors, but 'state_dict' to dict"),
        ({3: torch.ones(2)}, {}, ValueError, "maps names to tensors, but 3 to Tensor"),
        ({}, {"strict": False}, ValueError, "has no weights for this model, only none: give another file"),
        (without("bn2.bias"), {}, ValueError, "is for another network: missing bn2.bias, not in the model none: build"),
        (
            {f"module.{key}": value for key, value in without().items()},
            {},
            ValueError,
            "missing conv1.weight, bn1.weight, bn1.bias, and 45 more, not in the model module.conv1.weight, ",
        ),
        (
            {**without(), "conv1.weight": torch.ones(2, 3, 3, 3)},
            {},
            ValueError,
            "conv1.weight is (2, 3, 3, 3) in the file but (2, 1, 3, 3) in the model: build the network it was ",
        ),
        (
            {**without(), "conv1.weight": torch.ones(2, 3, 3, 3)},
            {"strict": False},
            ValueError,
            "conv1.weight is (2, 3, 3, 3) in the file",
        ),
        (
            without(),
            {"head": "head"},
            ValueError,
            "head='head' matches no layer of the model: give one of conv1, bn1, ",
        ),
        (without(), {"head": 3}, TypeError, "head=3: give the name of a submodule or a pattern such as '*fc*'"),
    ],
)
def test_what_does_not_fit_is_refused_in_one_line_and_changes_nothing(file, content, options, error, message):
    if isinstance(content, bytes):
        file.write_bytes(content)
    elif content is not None:
        torch.save(content, file)
    net = digits(seed=1)
    before = values(net)
    with pytest.raises(error) as caught:
        models.load_pretrained(net, file, **options)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert same(values(net), before)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: models.load_pretrained([nn.Linear(2, 2)], "x"), TypeError, "model must be a nn.Module, not list"),
        (lambda: models.load_pretrained(nn.Linear(2, 2), 3), TypeError, "path must be the path of a file of weights"),
        (lambda: models.load_pretrained(nn.Linear(2, 2), "."), FileNotFoundError, "path='.': there is no such file"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
