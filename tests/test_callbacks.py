"""Callbacks for epochs and batches, metrics, predictions and the end of a training, against plain PyTorch."""

from __future__ import annotations

import csv
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import freewheel as fw
from rows import OPTIMIZERS, batches, network, same_bits, tensors, trainer
from spread import rarely, spread


def net() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 12), nn.Tanh(), nn.Linear(12, 3))


# -- batches ----------------------------------------------------------------------------------------------------------


def plain_steps(model: nn.Module, data, cuts: list[list[nn.Parameter]]):
    """The loss and the gradient norm of each part, of each step of a plain loop."""
    optimizer = OPTIMIZERS["sgd"](model.parameters())
    for x, y in data:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norms = [torch.cat([p.grad.flatten() for p in part]).norm().item() for part in cuts]
        yield loss.item(), norms
        optimizer.step()


@pytest.mark.parametrize("runtime", ["simulate", "threads", "processes"])
def test_each_batch_is_told_of_with_its_loss_and_its_gradient(runtime):
    seen: list[fw.BatchEnd] = []
    model, twin = net(), net()
    made = trainer(fw.split(model, 2, by="parameters"), "bp", runtime=runtime)
    made.fit(batches(4), epochs=2, batch_callbacks=[seen.append], gradient_norms=True)
    cuts = [[dict(twin.named_parameters())[n] for n, _ in stage.named_parameters()] for stage in made.stages]
    wanted = list(plain_steps(twin, batches(4) * 2, cuts))
    assert [end.step for end in seen] == [1, 2, 3, 4, 5, 6, 7, 8]
    assert [end.epoch for end in seen] == [0, 0, 0, 0, 1, 1, 1, 1]
    for end, (loss, norms) in zip(seen, wanted, strict=True):
        assert end.loss == pytest.approx(loss, rel=1e-6)
        assert end.gradient_norms == pytest.approx(norms, rel=1e-5)
        assert end.gradient_norm == pytest.approx(sum(n * n for n in norms) ** 0.5, rel=1e-5)
    made.fit(batches(2), batch_callbacks=[seen.append])
    assert [(end.step, end.gradient_norms) for end in seen[8:]] == [(9, ()), (10, ())]


@pytest.mark.parametrize("method", ["pipedream", "gpipe", "dgl", fw.AsyncFGD(scale=0.1), "sdfa"], ids=str)
def test_every_runtime_tells_the_same_and_trains_as_without_listeners(method):
    def run(runtime, **options):
        stages = network(3)
        trainer(stages, method, runtime=runtime).fit(batches(6), epochs=2, **options)
        return stages

    told: dict[str, list[fw.BatchEnd]] = {"simulate": [], "threads": []}
    trained = [
        tensors(*run(runtime, batch_callbacks=[ends.append], gradient_norms=True)) for runtime, ends in told.items()
    ]
    assert told["simulate"] == told["threads"]
    assert len(told["simulate"]) == 12
    assert same_bits(trained[0], tensors(*run("simulate")))
    assert same_bits(trained[1], trained[0])


def test_replicas_tell_of_the_whole_batch():
    seen: dict[int, list[fw.BatchEnd]] = {1: [], 2: []}
    for replicas, ends in seen.items():
        made = trainer([net()], "bp", replicas=replicas)
        made.fit(batches(3, size=8), batch_callbacks=[ends.append], gradient_norms=True)
    for one, two in zip(seen[1], seen[2], strict=True):
        assert (one.step, one.samples) == (two.step, two.samples)
        assert one.loss == pytest.approx(two.loss, rel=1e-5)
        assert one.gradient_norms == pytest.approx(two.gradient_norms, rel=1e-5)


def test_callbacks_for_batches_end_nothing_and_races_have_none():
    with pytest.raises(TypeError, match=r"a callback for batches returned True: .* max_steps"):
        trainer(network(2), "pipedream").fit(batches(3), batch_callbacks=[lambda end: True])
    with pytest.raises(ValueError, match="batch_callbacks with async-lu"):
        trainer(network(2), "async-lu").fit(batches(3), batch_callbacks=[print])
    with pytest.raises(TypeError, match="batch_callbacks holds 3: give functions of a BatchEnd"):
        trainer(network(2), "bp").fit(batches(3), batch_callbacks=[3])


# -- the end ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("runtime", ["simulate", "threads"])
@pytest.mark.parametrize(("steps", "epochs"), [(3, [3]), (5, [5]), (7, [5, 7]), (10, [5, 10]), (11, [5, 10, 11])])
def test_max_steps_ends_after_that_many_batches(steps, epochs, runtime):
    stages, other = network(2), network(2)
    history = trainer(stages, "pipedream", runtime=runtime).fit(batches(5), max_steps=steps)
    assert [e.batches for e in history.epochs] == epochs
    assert [e.complete for e in history.epochs] == [n % 5 == 0 for n in epochs]
    assert not history.interrupted
    trainer(other, "pipedream").fit((batches(5) * 3)[:steps])
    assert same_bits(tensors(*stages), tensors(*other))


def test_epochs_end_before_max_steps():
    assert trainer(network(2), "pipedream").fit(batches(4), epochs=2, max_steps=100).batches == 8
    with pytest.raises(ValueError, match="max_steps=0: give 1 or more"):
        trainer(network(2), "bp").fit(batches(4), max_steps=0)


def test_early_stopping_looks_for_a_better_epoch():
    losses = [3.0, 2.0, 2.5, 2.05, 1.99, 2.2, 2.1, 2.0]

    def history(n):
        epochs = [
            fw.Epoch(epoch=i, batches=1, samples=1, loss=loss, validation=None, seconds=1.0, images_per_second=1.0,
                     busy=(), staleness=())
            for i, loss in enumerate(losses[:n])
        ]  # fmt: skip
        return fw.EpochEnd(record=epochs[-1], history=fw.History(epochs=epochs), stages=(), network=nn.Identity())

    def ends(**options):
        return next(n for n in range(1, 9) if fw.EarlyStopping(**options)(history(n)) or n == 8)

    assert (ends(patience=1), ends(patience=2), ends(patience=3), ends(patience=2, margin=0.1)) == (3, 4, 8, 4)
    assert ends(patience=2, mode="max") == 3


def test_the_best_model_is_kept_with_its_own_names(tmp_path):
    model = net()
    kept, written = fw.KeepBest(monitor="accuracy"), fw.KeepBest(monitor="accuracy", path=tmp_path / "best.pt")
    made = trainer(fw.split(model, 2, by="parameters"), "pipedream", runtime="threads")
    valid, scores = batches(3, seed=9), []
    history = made.fit(batches(6), epochs=6, validate=valid, callbacks=[kept, written, lambda end: None])
    scores = [e.validation.metrics["accuracy"] for e in history.epochs]
    assert kept.epoch == scores.index(max(scores))
    assert kept.best == max(scores)
    model.load_state_dict(kept.weights())
    assert made.evaluate(valid).metric == max(scores)
    assert same_bits(list(kept.weights().values()), list(written.weights().values()))
    with pytest.raises(ValueError, match=r"monitor='f1': epoch 0 has no such metric \(it has accuracy\)"):
        made.fit(batches(2), validate=valid, callbacks=[fw.KeepBest(monitor="f1")])


def test_a_fit_that_ends_within_its_first_epoch_has_no_best_model():
    best = fw.KeepBest(monitor="accuracy")
    trainer([net()], "bp").fit(batches(6), max_steps=4, validate=batches(1), callbacks=[best])
    with pytest.raises(RuntimeError, match="let the fit come to the end"):
        best.weights()


@pytest.mark.parametrize("k", [1, 2, 3])
def test_an_epoch_ends_before_the_next_is_trained(k):
    """One thread runs all stages: it must not go on with a single one until all epochs are over."""
    read, seen = [], []

    class Loader:
        def __iter__(self):
            for batch in batches(20):
                read.append(batch)
                yield batch

    trainer(network(k), "pipedream").fit(Loader(), epochs=3, callbacks=[lambda end: seen.append(len(read))])
    assert [count // 20 for count in seen] == [1, 2, 3]


def test_callbacks_see_the_model_with_its_own_names():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(6, 5), nn.Linear(5, 3)

        def forward(self, x):
            return self.head(self.body(x).relu())

    model, seen = Net(), []

    def look(end):
        assert type(end.model()) is Net
        assert not end.model().training
        seen.append({name: w.clone() for name, w in end.model().state_dict().items()})

    made = trainer(fw.split(model, 2, at=["head"]), "bp", runtime="threads")
    made.fit(batches(3), epochs=2, callbacks=[look])
    assert all(torch.equal(seen[1][name], w) for name, w in model.state_dict().items())
    assert not torch.equal(seen[0]["body.weight"], seen[1]["body.weight"])


# -- metrics ----------------------------------------------------------------------------------------------------------


class Recall:
    """A metric over a whole epoch, which is no mean over batches."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.hit = self.all = 0

    def update(self, output, target):
        positive = target == 1
        self.hit += int((output.argmax(1)[positive] == 1).sum())
        self.all += int(positive.sum())

    def compute(self):
        return torch.tensor(self.hit / self.all)


def test_several_metrics_and_those_of_a_whole_epoch():
    model, valid = net(), batches(8, seed=4)
    recall = Recall()
    metric = {
        "accuracy": fw.accuracy,
        "recall": recall,
        "margin": lambda out, y: out.max(),
        "none": lambda out, y: None,
    }
    made = trainer([model], "bp", metric=metric)
    history = made.fit(batches(3), epochs=2, validate=valid)
    with torch.no_grad():
        x, y = torch.cat([x for x, _ in valid]), torch.cat([y for _, y in valid])
        out = model(x)
        margins = sum(model(x).max().item() * len(x) for x, _ in valid) / len(y)
    found = history.epochs[1].validation.metrics
    assert found["accuracy"] == pytest.approx((out.argmax(1) == y).float().mean().item())
    assert found["recall"] == pytest.approx((out.argmax(1)[y == 1] == 1).float().mean().item())
    assert found["margin"] == pytest.approx(margins)
    assert found["none"] is None
    assert history.metrics[1] == found["accuracy"]
    assert made.evaluate(valid).metrics == found, "the metric starts anew"


def test_a_metric_may_compute_several_numbers_but_no_tensor():
    class Both(Recall):
        def compute(self):
            return {"hits": self.hit, "recall": super().compute()}

    class Shape(Recall):
        def compute(self):
            return torch.zeros(3)

    valid = batches(3)
    assert set(trainer([net()], "bp", metric=Both()).evaluate(valid).metrics) == {"hits", "recall"}
    with pytest.raises(TypeError, match=r"metric 'metric' computed a tensor of shape \(3,\)"):
        trainer([net()], "bp", metric=Shape()).evaluate(valid)


# -- predictions ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("give", ["pairs", "inputs", "dicts"])
def test_predictions_are_the_outputs_in_eval_mode(give):
    stages = [nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 5), nn.Dropout(0.5)), nn.Linear(5, 3)]
    data = batches(3)
    loader = {"pairs": data, "inputs": [x for x, _ in data], "dicts": [{"x": x} for x, _ in data]}[give]
    keys = {"inputs": "x", "targets": "y"} if give == "dicts" else {}
    found = trainer(stages, "pipedream", **keys).predict(loader)
    model = nn.Sequential(*stages).eval()
    with torch.no_grad():
        assert same_bits(found, [model(x.clone()) for x, _ in batches(3)])
    assert stages[0].training is False, "the loop above"
    assert same_bits([x for x, _ in data], [x for x, _ in batches(3)])


# -- loggers ----------------------------------------------------------------------------------------------------------


def test_a_csv_file_has_a_line_for_each_epoch(tmp_path):
    made, path = trainer(network(2), "pipedream"), tmp_path / "log.csv"
    for _ in range(2):  # a second fit begins anew
        history = made.fit(batches(3), epochs=2, validate=batches(2), callbacks=[fw.CSVLogger(path)])
    with path.open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["epoch"]) for row in rows] == [0, 1]
    assert [float(row["loss"]) for row in rows] == history.losses
    assert [float(row["validation/accuracy"]) for row in rows] == history.metrics


def test_tensorboard_gets_epochs_and_batches(monkeypatch, tmp_path):
    written = []

    class SummaryWriter:
        def __init__(self, folder, **options):
            assert (folder, options) == (str(tmp_path), {"flush_secs": 1})

        def add_scalar(self, name, value, step):
            written.append((name, value, step))

        def flush(self):
            pass

    module = ModuleType("torch.utils.tensorboard")
    module.SummaryWriter = SummaryWriter  # pyright: ignore
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", module)
    board = fw.TensorBoard(tmp_path, flush_secs=1)
    history = trainer(network(2), "bp").fit(
        batches(3), validate=batches(2), callbacks=[board], batch_callbacks=[board.on_batch], gradient_norms=True
    )
    assert [step for name, _, step in written if name == "batch/loss"] == [1, 2, 3]
    assert [step for name, _, step in written if name == "batch/gradient_norm"] == [1, 2, 3]
    assert ("epoch/loss", history.losses[0], 3) in written
    assert ("epoch/validation/accuracy", history.metrics[0], 3) in written


def test_tensorboard_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(ImportError, match=r"fw.TensorBoard needs the package tensorboard: pip install tensorboard"):
        fw.TensorBoard("runs")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda stages: setattr(stages[0][0][3], "p", 0.9), r"changed p of stages\[0\]\.0\.3 while"),
        (lambda stages: stages[1].requires_grad_(False), r"changed requires_grad of stages\[1\]\..* while"),
        (lambda stages: stages[1].eval(), r"changed training of stages\[1\].* while"),
    ],
    ids=["dropout", "freezing", "mode"],
)
def test_a_callback_that_changes_the_network_under_way_is_refused(change, words):
    stages = network(2)
    with pytest.raises(ValueError, match=words):
        trainer(stages, "fdg", runtime="simulate").fit(batches(3), epochs=3, callbacks=[lambda end: change(stages)])


class Annealed(nn.Module):
    """A network with a temperature; what it counts and what it only keeps are no settings."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.dropout = nn.Linear(6, 8), nn.Linear(8, 3), nn.Dropout(0.1)
        self.temperature, self.calls, self.best = 1.0, 0, 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        return self.second(torch.tanh(self.first(x)) / self.heat())

    def heat(self) -> float:
        return self.temperature


@spread(cut=[True, False], runtime=["simulate", "threads", rarely("processes")], kind=["callbacks", "batch_callbacks"])
def test_a_callback_that_anneals_an_attribute_of_the_users_module_is_refused(cut, runtime, kind):
    """Stages saw it sooner or later, in other processes never; and what `fw.split` has traced was a constant."""
    model = Annealed()
    stages = fw.split(model, 2, by="parameters") if cut else [model, nn.Linear(3, 3)]

    def fit(**calls: Any) -> None:
        trainer(stages, "fdg", runtime=runtime).fit(batches(4), epochs=2, **calls)

    def best(end: Any) -> None:
        model.best = max(model.best, 1.0)

    fit(**{kind: [best]})
    owner = "model" if cut else r"stages\[0\]"
    with pytest.raises(ValueError, match=f"a callback changed temperature of {owner} while"):
        fit(**{kind: [lambda end: setattr(model, "temperature", 0.5 * model.temperature)]})


def test_what_a_forward_assigns_to_is_no_setting():
    """It may change while a callback runs."""

    class Scheduled(Annealed):
        def forward(self, x: Tensor) -> Tensor:
            self.dropout.p = min(0.5, self.dropout.p + 0.01)
            return super().forward(x)

    def changed(model: Annealed) -> None:
        calls = [lambda end: setattr(model.dropout, "p", 0.2)]
        trainer([model, nn.Linear(3, 3)], "fdg").fit(batches(4), callbacks=calls)

    with pytest.raises(ValueError, match=r"a callback changed p of stages\[0\].dropout while"):
        changed(Annealed())
    changed(Scheduled())


class Grows(nn.Module):
    """Noise that grows by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.p = 0.0

    def forward(self, x: Tensor) -> Tensor:
        self.p += 0.01
        return x + self.p


class GrowsMore(Grows):
    """A subclass of it."""


@pytest.mark.parametrize("kind", [Grows, GrowsMore])
def test_what_a_forward_assigns_to_its_own_module_is_a_setting_of_others(kind: type[Grows]) -> None:
    """The name was a setting of no module."""

    def fit(number: int) -> None:
        stages = [nn.Sequential(nn.Linear(6, 8), kind(), nn.Dropout(0.1)), nn.Linear(8, 3)]
        calls = [lambda end: setattr(stages[0][number], "p", 0.2)]
        trainer(stages, "fdg").fit(batches(4), callbacks=calls)

    with pytest.raises(ValueError, match=r"a callback changed p of stages\[0\]\.2 while"):
        fit(2)
    fit(1)


@pytest.mark.parametrize("kind", ["callbacks", "batch_callbacks"])
def test_a_callback_that_changes_a_setting_of_the_loss_is_refused(kind):
    """Stages saw the change sooner or later, depending on timing; and a callback for batches might change any."""
    for name in ("loss", "dropout"):
        stages, loss = network(3), nn.CrossEntropyLoss()
        changed, setting = {"loss": (loss, "label_smoothing"), "dropout": (stages[0][0][3], "p")}[name]  # pyright: ignore
        calls = {kind: [lambda end, changed=changed, setting=setting: setattr(changed, setting, 0.9)]}
        with pytest.raises(ValueError, match=f"a callback changed {setting} of "):
            trainer(stages, "fdg", loss=loss).fit(batches(9), epochs=2, **calls)  # pyright: ignore
