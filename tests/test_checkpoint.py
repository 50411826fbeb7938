"""A run that is saved and resumed is bit-identical to one that is not, with everything in flight."""

from __future__ import annotations

import random
import shutil
import signal
from collections.abc import Iterator
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import MultiStepLR, OneCycleLR
from torch.utils.data import DataLoader, TensorDataset

import freewheel as fw
from checkpoints import EPOCHS, everything, goes_on, loader, numbers, resume, rewrite, run_saved, same, saved_at
from freewheel.checkpoint import _writer
from rows import LOCAL, OPTIMIZERS, ROWS, batches, network, same_bits, tensors, trainer
from spread import rarely, spread

CROSSED = [("simulate", "threads"), ("threads", "simulate")]
ROW = {row.name: row for row in ROWS}


@pytest.fixture(autouse=True)
def retain_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_writer, "RETAINED", 99)


# ---- every method ----


@spread(row=ROWS, k=[2, 3, 4, rarely(1)])
def test_every_method_resumes_bit_for_bit(row, k, tmp_path):
    """An epoch ends, or the data end, while batches are in flight; adjacent K swap the two cases."""
    odd = (k + ROWS.index(row)) % 2
    length = (3, 4, 4, 6)[k - 1]
    options = {"every": length - 1, "only": (length - 1) * (1 + odd), "plain": k == 2}
    data = partial(batches, length)
    goes_on(tmp_path, lambda: row.make(k), partial(network, k), data=data, runtimes=CROSSED[odd], **options)


def recurrent(k: int, seed: int) -> list[nn.Module]:
    torch.manual_seed(seed)
    middle = [fw.Recurrent(nn.GRU(4, 4, batch_first=True)) for _ in range(k - 1)]
    return [*middle, nn.Sequential(fw.Recurrent(nn.GRU(4, 5, batch_first=True), last=True), nn.Linear(5, 3))]


def sequences() -> list[tuple[torch.Tensor, torch.Tensor]]:
    g = torch.Generator().manual_seed(4)
    return [(torch.randn(3, 7, 4, generator=g), torch.randint(3, (3,), generator=g)) for _ in range(5)]


@pytest.mark.parametrize(
    "method",
    [
        fw.AsyncFGD(steps=3, scale=0.1),
        fw.AsyncFGD(steps=3, scale=0.1, tangents=2, perturb="activations"),
        fw.Pipeline(credit=fw.Forward(scale=0.1), delays=(3, 1, 1), micro=3, along=1),
    ],
    ids=["asyncfgd", "activations", "free"],
)
def test_sequences_in_micro_batches_resume(method, tmp_path):
    stages = partial(recurrent, 3)
    goes_on(tmp_path, lambda: method, stages, every=3, data=sequences, runtimes=CROSSED[0])


def test_a_fit_that_ended_within_an_epoch_resumes_with_its_number_of_batches(tmp_path):
    """Otherwise the next fit would draw the same random numbers again."""
    options: dict[str, Any] = {
        "method": fw.FGD(scale=0.1),
        "loss": F.cross_entropy,
        "optimizer": partial(torch.optim.SGD, lr=0.1),
        "threads": 1,
    }
    whole = fw.Trainer(network(2), **options)
    whole.fit(batches(4), max_steps=3, save_to=tmp_path)
    resumed = fw.Trainer.resume(tmp_path, network(2), **options)
    assert resumed.unfinished is None
    for each in (whole, resumed):
        each.fit(batches(4))
    assert same_bits(tensors(whole.model()), tensors(resumed.model()))


# ---- other settings ----

ALSO: dict[str, dict[str, Any]] = {
    "every batch": {"every": 1},
    "adam, one cycle": {"optimizer": OPTIMIZERS["adam"], "scheduler": partial(OneCycleLR, max_lr=0.1, total_steps=12)},
    "milestones, clip": {"scheduler": partial(MultiStepLR, milestones=[4, 7, 11], gamma=0.3), "clip": 0.1},
    "validated, slack": {"validated": True, "slack": 2},
    "saved at ends": {"every": 6},
}


@pytest.mark.parametrize("name", ALSO)
def test_other_settings_resume(name, tmp_path):
    options, runtimes = ALSO[name], CROSSED[list(ALSO).index(name) % 2]
    goes_on(tmp_path, lambda: fw.FDG(shrink=0.5), partial(network, 3), runtimes=runtimes, **options)


@pytest.mark.parametrize("method", [fw.BP(), fw.GPipe(micro=3)], ids=["bp", "gpipe"])
def test_clipping_by_the_global_norm_resumes(method, tmp_path):
    """A clipping coefficient was received before the cut and is sent after it."""
    options = {"clip": 0.1, "clip_scope": "global", "runtimes": CROSSED[1]}
    goes_on(tmp_path, lambda: method, partial(network, 3), **options)


def directed(batch: int, stage: int, params: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(batch * 10 + stage)
    return {name: 0.1 * torch.randn(p.shape, generator=g) for name, p in params.items()}


def grows(epoch: int) -> float:
    return 0.05 * (epoch + 1)


@pytest.mark.parametrize("options", [{"direction": directed}, {"scale": grows}], ids=["direction", "scale"])
def test_directions_and_changing_scales_resume(options, tmp_path):
    goes_on(tmp_path, lambda: fw.AsyncFGD(**options), partial(network, 3))


class Power(nn.Module):
    """A module whose output depends on a buffer that every forward changes, as in spectral norm."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)
        self.register_buffer("u", torch.ones(6))

    def forward(self, x):
        with torch.no_grad():
            self.u.copy_(F.normalize(self.linear.weight @ self.u, dim=0))
        return self.linear(x) * self.u.clone()


@pytest.mark.parametrize("weights", ["stash", "predict", "current"])
def test_a_forward_is_repeated_on_its_own_buffers(weights, tmp_path):
    def stages(seed: int) -> list[nn.Module]:
        torch.manual_seed(seed)
        return [Power(), nn.Sequential(Power(), nn.Linear(6, 3))]

    goes_on(tmp_path, lambda: fw.Pipeline(delays=(3, 1), weights=weights), stages)


class Pair(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return {"h": self.linear(x), "skip": [x[:, ::2], 3], "wide": x[:, :1].expand(-1, 6)}


class Join(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, x):
        return self.linear(torch.tanh(x["h"] + x["wide"])) + x["skip"][0] * x["skip"][1]


@pytest.mark.parametrize("name", ["fdg", "pipemare", "asyncfgd"])
def test_trees_and_views_resume(name, tmp_path):
    def stages(seed: int) -> list[nn.Module]:
        torch.manual_seed(seed)
        return [Pair(), Join()]

    goes_on(tmp_path, lambda: fw.method(name), stages)


# ---- data ----


class Noisy:
    """Draws from all three process-wide generators, before and within a pass."""

    def __iter__(self) -> Iterator[Any]:
        order = random.sample(range(6), 6)
        data = loader()
        for i in order:
            x, y = data[i]
            yield x * float(np.random.rand()) + torch.rand(()), y


def data_loader(**options: Any) -> DataLoader:
    g = torch.Generator().manual_seed(0)
    data = TensorDataset(torch.randn(27, 6, generator=g), torch.randint(3, (27,), generator=g))
    return DataLoader(data, batch_size=6, shuffle=True, **options)


def tensor_loader() -> fw.data.TensorLoader:
    g = torch.Generator().manual_seed(0)
    images, labels = torch.randn(27, 6, generator=g), torch.randint(3, (27,), generator=g)
    return fw.data.TensorLoader(images, labels, batch_size=6, shuffle=True, seed=5)


LOADERS = {
    "shuffled": data_loader,
    "own generator": lambda: data_loader(generator=torch.Generator().manual_seed(8)),
    "all generators": Noisy,
    "tensors": tensor_loader,
}


@pytest.mark.parametrize("data", LOADERS.values(), ids=LOADERS)
def test_shuffled_data_resume(data, tmp_path):
    goes_on(tmp_path, fw.PipeDream, partial(network, 3), data=data, epochs=3, every=4, runtimes=CROSSED[0])


def test_scoring_draws_nothing_from_the_data(tmp_path):
    """A DataLoader draws from the process-wide generator each time it is iterated, also for validation."""
    results = []
    for validate in (None, data_loader()):
        stages = network(2)
        trainer(stages, "pipedream").fit(data_loader(), epochs=3, validate=validate)
        results.append(tensors(*stages))
    assert same_bits(*results)


def test_a_loader_that_gives_fewer_batches_is_refused(tmp_path):
    run_saved(tmp_path, fw.PipeDream(), 2)
    with pytest.raises(ValueError, match=r"loader gave 3 batches in epoch 1, .* before batch 5, .*the loader that the"):
        resume(saved_at(tmp_path)[5], network(2), fw.PipeDream()).fit(loader()[:3], EPOCHS)


# ---- several fits, and resuming twice ----


def test_a_later_fit_resumes(tmp_path):
    method = ROW["pipemare"].make
    straight = trainer(network(3), method(3))
    straight.fit(loader())
    straight.fit(loader(), EPOCHS, save_to=tmp_path, save_every=5)
    for path in saved_at(tmp_path).values():
        again = resume(path, network(3, 77), method(3))
        again.fit(loader(), EPOCHS)
        assert same(everything(again), everything(straight))


@pytest.mark.parametrize("name", ["fdg", "pipemare", "predict", "asyncfgd-kept", "asyncfgd-activations", "accumulated"])
def test_a_resumed_run_can_be_saved_again_at_once(name, tmp_path):
    """What was restored is still in flight when it is saved again."""
    method = ROW[name].make
    expected = run_saved(tmp_path / "first", method(3), 3)
    made = resume(saved_at(tmp_path / "first")[5], network(3, 77), method(3), runtime="threads")
    made.fit(loader(), EPOCHS, save_to=tmp_path / "second", save_every=6)
    assert same(everything(made), expected)
    made = resume(saved_at(tmp_path / "second")[6], network(3, 78), method(3))
    made.fit(loader(), EPOCHS)
    assert same(everything(made), expected)


# ---- the end of a fit ----


def test_the_end_of_a_fit_is_saved_and_another_fit_follows(tmp_path):
    straight = trainer(network(3), fw.FDG(), optimizer=OPTIMIZERS["adam"])
    first = straight.fit(loader(), EPOCHS, save_to=tmp_path)
    again = resume(tmp_path, network(3, 77), fw.FDG(), optimizer=OPTIMIZERS["adam"])
    assert again.unfinished is None
    assert same(everything(again), everything(straight))
    assert numbers(again.fit(loader())) == numbers(straight.fit(loader()))
    assert same(everything(again), everything(straight))
    assert first.batches == 12


def test_an_idle_trainer_is_saved(tmp_path):
    """With accumulated gradients that are pending."""
    method = ROW["accumulated"].make(3)
    straight = trainer(network(3), method)
    straight.fit(loader()[:4])
    straight.save(tmp_path)
    again = resume(tmp_path, network(3, 77), method)
    for made in (straight, again):
        made.fit(loader())
    assert same(everything(again), everything(straight))


@pytest.mark.parametrize("runtime", LOCAL)
def test_a_run_that_a_callback_stopped_is_saved_as_it_ended(runtime, tmp_path):
    made = trainer(network(3), fw.FDG(), runtime=runtime)
    made.fit(loader(), 5, callbacks=[lambda end: end.record.epoch == 1], save_to=tmp_path, save_every=3)
    again = resume(tmp_path, network(3, 77), fw.FDG())
    assert again.unfinished is None
    assert same(everything(again), everything(made))
    assert not list(tmp_path.glob(".*"))


class Interrupted:
    """Presses Ctrl-C, once, in its second pass."""

    def __init__(self, at: int = 3) -> None:
        self.left = 6 + at

    def __iter__(self) -> Iterator[Any]:
        for batch in loader():
            if self.left == 0:
                signal.raise_signal(signal.SIGINT)
            self.left -= 1
            yield batch


@pytest.mark.parametrize("k", [3, 2])
@pytest.mark.parametrize("runtime", LOCAL)
def test_ctrl_c_saves_a_drained_run_that_resumes_its_epochs(runtime, k, tmp_path, capsys):
    """The rest is a fit over the remaining batches; other stages may resume it."""
    model = nn.Sequential(*[layer for stage in network(1) for block in stage for layer in block])
    method = fw.PipeDream()
    made = trainer(fw.split(model, 3, by="parameters"), method, runtime=runtime)
    history = made.fit(Interrupted(), 3, save_to=tmp_path, save_every=100)
    assert history.interrupted
    assert "interrupted" in capsys.readouterr().err
    done = history.batches
    assert 6 < done < 12
    another = nn.Sequential(*[layer for stage in network(1, 77) for block in stage for layer in block])
    again = resume(tmp_path, fw.split(another, k, by="parameters"), method, runtime=runtime)
    assert again.unfinished == 3
    found = again.fit(loader(), 3)
    assert [e.batches for e in found.epochs] == [6, 12, 18]
    assert [e.samples for e in found.epochs] == [e.samples for e in trainer(network(2), "bp").fit(loader(), 3).epochs]
    assert found.epochs[0] == history.epochs[0]
    expected = nn.Sequential(*[layer for stage in network(1) for block in stage for layer in block])
    one = trainer(fw.split(expected, 3, by="parameters"), method)
    one.fit([*loader(), *loader(), *loader()][:done])
    if k == 3:
        gaps = [2] * (done - 6) + [min(n, 2) for n in range(12 - done)]  # of stage 0: before and after Ctrl-C
        assert found.epochs[1].staleness[0] == sum(gaps) / 6
        one.fit([*loader(), *loader(), *loader()][done:])
        assert same_bits(tensors(expected), tensors(another))


# ---- every part of a snapshot matters ----


def zeroed(value: Any) -> Any:
    """The same tree with zero tensors."""
    if isinstance(value, torch.Tensor):
        return torch.zeros_like(value)
    if isinstance(value, dict):
        return {key: zeroed(item) for key, item in value.items()}
    return type(value)(map(zeroed, value)) if isinstance(value, list | tuple) else value


def put(content: Any, path: tuple[Any, ...], change: Any) -> Any:
    """The content with one entry changed."""
    key, *others = path
    content[key] = put(content[key], tuple(others), change) if others else change(content[key])
    return content


def first(items: dict[Any, Any]) -> dict[Any, Any]:
    """With the oldest entry zeroed."""
    oldest = next(iter(items))
    return {key: zeroed(item) if key == oldest else item for key, item in items.items()}


ENTRIES: dict[str, tuple[str, str, tuple[Any, ...], Any]] = {
    "weights": ("fdg", "stage-1.pt", ("tensors",), zeroed),
    "momentum": ("fdg", "stage-0.pt", ("optimizer", "state"), lambda state: {}),
    "activations in flight": ("fdg", "stage-0.pt", ("sent",), zeroed),
    "inputs of graphs": ("fdg", "stage-1.pt", ("pending", "graphs"), first),
    "stashed weights": ("fdg", "stage-0.pt", ("pending", "weights", "held"), first),
    "stored inputs": ("dsp", "stage-1.pt", ("pending", "stored"), first),
    "saved activations": ("pipemare", "stage-0.pt", ("pending", "graphs"), first),
    "the last step": ("predict", "stage-0.pt", ("pending", "weights", "before"), zeroed),
    "the drift": ("pipemare", "stage-0.pt", ("corrections", "states"), zeroed),
    "counts of corrections": ("accumulated", "stage-0.pt", ("corrections", "number"), lambda number: 0),
    "accumulated gradients": ("accumulated", "stage-2.pt", ("gradients",), zeroed),
    "tangents": ("asyncfgd-kept", "stage-0.pt", ("pending", "batches"), first),
    "moved activations": ("asyncfgd-activations", "stage-0.pt", ("pending", "batches"), first),
    "derivatives known": ("late-forward", "stage-2.pt", ("pending", "known"), zeroed),
    "derivatives in flight": ("late-forward", "stage-2.pt", ("sent",), zeroed),
    "outputs that losses are taken at": ("recompute-late", "stage-2.pt", ("pending", "stored"), first),
    "heads": ("dgl", "stage-0.pt", ("head", "tensors"), zeroed),
    "replayed batches": ("dgl-replay", "stage-1.pt", ("pending", "arrived"), zeroed),
    "gradients in flight": ("dni", "stage-1.pt", ("sent",), zeroed),
    "outputs to fit to": ("dni", "stage-0.pt", ("pending", "stored"), first),
    "the predictor's momentum": ("dni", "stage-1.pt", ("head", "optimizer", "state"), lambda state: {}),
}


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """By the name of a row, a checkpoint of it and everything at its end."""

    @cache
    def run(name: str) -> tuple[Path, list[Any]]:
        folder = tmp_path_factory.mktemp("run")
        expected = run_saved(folder, ROW[name].make(3), 3)
        return saved_at(folder)[5], expected

    return run


@pytest.mark.parametrize("case", ENTRIES.values(), ids=ENTRIES)
def test_every_entry_of_a_snapshot_matters(case, runs, tmp_path):
    name, file, path, change = case
    whole, expected = runs(name)
    checkpoint = shutil.copytree(whole, tmp_path / whole.name)
    rewrite(checkpoint, file, lambda content: put(content, path, change))
    made = resume(checkpoint, network(3, 77), ROW[name].make(3))
    made.fit(loader(), EPOCHS)
    assert not same(everything(made), expected)


@pytest.mark.parametrize("which", ["torch", "python", "numpy"])
def test_every_generator_matters(which, tmp_path):
    made = trainer(network(2), "pipedream")
    made.fit(Noisy(), 3, save_to=tmp_path, save_every=8)
    checkpoint = saved_at(tmp_path)[8]
    other = torch.load(saved_at(tmp_path)[16] / "generators.pt", weights_only=True)
    rewrite(checkpoint, "generators.pt", lambda content: {**content, which: other[which]})
    again = resume(checkpoint, network(2, 77), "pipedream")
    with pytest.warns(UserWarning, match="loader gives a different batch 7 than before the checkpoint"):
        again.fit(Noisy(), 3)
    assert not same(everything(made), everything(again))


def test_losses_since_the_last_epoch_matter(tmp_path):
    made = trainer(network(2), "pipedream")
    history = made.fit(loader(), EPOCHS, save_to=tmp_path, save_every=5)
    checkpoint = saved_at(tmp_path)[5]
    rewrite(checkpoint, "stage-1.pt", lambda content: put(content, ("counts",), zeroed))
    again = resume(checkpoint, network(2, 77), "pipedream").fit(loader(), EPOCHS)
    assert again.losses[0] != history.losses[0]
    assert again.losses[1] == history.losses[1]


def test_training_without_checkpoints_retains_nothing_for_them():
    stages = network(3)
    made = trainer(stages, fw.FDG())
    held: list[int] = []
    made.fit(loader(), 2, callbacks=[lambda end: held.extend(len(s._retained) for s in made._stages)])
    assert held == [0] * 6


def test_a_view_of_all_data_is_written_by_itself(tmp_path):
    """A batch that is a view of a larger tensor takes no more space than the batch."""
    data = torch.randn(4000, 6)
    views = [(data[i * 9 : i * 9 + 9], torch.randint(3, (9,))) for i in range(6)]
    made = trainer(network(3), fw.FDG())
    made.fit(views, EPOCHS, save_to=tmp_path, save_every=5)
    size = (saved_at(tmp_path)[5] / "stage-0.pt").stat().st_size
    assert size < data.nbytes / 2
    again = resume(saved_at(tmp_path)[5], network(3, 77), fw.FDG())
    again.fit(views, EPOCHS)
    assert same(everything(again), everything(made))
    assert batches(1)[0][0].shape == (9, 6)


def test_other_data_are_warned_of(tmp_path):
    run_saved(tmp_path, fw.PipeDream(), 2)
    made = resume(saved_at(tmp_path)[5], network(2), fw.PipeDream())
    with pytest.warns(
        UserWarning, match="loader gives a different batch 4 than before the checkpoint: training continues, but not"
    ):
        made.fit(batches(6, seed=2), EPOCHS)
