"""Checkpoints on disk: intact or refused, the newest intact one is found, and who may resume from it."""

from __future__ import annotations

import random
import shutil
import subprocess
import sys
import textwrap
import warnings
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.optim.lr_scheduler import StepLR

import freewheel as fw
from checkpoints import EPOCHS, everything, loader, manifest, resume, run_saved, same, saved_at
from freewheel.checkpoint import DamagedError, find, finished, seal, unseal
from rows import OPTIMIZERS, batches, network, same_bits, tensors, trainer
from spread import spread

# ---- contents ----


def test_the_last_two_are_retained(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2, every=2)
    assert [manifest(path)["fit"]["batches"] for path in finished(tmp_path)] == [10, 12]
    assert {path.name for path in tmp_path.iterdir()} == {"checkpoint-000005", "checkpoint-000006"}


def test_the_manifest(tmp_path):
    run_saved(tmp_path, fw.FDG(shrink=0.5), 3)
    written = manifest(saved_at(tmp_path)[10])
    assert written["format"] == 2
    assert written["plan"] == "plan fdg: delays=4,2,0 order=backward cell=round"
    assert written["torch"] == torch.__version__
    assert written["freewheel"] == fw.__version__
    assert (written["settings"]["seed"], written["settings"]["threads"], written["fit"]["batches"]) == (3, 1, 10)
    assert (written["fit"]["epochs"], written["fit"]["epoch"], written["fit"]["first"]) == (2, 1, 6)
    assert len(written["fit"]["history"]["epochs"]) == 1
    files = ["stage-0.pt", "stage-1.pt", "stage-2.pt", "generators.pt"]
    assert [file["name"] for file in written["files"]] == files
    assert [file["forwarded"] for file in written["files"]] == [12, 11, 10, None]
    assert [file["in_flight"] for file in written["files"]] == [True, True, False, False]
    assert {path.name for path in saved_at(tmp_path)[10].iterdir()} == {*files, "manifest.json"}


def test_a_resumed_run_retains_two_as_well(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2, every=5)
    shutil.rmtree(finished(tmp_path)[-1])
    made = resume(tmp_path, network(2, 77), fw.FDG())
    made.fit(loader(), EPOCHS, save_to=tmp_path, save_every=11)
    assert [manifest(path)["fit"]["batches"] for path in finished(tmp_path)] == [11, 12]


# ---- damage ----


def spoil(path: Path, how: random.Random) -> None:
    """Truncate a file, or change one of its bytes."""
    data = bytearray(path.read_bytes())
    place = how.randrange(len(data))
    if how.random() < 0.3:
        data = data[:place]
    else:
        data[place] ^= how.randrange(1, 256)
    path.write_bytes(data)


def test_damage_anywhere_is_detected(tmp_path):
    run_saved(tmp_path / "run", fw.FDG(), 2, every=5)
    older, newer = finished(tmp_path / "run")
    good = find(tmp_path / "run").manifest
    assert find(tmp_path / "run").folder == newer
    shutil.copytree(newer, tmp_path / "good")
    files = sorted(newer.iterdir())
    detected = 0
    for seed in range(100):
        how = random.Random(seed)
        spoil(newer / how.choice(files).name, how)
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            found = find(tmp_path / "run")
        if found.folder == newer:
            assert found.manifest == good  # white space
        else:
            assert found.folder == older
            assert f"resuming from the previous one, {older.name}" in str(said[0].message)
            with pytest.raises(DamagedError, match="damaged"):
                find(newer)
            detected += 1
        shutil.rmtree(newer)
        shutil.copytree(tmp_path / "good", newer)
    assert detected > 80


def test_a_damaged_checkpoint_is_skipped(tmp_path):
    expected = run_saved(tmp_path, fw.FDG(), 3)
    spoil(finished(tmp_path)[-1] / "stage-1.pt", random.Random(0))
    with pytest.warns(
        UserWarning, match=r"stage-1.pt is damaged: .*; resuming from the previous one, checkpoint-000002"
    ):
        made = resume(tmp_path, network(3, 77), fw.FDG())
    made.fit(loader(), EPOCHS)
    assert same(everything(made), expected)


@pytest.mark.parametrize("name", ["stage-0.pt", "manifest.json"])
def test_missing_files_are_detected(name, tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    for path in finished(tmp_path):
        (path / name).unlink()
    with pytest.raises(DamagedError, match=f"no checkpoint in .* is intact: .*{name}"):
        resume(tmp_path, network(2), fw.FDG())


def test_damage_between_resume_and_fit_is_detected(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    made = resume(saved_at(tmp_path)[10], network(2), fw.FDG(), runtime="threads")
    spoil(saved_at(tmp_path)[10] / "stage-1.pt", random.Random(1))
    with pytest.raises(DamagedError, match=r"stage-1.pt is damaged"):
        made.fit(loader(), EPOCHS)


def test_nothing_there_is_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="there is no finished checkpoint in"):
        resume(tmp_path, network(2), "fdg")
    with pytest.raises(FileNotFoundError, match=r"there is no checkpoint at .*: it is not a folder"):
        resume(tmp_path / "none", network(2), "fdg")
    with pytest.raises(TypeError, match="path=3: give the folder"):
        fw.Trainer.resume(3, network(2), loss=F.cross_entropy, optimizer=OPTIMIZERS["sgd"])  # pyright: ignore


def test_another_format_is_refused(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    path = finished(tmp_path)[-1] / "manifest.json"
    path.write_text(seal({**unseal(path), "format": 3, "freewheel": "9.9"}))
    with pytest.raises(ValueError, match=r"has format 3, this freewheel reads format 2: resume it with freewheel 9.9"):
        resume(tmp_path, network(2), fw.FDG())


def test_another_torch_is_warned_of(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    path = finished(tmp_path)[-1] / "manifest.json"
    path.write_text(seal({**unseal(path), "torch": "1.0"}))
    with pytest.warns(
        UserWarning, match=r"saved with torch 1.0, this is .*: training resumes, but results may not be bit-identical"
    ):
        resume(tmp_path, network(2), fw.FDG())


# ---- a kill, and two runs at a time ----

KILLED = """
    import itertools, os, sys
    sys.path.insert(0, {tests!r})
    import freewheel.checkpoint._snapshot as snapshots
    import freewheel as fw
    from rows import network, trainer
    from checkpoints import EPOCHS, loader

    write, numbers = snapshots.write_tensors, itertools.count()

    def killed(folder, name, content):
        file = write(folder, name, content)
        if next(numbers) == 8:  # the third checkpoint, which is never complete
            with open(folder / name, "rb+") as half:
                half.truncate(file.size // 2)
            os._exit(9)
        return file

    snapshots.write_tensors = killed
    trainer(network(3), fw.FDG(), runtime="simulate").fit(loader(), EPOCHS, save_to={folder!r}, save_every=3)
"""


def test_a_kill_in_the_middle_of_a_save(tmp_path):
    script = textwrap.dedent(KILLED).format(tests=str(Path(__file__).parent), folder=str(tmp_path / "run"))
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=120).returncode == 9
    assert list((tmp_path / "run").glob(".unfinished-*/*.pt"))
    expected = run_saved(tmp_path / "straight", fw.FDG(), 3)
    made = resume(tmp_path / "run", network(3, 77), fw.FDG())
    made.fit(loader(), EPOCHS, save_to=tmp_path / "run", save_every=3)
    assert same(everything(made), expected)
    assert [path for path in (tmp_path / "run").iterdir() if path.name.startswith(".")] == []  # its lock was free


def test_two_runs_in_one_folder_leave_each_other_alone(tmp_path):
    """The second run takes place while the first one has unfinished checkpoints."""
    seen: list[list[Path]] = []

    class Nested:
        def __iter__(self) -> Iterator[Any]:
            for n, batch in enumerate(batches(12)):
                if n == 7:
                    before = sorted(tmp_path.glob(".unfinished-*/*.pt"))
                    run_saved(tmp_path, fw.PipeDream(), 2, every=1)
                    seen.extend([before, sorted(tmp_path.glob(".unfinished-*/*.pt"))])
                yield batch

    made = trainer(network(3), fw.FDG())
    made.fit(Nested(), save_to=tmp_path, save_every=3)
    assert seen[0]
    assert seen[0] == seen[1]
    of = [(manifest(path)["settings"]["stages"], manifest(path)["fit"]["batches"]) for path in finished(tmp_path)]
    assert of == [(2, 11), (2, 12), (3, 9), (3, 12)]
    assert same(everything(resume(tmp_path, network(3, 77), fw.FDG())), everything(made))


# ---- who may resume ----


def net(seed: int) -> nn.Module:
    torch.manual_seed(seed)
    layers = [nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(8, 3))


class Other(NamedTuple):
    """Another trainer for the same network."""

    k: int
    method: fw.Method
    options: dict[str, Any]


OTHERS = {
    "fewer stages": Other(2, fw.PipeDream(), {}),
    "more stages": Other(4, fw.PipeDream(), {}),
    "method": Other(3, fw.FDG(shrink=0.5), {}),
    "seed and threads": Other(3, fw.PipeDream(), {"seed": 8, "threads": 2}),
    "all": Other(1, fw.BP(), {"seed": 8, "threads": 2, "clip": 0.5}),
}


@spread(name=OTHERS, optimizer=OPTIMIZERS)
def test_a_drained_checkpoint_is_resumed_by_other_stages(name, optimizer, tmp_path):
    """Compared with the same states copied by hand, parameter by parameter."""
    other = OTHERS[name]
    options = {"optimizer": OPTIMIZERS[optimizer], "scheduler": partial(StepLR, step_size=3, gamma=0.7)}
    one, two, by_hand = net(0), net(1), net(0)
    old = trainer(fw.split(one, 3, by="parameters"), fw.PipeDream(), **options)
    old.fit(loader())
    old.save(tmp_path)
    new = resume(tmp_path, fw.split(two, other.k, by="parameters"), other.method, **{**options, **other.options})
    assert new.unfinished is None

    by_hand.load_state_dict(one.state_dict())
    hand = trainer(fw.split(by_hand, other.k, by="parameters"), other.method, **{**options, **other.options})
    before = {id(p): o.state[p] for o in old.optimizers if o for p in o.state}
    states = {name: before[id(p)] for name, p in one.named_parameters()}
    names = {id(p): name for name, p in by_hand.named_parameters()}
    for stage, o in zip(hand._stages, hand.optimizers):
        assert o is not None
        for p in o.param_groups[0]["params"]:
            o.state[p] = {key: t.clone() for key, t in states[names[id(p)]].items() if t is not None}
        for _ in range(6):  # nothing has a gradient: only the step size moves on
            assert stage.scheduler is not None
            o.step()
            stage.scheduler.step()
        assert o.param_groups[0]["lr"] == old._stages[0].optimizer.param_groups[0]["lr"]  # pyright: ignore
    assert same_bits(tensors(one), tensors(two))
    for made in (new, hand):
        made.fit(loader())
    assert same_bits(tensors(two), tensors(by_hand))


def test_each_stage_may_have_an_optimizer_of_its_own(tmp_path):
    factories = {0: OPTIMIZERS["sgd"], 1: OPTIMIZERS["adam"]}
    made = trainer(network(2), fw.PipeDream(), optimizer=factories)
    made.fit(loader())
    made.save(tmp_path)
    again = resume(tmp_path, network(2, 77), fw.PipeDream(), optimizer=factories)
    for each in (made, again):
        each.fit(loader())
    assert same(everything(made), everything(again))


def test_a_synchronous_run_is_drained_after_every_batch(tmp_path):
    """So another method may resume in the middle of a fit."""
    made = trainer(fw.split(net(0), 3, by="parameters"), fw.BP())
    history = made.fit(loader(), EPOCHS, save_to=tmp_path, save_every=5)
    model = net(1)
    again = resume(finished(tmp_path)[0], fw.split(model, 2, by="parameters"), fw.PipeDream())
    assert again.unfinished == EPOCHS
    found = again.fit(loader(), EPOCHS)
    assert [e.batches for e in found.epochs] == [6, 12]
    assert found.epochs[0] == history.epochs[0]
    assert found.epochs[1].loss != history.epochs[1].loss


REFUSED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "method": (
        fw.PipeDream(),
        {},
        r"method='pipedream', but .* in flight that resume only with method='fdg': give that",
    ),
    "option": (fw.FDG(shrink=0.4), {}, r"corrections=\['Shrink\(beta=0.4\)', 'CurrentStepSize\(\)'\], but"),
    "order": (fw.FDG(shrink=0.5, order="forward"), {}, "order='forward', but"),
    "seed": (fw.FDG(shrink=0.5), {"seed": 4}, "seed=4, but .* only with seed=3"),
    "threads": (fw.FDG(shrink=0.5), {"threads": 2}, "threads=2, but .* only with threads=1"),
    "clip": (fw.FDG(shrink=0.5), {"clip": 1.0}, "clip=1.0, but .* only with clip=None"),
    "stages": (fw.FDG(shrink=0.5), {"k": 2}, "stages=2, but .* only with stages=3"),
    "optimizer": (fw.FDG(shrink=0.5), {"optimizer": OPTIMIZERS["adam"]}, "optimizer is Adam now and was SGD when"),
    "scheduler": (
        fw.FDG(shrink=0.5),
        {"scheduler": partial(StepLR, step_size=1)},
        "scheduler is StepLR now and was none",
    ),
}


def test_batches_in_flight_do_not_resume_with_other_settings(tmp_path):
    run_saved(tmp_path, fw.FDG(shrink=0.5), 3)
    for method, options, message in REFUSED.values():
        others = {name: value for name, value in options.items() if name != "k"}
        with pytest.raises(ValueError, match=message):
            resume(saved_at(tmp_path)[10], network(options.get("k", 3)), method, **others)


def test_another_network_is_refused(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    wide = [nn.Sequential(nn.Linear(6, 5)), nn.Sequential(nn.Linear(5, 3))]
    with pytest.raises(
        ValueError, match=r"the checkpoint has no 'stages.0.0.weight', which the stages have: give the network"
    ):
        resume(tmp_path, wide, fw.FDG())
    double = [stage.double() for stage in network(2)]
    with pytest.raises(
        ValueError, match=r"'stages.0.0.0.weight' as float32 \(12, 6\), the stages as float64 \(12, 6\)"
    ):
        resume(tmp_path, double, fw.FDG())
    with pytest.raises(ValueError, match=r"the checkpoint has no 'stages.1.0.0.weight', which the stages have"):
        resume(tmp_path, network(3), fw.FDG())


def test_accumulated_gradients_do_not_resume_with_other_settings(tmp_path):
    collects = fw.Pipeline(delays=(1, 0), corrections=[fw.Accumulate(4)])
    made = trainer(network(2), collects)
    made.fit(loader())
    made.save(tmp_path)
    with pytest.raises(ValueError, match=r"holds gradients accumulated by Accumulate\(every=4\), which resume only"):
        resume(tmp_path, network(2), fw.PipeDream())
    resume(tmp_path, network(2), collects)


def test_arguments_of_saving_are_checked(tmp_path):
    made = trainer(network(2), "fdg")
    with pytest.raises(ValueError, match="save_every=3 without save_to: give the folder of the checkpoints as well"):
        made.fit(loader(), save_every=3)
    with pytest.raises(ValueError, match="save_every=0: give 1 or more"):
        made.fit(loader(), save_to=tmp_path, save_every=0)
    with pytest.raises(ValueError, match="save_every='often': give a number of batches, or 'epoch'"):
        made.fit(loader(), save_to=tmp_path, save_every="often")  # pyright: ignore
    with pytest.raises(TypeError, match="save_to=5: give the folder"):
        made.fit(loader(), save_to=5)  # pyright: ignore
    (tmp_path / "file").touch()
    with pytest.raises(NotADirectoryError, match=r"path='.*file': that is a file, give a folder"):
        made.save(str(tmp_path / "file"))


def test_a_resumed_trainer_must_continue_its_fit_first(tmp_path):
    run_saved(tmp_path, fw.FDG(), 2)
    made = resume(saved_at(tmp_path)[10], network(2), fw.FDG())
    with pytest.raises(RuntimeError, match="resumed in the middle of a fit: call fit first"):
        made.save(tmp_path)
    with pytest.raises(
        ValueError, match="epochs=3: this trainer was resumed in the middle of a fit of 2; give epochs=2"
    ):
        made.fit(loader(), 3)
    made.fit(loader(), EPOCHS)
    made.save(tmp_path)


class Point(NamedTuple):
    x: torch.Tensor


class Passes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 6)

    def forward(self, x):
        return Point(self.linear(x))


class Takes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(6, 3)

    def forward(self, point):
        return self.linear(point.x)


def test_classes_that_cannot_be_read_again_are_not_written(tmp_path):
    made = trainer([Passes(), Takes()], fw.FDG())
    with pytest.raises(
        TypeError, match=r"stage 0 \(sent\) has a Point in it: a checkpoint holds tensors, numbers, text"
    ):
        made.fit(loader(), save_to=tmp_path, save_every=3)
    assert not list(tmp_path.iterdir())
