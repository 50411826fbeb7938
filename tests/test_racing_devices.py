"""Several devices with copies of the weights, and λ and τ: against plain SGD and against hand-written recordings."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import freewheel as fw
import races
from freewheel._devices import devices_from
from rows import batches, same_bits, tensors, trainer
from test_racing import by_hand, net, options, race, steps_of

ONE_BACKWARD_BESIDE_A_FORWARD = """
caller: deal 0
forward worker 0: take 0
forward worker 0: F0 0
forward worker 0: F0 2
forward worker 0: hand 0
caller: deal 1
forward worker 0: take 1
backward worker 0: take 0
backward worker 0: B0
forward worker 0: F1 0
backward worker 0: U0 2
forward worker 0: F1 2
backward worker 0: B0 2
forward worker 0: hand 1
backward worker 0: U0 0
backward worker 0: B0 0
backward worker 0: done 0
backward worker 0: take 1
backward worker 0: B1
backward worker 0: U1 2
backward worker 0: B1 2
backward worker 0: U1 0
backward worker 0: B1 0
backward worker 0: done 1
caller: drained 1
caller: deal over
forward worker 0: take over
backward worker 0: take over
"""


def replayed(file: Path, lines: Sequence[str], data, optimizer, **given: Any):
    file.write_text("\n".join([*lines, ""]))
    model = races.network()
    history = trainer([model], fw.AsyncLU(**given, replay=file), optimizer=optimizer).fit(data)
    return model, history.epochs[0]


def test_times_of_a_hand_written_interleaving(tmp_path: Path):
    """The forwards take steps 3 to 4 and 8 to 12, the backwards 9 to 16 and 19 to 23."""
    lines = ONE_BACKWARD_BESIDE_A_FORWARD.strip().splitlines()
    _, epoch = replayed(
        tmp_path / "steps", lines, races.batches(2), partial(torch.optim.SGD, lr=0.1), backward_workers=1
    )
    forward, backward, both = (2 + 5) / 2, (8 + 5) / 2, 20
    assert epoch.race is not None
    assert asdict(epoch.race) == {
        "forward": forward,
        "backward": backward,
        "sending": 0.0,
        "ratio": pytest.approx(13 / 7),
        "speedup": both / 21,
        "ideal_speedup": pytest.approx(40 / 33),  # one forward, and then two backwards in a row: 1 + 2β
        "wait": 0.5 + 0.5,  # one step between B0 and U0 2, one between B0 2 and U0 0, none for batch 1
        "block_wait": backward / 2,
        "unit": "steps",
    }
    assert epoch.layers == {
        "0": fw.LayerUpdates(started=2, finished=2, staleness=0.5, stalest=1, wait=0.5),
        "2": fw.LayerUpdates(started=2, finished=2, staleness=0.0, stalest=0, wait=0.5),
    }


def in_turn(batches: int, devices: int) -> list[str]:
    """Every batch alone, on one device after the other."""

    def of(n: int) -> list[str]:
        d = n % devices
        sends = {layer: [f"S{n} {layer} {e}" for e in range(devices) if e != d] for layer in "02"}
        forward = [f"take {n}", f"F{n} 0", f"F{n} 2", f"hand {n}"]
        backward = [f"take {n}", f"B{n}", f"U{n} 2", *sends["2"], f"B{n} 2", f"U{n} 0", *sends["0"], f"B{n} 0"]
        return [
            f"caller: deal {n}",
            *(f"forward worker 0 of device {d}: {text}" for text in forward),
            *(f"backward worker 0 of device {d}: {text}" for text in [*backward, f"done {n}"]),
        ]

    kinds = [f"{kind} worker 0 of device {d}: take over" for d in range(devices) for kind in ("forward", "backward")]
    return [*chain(*map(of, range(batches))), f"caller: drained {batches - 1}", "caller: deal over", *kinds]


@pytest.mark.parametrize("devices", [2, 4])  # the mean of so many equal numbers is exact
def test_devices_in_turn_are_plain_sgd_bit_for_bit(devices: int, tmp_path: Path):
    data, make = races.batches(7), partial(torch.optim.SGD, lr=0.1, weight_decay=0.01)
    given = {"devices": devices, "backward_workers": 1}
    model, epoch = replayed(tmp_path / "steps", in_turn(7, devices), data, make, **given)
    expected = by_hand(deepcopy(races.network()), data, make, epochs=1)
    assert same_bits(tensors(model), tensors(expected))
    assert all(layer.staleness == 0 for layer in epoch.layers.values())
    race = epoch.race
    assert race is not None
    sends = 2 * (devices - 1)
    assert (race.forward, race.backward, race.sending) == (2, 5, sends)
    steps = 7 * (12 + sends) - 3  # without deal and take of the first batch, and done of the last
    assert race.speedup == 7 * (2 + 5) / steps


def test_a_layer_replaces_that_of_the_other_device(tmp_path: Path):
    """Both devices update layer 2 before either sends it, and one update is lost; at layer 0 they take turns."""
    first, second = ("worker 0 of device 0", "worker 0 of device 1")
    lines = [
        "caller: deal 0",
        "caller: deal 1",
        *(f"forward {w}: {t}" for n, w in enumerate((first, second)) for t in (f"take {n}", f"F{n} 0", f"F{n} 2")),
        f"forward {first}: hand 0",
        f"forward {second}: hand 1",
        f"backward {second}: take 1",
        f"backward {second}: B1",
        f"backward {second}: U1 2",
        f"backward {first}: take 0",
        f"backward {first}: B0",
        f"backward {first}: U0 2",
        f"backward {second}: S1 2 0",
        f"backward {first}: S0 2 1",
        f"backward {first}: B0 2",
        f"backward {first}: U0 0",
        f"backward {first}: S0 0 1",
        f"backward {second}: B1 2",
        f"backward {second}: U1 0",
        f"backward {second}: S1 0 0",
        f"backward {second}: B1 0",
        f"backward {first}: B0 0",
        f"backward {first}: done 0",
        f"backward {second}: done 1",
        "caller: drained 1",
        "caller: deal over",
        *(f"{kind} {w}: take over" for w in (first, second) for kind in ("forward", "backward")),
    ]
    given = {"devices": 2, "backward_workers": 1}
    model, epoch = replayed(tmp_path / "steps", lines, races.batches(2), partial(torch.optim.SGD, lr=0.1), **given)
    # Gradients at the first weights: the gradient for layer 0 has passed layer 2 before its update.
    start = list(races.network().parameters())
    gradients: list[tuple[torch.Tensor, ...]] = []
    for x, target in races.batches(2):
        one = races.network()
        gradients.append(torch.autograd.grad(F.cross_entropy(one(x), target), list(one.parameters())))
    for i, (found, w, g0, g1) in enumerate(zip(model.parameters(), start, *gradients)):
        wanted = w - 0.1 * (g0 + g1) if i < 2 else w - 0.1 * g1  # S1 2 0 replaces U0 2, and S0 2 1 sends that back
        assert torch.allclose(found, wanted, rtol=0, atol=1e-12)
    staleness = {name: (layer.staleness, layer.stalest) for name, layer in epoch.layers.items()}
    assert staleness == {"0": (0.5, 1), "2": (0, 0)}  # S0 0 1 lies between F1 0 and U1 0


def times_by_steps(lines: list[str]) -> tuple[float, float, float, float, float]:
    """T, βT, the time of sending, λ and τ from the numbers of the steps."""
    numbers = {line: i for i, line in enumerate(lines, start=1)}
    texts = {line.partition(": ")[2]: i for line, i in numbers.items() if not line.startswith("caller")}
    forward = backward = sending = 0
    first, last = len(lines), 0
    waits = {"0": 0, "2": 0}
    count = sum(text.startswith("hand") for text in texts)
    for n in range(count):
        takes = sorted(i for line, i in numbers.items() if line.endswith(f": take {n}"))
        end = max(i for text, i in texts.items() if text.split()[0] in (f"B{n}", f"U{n}", f"S{n}"))
        sends = sum(text.split()[0] == f"S{n}" for text in texts)
        forward += texts[f"F{n} 2"] - takes[0]
        backward += end - takes[1] - sends
        sending += sends
        first, last = min(first, takes[0]), max(last, end)
        waits["2"] += texts[f"U{n} 2"] - 1 - texts[f"B{n}"]
        waits["0"] += texts[f"U{n} 0"] - 1 - texts[f"B{n} 2"]
    elapsed = last - first
    return (
        forward / count,
        backward / count,
        sending / count,
        (forward + backward) / elapsed,
        sum(waits.values()) / count,
    )


@pytest.mark.parametrize(
    "method",
    [fw.AsyncLU(), fw.AsyncBU(), fw.AsyncLU(devices=2), fw.AsyncBU(devices=3, backward_workers=1)],
    ids=str,
)
def test_times_are_those_of_the_recorded_steps(method: fw.Method, tmp_path: Path):
    file = tmp_path / "steps"
    _, history = race(fw.method(method.name, **options(method), record=file), epochs=1)
    found = history.epochs[0].race
    assert found is not None
    expected = times_by_steps(steps_of(file))
    assert (found.forward, found.backward, found.sending, found.speedup, found.wait) == pytest.approx(expected)


def test_a_real_race_of_devices_trains_every_batch():
    model = net()
    history = trainer([model], fw.AsyncLU(devices=2, forward_workers=2), runtime="threads").fit(batches(30), 2)
    for epoch in history.epochs:
        assert {(layer.started, layer.finished) for layer in epoch.layers.values()} == {(30, 30)}
        assert epoch.race is not None
        assert epoch.race.unit == "s"
        assert min(epoch.race.forward, epoch.race.backward, epoch.race.sending, epoch.race.wait) > 0
    assert fw.History.from_dict(history.as_dict()) == history
    assert all(tensor.isfinite().all() for tensor in tensors(model))


def test_copies_go_to_the_gpus_in_turn(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    assert devices_from(torch.device("cuda", 1), 3) == [torch.device("cuda", i) for i in (1, 0, 1)]
