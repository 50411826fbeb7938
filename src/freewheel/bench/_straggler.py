"""`freewheel bench straggler`: how much slower training becomes when stages are slow at random.

Three stages of equal cost; at each of them one batch in three takes longer by a percentage, as in table 2 of the DSP
paper. Methods and percentages take turns, with the same draws within a round, and the time of a turn is compared with
that of the same method in the same round with nothing slowed. Only full pipelines are timed. With fewer cores than
stages, the cost of a stage is simulated by sleeping.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from freewheel._cores import cores
from freewheel._naps import Naps
from freewheel.bench._contenders import Laps
from freewheel.bench._machine import machine
from freewheel.methods import DSP, FDG, FR, GPipe, Method, PipeDream
from freewheel.runtime import is_slow
from freewheel.trainer import Epoch, Trainer

STAGES = 3
CLASSES = 10
ROWS = 8  # samples in a batch of sleeping stages
FORWARD, BACKWARD = 3e-3, 6e-3  # seconds of sleep per batch: long compared with running the plan
WIDTH, DEPTH, COMPUTED = 384, 6, 64  # of computing stages, and the samples in their batches
PERCENTAGES = (20, 50, 100, 150)
PROBABILITY = 1 / 3


@dataclass(frozen=True, kw_only=True)
class StragglerContender:
    """A method, the extra length of its queues, and the result in the DSP paper."""

    name: str
    method: Method
    slack: int = 0
    paper: tuple[float, ...] = ()

    @property
    def edge(self) -> int:
        """Batches before and after the timed ones: twice what the pipeline holds."""
        return 2 * (max(self.method.pipeline(STAGES).delays) + STAGES)


CONTENDERS = (
    StragglerContender(name="DSP(1,1,0;4,2,0)", method=DSP(delay=2), paper=(6.017, 16.14, 37.44, 70.99)),
    StragglerContender(name="DSP(2,2,0;6,3,0)", method=DSP(delay=3), paper=(7.465, 16.01, 36.57, 54.57)),
    StragglerContender(name="DSP(3,3,0;10,5,0)", method=DSP(delay=5), paper=(7.391, 18.15, 32.10, 53.42)),
    StragglerContender(name="DSP(3,3,0;10,5,0), slack=3", method=DSP(delay=5), slack=3),
    StragglerContender(name="DSP(6,6,0;24,12,0), slack=7", method=DSP(delay=12), slack=7),
    StragglerContender(name="FDG", method=FDG()),
    StragglerContender(name="PipeDream", method=PipeDream()),
    StragglerContender(name="FR", method=FR(), paper=(8.977, 28.52, 97.06, 359.2)),
    StragglerContender(name="GPipe", method=GPipe()),
)


def straggler(
    *,
    repeats: int = 3,
    batches: int = 480,
    asleep: bool | None = None,
    contenders: Sequence[StragglerContender] = CONTENDERS,
    percentages: Sequence[int] = PERCENTAGES,
    log: Callable[[str], Any] = print,
) -> dict[str, Any]:
    """Measure every contender with every percentage.

    Args:
        repeats: Rounds, each with its own draws.
        batches: Timed batches per turn.
        asleep: Whether stages sleep rather than compute; by default if there are fewer cores than stages.
        contenders: The contenders.
        percentages: The slow-downs of slow batches.
        log: Called with a line of progress.

    Returns:
        `rows`, one per contender: `seconds` per batch with nothing slowed, `busy` (the share of that time in which its
        busiest stage was busy), `slow_downs` (the median percentage by which training became slower, for each
        percentage), `turns` (the same for each round) and the `paper`'s. `always_busy` is the loss of a stage that is
        always busy: as `expected`, and as `drawn` for the stage with the most slow batches. `best` is the least of the
        DSP rows, and of the paper's.
    """
    asleep = cores() < STAGES if asleep is None else asleep
    found: dict[str, list[list[Epoch]]] = {contender.name: [] for contender in contenders}
    for repeat in range(repeats):
        for contender in contenders:
            turn = partial(_turn, contender, seed=repeat, batches=batches, asleep=asleep)
            found[contender.name].append([turn(percentage) for percentage in (0, *percentages)])
            now = _row(contender, found[contender.name][-1:], batches)
            slower = " ".join(f"{slow_down:.1f}" for slow_down in now["slow_downs"])
            took = f"{1e3 * now['seconds']:.2f} ms per batch"
            log(f"round {repeat + 1} of {repeats}: {contender.name}, {took}, slower by {slower} %")
    rows = [_row(contender, found[contender.name], batches) for contender in contenders]
    return {
        "percentages": list(percentages),
        "probability": PROBABILITY,
        "rows": rows,
        "always_busy": {
            "expected": [PROBABILITY * percentage for percentage in percentages],
            "drawn": [_drawn(repeats, batches) * percentage for percentage in percentages],
        },
        "best": _best(rows),
        "asleep": {"forward": FORWARD, "backward": BACKWARD} if asleep else None,
        "batches": batches,
        "machine": machine(),
    }


def _turn(contender: StragglerContender, percentage: int, *, seed: int, batches: int, asleep: bool) -> Epoch:
    """The measurements of a full pipeline over the timed batches."""
    trainer = Trainer(
        stages(asleep=asleep),
        method=contender.method,
        loss=F.cross_entropy,
        optimizer=partial(torch.optim.SGD, lr=1e-3),
        runtime="threads",
        check=False,
        seed=seed,
        threads=1,
        slack=contender.slack,
        slow=dict.fromkeys(range(STAGES), (PROBABILITY, percentage / 100)),
    )
    laps = Laps([batch(asleep=asleep)] * batches, contender.edge)
    return trainer.fit(laps, 3, progress=False).epochs[1]


def _drawn(repeats: int, batches: int) -> float:
    """The share of slow batches at the stage with the most of them, in the median round."""
    most = [
        max(sum(is_slow(seed, stage, batch, PROBABILITY) for batch in range(batches)) for stage in range(STAGES))
        for seed in range(repeats)
    ]
    return statistics.median(most) / batches


def _row(contender: StragglerContender, rounds: Sequence[Sequence[Epoch]], batches: int) -> dict[str, Any]:
    """Medians over the rounds; slow-downs are computed within a round."""
    turns = [[100 * (epoch.seconds / free.seconds - 1) for epoch in slowed] for free, *slowed in rounds]
    return {
        "name": contender.name,
        "seconds": statistics.median(free.seconds for free, *_ in rounds) / batches,
        "busy": statistics.median(max(free.busy) for free, *_ in rounds),
        "slow_downs": [statistics.median(column) for column in zip(*turns)],
        "turns": turns,
        "paper": list(contender.paper),
    }


def _best(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """For each percentage the least slow-down of DSP, measured and in the paper."""
    ours = [row["slow_downs"] for row in rows if row["name"].startswith("DSP")]
    theirs = [row["paper"] for row in rows if row["name"].startswith("DSP") and row["paper"]]
    return {"ours": [min(column) for column in zip(*ours)], "paper": [min(column) for column in zip(*theirs)]}


class _Asleep(torch.autograd.Function):
    """The identity, with a sleep in both directions in proportion to the samples."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, naps: Naps) -> Tensor:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps, ctx.share = naps, x.shape[0] / ROWS
        naps.take(FORWARD * ctx.share)
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:  # pyright: ignore[reportIncompatibleMethodOverride]
        ctx.naps.take(BACKWARD * ctx.share)
        return gradient, None


class Sleeper(nn.Module):
    """A small layer that takes as long as a large one on its own device."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(CLASSES, CLASSES)
        self._naps = Naps()

    def forward(self, x: Tensor) -> Tensor:
        """Apply the layer, and sleep."""
        return _Asleep.apply(self.layer(x), self._naps)  # pyright: ignore[reportReturnType]


def stages(*, asleep: bool) -> list[nn.Module]:
    """Three stages, always with the same weights."""
    torch.manual_seed(0)
    if asleep:
        return [Sleeper() for _ in range(STAGES)]
    return [
        nn.Sequential(*(layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())))
        for _ in range(STAGES)
    ]


def batch(*, asleep: bool) -> tuple[Tensor, Tensor]:
    """Random numbers and classes, always the same."""
    generator = torch.Generator().manual_seed(0)
    rows, width = (ROWS, CLASSES) if asleep else (COMPUTED, WIDTH)
    return torch.randn(rows, width, generator=generator), torch.randint(CLASSES, (rows,), generator=generator)
