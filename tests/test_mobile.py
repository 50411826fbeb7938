"""Networks that have public ImageNet weights: their own and torchvision's."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from functools import partial
from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd
from torch import Tensor, nn

import freewheel as fw
from freewheel import models
from freewheel._torchvision import import_torchvision
from spread import rarely, spread

MOBILE = ("mobilenet-v2", "efficientnet-lite0")


def on_meta(name: str, **kwargs) -> nn.Sequential:
    with torch.device("meta"):
        return models.build(name, **kwargs)


# Parameters with 1000 classes, and billions of multiplications and additions for an image as the papers print
# them; for EfficientNet-Lite0 those of EfficientNet-B0, whose convolutions it has.
PUBLISHED = {"mobilenet-v2": (3_504_872, 0.30), "efficientnet-lite0": (4_652_008, 0.39)}

# Names and shapes in the public files.
SHAPES = {
    "mobilenet-v2": {
        "features.0.0.weight": (32, 3, 3, 3),
        "features.0.1.running_var": (32,),
        "features.1.conv.0.0.weight": (32, 1, 3, 3),
        "features.1.conv.1.weight": (16, 32, 1, 1),
        "features.1.conv.2.num_batches_tracked": (),
        "features.2.conv.0.0.weight": (96, 16, 1, 1),
        "features.4.conv.1.1.running_mean": (144,),
        "features.17.conv.2.weight": (320, 960, 1, 1),
        "features.17.conv.3.bias": (320,),
        "features.18.0.weight": (1280, 320, 1, 1),
        "features.18.1.weight": (1280,),
        "classifier.1.weight": (1000, 1280),
        "classifier.1.bias": (1000,),
    },
    "efficientnet-lite0": {
        "_conv_stem.weight": (32, 3, 3, 3),
        "_bn0.running_mean": (32,),
        "_blocks.0._depthwise_conv.weight": (32, 1, 3, 3),
        "_blocks.0._project_conv.weight": (16, 32, 1, 1),
        "_blocks.1._expand_conv.weight": (96, 16, 1, 1),
        "_blocks.3._depthwise_conv.weight": (144, 1, 5, 5),
        "_blocks.11._bn1.num_batches_tracked": (),
        "_blocks.15._bn2.running_var": (320,),
        "_conv_head.weight": (1280, 320, 1, 1),
        "_bn1.bias": (1280,),
        "_fc.weight": (1000, 1280),
        "_fc.bias": (1000,),
    },
}
KEYS = {"mobilenet-v2": 314, "efficientnet-lite0": 296}


@pytest.mark.parametrize("name", MOBILE)
def test_names_and_shapes_are_those_of_the_public_files(name):
    state = on_meta(name, num_classes=1000).state_dict()
    assert len(state) == KEYS[name]
    assert {key: tuple(state[key].shape) for key in SHAPES[name]} == SHAPES[name]


@pytest.mark.parametrize("name", MOBILE)
def test_parameters_and_work_are_as_published(name):
    net = on_meta(name, num_classes=1000)
    work = 0

    def count(module: nn.Module, _, out: Tensor) -> None:
        nonlocal work
        assert isinstance(module.weight, Tensor)
        work += module.weight[0].numel() * out[0].numel()

    for module in net.modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            module.register_forward_hook(count)
    net(torch.zeros(1, 3, 224, 224, device="meta"))
    assert (sum(p.numel() for p in net.parameters()), round(work / 1e9, 2)) == PUBLISHED[name]


@pytest.mark.parametrize("kernel", [3, 5])
@pytest.mark.parametrize("side", [1, 2, 7, 8, 33])
def test_padding_is_that_of_tensorflow(kernel, side):
    """TensorFlow's "SAME": max(kernel - (side mod stride, or stride), 0) zeros, the odd one last."""
    zeros = max(kernel - (side % 2 or 2), 0)
    wanted = [0.0] * (zeros // 2) + [1.0] * side + [0.0] * (zeros - zeros // 2)
    for shape, other in (((1, 1, side, 4), 3), ((1, 1, 4, side), 2)):
        padded = models.SamePad(kernel=kernel, stride=2)(torch.ones(shape))
        assert padded[0, 0].amax(other - 2).tolist() == wanted
        out = nn.functional.conv2d(padded, torch.ones(1, 1, kernel, kernel), stride=2)
        assert out.shape[2:] == tuple(-(-length // 2) for length in shape[2:])


@pytest.mark.parametrize(("name", "published"), [("mobilenet-v2", (1e-5, 0.1)), ("efficientnet-lite0", (1e-3, 0.01))])
def test_batchnorm_is_that_of_the_public_networks(name, published):
    norms = [m for m in on_meta(name).modules() if isinstance(m, nn.BatchNorm2d)]
    assert {(m.eps, m.momentum) for m in norms} == {published}


@pytest.mark.parametrize("name", MOBILE)
def test_grey_images_are_repeated_without_a_parameter_more(name):
    torch.manual_seed(0)
    grey = models.build(name, in_shape=(1, 28, 28), resize=40).eval()
    torch.manual_seed(0)
    colour = models.build(name).eval()
    assert list(grey.state_dict()) == list(colour.state_dict())
    x = torch.randn(2, 1, 28, 28)
    large = nn.functional.interpolate(x, size=(40, 40), mode="bilinear", align_corners=False)
    assert torch.equal(grey(x), colour(torch.cat([large] * 3, dim=1)))


def test_images_are_resized_only_if_asked_for():
    assert "adapt" not in on_meta("mobilenet-v2")._modules
    assert models.Adapt(repeat=3)(torch.ones(2, 1, 28, 28)).shape == (2, 3, 28, 28)
    assert models.Adapt(size=8)(torch.ones(2, 2, 28, 30)).shape == (2, 2, 8, 8)


@pytest.mark.parametrize(
    ("name", "at"),
    [("mobilenet-v2", ["features.4", "features.14"]), ("efficientnet-lite0", ["_blocks.5", "_conv_head"])],
)
def test_networks_are_cut_with_and_without_an_example(name, at):
    net, x = models.build(name), torch.randn(4, 3, 32, 32)
    for stages in (fw.split(net, at=at), fw.split(net, 3, by="parameters"), fw.split(net, 3, example=x)):
        assert {k for stage in stages for k, _ in stage.named_parameters()} == {k for k, _ in net.named_parameters()}
        net.eval()
        y = x
        for stage in stages:
            stage.eval()
            y = stage(y)
        assert torch.equal(y, net(x))


@pytest.mark.parametrize("name", MOBILE)
def test_networks_can_be_traced(name):
    net = models.build(name, in_shape=(1, 28, 28), resize=33).eval()
    x = torch.randn(2, 1, 28, 28)
    assert torch.equal(torch.fx.symbolic_trace(net)(x), net(x))


# torch itself calls it when forward mode is first used.
quiet = pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated:DeprecationWarning")


def agree(net: nn.Module, x: Tensor) -> None:
    """Forward mode gives <u, Jv>, reverse mode <J'u, v>, and the two are one number."""
    net.double()
    weights = {key: p.detach() for key, p in net.named_parameters()}
    v = {key: torch.randn_like(p) for key, p in weights.items()}

    def run(point: dict[str, Tensor]) -> Tensor:
        torch.manual_seed(1)
        return torch.func.functional_call(net, point, (x,))

    with fwd.dual_level():
        y, tangent = fwd.unpack_dual(run({key: fwd.make_dual(p, v[key]) for key, p in weights.items()}))
        assert tangent is not None
        u = torch.randn_like(y)
        ahead = (u * tangent).sum().item()
    for p in weights.values():
        p.requires_grad_()
    grads = torch.autograd.grad(run(weights), list(weights.values()), u)
    back = sum((g * v[key]).sum().item() for g, key in zip(grads, weights))
    assert ahead == pytest.approx(back, rel=1e-8)


@quiet
@spread(name=MOBILE, training=[True, False])
def test_forward_mode_agrees_with_reverse_mode(name, training):
    torch.manual_seed(0)
    net = models.build(name, in_shape=(1, 16, 16), resize=40).train(training)
    agree(net, torch.randn(3, 1, 16, 16, dtype=torch.float64))


def test_efficientnet_lite0_is_cut_before_its_groups_2_4_and_7():
    stages = models.stages("efficientnet-lite0")
    blocks = [[int(i) for i in stage._blocks._modules] for stage in stages]
    assert blocks == [[0], [1, 2, 3, 4], list(range(5, 15)), [15]]
    assert stages[0]._conv_stem is stages.model._conv_stem
    assert stages[3]._fc is stages.model._fc


# Appendix H.3.2 of AsyncFGD, with torchvision's names.
QUARTERS = {
    "resnet18": ["conv1 bn1 layer1", "layer2", "layer3", "layer4 fc"],
    "efficientnet_b0": [
        "features.0 features.1",
        "features.2 features.3",
        "features.4 features.5 features.6",
        "features.7 features.8 classifier.1",
    ],
    "mobilenet_v3_small": [
        "features.0 features.1 features.2",
        "features.3 features.4 features.5 features.6",
        "features.7 features.8 features.9 features.10",
        "features.11 features.12 classifier.0 classifier.3",
    ],
    "mnasnet0_5": [
        "layers.0 layers.1 layers.3 layers.4 layers.6 layers.7",
        "layers.8 layers.9",
        "layers.10 layers.11 layers.12",
        "layers.13 layers.14 layers.15 classifier.1",
    ],
    "shufflenet_v2_x0_5": ["conv1", "stage2", "stage3", "stage4 conv5 fc"],
}


@pytest.fixture(scope="module")
def vision() -> Any:
    """torchvision."""
    if importlib.util.find_spec("torchvision") is None:
        pytest.skip("needs torchvision: pip install 'freewheel[vision]'")
    return import_torchvision("a test")


@pytest.mark.parametrize("net", QUARTERS)
def test_quarters_are_those_of_the_paper_and_compose_to_the_network_of_torchvision(vision, net):
    torch.manual_seed(0)
    original = vision.models.get_model(net, num_classes=7)
    stages = models.stages(f"torchvision/{net}", num_classes=7)
    nested = net not in ("resnet18", "shufflenet_v2_x0_5")
    for stage, layers in zip(stages, QUARTERS[net], strict=True):
        names = (key.split(".") for key, _ in stage.named_parameters())
        assert list(dict.fromkeys(".".join(key[: 1 + nested]) for key in names)) == layers.split()

    stages.model.load_state_dict(original.state_dict())
    x = torch.randn(3, 3, 48, 48)
    for training in (True, False):
        original.train(training)
        torch.manual_seed(1)
        wanted = original(x)
        torch.manual_seed(1)
        y = x
        for stage in stages:
            stage.train(training)
            y = stage(y)
        assert torch.equal(y, wanted)
    assert not [m for m in stages.model.modules() if getattr(m, "inplace", False)]


@quiet
@pytest.mark.parametrize("net", QUARTERS)
def test_networks_of_torchvision_in_forward_mode(vision, net):
    torch.manual_seed(0)
    agree(models.build(f"torchvision/{net}", in_shape=(1, 28, 28), resize=40), torch.randn(3, 1, 28, 28).double())


def test_mobilenet_v2_is_that_of_torchvision(vision):
    original = vision.models.mobilenet_v2(num_classes=7).eval()
    ours = models.build("mobilenet-v2", num_classes=7).eval()
    ours.load_state_dict(original.state_dict())
    x = torch.randn(2, 3, 64, 64)
    assert torch.equal(ours(x), original(x))


@pytest.mark.parametrize("depth", [18, rarely(50), rarely(101)])
def test_residual_networks_for_imagenet_are_those_of_torchvision_and_take_its_files(vision, depth, tmp_path):
    torch.manual_seed(0)
    original = vision.models.get_model(f"resnet{depth}")
    for module in original.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.running_mean, -0.1, 0.1)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    torch.save(original.state_dict(), tmp_path / "weights.pt")
    ours = models.build(f"resnet-{depth}-imagenet", num_classes=1000)
    assert models.load_pretrained(ours, tmp_path / "weights.pt").new == ()
    x = torch.randn(2, 3, 64, 64)
    for training in (False, True):
        assert torch.equal(ours.train(training)(x), original.train(training)(x))
    fine = models.build(f"resnet-{depth}-imagenet", num_classes=10)
    assert models.load_pretrained(fine, tmp_path / "weights.pt").new == ("fc.weight", "fc.bias")
    kept = models.build(f"torchvision/resnet{depth}") if depth == 18 else None
    if kept is not None:
        assert models.load_pretrained(kept, tmp_path / "weights.pt").new == ("fc.weight", "fc.bias")


@pytest.mark.parametrize("method", ["pipedream", rarely("hogwild")])
def test_networks_of_torchvision_in_other_processes(vision, method):
    """A worker that gets one imports torchvision as this process does."""
    torch.manual_seed(0)
    data = [(torch.randn(4, 3, 32, 32), torch.arange(4)) for _ in range(3)]
    models_of: list[nn.Module] = []
    for runtime in ("simulate", "processes"):
        torch.manual_seed(1)
        stages = models.stages("torchvision/shufflenet_v2_x0_5") if method == "pipedream" else None
        whole = stages.model if stages else models.build("torchvision/shufflenet_v2_x0_5")
        made = fw.Trainer(
            stages or [whole],
            method=method,
            loss=nn.functional.cross_entropy,
            optimizer=partial(torch.optim.SGD, lr=0.01),
            runtime=runtime,
        )
        assert made.fit(data).batches == 3
        models_of.append(whole)
    if method == "pipedream":
        assert all(map(torch.equal, *(model.state_dict().values() for model in models_of)))


def test_torchvision_is_asked_for_only_when_it_is_needed(monkeypatch):
    monkeypatch.setitem(sys.modules, "torchvision.models", None)
    assert "torchvision/resnet18" in models.names(vision=True)
    assert "torchvision/resnet18" not in models.names()
    assert models.paper_cuts("torchvision/ResNet18") == ("layer2", "layer3", "layer4")
    with pytest.raises(ModuleNotFoundError) as caught:
        models.stages("torchvision/resnet18")
    assert str(caught.value) == "model 'torchvision/resnet18' needs torchvision: pip install 'freewheel[vision]'"


def test_a_torchvision_for_another_torch_is_named(monkeypatch):
    def broken(name: str) -> None:
        raise RuntimeError("operator torchvision::nms does not exist")

    monkeypatch.setattr(importlib, "import_module", broken)
    with pytest.raises(
        RuntimeError, match=r"does not fit the installed torch \(operator .*\): install the two together"
    ):
        models.build("torchvision/resnet18")


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: models.build("mobilenet-v2", resize=0), ValueError, "resize=0: give 1 or more"),
        (lambda: models.build("efficientnet-lite0", resize=6.4), TypeError, "resize=6.4: give a whole number"),
        (lambda: models.build("mobilenet-v2", width=2), TypeError, "has no option 'width': it takes resize"),
        (lambda: models.build("mobilenet-v2", num_classes=0), ValueError, "num_classes=0: give 1 or more"),
        (lambda: models.Adapt(repeat=0), ValueError, "repeat=0: give 1 or more"),
        (lambda: models.Adapt(size=0), ValueError, "size=0: give 1 or more"),
        (
            lambda: models.build("torchvision/resnet18", in_shape=(2, 32, 32)),
            ValueError,
            "in_shape=(2, 32, 32): the networks of torchvision take 1 or 3 channels, not 2",
        ),
        (lambda: models.build("torchvision/resnet81"), ValueError, "did you mean 'torchvision/resnet18'?"),
        (
            lambda: models.stages("mobilenet-v2"),
            ValueError,
            "fcl-tanh have one in three stages, efficientnet-lite0, torchvision/resnet18, ",
        ),
    ],
)
def test_bad_arguments_are_refused_in_one_line(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
