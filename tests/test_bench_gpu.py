"""The GPU benchmark measures what it says; here on a CPU, without CUDA graphs."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from functools import partial

import numpy
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from command_line import freewheel
from freewheel.bench import _gpu, _gpu_contender, _gpu_process
from freewheel.bench._gpu_cases import CASES, EXPECTED, SWEEP, Case, Expected, Ours
from freewheel.bench._gpu_compare import Row, compare, findings, speed_ups
from freewheel.bench._gpu_contender import Memory, build, build_network, make_batches
from freewheel.bench._gpu_epoch import freewheel_makers
from freewheel.bench._gpu_ours import Training
from freewheel.bench._gpu_process import Failed, Team, Worker
from freewheel.bench._gpu_torch import PEERS, Graphed, pytorch_makers
from freewheel.bench._jax_net import NETS, make_loss, make_state
from spread import exhaustive, needs_cuda
from vision import declare_operators

TINY = Case(
    name="tiny",
    net="digits-cnn",
    batch=3,
    shape=(1, 8, 8),
    ours=(Ours(method="pipedream", k=2, runtime="simulate"), Ours(method="fgd", runtime="simulate")),
    peers=("bp, eager", "bp, checkpointed", "bp, graphed", "jvp, eager"),
    jax=False,
    steps=3,
)


class Inline:
    """A worker in this process."""

    def __init__(self, case, kind, device):
        self.case, self.kind, self._team, self._answers = case, kind, Team(case, kind, device), []
        self.connection = self

    def send(self, verb, *arguments):
        self._answers += getattr(self._team, verb)(*arguments)

    def receive(self, deadline):
        return self._answers.pop(0)

    def stop(self):
        pass


@pytest.fixture
def inline(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_gpu, "Worker", Inline)
    monkeypatch.setattr(_gpu, "wait", lambda connections, timeout: connections)
    monkeypatch.setattr(_gpu, "CASES", (TINY,))
    monkeypatch.setattr(_gpu_contender, "WARM_UP", 1)
    monkeypatch.setattr(_gpu_process, "FEWEST", 2)


def test_every_contender_has_its_turns(inline):
    said = []
    result = _gpu.gpu(device="cpu", repeats=1, log=said.append)
    [case] = result["cases"]
    rows = {row["name"]: row for row in case["rows"]}
    names = ["freewheel: pipedream K=2, simulate", "freewheel: fgd K=1, simulate"]
    names += ["PyTorch: bp, eager", "PyTorch: bp, checkpointed", "PyTorch: jvp, eager"]
    assert list(rows) == names
    assert all(row["error"] is None and len(row["turns"]) == _gpu.TURNS and row["seconds"] > 0 for row in rows.values())
    assert not result["interrupted"]
    assert any("pipedream K=2, simulate: built" in line for line in said)


def test_a_contender_that_fails_is_told_and_the_others_go_on(inline, monkeypatch: pytest.MonkeyPatch):
    def fail(*_, **__):
        raise RuntimeError("no such kernel\nat all")

    monkeypatch.setitem(PEERS, "bp, checkpointed", fail)
    result = _gpu.gpu(device="cpu", repeats=1, log=lambda _: None)
    rows = {row["name"]: row for row in result["cases"][0]["rows"]}
    failed = rows["PyTorch: bp, checkpointed"]
    assert failed["error"] == "RuntimeError: no such kernel"
    assert "no such kernel\nat all" in failed["traceback"]
    assert failed["seconds"] is None
    assert rows["PyTorch: jvp, eager"]["seconds"] > 0


def test_an_interrupt_leaves_what_was_measured(inline, monkeypatch: pytest.MonkeyPatch, tmp_path):
    real, asked = Team.turns, []

    def turns(self, name, *arguments):
        asked.append(name)
        if len(asked) > 2:
            raise KeyboardInterrupt
        return real(self, name, *arguments)

    monkeypatch.setattr(Team, "turns", turns)
    monkeypatch.setattr(_gpu, "DEVICES", ("cpu",))
    monkeypatch.setattr(_gpu.gpu, "__kwdefaults__", {**_gpu.gpu.__kwdefaults__, "device": "cpu"})
    result = freewheel("bench", "gpu", "--json", str(tmp_path / "gpu.json"))
    assert result.exit_code == 130
    written = json.loads((tmp_path / "gpu.json").read_text())
    rows = written["cases"][0]["rows"]
    assert [row["seconds"] is None for row in rows] == [False, False, True, True, True]
    assert [row["error"] for row in rows] == [None] * 2 + ["left out: not measured before the end"] * 3
    assert "pipedream K=2, simulate" in result.stdout
    assert "PyTorch: jvp, eager: left out: not measured before the end" in " ".join(result.stdout.split())


def test_at_the_limit_it_ends_with_what_was_measured(inline, monkeypatch: pytest.MonkeyPatch):
    def receive(self, deadline):
        raise TimeoutError

    monkeypatch.setattr(Inline, "receive", receive)
    said = []
    result = _gpu.gpu(device="cpu", limit=5, log=said.append)
    assert said == ["ended after 5 seconds with what was measured"]
    assert result["cases"][0]["rows"] == []


def test_no_contender_is_built_after_the_deadline():
    team = Team(TINY, "PyTorch", "cpu")
    [names] = team.prepare()
    answers = list(team.build(0.0))
    assert answers == [*((name, Failed("left out: no time left to build it")) for name in names), None]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_one_line_says_so():
    result = freewheel("bench", "gpu")
    assert result.exit_code == 2
    assert result.output == "error: device='cuda': torch finds no GPU here, which `freewheel bench gpu` needs\n"


def test_an_unknown_case_is_refused():
    result = freewheel("bench", "gpu", "--case", "resnet18-b5")
    assert result.exit_code == 2
    assert "unknown case 'resnet18-b5'" in result.output


@pytest.mark.parametrize("name", ["bp, eager", "bp, checkpointed"])
def test_plain_backpropagation_takes_the_steps_of_sgd(name: str):
    batches = make_batches(TINY, "cpu")
    contender = pytorch_makers(TINY, batches, "cpu")[name]()
    contender.turns(2, 1)
    model = build_network(TINY, "cpu")
    before = [p.detach().clone() for p in model.parameters()]
    optimizer = _gpu_contender.OPTIMIZER(model.parameters())
    for x, y in batches[:2]:
        optimizer.zero_grad()
        F.cross_entropy(model(x), y).backward()
        optimizer.step()
    state = {id(p): optimizer.state[p]["momentum_buffer"] for p in model.parameters()}
    kept = contender._optimizer.state
    for found, wanted in zip(contender._model.parameters(), model.parameters(), strict=True):
        assert torch.allclose(kept[found]["momentum_buffer"], state[id(wanted)], rtol=1e-4, atol=1e-6)
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters()))


def test_turns_of_ours_are_all_epochs_but_the_first_two_and_the_last():
    batches = make_batches(TINY, "cpu")
    contender = freewheel_makers(TINY, batches, "cpu")["pipedream K=2, simulate"]()
    assert isinstance(contender, Training)
    histories, real = [], contender._trainer.fit
    contender._trainer.fit = lambda *arguments, **options: histories.append(real(*arguments, **options)) or histories[0]
    assert contender.turns(5, 2) == [epoch.seconds / 5 for epoch in histories[0].epochs[2:4]]
    assert [[epoch.samples for epoch in history.epochs] for history in histories] == [[15] * 5]


def test_turns_of_a_case_with_images_are_epochs_with_an_evaluation():
    case = replace(TINY, net="fcs-relu", shape=(3, 8, 8), ours=(Ours(method="fdg", runtime="simulate"),), images=10)
    contender = freewheel_makers(case, make_batches(case, "cpu"), "cpu")["fdg K=1, simulate"]()
    histories, real = [], contender._trainer.fit
    contender._trainer.fit = lambda *arguments, **options: histories.append(real(*arguments, **options)) or histories[0]
    assert len(contender.turns(5, 2)) == 2
    [history] = histories
    assert [epoch.samples for epoch in history.epochs] == [10] * 4
    assert [epoch.validation.samples for epoch in history.epochs] == [2] * 4


def test_memory_on_a_cpu_is_unknown():
    assert build(pytorch_makers(TINY, make_batches(TINY, "cpu"), "cpu")["bp, eager"], "cpu").extra == Memory()


def test_ratios_compare_with_eager_and_with_the_best_of_the_same_kind():
    seconds = {
        ("freewheel", "fdg K=4, graph"): 1.0,
        ("freewheel", "asyncfgd K=4, graph"): 2.0,
        ("PyTorch", "bp, eager"): 4.0,
        ("PyTorch", "bp, graphed"): 1.5,
        ("JAX", "jit(grad)"): 3.0,
        ("PyTorch", "jvp, eager"): 8.0,
        ("JAX", "jit(jvp)"): 5.0,
    }
    rows = {f"{kind}: {name}": Row(kind, name, [each, each]) for (kind, name), each in seconds.items()}
    rows["freewheel: bp K=1, graph"] = Row("freewheel", "bp K=1, graph", error="failed")
    rows["freewheel: fdg K=4, graph"].extra = 3 << 20
    found = compare(TINY, rows)
    ratios = {row["name"]: (row["over_eager"], row["over_best"]) for row in found["rows"]}
    assert ratios["freewheel: fdg K=4, graph"] == (4.0, 1.5)
    assert ratios["freewheel: asyncfgd K=4, graph"] == (2.0, 2.5)
    assert ratios["PyTorch: jvp, eager"] == (0.5, None)
    assert ratios["freewheel: bp K=1, graph"] == (None, None)
    expected = [
        Expected(case="tiny", row="freewheel: fdg K=4, graph", over="PyTorch: bp, graphed", limit=1.9),
        Expected(case="tiny", row="freewheel: fdg K=4, graph", limit=0.5),
        Expected(case="tiny", row="freewheel: fdg K=4, graph", memory=True, limit=2),
        Expected(case="tiny", row="freewheel: bp K=1, graph", limit=2),
        Expected(case="other", row="freewheel: fdg K=4, graph", limit=2),
    ]
    assert [finding["found"] for finding in findings([found], expected)] == [1.5, 1000.0, 3.0]


def test_what_is_expected_is_measured():
    rows = {case.name: {f"freewheel: {ours}" for ours in case.ours} for case in CASES}
    for case in CASES:
        rows[case.name] |= {f"PyTorch: {name}" for name in case.peers}
        assert set(case.peers) <= set(PEERS)
    for each in EXPECTED:
        assert {each.row, each.over or each.row} <= rows[each.case]


def test_the_sweep_has_every_batch_size_and_k():
    found = {(case.net, case.batch, ours.method, ours.k) for case in SWEEP for ours in case.ours}
    for net in ("torchvision/resnet18", "torchvision/mobilenet_v3_small"):
        for batch in (1, 2, 4, 8, 16, 32, 64):
            assert {(net, batch, "fgd", 1), *((net, batch, "asyncfgd", k) for k in (2, 4, 8))} <= found


def test_a_sweep_is_a_table_of_speed_ups(inline, monkeypatch: pytest.MonkeyPatch):
    def case(batch, *times):
        names = ("fgd K=1", "asyncfgd K=2", "asyncfgd K=4")
        return {f"freewheel: {n}, graph": Row("freewheel", f"{n}, graph", [t]) for n, t in zip(names, times)}, batch

    found = [
        compare(replace(TINY, batch=batch), rows) for rows, batch in (case(1, 6.0, 4.0, 2.0), case(64, 6.0, 5.0, 4.0))
    ]
    monkeypatch.setattr("freewheel.bench.gpu", lambda **_: {
        "cases": found, "findings": [], "speed_ups": speed_ups(found), "machine": {}, "interrupted": False,
    })  # fmt: skip
    printed = freewheel("bench", "gpu", "--sweep").stdout.split()
    assert [word for word in printed if "." in word] == ["1.50", "1.20", "3.00", "1.50"]


def test_a_process_that_ends_loses_its_contenders_alone(inline, monkeypatch: pytest.MonkeyPatch):
    real = Team.build

    def build(self, deadline):
        return [Failed("its process ended with -9")] if self._kind == "PyTorch" else real(self, deadline)

    monkeypatch.setattr(Team, "build", build)
    rows = _gpu.gpu(device="cpu", repeats=1, log=lambda _: None)["cases"][0]["rows"]
    assert {row["error"] for row in rows if row["kind"] == "PyTorch"} == {"its process ended with -9"}
    assert all(row["seconds"] > 0 for row in rows if row["kind"] == "freewheel")


def test_a_worker_that_builds_for_too_long_leaves_the_others_their_turns(inline, monkeypatch: pytest.MonkeyPatch):
    def ready(connections, timeout):
        assert timeout <= _gpu.BUILT * 100
        return [each for each in connections if each.kind == "freewheel"]

    monkeypatch.setattr(_gpu, "wait", ready)
    rows = _gpu.gpu(device="cpu", repeats=1, limit=100, log=lambda _: None)["cases"][0]["rows"]
    assert {row["error"] for row in rows if row["kind"] == "PyTorch"} == {"left out: building took too long"}
    assert all(row["seconds"] > 0 for row in rows if row["kind"] == "freewheel")


@exhaustive
def test_the_end_of_a_process_is_noticed():
    worker = Worker(TINY, "PyTorch", "cpu")
    try:
        worker._process.kill()
        assert worker.receive(time.monotonic() + 60) == Failed("its process ended with -9")
    finally:
        worker.stop()


@exhaustive
def test_in_processes(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(_gpu, "CASES", (TINY,))
    result = _gpu.gpu(device="cpu", repeats=1, log=lambda _: None)
    assert [row["error"] for row in result["cases"][0]["rows"]] == [None] * 5


def as_jax(jax, model: nn.Sequential, projects: bool):
    """The weights of a network of ours in the form that `make_loss` takes."""

    def array(tensor):
        return jax.numpy.asarray(tensor.detach().numpy())

    def unit(conv, norm):
        return {"conv": array(conv.weight.permute(2, 3, 1, 0)), "w": array(norm.weight), "b": array(norm.bias)}

    def block(each):
        projection = [unit(*each.downsample)] if projects and each.downsample else []
        return unit(each.conv1, each.bn1), unit(each.conv2, each.bn2), *projection

    layers = dict(model.named_children())
    groups = [[block(each) for each in layer] for name, layer in layers.items() if name.startswith("layer")]
    fc = {"w": array(layers["fc"].weight.T), "b": array(layers["fc"].bias)}
    return {"stem": unit(layers["conv1"], layers["bn1"]), "groups": groups, "fc": fc}


@exhaustive
@pytest.mark.parametrize("name", list(NETS))
def test_networks_in_jax_are_the_same(name: str):
    jax = pytest.importorskip("jax")
    declare_operators()
    case = Case(name="one", net=name, batch=16, ours=())
    model, (x, y) = build_network(case, "cpu").net, make_batches(case, "cpu")[0]
    weights = as_jax(jax, model, projects=name.startswith("torchvision"))
    loss = F.cross_entropy(model(x), y)
    loss.backward()
    images, classes = jax.numpy.asarray(x.permute(0, 2, 3, 1).numpy()), jax.numpy.asarray(y.numpy())
    function = make_loss(jax, NETS[name])
    (found, _), gradient = jax.value_and_grad(function, has_aux=True)(weights, images, classes)
    assert float(found) == pytest.approx(loss.item(), rel=1e-4)
    wanted = model.conv1.weight.grad.permute(2, 3, 1, 0)
    there = torch.from_numpy(numpy.array(gradient["stem"]["conv"]))
    assert (there - wanted).norm() < 0.01 * wanted.norm()
    assert jax.tree.structure(make_state(jax, NETS[name])[0]) == jax.tree.structure(weights)


@needs_cuda
@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")  # in torch.func.jvp
@pytest.mark.parametrize("name", [name for name in PEERS if "compiled" not in name])
def test_peers_on_a_gpu_take_the_same_steps(name: str):
    case = replace(TINY, net="resnet-20", shape=(3, 32, 32), batch=8)
    batches = make_batches(case, "cuda")
    wanted, found = (build(partial(PEERS[each], case, batches, "cuda"), "cuda") for each in ("bp, eager", name))
    assert found.extra.allocated > 0
    assert found.extra.reserved > 0
    if name.startswith("bp"):
        plain, other = momentum(wanted.contender), momentum(found.contender)
        assert (plain - other).norm() < 0.1 * plain.norm()


def momentum(contender) -> torch.Tensor:
    """The sum of all gradients so far, roughly: it tells which batches were used."""
    optimizer = (contender._eager if isinstance(contender, Graphed) else contender)._optimizer
    return torch.cat([state["momentum_buffer"].flatten() for state in optimizer.state.values()])
