"""`freewheel recipes`: how the papers train."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from textwrap import indent, wrap
from typing import Annotated

from freewheel._files import as_json
from freewheel.cli._options import OPTIONS, declare
from freewheel.cli._output import plural, print_line
from freewheel.recipes import RECIPES, Recipe

WIDTH = 100


def recipes(*, json: Annotated[bool, declare(OPTIONS, "", "Print them as JSON.", negative=())] = False) -> None:
    """List all recipes: networks, optimizer, step sizes, and what is reported."""
    if json:
        print_line(as_json([asdict(recipe) for recipe in RECIPES.values()]))
        return
    for recipe in RECIPES.values():
        print_line(f"{recipe.name}: {recipe.source}")
        for text in describe(recipe):
            print_line(indent("\n".join(wrap(text, WIDTH, subsequent_indent="  ", break_on_hyphens=False)), "    "))
    print_line("\nThe name of a paper stands for the recipe that suits the network, the data and the stages:")
    print_line("  freewheel train --recipe fdg --model resnet-56 --stages 4 --data-root DIR")


def describe(recipe: Recipe) -> Iterator[str]:
    """What a recipe is for, how it trains, and what is reported.

    Example:
        >>> for line in describe(RECIPES["fdg-warmup"]):
        ...     print(line)
        for 3 stages and more, resnet-110, resnet-1202; on cifar10, cifar100, tiny-imagenet
        300 epochs, batches of 128, cropped and flipped, sgd: lr 0.1, momentum 0.9, weight decay 0.0005
        step sizes: 3 epochs of warm-up at 0.01, then times 0.1 at epochs 150, 225, 275
        test error, last epoch, median of 3 runs
    """
    many = [] if recipe.least_stages is None else [f"{recipe.least_stages} stages and more"]
    yield f"for {', '.join([*many, *recipe.models])}; on {', '.join(recipe.data)}"
    settings = {name: f"{value:g}" for name, value in recipe.optimizer_settings().items() if value}
    if recipe.lr_grid:
        grid = ", ".join(f"{lr:g}" for lr in recipe.lr_grid)
        settings["lr"] = f"the best of {grid} on {recipe.validation:.0%} of the training samples, held out"
    given = ", ".join(f"{name.replace('_', ' ')} {value}" for name, value in settings.items())
    augmented = ", cropped and flipped" * recipe.augment
    yield f"{recipe.epochs} epochs, batches of {recipe.batch_size}{augmented}, {recipe.optimizer}: {given}"
    early = f", until {recipe.early_stopping} epochs bring no better accuracy" if recipe.early_stopping else ""
    yield f"step sizes: {recipe.schedule}{early}"
    alpha = recipe.transfer
    if alpha is not None:
        layers, peak = ", ".join(alpha.layers), f"{alpha.peak:g}"
        yield f"the classifier alone for {alpha.warmup} epochs, then {layers}, α to {peak} in {alpha.ramp} epochs"
    over = f", {recipe.over} of {plural(recipe.seeds, 'run')}" if recipe.seeds > 1 else ""
    target = "" if recipe.target is None else f", time to {recipe.target:.0%}"
    yield f"test {recipe.metric}, {recipe.epoch} epoch{over}{target}"
