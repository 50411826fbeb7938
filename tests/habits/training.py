"""Habits around the training loop: modes, freezing, loaders, optimizers, schedulers."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset

import freewheel as fw
from habits._habit import METHODS, Case, Habit, refuse, seeded, steps, vectors
from habits.ordinary import first, last, middle


def three(batches=None, **options) -> Case:
    return Case(seeded(first, middle, last), vectors() if batches is None else batches, options=options)


def optimizer_of(case: Case) -> torch.optim.Optimizer:
    return case.optimizer([p for m in case.trained for p in m.parameters()])


# -- modes ------------------------------------------------------------------------------------------------------------


def normed() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.Tanh())


def statistics() -> Case:
    return Case(seeded(normed, middle, last), vectors())


def evaluated_between(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches)
    trainer.model().eval()
    trainer.fit(case.batches)


def loop_evaluated_between(case: Case) -> None:
    optimizer = optimizer_of(case)
    for _ in range(2):
        for module in case.stages:
            module.train()
        steps(case, optimizer)
        for module in case.stages:
            module.eval()


def frozen_norm() -> Case:
    case = statistics()
    case.stages[0][1].eval()
    return case


def loop_in_these_modes(case: Case) -> None:
    steps(case, optimizer_of(case))


def loop_with_a_frozen_norm(case: Case) -> None:
    optimizer = optimizer_of(case)
    steps(case, optimizer)
    steps(case, optimizer)


# -- freezing ---------------------------------------------------------------------------------------------------------


def frozen() -> Case:
    case = three()
    case.stages[1].requires_grad_(False)
    case.stages[2].bias.requires_grad_(False)
    return case


def unfrozen_between(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches)
    for stage in case.stages:
        stage.requires_grad_(True)
    trainer.fit(case.batches)


def loop_unfrozen_between(case: Case) -> None:
    optimizer = optimizer_of(case)
    steps(case, optimizer)
    for stage in case.stages:
        stage.requires_grad_(True)
    steps(case, optimizer)


def frozen_between(trainer: fw.Trainer, case: Case) -> None:
    for frozen in (False, True, False):
        case.stages[1].requires_grad_(not frozen)
        trainer.fit(case.batches)


def loop_frozen_between(case: Case) -> None:
    optimizer = optimizer_of(case)
    for frozen in (False, True, False):
        case.stages[1].requires_grad_(not frozen)
        steps(case, optimizer)


def left_over(trainer: fw.Trainer, case: Case) -> None:
    """A backward of the user's own leaves gradients behind, also on a weight that is frozen then."""
    x, y = case.batches[0]
    case.loss(case.forward(x), y).backward()
    case.stages[0][0].bias.requires_grad_(False)
    trainer.fit(case.batches)


def loop_left_over(case: Case) -> None:
    case.stages[0][0].bias.requires_grad_(False)
    steps(case, optimizer_of(case))


# -- loaders ----------------------------------------------------------------------------------------------------------


class Refilled:
    """A loader that refills one buffer."""

    def __init__(self, numpy: bool = False, ring: int = 1) -> None:
        self.numpy, self.ring = numpy, ring

    def __iter__(self):
        made = [(torch.zeros(8, 6), torch.zeros(8, dtype=torch.long)) for _ in range(self.ring)]
        for i, (x, y) in enumerate(vectors()):
            buffers = made[i % self.ring]
            buffers[0].copy_(x)
            buffers[1].copy_(y)
            yield tuple(b.numpy() for b in buffers) if self.numpy else buffers

    def __len__(self) -> int:
        return len(vectors())


def refilled() -> Case:
    return three(Refilled())


def ring() -> Case:
    return three(Refilled(ring=3))


def numpy_refilled() -> Case:
    return three(Refilled(numpy=True))


def loop_over_vectors(case: Case) -> None:
    case.batches = vectors()
    steps(case, optimizer_of(case))


def numpy_list() -> Case:
    return three([(x.numpy(), y.numpy()) for x, y in vectors()])


def data_loader() -> Case:
    x, y = (torch.cat(each) for each in zip(*vectors()))
    return three(DataLoader(TensorDataset(x, y), batch_size=8))


class Samples(Dataset):
    def __init__(self) -> None:
        self.x, self.y = (torch.cat(each) for each in zip(*vectors()))

    def __len__(self) -> int:
        return len(self.x)

    def __getitem__(self, i: int) -> dict[str, object]:
        return {"name": f"sample {i}", "features": self.x[i].numpy(), "label": int(self.y[i])}


def dicts() -> Case:
    return three(DataLoader(Samples(), batch_size=8), inputs="features", targets="label")


def triples() -> Case:
    return three([(torch.arange(8), x, y) for x, y in vectors()], inputs=1, targets=2)


def slices() -> Case:
    whole = torch.cat([x for x, _ in vectors()])
    return three([(whole[8 * i : 8 * i + 8], y) for i, (_, y) in enumerate(vectors())])


def loop_over_dicts(case: Case) -> None:
    case.batches = [(batch["features"], batch["label"]) for batch in case.batches]
    steps(case, optimizer_of(case))


def loop_over_triples(case: Case) -> None:
    case.batches = [(x, y) for _, x, y in case.batches]
    steps(case, optimizer_of(case))


def unsaid_dicts() -> Case:
    return three(DataLoader(Samples(), batch_size=8))


def unsaid_triples() -> Case:
    return three([(torch.arange(8), x, y) for x, y in vectors()])


def with_gradient() -> Case:
    return three([(x.requires_grad_(), y) for x, y in vectors()])


# -- optimizers -------------------------------------------------------------------------------------------------------


def no_decay(named_parameters) -> torch.optim.Optimizer:
    named = list(named_parameters)
    decay = [p for name, p in named if not name.endswith("bias")]
    rest = [p for name, p in named if name.endswith("bias")]
    return torch.optim.AdamW([{"params": decay}, {"params": rest, "weight_decay": 0.0}], lr=0.01, weight_decay=0.5)


def named_groups() -> Case:
    case = three()
    case.optimizer = no_decay
    return case


def loop_with_names(case: Case) -> None:
    steps(case, no_decay([pair for m in case.stages for pair in m.named_parameters()]))


# -- steps ------------------------------------------------------------------------------------------------------------


def accumulating() -> Case:
    return three(accumulate=3)


def loop_accumulating(case: Case) -> None:
    optimizer = optimizer_of(case)
    for i, (x, y) in enumerate(case.batches):
        (case.loss(case.forward(x), y) / 3).backward()
        if i % 3 == 2:
            optimizer.step()
            optimizer.zero_grad()


def halved(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)


def by_epoch() -> Case:
    return three(scheduler=halved, scheduler_every="epoch")


def on_a_plateau(optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.ReduceLROnPlateau(optimizer, patience=0, threshold=0.9)


def plateaus() -> Case:
    return three(scheduler=on_a_plateau)


def for_three_epochs(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches, epochs=3)


def loop_by_epoch(case: Case) -> None:
    optimizer = optimizer_of(case)
    scheduler = halved(optimizer)
    for _ in range(3):
        steps(case, optimizer)
        scheduler.step()


def loop_on_a_plateau(case: Case) -> None:
    optimizer = optimizer_of(case)
    scheduler = on_a_plateau(optimizer)
    for _ in range(3):
        total = 0.0
        for x, y in case.batches:
            optimizer.zero_grad()
            loss = case.loss(case.forward(x), y)
            loss.backward()
            optimizer.step()
            total += loss.item()
        scheduler.step(total / len(case.batches))


def warm_restart() -> Case:
    return three(scheduler=partial(torch.optim.lr_scheduler.CosineAnnealingWarmRestarts, T_0=4))


def loop_by_batch(case: Case) -> None:
    optimizer = optimizer_of(case)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(optimizer, T_0=4)
    for x, y in case.batches:
        optimizer.zero_grad()
        case.loss(case.forward(x), y).backward()
        optimizer.step()
        scheduler.step()


def nine_steps(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches, max_steps=9)


def loop_of_nine_steps(case: Case) -> None:
    case.batches = (list(case.batches) * 2)[:9]
    steps(case, optimizer_of(case))


def in_place() -> nn.Module:
    return nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 8), nn.Tanh())


def edited() -> Case:
    return Case(seeded(in_place, middle, last), vectors())


def watched(trainer: fw.Trainer, case: Case) -> None:
    trainer.evaluate(case.batches)
    trainer.fit(case.batches, validate=case.batches, callbacks=[lambda end: end.model().train()])
    trainer.predict(case.batches)
    trainer.fit(case.batches)


def loop_edited(case: Case) -> None:
    optimizer = optimizer_of(case)
    for _ in range(2):
        for x, y in vectors():
            optimizer.zero_grad()
            case.loss(case.forward(x), y).backward()
            optimizer.step()


def clamp(case: Case) -> None:
    with torch.no_grad():
        for module in case.trained:
            for p in module.parameters():
                p.clamp_(-0.2, 0.2)


def clamped_between(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches)
    clamp(case)
    trainer.fit(case.batches)


def loop_clamped_between(case: Case) -> None:
    optimizer = optimizer_of(case)
    steps(case, optimizer)
    clamp(case)
    steps(case, optimizer)


def slow_down(optimizer: torch.optim.Optimizer) -> None:
    for group in optimizer.param_groups:
        group["lr"] = 0.01
        group["momentum"] = 0.5


def slower_after(trainer: fw.Trainer, case: Case) -> None:
    trainer.fit(case.batches, callbacks=[lambda end: None])
    for optimizer in trainer.optimizers:
        slow_down(optimizer)
    trainer.fit(case.batches)


def loop_slower(case: Case) -> None:
    optimizer = optimizer_of(case)
    steps(case, optimizer)
    slow_down(optimizer)
    steps(case, optimizer)


class Turned(nn.Module):
    """A layer that stores its weight by columns, so that its gradient is not laid out as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(6, 8) / 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.linear(x, self.weight.t().contiguous())


def turned() -> Case:
    return Case(seeded(Turned, middle, last), vectors(), optimizer=partial(torch.optim.SGD, lr=0.05, fused=True))


RACE = refuse("with async-lu", "async-lu")
STATELESS = tuple(name for name in METHODS if name != "pipemare")  # its corrections have a state for each weight
HABITS = [
    Habit("weights clamped between two fits", three, fit=clamped_between, plain=loop_clamped_between),
    Habit(
        "settings of optimizers changed between two fits",
        three,
        fit=slower_after,
        plain=loop_slower,
    ),
    Habit("a fused optimizer, and a weight by columns", turned, refused=refuse("feedback supports", "fa", "dfa")),
    Habit("eval mode between two fits", statistics, fit=evaluated_between, plain=loop_evaluated_between),
    Habit("a frozen BatchNorm in eval mode", frozen_norm, plain=loop_in_these_modes),
    Habit(
        "a frozen BatchNorm in eval mode, and all in eval mode between two fits",
        frozen_norm,
        fit=evaluated_between,
        plain=loop_with_a_frozen_norm,
    ),
    Habit("unfrozen between two fits", frozen, fit=unfrozen_between, plain=loop_unfrozen_between, methods=STATELESS),
    Habit("frozen for one of three fits", three, fit=frozen_between, plain=loop_frozen_between, methods=STATELESS),
    Habit("gradients left over from a loop", three, fit=left_over, plain=loop_left_over, still=("0.0.bias",)),
    Habit("a loader that refills a buffer", refilled, twin=three, plain=loop_over_vectors),
    Habit("a loader that refills three buffers in turn", ring, twin=three, plain=loop_over_vectors),
    Habit("a loader that refills NumPy arrays", numpy_refilled, twin=three, plain=loop_over_vectors),
    Habit("batches of NumPy arrays", numpy_list, twin=three, plain=loop_over_vectors),
    Habit("a DataLoader", data_loader, twin=three),
    Habit("batches that are dicts", dicts, twin=three, plain=loop_over_dicts),
    Habit("batches that are triples", triples, twin=three, plain=loop_over_triples),
    Habit("batches that are slices of a tensor", slices, twin=three),
    Habit("dicts without keys", unsaid_dicts, refuse("with 'name', 'features', 'label' as batch 0: it must give")),
    Habit("triples without positions", unsaid_triples, refuse("of length 3 as batch 0: it must give pairs")),
    Habit("inputs that require a gradient", with_gradient, refuse("requires a gradient as batch 0")),
    Habit("parameter groups by name", named_groups, plain=loop_with_names),
    Habit("accumulation", accumulating, RACE, plain=loop_accumulating),
    Habit("a scheduler by batch", warm_restart, plain=loop_by_batch),
    Habit("a scheduler by epoch", by_epoch, fit=for_three_epochs, plain=loop_by_epoch),
    Habit("a scheduler on a plateau", plateaus, RACE, fit=for_three_epochs, plain=loop_on_a_plateau),
    Habit("a number of steps", three, fit=nine_steps, plain=loop_of_nine_steps),
    Habit("an in-place first layer, watched", edited, fit=watched, plain=loop_edited),
]
