"""What `freewheel bench gpu` measures: networks, batches, methods, and what is expected of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

FORWARD = ("fgd", "asyncfgd")  # methods that are compared with forward mode, not with backpropagation


@dataclass(frozen=True, kw_only=True)
class Ours:
    """A method of Freewheel in K stages on a runtime."""

    method: str
    k: int = 1
    runtime: str = "graph"
    compile: bool = False

    def __str__(self) -> str:
        return f"{self.method} K={self.k}, {self.runtime}{', compiled' * self.compile}"

    @property
    def forward(self) -> bool:
        """Whether it has forward gradients."""
        return self.method in FORWARD


@dataclass(frozen=True, kw_only=True)
class Case:
    """A network and its batches, which all contenders of the case train.

    Args:
        name: A short name.
        net: A name of `fw.models.build`.
        batch: Samples in a batch.
        shape: Channels, height and width of a sample.
        ours: Methods of Freewheel.
        peers: Names in `PEERS`, the table of plain PyTorch contenders.
        jax: Whether to train it with JAX, too.
        steps: The most batches of a turn.
        images: The images of an epoch, where a turn is an epoch with crops, flips and an evaluation; otherwise 0.
    """

    name: str
    net: str
    batch: int
    shape: tuple[int, int, int] = (3, 32, 32)
    ours: tuple[Ours, ...]
    peers: tuple[str, ...] = ()
    jax: bool = True
    steps: int = 400
    images: int = 0

    @property
    def title(self) -> str:
        """The network, its batches and its images in words."""
        net, size = self.net.removeprefix("torchvision/"), f"{self.shape[1]}x{self.shape[2]}"
        epoch = f", an epoch of {self.images:,} images with evaluation in place of a batch" if self.images else ""
        return f"{net}, batches of {self.batch}, {size}{epoch}"

    @property
    def parts(self) -> Sequence[tuple[str, Case]]:
        """The kind of contenders of each process, and the case that it gets: compiled stages have one of their own."""
        ours = [tuple(each for each in self.ours if each.compile == compiled) for compiled in (False, True)]
        found = [("freewheel", replace(self, ours=part)) for part in ours if part]
        there = {"PyTorch": self.peers, "JAX": self.jax}
        return found + [(kind, self) for kind, any_of_it in there.items() if any_of_it]


@dataclass(frozen=True, kw_only=True)
class Expected:
    """A number that is expected of a contender.

    Args:
        case: The name of a case.
        row: The name of a contender.
        over: The name of another one, for how many times as fast as that one the first is; None for milliseconds a
            batch.
        limit: The least ratio, or the most milliseconds or MiB.
        memory: Whether it is about MiB beyond weights, optimizer state and data.
    """

    case: str
    row: str
    limit: float
    over: str | None = None
    memory: bool = False

    @property
    def unit(self) -> str:
        """The unit of the number, and on which side of the limit it is to be."""
        return "times, at least" if self.over else "MiB, at most" if self.memory else "ms, at most"


def graphed(*pairs: tuple[str, int]) -> tuple[Ours, ...]:
    """Methods with their K on CUDA graphs, first all as they are, then all compiled."""
    return tuple(Ours(method=method, k=k, compile=compiled) for compiled in (False, True) for method, k in pairs)


def elsewhere(runtimes: Iterable[str], *pairs: tuple[str, int]) -> tuple[Ours, ...]:
    """Methods with their K on these runtimes."""
    return tuple(Ours(method=method, k=k, runtime=runtime) for runtime in runtimes for method, k in pairs)


BP = ("bp, eager", "bp, graphed", "bp, compiled", "bp, compiled, graphed", "bp, channels last, compiled, graphed")
JVP = ("jvp, eager", "jvp, graphed", "jvp, compiled, graphed")
OTHERS = ("gpipe", "1f1b", "ddg", "fr", "pipedream", "dsp", "pipemare", "dgl")
CASES = (
    Case(
        name="resnet18-b4",
        net="torchvision/resnet18",
        batch=4,
        ours=(
            *elsewhere(("simulate", "threads"), ("asyncfgd", 4), ("fdg", 4)),
            *elsewhere(("simulate",), ("fgd", 1)),
            *graphed(("bp", 1), ("pipedream", 4), ("fdg", 4), ("fgd", 1), ("asyncfgd", 4)),
        ),
        peers=(*BP, *JVP),
        steps=2000,
    ),
    Case(
        name="resnet20-b128",
        net="resnet-20",
        batch=128,
        ours=(
            *elsewhere(("threads",), ("fdg", 2), ("fdg", 4)),
            *elsewhere(("graph",), *((method, 4) for method in OTHERS)),
            *graphed(("bp", 1), ("fdg", 2), ("fdg", 4)),
        ),
        peers=BP,
    ),
    Case(
        name="resnet20-epoch",
        net="resnet-20",
        batch=128,
        ours=graphed(("fdg", 2)),
        jax=False,
        images=50_000,
    ),
    Case(
        name="resnet56-b128",
        net="resnet-56",
        batch=128,
        ours=(*elsewhere(("threads",), ("fdg", 4)), *graphed(("fdg", 4))),
        peers=BP,
        steps=100,
    ),
    Case(
        name="resnet18-b64-224",
        net="torchvision/resnet18",
        batch=64,
        shape=(3, 224, 224),
        ours=(
            *elsewhere(("simulate",), ("fgd", 1)),
            *graphed(("bp", 1), ("pipedream", 4), ("fdg", 4), ("fgd", 1), ("asyncfgd", 4)),
        ),
        peers=(*BP, "bp, channels last, graphed", "bp, checkpointed", *JVP),
        steps=60,
    ),
)
SWEEP = tuple(
    Case(
        name=f"{net}-b{batch}",
        net=f"torchvision/{net}",
        batch=batch,
        shape=(3, 64, 64),  # smaller ones end as one pixel, and BatchNorm cannot train on a single image of it
        ours=graphed(*(("asyncfgd", k) for k in (2, 4, 8)), ("fgd", 1))[:4],
        jax=False,
    )
    for net in ("resnet18", "mobilenet_v3_small")
    for batch in (1, 2, 4, 8, 16, 32, 64)
)
_SMALL, _LARGE = "resnet18-b4", "resnet18-b64-224"
_BEST_BP = "PyTorch: bp, compiled, graphed"
EXPECTED = (
    Expected(case=_SMALL, row="freewheel: asyncfgd K=4, graph, compiled", limit=0.45),
    Expected(
        case=_SMALL,
        row="freewheel: asyncfgd K=4, graph, compiled",
        over="freewheel: fgd K=1, graph, compiled",
        limit=2.4,
    ),
    *(
        Expected(case=_SMALL, row=f"freewheel: {method} K=4, graph, compiled", over=over, limit=limit)
        for method in ("pipedream", "fdg")
        for over, limit in ((None, 0.55), (_BEST_BP, 1.9))
    ),
    Expected(case="resnet20-b128", row="freewheel: fdg K=4, graph, compiled", limit=1.7),
    Expected(case="resnet20-b128", row="freewheel: fdg K=2, graph, compiled", limit=2.1),
    Expected(case="resnet20-epoch", row="freewheel: fdg K=2, graph, compiled", limit=1300),
    Expected(case="resnet56-b128", row="freewheel: fdg K=4, graph, compiled", over="PyTorch: bp, graphed", limit=1.3),
    Expected(case=_LARGE, row="freewheel: fgd K=1, graph, compiled", limit=5.6),
    Expected(case=_LARGE, row="freewheel: fgd K=1, graph, compiled", memory=True, limit=490),
)
