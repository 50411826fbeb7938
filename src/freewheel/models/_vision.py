"""Five networks of torchvision, and their splits in four by AsyncFGD (appendix H.2.2 and H.3.2)."""

from __future__ import annotations

from torch import nn

from freewheel._errors import whole_number
from freewheel._torchvision import import_torchvision
from freewheel.models._adapt import adapted
from freewheel.models._check import CHW

# The first layers of the second, third and fourth stage; what precedes the blocks is in the first stage, what
# follows them in the last. The paper counts 13 layers in the core of MobileNetV3-Small, which has 11
# bottlenecks: we take the 13 children of `features`, which include a convolution at each end.
CUTS = {
    "resnet18": ("layer2", "layer3", "layer4"),
    "efficientnet_b0": ("features.2", "features.4", "features.7"),
    "mobilenet_v3_small": ("features.3", "features.7", "features.11"),
    "mnasnet0_5": ("layers.8", "layers.10", "layers.13"),
    "shufflenet_v2_x0_5": ("stage2", "stage3", "stage4"),
}


def torchvision_net(
    *, net: str, resize: int | None = None, num_classes: int = 10, in_shape: CHW = (3, 224, 224)
) -> nn.Sequential:
    """A network of torchvision as an `nn.Sequential`, with the same layers, parameter names and results.

    Activations are not in place. Needs torchvision, the extra `vision`.

    Args:
        net: a name in `CUTS`.
        resize: rows and columns to resize images to first.
        num_classes, in_shape: as in `build`, with 1 or 3 channels; one gray channel is repeated.
    """
    layers, channels = adapted(in_shape, resize)
    if channels != 3:
        raise ValueError(f"in_shape={in_shape}: the networks of torchvision take 1 or 3 channels, not {channels}")
    classes = whole_number("num_classes", num_classes, least=1)
    what = f"model 'torchvision/{net}'"
    original = import_torchvision(what, "torchvision.models").get_model(net, weights=None, num_classes=classes)
    *body, (head, classifier) = original.named_children()
    layers.update(body)
    layers.setdefault("avgpool", nn.AdaptiveAvgPool2d(1))
    layers["flatten"] = nn.Flatten()
    layers[head] = classifier
    model = nn.Sequential(layers)
    for module in model.modules():
        if isinstance(module, nn.ReLU | nn.SiLU | nn.Hardswish | nn.Dropout):
            module.inplace = False
    return model
