"""The memory benchmark counts what it says. Cases here can be worked out by hand."""

from __future__ import annotations

import gc
import json
from functools import partial

import pytest
import torch
from torch import nn

from command_line import freewheel
from freewheel import models
from freewheel.bench import _memory, _memory_contenders
from freewheel.bench._memory_accountant import changes, peak_extra, peak_resident
from freewheel.bench._memory_contenders import CONTENDERS, contenders_for, make_contender
from freewheel.bench._memory_nets import CLASSES, Net, loss
from freewheel.bench._memory_picture import STYLES
from freewheel.bench._memory_process import Template, measure
from spread import exhaustive, needs_cuda, rarely
from vision import declare_operators

FLOAT = 4
TINY = (
    _memory.Sweep(
        name="fc-depth",
        title="small",
        axis="depth",
        unit="layers",
        values=(2, 3),
        net=Net(kind="fc", depth=2, width=8, batch=4),
    ),
    _memory.Sweep(
        name="rnn-length",
        title="short",
        axis="length",
        unit="steps",
        values=(5,),
        net=Net(kind="rnn", depth=2, width=8, batch=4),
    ),
)
ANY = [
    Net(kind="fc", depth=5, width=8, batch=4),
    Net(kind="conv", depth=5, width=4, batch=4),
    Net(kind="rnn", depth=3, width=8, batch=4, length=7),
]


@pytest.fixture(autouse=True, scope="module")
def few_objects():
    """Counting begins with a garbage collection, which need not look at what was there before."""
    gc.freeze()
    yield
    gc.unfreeze()


def peak(name: str, net: Net) -> int:
    train, steps = make_contender(name, net, "cpu")
    return peak_extra(partial(train, [net.data(net.batch)] * steps))


# ---- the accountant ----


def test_a_tensor_counts_by_its_bytes():
    assert peak_extra(lambda: torch.zeros(1000)) == 1000 * FLOAT
    assert peak_extra(lambda: torch.zeros(1000, dtype=torch.float64)) == 1000 * 2 * FLOAT
    assert peak_extra(lambda: None) == 0


def test_a_view_counts_nothing_and_neither_does_what_was_there_before():
    base = torch.zeros(1000)
    assert peak_extra(lambda: base.view(10, 100)[2:].t().detach().zero_()) == 0
    assert peak_extra(lambda: torch.zeros(1000).view(10, 100)[2:].t()) == 1000 * FLOAT


def test_a_freed_tensor_makes_room_for_the_next():
    def run() -> None:
        first, second = torch.zeros(1000), torch.zeros(500)
        del first
        third = torch.zeros(700)
        del second, third

    assert peak_extra(run) == 1500 * FLOAT
    assert changes(run) == [1000 * FLOAT, 500 * FLOAT, -1000 * FLOAT, 700 * FLOAT, -500 * FLOAT, -700 * FLOAT]


def test_what_autograd_saves_is_seen():
    x, weight = torch.zeros(50, 10), torch.zeros(10, 10, requires_grad=True)
    assert peak_extra(lambda: (x @ weight).sin().cos()) == 3 * 50 * 10 * FLOAT  # both hold their inputs
    with torch.no_grad():
        assert peak_extra(lambda: (x @ weight).sin().cos()) == 2 * 50 * 10 * FLOAT


def test_the_resident_set_grows_by_what_is_written():
    size = 20_000_000 * FLOAT  # more than any allocator keeps at hand
    assert peak_resident(lambda: torch.ones(20_000_000)) == pytest.approx(size, rel=0.1)


# ---- the contenders ----


def test_bp_holds_every_activation_and_every_gradient():
    deep = Net(kind="fc", depth=12, width=8, batch=500)
    assert peak("BP", deep) >= 12 * 500 * 8 * FLOAT
    wide = Net(kind="fc", depth=12, width=64, batch=2)
    assert peak("BP", wide) >= sum(p.numel() for layer in wide.layers() for p in layer.parameters()) * FLOAT


@pytest.mark.parametrize("name", ["FGD", "AsyncFGD"])
@pytest.mark.parametrize("kind", ["fc", "conv"])
def test_forward_gradients_hold_no_more_for_a_deeper_network(name: str, kind):
    few, many = (peak(name, Net(kind=kind, depth=depth, width=16, batch=8)) for depth in (8, 32))
    assert many <= 1.05 * few


@pytest.mark.parametrize(
    "net", [Net(kind="fc", depth=32, width=64, batch=8), Net(kind="conv", depth=16, width=3, batch=8)]
)
def test_forward_gradients_hold_at_most_a_third(net: Net):
    assert peak("AsyncFGD", net) <= peak("BP", net) / 3


def test_forward_gradients_hold_no_more_for_a_longer_sequence():
    short, long = (peak("AsyncFGD", Net(kind="rnn", depth=2, width=16, batch=8, length=n)) for n in (4, 32))
    assert long <= 1.05 * short
    assert peak("BP", Net(kind="rnn", depth=2, width=16, batch=8, length=32)) > 3 * long


def test_kept_tangents_and_messages_are_counted():
    net = Net(kind="fc", depth=8, width=64, batch=4)
    weights = sum(p.numel() for layer in net.layers() for p in layer.parameters()) * FLOAT
    assert peak("AsyncFGD, tangents kept", net) > weights > peak("AsyncFGD", net)
    net = Net(kind="fc", depth=8, width=4, batch=1000)
    assert peak("AsyncFGD", net) >= peak("FGD", net) + 2 * 1000 * 4 * FLOAT  # an activation with its tangent


@pytest.mark.parametrize("name", [name if name in ("BP", "AsyncFGD") else rarely(name) for name in CONTENDERS])
def test_the_count_is_the_same_run_after_run(name: str):
    for net in ANY:
        assert peak(name, net) == peak(name, net)


def test_a_run_leaves_nothing_behind():
    """The interpreter used to hold what it had sent last, until the garbage collector came by."""
    net = Net(kind="fc", depth=8, width=8, batch=100)
    train, steps = make_contender("AsyncFGD", net, "cpu")
    batches = [net.data(net.batch)] * steps
    train(batches)
    gc.collect()
    gc.disable()
    try:
        assert sum(changes(partial(train, batches))) < net.batch * net.width * FLOAT
    finally:
        gc.enable()


@pytest.mark.parametrize("net", ANY, ids=lambda net: net.kind)
def test_checkpointed_and_fused_backpropagation_take_the_same_steps(net: Net, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_memory_contenders, "SGD", partial(torch.optim.SGD, lr=0.1))
    real, made = Net.layers, []
    monkeypatch.setattr(Net, "layers", lambda self: made.append(real(self)) or made[-1])
    batches = [net.data(net.batch) for _ in range(3)]
    for name in ("BP", "BP, checkpointed", "BP, checkpointed, fused updates"):
        make_contender(name, net, "cpu")[0](batches)
    plain, *others = [[p.detach() for layer in layers for p in layer.parameters()] for layers in made]
    assert len(others) == 2
    for other in others:
        assert all(torch.allclose(a, b, atol=1e-6) for a, b in zip(plain, other, strict=True))
    assert not all(torch.equal(a, b) for a, b in zip(plain, (p for m in real(net) for p in m.parameters())))


@pytest.mark.parametrize("net", ANY, ids=lambda net: net.kind)
def test_stages_are_the_whole_network(net: Net):
    x, target = net.data(net.batch)
    whole, cut = nn.Sequential(*net.layers()), nn.Sequential(*net.stages(3))
    assert len(cut) == 3
    assert torch.equal(whole(x), cut(x))
    assert whole(x).shape == (*target.shape, CLASSES)
    assert loss(whole(x), target).dim() == 0


def test_the_layers_of_resnet18_are_the_network():
    declare_operators()
    pytest.importorskip("torchvision")
    net = Net(kind="resnet18", depth=9, width=64, batch=1)
    layers = net.layers()
    assert len(layers) == net.depth
    torch.manual_seed(0)
    whole = models.build("torchvision/resnet18").eval()
    x, _ = net.data(1)
    assert torch.equal(nn.Sequential(*layers).eval()(x), whole(x))


@needs_cuda
@pytest.mark.parametrize("name", list(contenders_for(ANY[0], "cuda")))
def test_every_contender_on_a_gpu(name: str):
    for net in ANY[:2]:
        assert measure(name, net, "cuda")["extra"] > 0


# ---- the command ----


def bench(*arguments: str):
    return freewheel("bench", "memory", *arguments)


@exhaustive
def test_the_command(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_memory, "SWEEPS", TINY)
    expected = [("deeper", ("FGD", "fc-depth", 3), ("FGD", "fc-depth", 2), 1.5), ("no such", ("FGD", "x", 3), (), 1)]
    monkeypatch.setattr(_memory, "EXPECTED", expected)
    result = bench("--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.svg"))
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "m.json").read_text())
    assert [len(sweep["rows"]) for sweep in written["sweeps"]] == [2 * len(CONTENDERS), len(CONTENDERS)]
    assert all(row["extra"] > 0 and row["resident"] >= 0 for sweep in written["sweeps"] for row in sweep["rows"])
    assert [finding["about"] for finding in written["findings"]] == ["deeper"]
    assert "deeper: 1." in result.output
    assert "fc-depth, 3 layers: 6 contenders" in result.output
    assert "AsyncFGD, tangents kept" in result.output
    assert (tmp_path / "m.svg").stat().st_size > 0
    assert list(STYLES) == list(contenders_for(ANY[0], "cuda"))


def test_an_interrupt_leaves_what_was_measured(tmp_path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_memory, "SWEEPS", TINY)
    answers = iter([{"extra": 1_000_000, "resident": 2_000_000}] * 7)

    def measure(self: Template, name: str, net: Net, device: str):
        try:
            return next(answers)
        except StopIteration:
            raise KeyboardInterrupt from None

    monkeypatch.setattr(Template, "measure", measure)
    result = bench("--json", str(tmp_path / "m.json"), "--picture", str(tmp_path / "m.png"))
    assert result.exit_code == 130
    written = json.loads((tmp_path / "m.json").read_text())
    assert written["interrupted"]
    assert [len(sweep["rows"]) for sweep in written["sweeps"]] == [7]
    assert "1.0 (2.0)" in result.output
    assert (tmp_path / "m.png").exists()


def test_a_failure_is_told_and_the_next_question_answered():
    template = Template()
    try:
        with pytest.raises(RuntimeError, match=r"'nobody' on Net(.|\n)*KeyError"):
            template.measure("nobody", ANY[0], "cpu")
        net = ANY[0]
        assert template.measure("BP", net, "cpu")["extra"] == peak("BP", net)
    finally:
        template.stop()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--sweep", "fc-deapth"], "error: unknown sweep 'fc-deapth': did you mean 'fc-depth'?"),
        (["--device", "gpu"], "error: unknown device 'gpu'"),
        (["--picture", "m.gift"], "error: --picture m.gift: name the file .svg, .png or .pdf"),
    ],
)
def test_wrong_arguments_are_refused_before_anything_is_measured(arguments, said, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_memory, "Template", None)
    result = bench(*arguments)
    assert result.exit_code == 2
    assert said in result.output
