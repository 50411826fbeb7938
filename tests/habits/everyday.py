"""What tutorials of torch.optim, torch.nn.utils and of losses show."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils import prune
from torch.nn.utils.rnn import pack_padded_sequence
from torch.optim import lr_scheduler

import freewheel as fw
from habits._habit import CHAIN, FEEDBACK, FORWARD, METHODS, RACES, SGD, Case, Habit, fit, loop, refuse, seeded, vectors
from habits.ordinary import first, last, middle, middle_of, three

ONE_CYCLE = partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=8)


def tensor_rate(parameters):
    return torch.optim.Adam(parameters, lr=torch.tensor(0.01))


def chained(optimizer):
    return lr_scheduler.ChainedScheduler(
        [lr_scheduler.ConstantLR(optimizer, total_iters=3), lr_scheduler.ExponentialLR(optimizer, 0.9)]
    )


def matrices(named_parameters):
    return torch.optim.Muon([p for _, p in named_parameters if p.ndim == 2], lr=0.01)


def sparse(named_parameters):
    """`SparseAdam` takes no dense gradients."""
    named = list(named_parameters)
    kind = torch.optim.SparseAdam if any("table" in name for name, _ in named) else torch.optim.Adam
    return kind([p for _, p in named], lr=0.05)


def _clip(optimizer, *_):
    for group in optimizer.param_groups:
        nn.utils.clip_grad_value_(group["params"], 0.01)


def _clamp(optimizer, *_):
    with torch.no_grad():
        for group in optimizer.param_groups:
            for p in group["params"]:
                p.clamp_(-0.3, 0.3)


def hooked(parameters):
    optimizer = SGD(parameters)
    optimizer.register_step_pre_hook(_clip)
    optimizer.register_step_post_hook(_clamp)
    return optimizer


def with_optimizer(make, **options) -> Case:
    return Case(three().stages, vectors(), optimizer=make, options=options)


def with_tensor_rate() -> Case:
    return with_optimizer(tensor_rate, scheduler=ONE_CYCLE)


def with_chained() -> Case:
    return with_optimizer(SGD, scheduler=chained)


def with_matrices() -> Case:
    return with_optimizer(matrices)


def with_hooks() -> Case:
    return with_optimizer(hooked)


class Table(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8, sparse=True)

    def forward(self, words: Tensor) -> Tensor:
        return self.table(words).mean(1)


def words() -> list[tuple[Tensor, Tensor]]:
    g = torch.Generator().manual_seed(2)
    return [(torch.randint(11, (8, 5), generator=g), torch.randint(3, (8,), generator=g)) for _ in range(6)]


def sparse_table() -> Case:
    return Case(seeded(Table, middle, last), words(), optimizer=sparse)


def loop_with_schedule(case: Case) -> None:
    optimizer = case.optimizer([p for m in case.trained for p in m.parameters()])
    scheduler = case.options["scheduler"](optimizer)
    for x, y in case.batches:
        optimizer.zero_grad()
        case.loss(case.forward(x), y).backward()
        optimizer.step()
        scheduler.step()


def loop_by_stage(case: Case) -> None:
    optimizers = [case.optimizer(stage.named_parameters()) for stage in case.stages]
    for x, y in case.batches:
        for stage in case.stages:
            stage.zero_grad()
        case.loss(case.forward(x), y).backward()
        for optimizer in optimizers:
            optimizer.step()


def in_bfloat16() -> Case:
    batches = [(x.bfloat16(), y) for x, y in vectors()]
    return Case([stage.bfloat16() for stage in three().stages], batches)


# ---- torch.nn.utils ----


def pruned() -> nn.Module:
    return nn.Sequential(prune.l1_unstructured(nn.Linear(8, 8), "weight", amount=0.3), nn.Tanh())


def with_pruned() -> Case:
    return middle_of(pruned)


def watched(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches, validate=case.batches, callbacks=[lambda end: end.model()])


class Packed(nn.Module):
    """A recurrent layer over sequences of different lengths."""

    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(6, 8, batch_first=True)

    def forward(self, padded: tuple[Tensor, Tensor]) -> Tensor:
        x, lengths = padded
        return self.cells(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))[1][0]


class Packs(nn.Module):
    """Passes a packed sequence on."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, padded: tuple[Tensor, Tensor]) -> nn.utils.rnn.PackedSequence:
        x, lengths = padded
        return pack_padded_sequence(self.layer(x), lengths, batch_first=True, enforce_sorted=False)


class OverPacked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cells = nn.GRU(6, 8, batch_first=True)

    def forward(self, packed: nn.utils.rnn.PackedSequence) -> Tensor:
        return self.cells(packed)[1][0]


def sequences() -> list[tuple[tuple[Tensor, Tensor], Tensor]]:
    g = torch.Generator().manual_seed(2)
    lengths = [torch.randint(1, 6, (8,), generator=g) for _ in range(6)]
    return [((torch.randn(8, 5, 6, generator=g), n), torch.randint(3, (8,), generator=g)) for n in lengths]


def packed_in_a_stage() -> Case:
    return Case(seeded(Packed, middle, last), sequences())


def packed_between_stages() -> Case:
    return Case(seeded(Packs, OverPacked, last), sequences())


# ---- losses ----


def contrast(out: Tensor, target: Tensor) -> Tensor:
    """Every sample is told from all others."""
    z = F.normalize(out, dim=1)
    return F.cross_entropy(z @ z.T / 0.5, torch.arange(len(z)))


def with_loss(loss) -> Case:
    return Case(three().stages, vectors(), loss=loss, optimizer=partial(torch.optim.SGD, lr=0.01))


def summed() -> Case:
    return with_loss(nn.CrossEntropyLoss(reduction="sum"))


def weighted() -> Case:
    weights = torch.tensor([1.0, 2.0, 3.0])
    return with_loss(nn.CrossEntropyLoss(weight=weights, label_smoothing=0.1, ignore_index=1))


def contrastive() -> Case:
    return with_loss(contrast)


class Branch(nn.Module):
    """A layer, and beside it a guess at the class."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.guess = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.layer(x).tanh()
        return y, self.guess(y)


class Beside(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 3)

    def forward(self, pair: tuple[Tensor, Tensor]) -> dict[str, Tensor]:
        return {"out": self.out(pair[0]), "guess": pair[1]}


class Annealed(nn.Module):
    """A loss that counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, out: Tensor, target: Tensor) -> Tensor:
        self.calls += 1
        return F.cross_entropy(out, target) * (0.5 + 0.1 * self.calls)


def dropped(out: Tensor, target: Tensor) -> Tensor:
    return F.cross_entropy(F.dropout(out, 0.5), target)


def annealed() -> Case:
    return with_loss(Annealed())


def random_loss() -> Case:
    return with_loss(dropped)


def both(outputs: dict[str, Tensor], target: Tensor) -> Tensor:
    return F.cross_entropy(outputs["out"], target) + 0.3 * F.cross_entropy(outputs["guess"], target)


def deeply_supervised() -> Case:
    return Case(seeded(first, Branch, Beside), vectors(), loss=both)


# ---- what a forward keeps and draws ----


class Counts(nn.Module):
    """A warm-up that a module counts itself."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.step = nn.Linear(8, 8), 0

    def forward(self, x: Tensor) -> Tensor:
        self.step += 1
        return self.layer(x) * min(1.0, self.step / 4)


NOISE = torch.Generator()


class Noisy(nn.Module):
    """Draws from a generator that is not the module's."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) + torch.randn(x.shape, generator=NOISE)


class Codebook(nn.Module):
    """Codes that follow the data by moving averages, and gradients that go straight through."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)
        self.register_buffer("codes", torch.randn(4, 8))

    def forward(self, x: Tensor) -> Tensor:
        x = self.layer(x)
        chosen = F.one_hot((x.detach() @ self.codes.T).argmax(1), 4).to(x.dtype)
        code = chosen @ self.codes
        if self.training:
            mean = chosen.T @ x.detach() / (1 + chosen.sum(0)[:, None])
            self.codes.mul_(0.9).add_(mean, alpha=0.1)
        return x + (code - x).detach()


class Samples(nn.Module):
    """A variational layer, and a mixture of samples."""

    def __init__(self) -> None:
        super().__init__()
        self.mean, self.spread = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.distributions.Normal(self.mean(x), F.softplus(self.spread(x)) + 0.1).rsample()
        share = torch.distributions.Beta(0.5, 0.5).sample()
        x = share * x + (1 - share) * x[torch.randperm(x.shape[0])]
        return x.index_fill(1, torch.multinomial(torch.ones(8), 2), 0.0)


class Mapped(nn.Module):
    """One sample at a time, by vmap; and weights given by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = torch.vmap(lambda sample: self.one(sample).tanh())(x)
        return torch.func.functional_call(self.other, dict(self.other.named_parameters()), x)


class Constants(nn.Module):
    """Makes tensors of the default type."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x) * torch.full((8,), 0.1) + torch.linspace(0, 1, 8)


class Late(nn.Module):
    """Makes a parameter when it sees its first batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(8, 8), None

    def forward(self, x: Tensor) -> Tensor:
        if self.scale is None:
            self.scale = nn.Parameter(torch.ones(x.shape[1]))
        return self.layer(x) * self.scale


class Maybe(nn.Module):
    """An input of which a part may be missing."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 8)

    def forward(self, given: dict[str, Tensor | None]) -> Tensor:
        x = self.layer(given["x"]).tanh()
        return x if given["mask"] is None else x * given["mask"]


def late() -> Case:
    return middle_of(Late)


def maybe() -> Case:
    masks = [None, torch.full((8, 8), 0.5)] * 3
    batches = [({"x": x, "mask": mask}, y) for (x, y), mask in zip(vectors(), masks)]
    return Case(seeded(Maybe, middle, last), batches)


def counts() -> Case:
    return middle_of(Counts)


def global_generator() -> Case:
    NOISE.manual_seed(0)
    return middle_of(Noisy)


def codebook() -> Case:
    return middle_of(Codebook)


def samples() -> Case:
    return middle_of(Samples)


def mapped() -> Case:
    return middle_of(Mapped)


def in_double() -> Case:
    case = middle_of(Constants)
    return Case([stage.double() for stage in case.stages], [(x.double(), y) for x, y in case.batches])


def double_by_default(train, *args) -> None:
    torch.set_default_dtype(torch.float64)
    try:
        train(*args)
    finally:
        torch.set_default_dtype(torch.float32)


NOT_A_STACK = refuse("not a plain stack of layers", "dfa")
NO_CELLS = refuse("is a GRU: feedback supports", *FEEDBACK)
PARTS = refuse("loss of a batch is not the mean of the losses of its parts", "gpipe")
WAVERS = "computes something else each time it sees the same batch"
HABITS = [
    Habit("a step size that is a tensor", with_tensor_rate, plain=loop_with_schedule),
    Habit("chained schedulers", with_chained, plain=loop_with_schedule),
    Habit("an optimizer of some parameters alone", with_matrices, plain=loop_by_stage, still=("bias",)),
    Habit("hooks on optimizers", with_hooks),
    Habit("sparse gradients alone", sparse_table, refuse("is a SparseAdam", *FORWARD), plain=loop_by_stage),
    Habit("a model in bfloat16", in_bfloat16, close=0.0, methods=[m for m in METHODS if m != "dni"]),  # it learns late
    Habit("pruned weights", with_pruned, fit=watched),
    Habit("packed sequences in a stage", packed_in_a_stage, NO_CELLS),
    Habit(
        "packed sequences between stages",
        packed_between_stages,
        {**NO_CELLS, **refuse("_pack_padded_sequence has no forward", *FORWARD), **refuse("does not take", "dgl")},
    ),
    Habit("a sum over samples as loss", summed, PARTS),
    Habit("class weights and ignored labels", weighted, PARTS, methods=[*CHAIN, *FORWARD, "dgl", *FEEDBACK]),
    Habit("a loss that compares samples", contrastive, PARTS),
    Habit("a loss that counts its calls", annealed, {**PARTS, **refuse("loss returns something else", "dgl", *RACES)}),
    Habit("a loss that draws random numbers", random_loss, plain=None),
    Habit("outputs of inner stages in the loss", deeply_supervised, methods=[*CHAIN, *FORWARD]),
    Habit(
        "a counter in forward",
        counts,
        {**refuse("must not count or remember", "fr", "dsp"), **refuse("step' changes with each forward", *RACES)},
        methods=[m for m in METHODS if m != "gpipe"],  # it would count micro-batches
    ),
    Habit("a generator of one's own", global_generator, {**refuse(WAVERS), **NOT_A_STACK}),
    Habit("a codebook by moving averages", codebook, NOT_A_STACK, methods=[m for m in METHODS if m != "gpipe"]),
    Habit(
        "a parameter made in forward", late, refuse("'stages.1.scale' is made in forward"), methods=[*CHAIN, *FORWARD]
    ),
    Habit("inputs that may be missing", maybe, NOT_A_STACK),
    Habit("draws from distributions", samples, NOT_A_STACK, plain=None),
    Habit("vmap in forward", mapped, refuse("Batching rule not implemented", *FORWARD), methods=[*CHAIN, *FORWARD]),
    Habit(
        "a default type of double precision",
        in_double,
        fit=partial(double_by_default, fit),
        plain=partial(double_by_default, loop),
        methods=[*CHAIN, *FORWARD],
    ),
]
