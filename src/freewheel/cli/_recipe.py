"""`freewheel train --recipe`: the options that a recipe sets where they are not given."""

from __future__ import annotations

from collections.abc import Iterator
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from freewheel import recipes
from freewheel._errors import whole_number
from freewheel.cli._method_options import write_value
from freewheel.cli._own import DATA_ONLY, is_own
from freewheel.recipes import Recipe
from freewheel.runtime import is_one_of_several, rank_and_size

if TYPE_CHECKING:
    from freewheel.cli._train_options import TrainOptions

WIDTH = 110
TIE = "~"  # a space that is no end of a line

# What a recipe says of any training; it also says which data, network, method and stages to begin with.
TRAINING = (
    *("batch_size", "augment", "validation", "epochs", "optimizer", "lr", "momentum", "weight_decay", "schedule"),
    *("milestones", "gamma", "t_max", "warmup_epochs", "warmup_lr", "warmup", "schedule_every", "transfer"),
    *("transfer_warmup", "transfer_ramp", "transfer_peak", "early_stopping", "lr_grid", "seeds"),
)


def recipe_defaults(given: dict[str, Any]) -> dict[str, Any]:
    """What the recipe says of all options; it is chosen by those that are given."""
    paper = recipes.find(given["recipe"], data=_lower(given.get("data")))
    data = given.get("data", paper.data[0])
    known = _lower(data) in paper.data
    model = given.get("model", paper.models[0] if known else None)
    stages = _stages(given, paper.stages)
    recipe = recipes.find(given["recipe"], data=_lower(data), model=_lower(model), stages=stages)
    if "epochs" in given and whole_number("--epochs", given["epochs"], least=1) != recipe.epochs:
        recipe = recipe.scaled(given["epochs"])
    out = {"data": data, "method": recipe.methods[0], "stages": stages, "model": model, **options_of(recipe)}
    if is_own(data):  # its function makes the batches
        out |= dict.fromkeys((*DATA_ONLY, "validation", "lr_grid"))
        out["lr"] = recipe.lr
    elif not known:
        out["augment"] = None
    return {name: value for name, value in out.items() if value not in (None, ())}


def _stages(given: dict[str, Any], otherwise: int | None) -> int | None:
    """The number of stages: as asked for, one for each process that torchrun has started, or the recipe's."""
    cut = len(given["at"]) + 1 if given.get("at") else len(given.get("balance", ()))
    if cut or "stages" in given:
        return cut or given["stages"]
    return max(1, rank_and_size()[1] // given.get("replicas", 1)) if is_one_of_several() else otherwise


def _lower(name: str | None) -> str | None:
    return None if name is None else name.lower()


def options_of(recipe: Recipe) -> dict[str, Any]:
    """What a recipe says of the training, by the names of the options.

    Example:
        >>> found = options_of(recipes.RECIPES["dsp"])
        >>> found["lr"], found["milestones"], found["batch_size"]
        (0.01, (150, 225), 128)
    """
    schedule, transfer = recipe.schedule, recipe.transfer
    out: dict[str, Any] = {
        "batch_size": recipe.batch_size,
        "augment": recipe.augment,
        "validation": recipe.validation,
        "epochs": recipe.epochs,
        "optimizer": recipe.optimizer,
        "lr": None if recipe.lr_grid else recipe.lr,
        "momentum": recipe.momentum,
        "weight_decay": recipe.weight_decay,
        "schedule": schedule.shape,
        "milestones": tuple(schedule.milestones),
        "gamma": schedule.gamma if schedule.milestones else None,
        "t_max": schedule.t_max,
        "warmup_epochs": schedule.warmup_epochs,
        "warmup_lr": schedule.warmup_lr,
        "warmup": schedule.warmup if schedule.warmup_epochs else None,
        "schedule_every": schedule.every,
        "transfer": transfer is not None,
        "transfer_warmup": transfer and transfer.warmup,
        "transfer_ramp": transfer and transfer.ramp,
        "transfer_peak": transfer and transfer.peak,
        "early_stopping": recipe.early_stopping,
        "lr_grid": recipe.lr_grid,
        "seeds": recipe.seeds,
    }
    assert tuple(out) == TRAINING
    return out


def chosen_recipe(options: TrainOptions) -> str | None:
    """The name of the recipe itself, where that of its paper is given."""
    if options.recipe is None:
        return None
    names = {"data": _lower(options.data), "model": _lower(options.model)}
    return recipes.find(options.recipe, **names, stages=options.stages).name


def describe_recipe(options: TrainOptions) -> Iterator[str]:
    """The lines that say what the recipe has set, what is not as it says, and what the paper leaves open."""
    if options.recipe is None:
        return
    recipe = recipes.RECIPES[options.recipe]
    said = {name: value for name, value in options_of(recipe).items() if value not in (None, (), 0, False)}
    taken = {name: value for name, value in said.items() if getattr(options, name) == value}
    yield from _lines(f"recipe   {recipe.name} ({recipe.source}): {_written(taken)}")
    other = {name: getattr(options, name) for name in said if name not in taken}
    if other:
        yield from _lines(f"         not as in the paper: {_written(other)}")
    open_ = [name for name in recipe.ours if name not in other]
    if open_:
        yield f"         left open by the paper, our choice: {', '.join(name.replace('_', ' ') for name in open_)}"


def _written(options: dict[str, Any]) -> str:
    """Options as they are typed."""
    return " ".join(_as_typed(name.replace("_", "-"), value) for name, value in options.items())


def _as_typed(name: str, value: Any) -> str:
    if value is True:
        return f"--{name}"
    if value is False or (value is None and name in ("augment", "transfer")):
        return f"--no-{name}"
    if value in (None, ()):
        return f"without{TIE}--{name}"
    items = value if isinstance(value, tuple) else (value,)
    return TIE.join([f"--{name}", *(write_value(item) for item in items)])


def _lines(text: str) -> list[str]:
    """The text in lines, none of which ends within an option."""
    found = wrap(text, WIDTH, subsequent_indent=" " * 9, break_on_hyphens=False, break_long_words=False)
    return [line.replace(TIE, " ") for line in found]
