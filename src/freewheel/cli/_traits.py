"""What the command line asks about a method. No other file of this package looks at kinds of methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from freewheel.methods import Method, Pipeline
from freewheel.tangents import Transfer


def uses_forward_gradients(pipeline: Pipeline) -> bool:
    """Whether it learns from forward gradients."""
    return pipeline.credit.name == "forward"


def uses_feedback(pipeline: Pipeline) -> bool:
    """Whether it learns through fixed random feedback."""
    return pipeline.credit.name in ("aligned", "feedback")


def tangents_of(pipeline: Pipeline) -> Any:
    """The options of the tangents of forward gradients, which are those of the credit."""
    return pipeline.credit


def with_transfer(method: Method, schedule: Transfer) -> Method:
    """The method with this schedule as the scale of its tangents."""
    if isinstance(method, Pipeline):
        return replace(method, credit=replace(tangents_of(method), scale=schedule))
    return replace(method, scale=schedule)  # pyright: ignore[reportArgumentType]


def retained(pipeline: Pipeline) -> str:
    """What a batch retains between its forward and its update, under forward gradients.

    Example:
        >>> import freewheel as fw
        >>> retained(fw.AsyncFGD(perturb="activations").pipeline(2))
        'the seed of its tangents and the inputs of Linear and Conv2d layers'
    """
    drawn = "the seed of its tangents" if tangents_of(pipeline).checkpoint else "its tangents"
    return (
        f"{drawn} and the inputs of Linear and Conv2d layers"
        if tangents_of(pipeline).perturb == "activations"
        else drawn
    )


def describe_tangents(pipeline: Pipeline) -> str:
    """Describe the tangents of forward gradients in one line; with the noisiest choice, add what to try.

    Example:
        >>> import freewheel as fw
        >>> describe_tangents(fw.FGD(distribution="sphere", tangents=4).pipeline(1))
        '4 from the sphere per step, perturbing weights'
        >>> describe_tangents(fw.FGD().pipeline(1))
        '1 gaussian per step, perturbing weights; less noise: -o perturb=activations, or -o tangents=4'
    """
    tangents = tangents_of(pipeline)
    drawn = "from the sphere" if tangents.distribution == "sphere" else tangents.distribution
    line = f"{tangents.tangents} {drawn} per step, perturbing {tangents.perturb}"
    noisy = tangents.perturb == "weights" and tangents.tangents == 1
    return f"{line}; less noise: -o perturb=activations, or -o tangents=4" if noisy else line
