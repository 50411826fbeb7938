"""Architectures of timm, one or more of each family, split into three stages and trained.

Each is as small as timm makes it, without dropout. Images are small and few.
"""

from __future__ import annotations

import copy
import importlib
import importlib.util
from functools import partial
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
from freewheel._cores import intra_op_threads
from spread import exhaustive
from vision import declare_operators

TINY_VIT = {"img_size": 32, "depth": 3, "embed_dim": 48, "num_heads": 3}
TINY_SWIN = {"img_size": 64, "embed_dim": 12, "num_heads": (1, 2, 4, 8), "depths": (1, 1, 2, 1)}
QUICK: dict[str, tuple[int, dict[str, Any]]] = {
    "test_resnet": (32, {}),
    "vit_tiny_patch16_224": (32, TINY_VIT),
}
OTHERS: dict[str, tuple[int, dict[str, Any]]] = {
    "swin_tiny_patch4_window7_224": (56, {**TINY_SWIN, "img_size": 56}),
    "test_efficientnet": (32, {}),
    "test_convnext": (32, {}),
    "test_nfnet": (32, {}),
    "test_byobnet": (32, {}),
    "mobilenetv3_small_050": (32, {}),
    # residual networks and their relatives
    "resnet10t": (32, {}),
    "resnet26t": (32, {}),
    "resnetblur18": (32, {}),
    "seresnext26t_32x4d": (32, {}),
    "ecaresnet26t": (32, {}),
    "resnetv2_18": (32, {}),
    "legacy_seresnet18": (32, {}),
    "skresnet18": (32, {}),
    "resnest14d": (32, {}),
    "res2net50_26w_4s": (32, {}),
    "regnetx_002": (32, {}),
    "regnety_002": (32, {}),
    "regnetz_b16": (32, {}),
    "nf_regnet_b0": (32, {}),
    "botnet26t_256": (64, {"img_size": 64}),
    "lambda_resnet26t": (64, {"img_size": 64}),
    "tresnet_m": (32, {}),
    # other convolutional networks
    "densenet121": (64, {}),
    "vgg11": (32, {"mlp_ratio": 0.02}),
    "inception_v3": (96, {}),
    "legacy_xception": (64, {}),
    "xception41": (32, {}),
    "hrnet_w18_small": (32, {}),
    "dla46x_c": (32, {}),
    "dpn48b": (32, {}),
    "selecsls42": (32, {}),
    "ese_vovnet19b_slim_dw": (32, {}),
    "hgnetv2_b0": (32, {}),
    "cs3darknet_s": (32, {}),
    "repvgg_a0": (32, {}),
    "gernet_s": (32, {}),
    "mobileone_s0": (32, {}),
    "rdnet_tiny": (32, {"num_init_features": 16, "growth_rates": (16,) * 7, "num_blocks_list": (1,) * 7}),
    "convnext_atto": (32, {}),
    "convnextv2_atto": (32, {}),
    "inception_next_atto": (32, {}),
    "fasternet_t0": (32, {}),
    "starnet_s050": (32, {}),
    "mambaout_femto": (32, {}),
    # for phones
    "efficientnet_lite0": (32, {}),
    "mixnet_s": (32, {}),
    "mnasnet_small": (32, {}),
    "mobilenetv2_035": (32, {}),
    "mobilenetv4_conv_small_035": (32, {}),
    "lcnet_035": (32, {}),
    "tinynet_e": (32, {}),
    "ghostnet_050": (32, {}),
    "repghostnet_050": (32, {}),
    "rexnet_100": (32, {}),
    "edgenext_xx_small": (64, {}),
    "mobilevit_xxs": (64, {}),
    "mobilevitv2_050": (64, {}),
    "efficientvit_b0": (32, {}),
    "efficientformerv2_s0": (64, {"img_size": 64}),
    "fastvit_t8": (64, {}),
    "repvit_m1": (32, {}),
    "swiftformer_xs": (64, {}),
    "shvit_s1": (64, {}),
    "starnet_s1": (32, {}),
    # attention
    "test_vit": (160, {}),
    "deit_tiny_distilled_patch16_224": (32, TINY_VIT),
    "deit3_small_patch16_224": (32, TINY_VIT),
    "beit_base_patch16_224": (32, TINY_VIT),
    "eva02_tiny_patch14_224": (28, {**TINY_VIT, "img_size": 28}),
    "vit_relpos_small_patch16_224": (32, TINY_VIT),
    "vit_tiny_r_s16_p8_224": (32, TINY_VIT),
    "samvit_base_patch16_224": (64, {**TINY_VIT, "img_size": 64}),
    "swinv2_tiny_window8_256": (64, TINY_SWIN),
    "swinv2_cr_tiny_224": (64, TINY_SWIN),
    "maxvit_pico_rw_256": (64, {"img_size": 64}),
    "coatnet_nano_rw_224": (64, {"img_size": 64}),
    "coat_tiny": (64, {"img_size": 64}),
    "coat_lite_tiny": (64, {"img_size": 64}),
    "cait_xxs24_224": (32, {"img_size": 32, "depth": 4}),
    "xcit_nano_12_p16_224": (32, {"img_size": 32}),
    "levit_128s": (64, {"img_size": 64}),
    "pvt_v2_b0": (32, {}),
    "pit_ti_224": (64, {"img_size": 64}),
    "twins_svt_small": (64, {"img_size": 64, "embed_dims": (16, 32, 64, 128), "depths": (1, 1, 2, 1)}),
    "visformer_tiny": (64, {"img_size": 64}),
    "volo_d1_224": (64, {"img_size": 64}),
    "tnt_s_patch16_224": (64, {"img_size": 64}),
    "convit_tiny": (64, {"img_size": 64}),
    "crossvit_tiny_240": (240, {}),
    "davit_tiny": (64, {"embed_dims": (24, 48, 96, 192), "depths": (1, 1, 2, 1)}),
    "nest_tiny": (64, {"img_size": 64}),
    "focalnet_tiny_srf": (32, {}),
    "gcvit_xxtiny": (64, {"img_size": 64}),
    "mvitv2_tiny": (64, {"img_size": 64}),
    "hiera_tiny_224": (64, {"img_size": 64, "embed_dim": 24}),
    "tiny_vit_5m_224": (64, {}),
    "poolformer_s12": (32, {}),
    # no attention
    "mixer_s32_224": (64, {"img_size": 64}),
    "resmlp_12_224": (64, {"img_size": 64}),
    "gmlp_ti16_224": (64, {"img_size": 64}),
    "gmixer_12_224": (64, {"img_size": 64}),
    "sequencer2d_s": (
        64,
        {"img_size": 64, "layers": (1, 1, 1, 1), "embed_dims": (12, 24, 24, 24), "hidden_sizes": (3, 6, 6, 6)},
    ),
}
UNEQUAL = {"mvitv2_tiny": "is a list and only tensors can be sent"}  # its blocks pass on the size of the image
DOUBLE = ("hrnet_w18_small", "mambaout_femto")  # in float32 their convolutions round by the layout of what they get
ARCHITECTURES = [*QUICK, *(pytest.param(name, marks=exhaustive) for name in OTHERS)]
SGD = partial(torch.optim.SGD, lr=1e-4)


def make(name: str) -> tuple[Any, list[tuple[torch.Tensor, torch.Tensor]]]:
    """The network, and batches for it."""
    if importlib.util.find_spec("timm") is None:
        pytest.skip("needs timm: pip install 'freewheel[dev]'")
    declare_operators()
    timm = importlib.import_module("timm")
    size, options = {**QUICK, **OTHERS}[name]
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=5, **options)
    for module in model.modules():
        for probability in ("p", "drop_prob", "drop_rate", "attn_drop", "drop_p"):
            if type(vars(module).get(probability)) is float:
                setattr(module, probability, 0.0)
    dtype = torch.float64 if name in DOUBLE else torch.float32
    images = torch.randn(3, 2, 3, size, size, dtype=dtype)
    return model.to(dtype), [(x, torch.randint(5, (2,))) for x in images]


def trained(stages: fw.Stages, method: str, runtime: str, batches: list[Any]) -> dict[str, torch.Tensor]:
    """The state of a copy of the network, trained."""
    stages = copy.deepcopy(stages)
    options = {"runtime": runtime, "threads": 1, "check": method == "bp"}
    fw.Trainer(stages, method=method, loss=F.cross_entropy, optimizer=SGD, **options).fit(batches)
    return stages.model.state_dict()


def differences(one: dict[str, torch.Tensor], two: dict[str, torch.Tensor]) -> list[str]:
    assert one.keys() == two.keys()
    return [name for name in one if not torch.equal(one[name], two[name])]


@pytest.mark.filterwarnings("ignore")  # timm's own
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_splits_and_trains(name):
    model, batches = make(name)
    stages = fw.split(copy.deepcopy(model), 3, example=batches[0][0], by="parameters")
    reason = UNEQUAL.get(name, "is a single layer")
    assert stages.report.speedup > 2 or reason in stages.report.bottleneck, str(stages.report)

    optimizer, plain = SGD(model.parameters()), trained(stages, "bp", "simulate", batches)
    with intra_op_threads(1):
        for x, y in batches:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
    assert differences(model.state_dict(), plain) == []
    for method in ("pipedream", "asyncfgd"):
        assert (
            differences(trained(stages, method, "simulate", batches), trained(stages, method, "threads", batches)) == []
        )


@exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "name", ["test_resnet", "test_efficientnet", "vit_tiny_patch16_224", "test_vit", "coat_lite_tiny"]
)
def test_trains_in_processes(name):
    model, batches = make(name)
    stages = fw.split(model, 3, example=batches[0][0], by="parameters")
    runs = [trained(stages, "pipedream", runtime, batches) for runtime in ("simulate", "processes")]
    assert differences(*runs) == []
