"""What the command line asks about a method. No other file of this package looks at kinds of methods."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from freewheel.methods import Method, Pipeline
from freewheel.tangents import Transfer


def trained_pipeline(method: Method, stages: int, replicas: int) -> Pipeline:
    """The pipeline that the stages are trained by; refuses a number of stages that the method is not made for."""
    return method.over(replicas).stage_pipeline(stages)


def credit_of(pipeline: Pipeline) -> str:
    """The name of its credit."""
    return pipeline.credit.name


def uses_forward_gradients(pipeline: Pipeline) -> bool:
    """Whether it learns from forward gradients."""
    return credit_of(pipeline) == "forward"


def uses_feedback(pipeline: Pipeline) -> bool:
    """Whether it learns through fixed random feedback."""
    return credit_of(pipeline) in ("aligned", "feedback")


def uses_predictions(pipeline: Pipeline) -> bool:
    """Whether it learns from synthetic gradients."""
    return credit_of(pipeline) == "synthetic"


def perturbed(pipeline: Pipeline) -> str:
    """What the tangents of forward gradients perturb: `weights` or `activations`."""
    return _tangents(pipeline).perturb


def _tangents(pipeline: Pipeline) -> Any:
    """The options of tangents, which are those of the credit."""
    return pipeline.credit


def with_transfer(method: Method, schedule: Transfer) -> Method:
    """The method with this schedule as the scale of its tangents."""
    if isinstance(method, Pipeline):
        return replace(method, credit=replace(_tangents(method), scale=schedule))
    return replace(method, scale=schedule)  # pyright: ignore[reportArgumentType]


def has_own_scale(options: dict[str, Any]) -> bool:
    """Whether these options of a method set a scale of tangents that is not the default."""
    return options.get("scale", 1) != 1


def retained(pipeline: Pipeline) -> str:
    """What a batch retains between its forward and its update, under forward gradients.

    Example:
        >>> import freewheel as fw
        >>> retained(fw.AsyncFGD(perturb="activations").pipeline(2))
        'the seed of its tangents and the inputs of Linear and Conv2d layers'
    """
    drawn = "the seed of its tangents" if _tangents(pipeline).checkpoint else "its tangents"
    return f"{drawn} and the inputs of Linear and Conv2d layers" if perturbed(pipeline) == "activations" else drawn


def describe_tangents(pipeline: Pipeline) -> str:
    """Describe the tangents of forward gradients in one line; with the noisiest choice, add what to try.

    Example:
        >>> import freewheel as fw
        >>> describe_tangents(fw.FGD(distribution="sphere", tangents=4).pipeline(1))
        '4 from the sphere per step, perturbing weights'
        >>> describe_tangents(fw.FGD().pipeline(1))
        '1 gaussian per step, perturbing weights; less noise: -o perturb=activations, or -o tangents=4'
    """
    tangents = _tangents(pipeline)
    drawn = "from the sphere" if tangents.distribution == "sphere" else tangents.distribution
    line = f"{tangents.tangents} {drawn} per step, perturbing {tangents.perturb}"
    noisy = tangents.perturb == "weights" and tangents.tangents == 1
    return f"{line}; less noise: -o perturb=activations, or -o tangents=4" if noisy else line
