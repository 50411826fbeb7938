"""The networks and data sets that the papers name."""

from __future__ import annotations

from freewheel.reproduce._networks import Net, Pretrained, Source

MNIST = Source(title="MNIST", name="mnist")
FASHION = Source(title="Fashion-MNIST", name="fashion-mnist")
CIFAR10 = Source(title="CIFAR-10", name="cifar10")
CIFAR100 = Source(title="CIFAR-100", name="cifar100")
IMDB = Source(title="IMDb", name="imdb")
SOURCES = {source.title: source for source in (MNIST, FASHION, CIFAR10, CIFAR100, IMDB)}

_PLAIN = {
    **{f"ResNet-{depth}": f"resnet-{depth}" for depth in (18, 20, 50, 56, 98, 110, 164, 1001, 1202)},
    "WRN-28-10": "wrn-28-10",
    "VGG-19": "vgg-19",
    "ResNeXt-29": "resnext-29",
    "LSTM": "lstm",
}
NETS = {title: Net(title=title, model=model) for title, model in _PLAIN.items()}
NETS["LSTM"] = Net(title="LSTM", model="lstm", options=(("hidden", 256),))

# ConvS and the others of AsyncFGD, which are small enough for any machine.
SMALL = {
    f"{net}-{activation}": Net(
        title=f"{net}-{activation}", model=f"{net}-{activation}".lower(), published=True, small=True
    )
    for net in ("ConvS", "ConvL", "FCS", "FCL")
    for activation in ("Tanh", "ReLU")
}


def _large(title: str, model: str, *others: Pretrained) -> Net:
    own = Pretrained(model=f"torchvision/{model}", file=f"{model}.pt")
    options = (("resize", 224),)
    return Net(title=title, model=own.model, options=options, published=True, pretrained=(own, *others))


# Networks with ImageNet weights, and what stands for one whose weights are missing.
TRANSFER = {
    net.title: net
    for net in (
        _large("ResNet-18", "resnet18"),
        _large(
            "MobileNetV3-Small",
            "mobilenet_v3_small",
            Pretrained(model="mobilenet-v2", file="mobilenet_v2_features.pt"),
        ),
        _large(
            "EfficientNet-B0",
            "efficientnet_b0",
            Pretrained(model="efficientnet-lite0", file="efficientnet_lite0.pth"),
        ),
        _large("MNASNet-0.5", "mnasnet0_5"),
        _large("ShuffleNetV2-0.5", "shufflenet_v2_x0_5"),
    )
}
