"""The networks are those of the papers, and each can be cut without changing what it computes."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn

from freewheel import data, models
from spread import exhaustive, rarely

ASYNCFGD = [f"{net}-{act}" for net in ("convs", "convl", "fcs", "fcl") for act in ("relu", "tanh")]
DEEP = ("resnet-110", "resnet-1202", "resnet-164", "resnet-1001", "resnet-98")
LARGE = ("resnet-18-imagenet", "resnet-50-imagenet", "resnet-101-imagenet")
WIDE = ("wrn-28-10", "resnext-29", "resnet-50", *LARGE)
RECURRENT = ("rnn", "gru", "lstm")


def on_meta(name: str, **kwargs) -> nn.Sequential:
    with torch.device("meta"):
        return models.build(name, **kwargs)


def count(net: nn.Module) -> int:
    return sum(p.numel() for p in net.parameters())


# Millions of parameters as the papers print them, with as many decimals.
@pytest.mark.parametrize(
    ("name", "published", "decimals"),
    [
        ("resnet-20", 0.27, 2),
        ("resnet-56", 0.85, 2),
        ("resnet-110", 1.7, 1),
        ("resnet-1202", 19.4, 1),
        ("resnet-164", 1.7, 1),
        ("wrn-28-10", 36.5, 1),
        ("resnext-29", 34.4, 1),
        ("resnet-18", 11.2, 1),
        ("resnet-50", 23.5, 1),
        ("vgg-19", 20.0, 1),
    ],
)
def test_parameters_are_as_many_as_published(name, published, decimals):
    assert round(count(on_meta(name)) / 1e6, decimals) == published


# Tables 8 to 11 of AsyncFGD, counted by hand: weights and biases of each layer, and 2 of each channel of a BatchNorm.
def convolutions(inputs: int) -> int:
    """The five blocks of ConvL."""
    widths = (inputs, 32, 64, 128, 256, 512)
    return sum(9 * a * b + b + 2 * b for a, b in pairwise(widths))


@pytest.mark.parametrize(
    ("net", "mnist", "cifar"),
    [
        ("convs", 25 * 32 + 32 + 32 * 14 * 14 * 1000 + 1000 + 10010, 75 * 32 + 32 + 32 * 16 * 16 * 1000 + 1000 + 10010),
        # Each block adds 2 to a side and halves it: 28, 15, 8, 5, 3, 2 and 32, 17, 9, 5, 3, 2.
        ("convl", convolutions(1) + 512 * 2 * 2 * 10 + 10, convolutions(3) + 512 * 2 * 2 * 10 + 10),
        ("fcs", 785 * 1024 + 1025 * 512 + 513 * 256 + 2570, 3073 * 1024 + 1025 * 512 + 513 * 256 + 2570),
        (
            "fcl",
            785 * 1024 + 3 * 1025 * 1024 + 1025 * 512 + 2 * (4 * 1024 + 512) + 5130,
            3073 * 1024 + 3 * 1025 * 1024 + 1025 * 512 + 2 * (4 * 1024 + 512) + 5130,
        ),
    ],
)
def test_networks_of_asyncfgd_are_as_large_as_counted_by_hand(net, mnist, cifar):
    for activation in ("relu", "tanh"):
        name = f"{net}-{activation}"
        assert (count(on_meta(name, in_shape=(1, 28, 28))), count(on_meta(name))) == (mnist, cifar)


@pytest.mark.parametrize("depth", [20, 56, 98, 110, 1202])
def test_residual_networks_are_as_large_as_counted_by_hand(depth):
    n = (depth - 2) // 6
    convs = 9 * (3 * 16 + 2 * n * 16**2 + 16 * 32 + (2 * n - 1) * 32**2 + 32 * 64 + (2 * n - 1) * 64**2)
    norms = 2 * (16 + 2 * n * (16 + 32 + 64))
    assert count(on_meta(f"resnet-{depth}", num_classes=100)) == convs + norms + 65 * 100


@pytest.mark.parametrize(
    ("name", "published"),
    [("resnet-18-imagenet", 11_689_512), ("resnet-50-imagenet", 25_557_032), ("resnet-101-imagenet", 44_549_160)],
)
def test_networks_for_imagenet_reduce_its_images_as_published(name, published):
    """Table 1 of He et al. (2016): sides of 112 after the stem, then 56, 28, 14 and 7."""
    net = on_meta(name, num_classes=1000)
    assert count(net) == published
    x, sides = torch.zeros(2, 3, 224, 224, device="meta"), []
    for layer, module in net.named_children():
        x = module(x)
        if layer.startswith(("conv", "layer", "maxpool")):
            sides.append(x.shape[-1])
    assert sides == [112, 56, 56, 28, 14, 7]
    assert x.shape == (2, 1000)


@pytest.mark.parametrize(
    ("table", "name", "options"),
    [
        ("FDG, table V", "resnet-18", {"num_classes": 200, "in_shape": (3, 64, 64)}),
        ("FDG, table V", "mobilenet-v2", {"num_classes": 200, "in_shape": (3, 64, 64)}),
        ("FDG, table IV", "wrn-28-10", {"num_classes": 100}),
        ("DSP, table 3", "resnext-29", {"num_classes": 100}),
        ("DSP, table 3", "vgg-19", {"num_classes": 100}),
        ("DSP, table 3", "resnet-1001", {"num_classes": 100}),
        ("Async LU, table 4", "resnet-50", {"num_classes": 100}),
    ],
)
def test_networks_of_other_tables_take_their_images(table, name, options):
    net = on_meta(name, **options)
    assert net(torch.zeros(2, *options.get("in_shape", (3, 32, 32)), device="meta")).shape == (
        2,
        options["num_classes"],
    )


def test_resnet_1001_is_as_large_as_published_without_its_batchnorm():
    net = on_meta("resnet-1001")
    norms = sum(count(m) for m in net.modules() if isinstance(m, nn.BatchNorm2d))
    assert round((count(net) - norms) / 1e6, 1) == 10.2
    assert round(count(net) / 1e6, 1) == 10.3


@pytest.mark.parametrize(
    ("name", "per_group"),
    [
        ("resnet-20", 3),
        ("resnet-56", 9),
        ("resnet-98", 16),
        ("resnet-110", 18),
        ("resnet-164", 18),
        ("resnet-1001", 111),
    ],
)
def test_depth_counts_convolutions_and_the_classifier(name, per_group):
    net = on_meta(name)
    assert [len(group) for group in (net.layer1, net.layer2, net.layer3)] == [per_group] * 3
    layers = [path for path, m in net.named_modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert len([path for path in layers if "shortcut" not in path]) == int(name.split("-")[1])


@pytest.mark.parametrize(("cardinality", "width", "published"), [(8, 64, 34.4), (16, 64, 68.1)])
def test_resnext_options(cardinality, width, published):
    net = on_meta("resnext-29", cardinality=cardinality, width=width)
    assert count(net) / 1e6 == pytest.approx(published, abs=0.1)


def test_shortcut_a_has_no_parameters_and_b_has():
    a, b = models.build("resnet-20"), models.build("resnet-20", shortcut="projection")
    assert not [name for name, _ in a.named_parameters() if "shortcut" in name]
    assert count(b) - count(a) == (16 * 32 + 2 * 32) + (32 * 64 + 2 * 64)


def test_shortcut_a_subsamples_and_pads_with_zeros():
    x = torch.randn(2, 16, 8, 8)
    y = models.PadShortcut(16, 32, stride=2)(x)
    assert torch.equal(y[:, 8:24], x[:, :, ::2, ::2])
    assert not y[:, :8].any()
    assert not y[:, 24:].any()


def test_dropout_of_wrn():
    drops = [m for m in on_meta("wrn-28-10", dropout=0.3).modules() if isinstance(m, nn.Dropout)]
    assert len(drops) == 12
    assert {d.p for d in drops} == {0.3}
    assert not [m for m in on_meta("wrn-28-10").modules() if isinstance(m, nn.Dropout)]


def describe(module: nn.Module) -> object:
    match module:
        case nn.Conv2d():
            return ("conv", module.out_channels, module.kernel_size[0], module.stride[0], module.padding[0])
        case nn.Linear():
            return ("linear", module.out_features)
        case nn.MaxPool2d():
            return ("pool", module.kernel_size, module.stride, module.padding, module.dilation)
        case _:
            return type(module).__name__


POOL = ("pool", 2, 2, 0, 1)


def tables(act: str) -> dict[str, dict[str, object]]:
    """Tables 8 to 11 of AsyncFGD, and what they leave out: ConvS's flatten, FCS's ac3 and fc4."""
    convl = {}
    for i, channels in enumerate((32, 64, 128, 256, 512), start=1):
        convl |= {f"conv{i}": ("conv", channels, 3, 1, 2), f"bn{i}": "BatchNorm2d"}
        convl |= {f"act{i}": act, f"pool{i}": POOL}
    fcl: dict[str, object] = {"flatten": "Flatten"}
    for i, features in enumerate((1024, 1024, 1024, 1024, 512), start=1):
        fcl |= {f"fc{i}": ("linear", features), f"bn{i}": "BatchNorm1d", f"ac{i}": act}
    return {
        "convs": {
            "conv1": ("conv", 32, 5, 1, 2),
            "act1": act,
            "pool1": POOL,
            "flatten": "Flatten",
            "fc1": ("linear", 1000),
            "act2": act,
            "fc2": ("linear", 10),
        },
        "convl": convl | {"flatten": "Flatten", "fc1": ("linear", 10)},
        "fcs": {
            "flatten": "Flatten",
            "fc1": ("linear", 1024),
            "ac1": act,
            "fc2": ("linear", 512),
            "ac2": act,
            "fc3": ("linear", 256),
            "ac3": act,
            "fc4": ("linear", 10),
        },
        "fcl": fcl | {"fc6": ("linear", 10)},
    }


@pytest.mark.parametrize("name", ASYNCFGD)
def test_layers_are_those_of_the_tables(name):
    family, act = name.split("-")
    table = tables({"relu": "ReLU", "tanh": "Tanh"}[act])[family]
    net = models.build(name)
    assert list(net._modules) == list(table)
    assert {layer: describe(module) for layer, module in net.named_children()} == table


# Tables 3 to 6, in the order of the layers.
SPLITS = {
    "convs": ["conv1 act1", "pool1 flatten fc1", "act2 fc2"],
    "convl": [
        "conv1 bn1 act1 pool1 conv2 bn2 act2 pool2",
        "conv3 bn3 act3 pool3 conv4 bn4 act4 pool4",
        "conv5 bn5 act5 pool5 flatten fc1",
    ],
    "fcs": ["flatten fc1 ac1", "fc2 ac2", "fc3 ac3 fc4"],
    "fcl": ["flatten fc1 bn1 ac1 fc2 bn2 ac2", "fc3 bn3 ac3 fc4 bn4 ac4", "fc5 bn5 ac5 fc6"],
}


@pytest.mark.parametrize("name", ASYNCFGD)
def test_stages_are_those_of_the_tables_and_compose_to_the_whole(name):
    options = {"in_shape": (1, 12, 12), "num_classes": 7}
    torch.manual_seed(0)
    whole = models.build(name, **options)
    torch.manual_seed(0)
    parts = models.stages(name, **options)
    assert [" ".join(part._modules) for part in parts] == SPLITS[name.split("-")[0]]
    assert [next(iter(part._modules)) for part in parts[1:]] == list(models.paper_cuts(name))
    names = [key for part in parts for key, _ in part.named_parameters()]
    assert names == [key for key, _ in whole.named_parameters()]

    x = torch.randn(4, 1, 12, 12)
    y = x
    for part in parts:
        y = part(y)
    assert torch.equal(y, whole(x))


@pytest.mark.parametrize("name", [n for n in models.names() if n not in (*DEEP, *WIDE, *RECURRENT)])
def test_output_has_a_column_for_each_class(name):
    in_shape = (1, 8, 8) if name == "digits-cnn" else (3, 32, 32)
    assert models.build(name, num_classes=3)(torch.randn(2, *in_shape)).shape == (2, 3)


@exhaustive
@pytest.mark.parametrize("name", [*DEEP, *WIDE])
def test_output_of_large_networks(name):
    assert on_meta(name, num_classes=3)(torch.zeros(2, 3, 32, 32, device="meta")).shape == (2, 3)


@pytest.mark.parametrize("name", [rarely(n) if n in DEEP else n for n in models.names() if n not in RECURRENT])
def test_image_shape_may_be_any_that_the_pools_can_halve(name):
    net = on_meta(name, in_shape=[2, 45, 33])
    assert net(torch.zeros(2, 2, 45, 33, device="meta")).shape == (2, 10)


@pytest.mark.parametrize(
    "name",
    ["convs-relu", "convl-tanh", "fcs-relu", "fcl-tanh", "resnet-20", "resnet-18", "vgg-19", "digits-cnn"],
)
def test_networks_can_be_traced(name):
    in_shape = (1, 8, 8) if name == "digits-cnn" else (3, 32, 32)
    net = models.build(name)
    traced = torch.fx.symbolic_trace(net)
    x = torch.randn(2, *in_shape)
    net.eval()
    traced.eval()
    assert torch.equal(traced(x), net(x))


@pytest.mark.parametrize("name", ["resnet-164", "wrn-28-10", "resnext-29", "resnet-50"])
def test_large_networks_can_be_traced(name):
    graph = torch.fx.symbolic_trace(on_meta(name)).graph
    convs = [node for node in graph.nodes if node.op == "call_module" and "conv" in str(node.target)]
    assert len(convs) > 20


@pytest.mark.parametrize("name", [rarely(n) if n in DEEP else n for n in models.names()])
def test_no_network_works_in_place(name):
    assert not [m for m in on_meta(name).modules() if getattr(m, "inplace", False)]


@pytest.mark.parametrize(
    "block",
    [
        models.BasicBlock(4, 4),
        models.Bottleneck(4, 8, middle=2),
        models.PreActBottleneck(4, 4, middle=2),
        models.WideBlock(4, 4),
    ],
    ids=lambda block: type(block).__name__,
)
def test_blocks_leave_their_input_alone(block):
    x = torch.randn(2, 4, 4, 4)
    before = x.clone()
    block(x)
    assert torch.equal(x, before)


def test_a_preactivated_identity_block_adds_to_its_bare_input():
    block = models.PreActBottleneck(8, 8, middle=2)
    nn.init.zeros_(block.conv3.weight)
    x = torch.randn(2, 8, 4, 4)
    assert torch.equal(block(x), x)


def test_convolutions_are_initialised_by_fan_out():
    torch.manual_seed(0)
    conv = models.build("resnet-20").layer3[1].conv1
    assert conv.weight.std().item() == pytest.approx((2 / (64 * 9)) ** 0.5, rel=0.02)


def test_seed_decides_the_weights():
    def weights(seed: int) -> list[Tensor]:
        torch.manual_seed(seed)
        return list(models.build("digits-cnn").parameters())

    assert all(map(torch.equal, weights(0), weights(0)))
    assert not all(map(torch.equal, weights(0), weights(1)))


def test_halves_of_digits_cnn_do_as_much_work():
    net = models.build("digits-cnn")
    work = dict.fromkeys(("before", "after"), 0)
    side, half = 8, "before"
    for name, module in net.named_children():
        if name == "pool":
            side, half = 4, "after"
        if isinstance(module, nn.Conv2d):
            work[half] += module.weight.numel() * side * side
    assert 0.8 < work["before"] / work["after"] < 1.25


@exhaustive
def test_digits_cnn_learns_the_digits():
    torch.manual_seed(0)
    net, digits = models.build("digits-cnn"), data.load("digits", batch_size=64)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    for _ in range(6):
        for images, labels in digits.train:
            optimizer.zero_grad()
            nn.functional.cross_entropy(net(images), labels).backward()
            optimizer.step()
        optimizer.param_groups[0]["lr"] *= 0.6
    net.eval()
    with torch.no_grad():
        right = sum(int((net(images).argmax(1) == labels).sum()) for images, labels in digits.test)
    assert right / 360 >= 0.97


def test_names_are_found_in_any_case():
    assert count(on_meta("ResNet-20")) == count(on_meta("resnet-20"))
    assert models.paper_cuts("ConvS-ReLU") == ("pool1", "act2")
    assert set(ASYNCFGD) < set(models.names())


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: models.build("resnet-21"), ValueError, "unknown model 'resnet-21': did you mean 'resnet-"),
        (lambda: models.build("ResNet-101"), ValueError, "did you mean 'resnet-101-imagenet'?"),
        (lambda: models.build("mobilenet-v3-small"), ValueError, "did you mean 'torchvision/mobilenet_v3_small'?"),
        (lambda: models.build("AmoebaNet-D"), ValueError, "model 'AmoebaNet-D' is not here: dsp quotes its speed from"),
        (lambda: models.imagenet_resnet(depth=20), ValueError, "depth=20: give 18, 34, 50, 101 or 152"),
        (lambda: models.build("convs"), ValueError, "unknown model 'convs': did you mean 'convs-"),
        (lambda: models.build(20), TypeError, "name=20: give the name of a model, such as 'resnet-20'"),
        (
            lambda: models.build("fcs-relu", num_classes=0),
            ValueError,
            "num_classes=0: give 1 or more",
        ),
        (lambda: models.build("fcs-relu", num_classes=2.5), TypeError, "num_classes=2.5: give a whole number"),
        (
            lambda: models.build("fcs-relu", num_classes=True),
            TypeError,
            "num_classes=True: give a whole number",
        ),
        (lambda: models.build("fcs-relu", in_shape=28), TypeError, "in_shape=28: give three whole numbers"),
        (lambda: models.build("fcs-relu", in_shape="abc"), TypeError, "in_shape[0]='a': give a whole number"),
        (
            lambda: models.build("fcs-relu", in_shape=(28, 28)),
            ValueError,
            "in_shape=(28, 28): give three whole numbers",
        ),
        (lambda: models.build("fcs-relu", in_shape=(1, 0, 8)), ValueError, "in_shape[1]=0: give 1 or more"),
        (lambda: models.build("fcs-relu", in_shape=(1, 8, 8.0)), TypeError, "in_shape[2]=8.0: give a whole number"),
        (
            lambda: models.build("vgg-19", in_shape=(3, 32, 31)),
            ValueError,
            "in_shape=(3, 32, 31) is too small for vgg-19: its pools need images of at least 32x32",
        ),
        (lambda: models.build("convs-relu", in_shape=(3, 1, 9)), ValueError, "is too small for convs"),
        (lambda: models.build("digits-cnn", in_shape=(1, 1, 1)), ValueError, "is too small for digits-cnn"),
        (
            lambda: models.build("resnet-20", dropout=0.1),
            TypeError,
            "model 'resnet-20' has no option 'dropout': it takes shortcut",
        ),
        (lambda: models.build("vgg-19", depth=16), TypeError, "has no option 'depth': it takes none"),
        (
            lambda: models.build("resnet-20", shortcut="b"),
            ValueError,
            "unknown shortcut 'b': (known: pad, projection)",
        ),
        (
            lambda: models.build("wrn-28-10", dropout=1.0),
            ValueError,
            "dropout=1.0: give a probability below 1",
        ),
        (
            lambda: models.build("wrn-28-10", dropout="no"),
            TypeError,
            "dropout='no': give a probability below 1, a number, 0 or more",
        ),
        (lambda: models.build("resnext-29", cardinality=0), ValueError, "cardinality=0: give 1 or more"),
        (lambda: models.build("resnext-29", width=1.5), TypeError, "width=1.5: give a whole number"),
        (lambda: models.build("digits-cnn", width=0), ValueError, "width=0: give 1 or more"),
        (
            lambda: models.cifar_resnet(depth=21),
            ValueError,
            "depth must be 6n + 2 with n >= 1, got 21",
        ),
        (
            lambda: models.preact_resnet(depth=2),
            ValueError,
            "depth must be 9n + 2 with n >= 1, got 2",
        ),
        (lambda: models.wide_resnet(depth=28, widen=0), ValueError, "widen=0: give 1 or more"),
        (lambda: models.convs(activation="gelu"), ValueError, "unknown activation 'gelu': did you mean"),
        (
            lambda: models.stages("resnet-20"),
            ValueError,
            "model 'resnet-20' has no published split: convs-relu, ",
        ),
        (lambda: models.paper_cuts("fcx"), ValueError, "unknown model 'fcx'"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_no_image_is_too_small_for_convl():
    """Padding 2 around a kernel of 3 grows an image by 2 before each pool halves it."""
    assert models.build("convl-relu", in_shape=(3, 1, 1))(torch.randn(2, 3, 1, 1)).shape == (2, 10)
