"""How the papers train: one short file per paper."""

from __future__ import annotations

from freewheel._errors import of_type, one_of
from freewheel.recipes import async_lu, asyncfgd, dsp, fdg
from freewheel.recipes._recipe import OPTIMIZERS as OPTIMIZERS, Recipe as Recipe, by_name
from freewheel.recipes._schedule import EVERY as EVERY, SHAPES as SHAPES, WARMUPS as WARMUPS, LRSchedule as LRSchedule
from freewheel.recipes._statistics import Statistics as Statistics

RECIPES: dict[str, Recipe] = by_name(module.RECIPES for module in (asyncfgd, fdg, dsp, async_lu))


def find(name: str, *, data: str | None = None, model: str | None = None, stages: int | None = None) -> Recipe:
    """Return a recipe by its name; the name of a paper stands for the one that suits the network and the data.

    Where the paper has none for them, that is the recipe of the paper's name; data that it does not use are not asked
    for.

    Example:
        >>> find("dsp", model="resnet-1001").name, find("dsp", model="resnet-20").name
        ('dsp-resnet-1001', 'dsp')
        >>> find("fdg", model="resnet-56", stages=2).name, find("fdg", model="resnet-56", stages=4).name
        ('fdg', 'fdg-warmup')
    """
    one_of("recipe", of_type("recipe", name, str, "give a name such as 'fdg'"), RECIPES)
    of_paper = [recipe for recipe in RECIPES.values() if recipe.paper == name]
    on_data = [recipe for recipe in of_paper if data in recipe.data] or of_paper
    nearest = RECIPES[name] if RECIPES[name] in on_data else [*on_data, RECIPES[name]][0]
    return next((each for each in on_data if each.suits(model=model, stages=stages)), nearest)
