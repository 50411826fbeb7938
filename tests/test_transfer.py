"""The transfer schedule: α by epoch, what it freezes, and `freewheel train` with the options of forward gradients."""

from __future__ import annotations

import json
from collections import OrderedDict
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from command_line import Result, freewheel
from freewheel.cli import _one_core
from rows import LOCAL, same_bits

# ---- the schedule ----


def test_the_schedule_is_that_of_appendix_i1() -> None:
    """The classifier at 1; the layers at 0 for t₀ epochs, then t·α*/t₁ in the t-th epoch after them, α* at last."""
    alpha = fw.Transfer(classifier=["fc.*", "head.*"], layers=["a.*", "b.*"], warmup=3, ramp=4, peak=0.6)
    grown = [0.0, 0.0, 0.0, 0.15, 0.3, 0.45, 0.6, 0.6, 0.6]
    for epoch, wanted in enumerate(grown):
        found = alpha(epoch)
        assert list(found) == ["fc.*", "head.*", "a.*", "b.*", "*"]
        assert [found["fc.*"], found["head.*"], found["*"]] == [1.0, 1.0, 0.0]
        assert found["a.*"] == found["b.*"] == pytest.approx(wanted, abs=1e-15)


def test_defaults_and_edges() -> None:
    paper = fw.Transfer()
    assert (paper.classifier, paper.layers) == (("classifier.*",), ("*.bias",))
    assert (paper.warmup, paper.ramp, paper.peak) == (10, 20, 0.15)
    assert [fw.Transfer(warmup=0, ramp=1)(epoch)["*.bias"] for epoch in (0, 1)] == [0.15, 0.15]
    assert fw.Transfer(peak=0)(1000)["*.bias"] == 0
    whole = fw.Transfer(classifier="fc.*", layers="*", warmup=1, ramp=2, peak=1)
    assert [whole(epoch) for epoch in (0, 1, 2)] == [{"fc.*": 1.0, "*": a} for a in (0.0, 0.5, 1.0)]


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"warmup": -1}, ValueError, "warmup=-1: give 0 or more"),
        ({"warmup": 1.5}, TypeError, "warmup=1.5: give a whole number"),
        ({"ramp": 0}, ValueError, "ramp=0: give 1 or more"),
        ({"peak": -0.1}, ValueError, "peak=-0.1: give the final α of layers"),
        ({"peak": float("nan")}, ValueError, "peak=nan: give the final α of layers"),
        ({"peak": "high"}, TypeError, "peak='high': give the final α of layers"),
        ({"peak": True}, TypeError, "peak=True: give the final α of layers"),
        ({"layers": 3}, TypeError, "layers=3: give a pattern of parameter names"),
        ({"layers": []}, ValueError, "layers=[]: give at least one pattern"),
        ({"classifier": ""}, ValueError, "classifier='': give at least one pattern"),
        ({"classifier": "*"}, ValueError, "classifier='*' is the whole network"),
        ({"classifier": "fc.*", "layers": ["a.*", "fc.*"]}, ValueError, "both layers and classifier have 'fc.*'"),
    ],
)
def test_a_bad_schedule_is_refused_in_one_line(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        fw.Transfer(**options)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def stages() -> list[nn.Module]:
    torch.manual_seed(0)
    late = {"middle": nn.Linear(5, 5), "act": nn.Tanh(), "fc": nn.Linear(5, 3)}
    return [nn.Sequential(OrderedDict(body=nn.Linear(4, 5), act=nn.Tanh())), nn.Sequential(OrderedDict(late))]


def trained(epochs: int, runtime: str = "simulate", **options: Any) -> dict[str, Tensor]:
    """The weights after some epochs of three batches, by stage and name."""
    g = torch.Generator().manual_seed(1)
    batches = [(torch.randn(6, 4, generator=g), torch.randint(3, (6,), generator=g)) for _ in range(3)]
    made = stages()
    alpha = fw.Transfer(classifier="fc.*", layers="body.*", warmup=2, ramp=2, peak=0.5)
    optimizer = partial(torch.optim.SGD, lr=0.05, momentum=0.9)
    trainer = fw.Trainer(
        made,
        method=fw.AsyncFGD(scale=alpha, **options),
        loss=F.cross_entropy,
        optimizer=optimizer,
        runtime=runtime,
        threads=1,
    )
    trainer.fit(batches, epochs=epochs, progress=False)
    return {f"{k}.{name}": p.detach().clone() for k, stage in enumerate(made) for name, p in stage.named_parameters()}


@pytest.mark.parametrize("perturb", ["weights", "activations"])
@pytest.mark.parametrize("runtime", LOCAL)
def test_layers_thaw_in_their_epoch(runtime: str, perturb: str) -> None:
    start = {f"{k}.{name}": p for k, stage in enumerate(stages()) for name, p in stage.named_parameters()}
    for epochs, moving in ((2, {"1.fc"}), (3, {"1.fc", "0.body"})):
        after = trained(epochs, runtime, perturb=perturb)
        moved = {name.rpartition(".")[0] for name in after if not torch.equal(after[name], start[name])}
        assert moved == moving


def test_every_batch_has_the_scale_of_its_epoch_on_every_runtime() -> None:
    """At the end of an epoch batches of two are under way."""
    one, two = (list(trained(5, runtime, tangents=2).values()) for runtime in ("simulate", "threads"))
    assert same_bits(one, two)


# ---- the command ----

BRIEF = (
    "--epochs",
    "2",
    "--limit",
    "96",
    "--test-limit",
    "60",
    "--threads",
    "1",
    "--no-compare",
    "--runtime",
    "simulate",
)
SMALL = ("--method", "asyncfgd", "--model", "digits-cnn", "--at", "pool", *BRIEF)
WARM = ("--transfer", "--transfer-warmup", "1", "--transfer-ramp", "1")


def run(*arguments: str) -> Result:
    return freewheel("train", *arguments)


def good(*arguments: str) -> list[str]:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout.splitlines()


def saved(path: Path, *arguments: str) -> dict[str, Tensor]:
    good(*arguments, "--quiet", "--save", str(path))
    return torch.load(path)


def changed(one: dict[str, Tensor], two: dict[str, Tensor]) -> set[str]:
    return {name for name in one if not torch.equal(one[name], two[name])}


def test_the_opening_says_what_the_tangents_do() -> None:
    lines = good(*SMALL)
    assert (
        "tangents 1 gaussian per step, perturbing weights; less noise: -o perturb=activations, or -o tangents=4"
        in lines
    )
    assert not any(line.startswith("transfer") for line in lines)
    options = ("-o", "tangents=2", "-o", "distribution=rademacher", "-o", "perturb=activations")
    lines = good(*SMALL, *options, *WARM, "--transfer-layers", "conv2.*", "--transfer-peak", "0.3")
    assert "tangents 2 rademacher per step, perturbing activations" in lines
    assert "transfer fc.* from the first epoch on, conv2.* from epoch 2 on, with α = 0.3" in lines
    assert not any("tangents" in line for line in good(*BRIEF))


def test_transfer_trains_the_classifier_and_then_the_layers_named(tmp_path: Path) -> None:
    """Running statistics follow the data in any case; only what has a scale is trained."""
    start = fw.models.build("digits-cnn", num_classes=10, in_shape=(1, 8, 8)).state_dict()
    file = tmp_path / "start.pt"
    torch.save(start, file)
    begun = ("--pretrained", str(file))
    alone = saved(tmp_path / "a.pt", *SMALL, *begun, "--transfer", "--transfer-peak", "0")
    weights = {name for name, _ in fw.models.build("digits-cnn", in_shape=(1, 8, 8)).named_parameters()}
    kept = {name: tensor for name, tensor in start.items() if name in weights}
    assert changed(kept, alone) <= {"fc.weight", "fc.bias"}
    more = saved(
        tmp_path / "b.pt", *SMALL, *begun, *WARM, "--transfer-layers", "conv2.*", "--transfer-layers", "bn1.bias"
    )
    assert {name.split(".")[0] for name in changed(kept, more)} == {"fc", "conv2", "bn1"}
    assert "bn1.weight" not in changed(kept, more)


@pytest.mark.parametrize(
    "change",
    [
        ("-o", "tangents=2"),
        ("-o", "distribution=sphere"),
        ("-o", "perturb=activations"),
        ("-o", "scale=0.5"),
        (*WARM, "--transfer-peak", "0.5"),
    ],
    ids=" ".join,
)
def test_options_change_the_weights(change: tuple[str, ...], tmp_path: Path) -> None:
    one, two = saved(tmp_path / "a.pt", *SMALL), saved(tmp_path / "b.pt", *SMALL, *change)
    assert changed(one, two)


def test_keeping_tangents_and_threads_do_not(tmp_path: Path) -> None:
    one = saved(tmp_path / "a.pt", *SMALL, *WARM)
    two = saved(tmp_path / "b.pt", *SMALL, *WARM, "-o", "checkpoint=no", "--runtime", "threads")
    assert not changed(one, two)


def test_json_holds_the_schedule_and_where_the_weights_come_from(tmp_path: Path) -> None:
    file = tmp_path / "start.pt"
    torch.save(fw.models.build("digits-cnn", num_classes=5, in_shape=(1, 8, 8)).state_dict(), file)
    lines = good(*SMALL, *WARM, "--pretrained", str(file), "--json", str(tmp_path / "run.json"))
    assert any(line.startswith("weights  ") and "fc" in line for line in lines)
    written = json.loads((tmp_path / "run.json").read_text())
    assert written["transfer"] == {"classifier": ["fc.*"], "layers": ["*.bias"], "warmup": 1, "ramp": 1, "peak": 0.15}
    assert written["method"]["credit"] == "forward"
    assert set(written["pretrained"]["new"]) == {"fc.weight", "fc.bias"}


@pytest.mark.parametrize(("data", "model"), [("digits", "fcs-tanh"), ("digits-rows", "rnn")])
def test_a_network_that_suits_is_balanced_by_its_dual_passes(
    data: str, model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    real = fw.split
    monkeypatch.setattr(fw, "split", lambda *args, **options: asked.append(options["by"]) or real(*args, **options))
    lines = good("--method", "asyncfgd", "--data", data, "-k", "2", *BRIEF)
    assert any(line.startswith(f"model    {model}: ") for line in lines)
    good("--data", data, "-k", "2", *BRIEF)
    good("--method", "asyncfgd", "--split", "time", "--data", data, "-k", "2", *BRIEF)
    assert asked == ["forward", "time", "time"]


def test_the_comparison_says_what_it_is_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_one_core, "SECONDS", 0.0)
    lines = good(*(a for a in SMALL if a != "--no-compare"), "--compare", "--quiet")
    assert any(" times backpropagation in plain PyTorch on one core (" in line for line in lines)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--transfer", "--transfer with --method pipedream: its schedule is for the tangents of forward gradients"),
        ("--method asyncfgd --transfer", "--epochs 10 with a warm-up of 10: only the classifier would be trained"),
        ("--method asyncfgd --transfer-peak 0.3", "--transfer-peak without --transfer"),
        ("--method asyncfgd --transfer-layers *.bias", "--transfer-layers without --transfer"),
        (
            "--method asyncfgd --transfer --epochs 30 --transfer-peak -1",
            "--transfer-peak=-1: give a number from 0 on",
        ),
        ("--method asyncfgd --transfer --epochs 30 --transfer-ramp 0", "--transfer-ramp=0: give 1 or more"),
        ("--method asyncfgd --transfer --epochs 30 --transfer-warmup -1", "--transfer-warmup=-1: give 0 or more"),
        ("--method asyncfgd --transfer --epochs 30 -o scale=0.5", "--transfer with -o scale=0.5: both set the scale"),
        ("--method asyncfgd --transfer --epochs 30 --transfer-layers nosuch*", "which matches no parameter"),
        ("--method asyncfgd --pretrained no.pt", "--pretrained no.pt without --model"),
        ("--method asyncfgd --pretrained no.pt --model fcs-tanh", "there is no such file"),
        ("--method asyncfgd -o tangents=0", "tangents=0: give 1 or more"),
        ("--method asyncfgd -o tangents=two", "tangents='two': give a whole number"),
        ("--method asyncfgd -o perturb=activation", "unknown perturb 'activation': did you mean 'activations'?"),
        ("--method asyncfgd -o distribution=normal", "unknown distribution 'normal'"),
        ("--method asyncfgd -o scale=-1", "scale=-1: give a factor on tangents"),
        ("--method asyncfgd -o checkpoint=maybe", "checkpoint='maybe': give True or False"),
        ("--method asyncfgd -o direction=up", "a direction is a function, which can only be passed in Python"),
        ("--method asyncfgd -o tangent=2", "'tangent': did you mean 'tangents'?"),
        ("--method asyncfgd --compile -o perturb=activations", "only perturb='weights' compiles"),
        ("--method pipedream -o tangents=2", "unknown option of method 'pipedream': 'tangents'"),
        ("--method asyncfgd --split forwards", "unknown by 'forwards': did you mean 'forward'?"),
    ],
)
def test_bad_input_is_one_line(line: str, words: str) -> None:
    result = run(*line.split())
    assert result.exit_code == 2
    assert result.stderr.startswith("error: ")
    assert words in result.stderr
    assert len(result.stderr.strip().splitlines()) == 1
