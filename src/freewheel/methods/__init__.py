"""Methods: one short file per family, each a preset of `Pipeline`."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

from freewheel._errors import of_type, one_of, unknown, whole_number
from freewheel.methods._method import Method as Method, Pipeline as Pipeline
from freewheel.methods.backprop import BP as BP, GPipe as GPipe, OneFOneB as OneFOneB
from freewheel.methods.ddg import DDG as DDG, FR as FR
from freewheel.methods.dgl import DGL as DGL
from freewheel.methods.dni import DNI as DNI
from freewheel.methods.dsp import DSP as DSP
from freewheel.methods.fdg import FDG as FDG
from freewheel.methods.feedback import DFA as DFA, DRTP as DRTP, FA as FA, SDFA as SDFA
from freewheel.methods.fgd import FGD as FGD, FGDDP as FGDDP, FGDMP as FGDMP, AsyncFGD as AsyncFGD, FGDSync as FGDSync
from freewheel.methods.pipedream import PipeDream as PipeDream
from freewheel.methods.pipemare import PipeMare as PipeMare
from freewheel.plan import Plan
from freewheel.racing import (
    LAPSGD as LAPSGD,
    LPPSGD as LPPSGD,
    AsyncBU as AsyncBU,
    AsyncLU as AsyncLU,
    Hogwild as Hogwild,
    Racing,
)

_CHAIN = (BP, GPipe, OneFOneB, DDG, FR, PipeDream, FDG, DSP, PipeMare)
_OTHERS = (FGD, FGDMP, FGDDP, FGDSync, AsyncFGD, DGL, DNI, FA, DFA, SDFA, DRTP)
METHODS: dict[str, type[Method]] = {m.name: m for m in (*_CHAIN, *_OTHERS)}
RACES: dict[str, type[Racing]] = {m.name: m for m in (AsyncLU, AsyncBU, Hogwild, LAPSGD, LPPSGD)}  # without a plan


def method(name: str | Method, **options: Any) -> Method:
    """Return a method by name, with its options; a `Method` is returned unchanged.

    Example:
        >>> method("dsp", p=(1, 1, 0), m=(4, 2, 0))
        DSP(p=(1, 1, 0), m=(4, 2, 0), delay=None)
    """
    if isinstance(name, Method):
        if options:
            raise TypeError(
                f"options {sorted(options)} need a method's name, but a {type(name).__name__} was given: set them on it"
            )
        return name
    known = {**METHODS, **RACES, Pipeline.name: Pipeline}
    one_of("method", of_type("method", name, str, "give a name such as 'fdg', or a method such as fw.FDG()"), known)
    cls = known[name]
    names = [f.name for f in fields(cls)]  # pyright: ignore[reportArgumentType]
    for option in options:
        if option not in names:
            raise unknown(f"option of method {name!r}:", option, names)
    return cls(**options)


def plan(name: str | Method, *, k: int, batches: int = 8, slack: int = 0, **options: Any) -> Plan:
    """Build the checked plan of a method; `print` draws it.

    Args:
        name: A method, or its name.
        k: The number of stages.
        batches: The number of batches.
        slack: Extra length of every queue.
        options: The method's options, if it is given by name.

    Example:
        >>> plan("fdg", k=3).delays
        (4, 2, 0)
    """
    whole_number("k", k, least=1)
    whole_number("batches", batches, least=1)
    whole_number("slack", slack, least=0)
    return Plan.build(method(name, **options).pipeline(k).schedule(slack=slack), batches)
