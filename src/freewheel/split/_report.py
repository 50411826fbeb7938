"""The result of a split: the stages and their predicted costs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn


@dataclass(frozen=True)
class SplitReport:
    """The units and the cost of each stage.

    Attributes:
        costs: The cost of each stage.
        unit: What the costs count: ``"s"`` (seconds of a training step on the example), ``"parameters"`` or
            ``"units"``.
        names: The names of the units of each stage, in execution order: the qualified name of a
            submodule, or the name of an operation such as ``add_1``.
        unused: Parameters and buffers that forward never uses and no stage owns.
        whole: The submodules that are kept whole although they contain other calls, each with the reason.
        bottleneck: Why the stages are far from equal; empty if they are not. `fw.split` warns with it.
        unit_costs: The cost of each unit, in execution order.

    Example:
        >>> report = SplitReport(costs=(30, 10), unit="parameters", names=(("conv", "relu"), ("fc",)))
        >>> report.balance
        (2, 1)
        >>> print(report)
        stage  units            cost         share
        0      conv .. relu (2) 30 parameters  75%
        1      fc (1)           10 parameters  25%
        balance allows a speed-up of 1.33 with 2 stages
    """

    costs: tuple[float, ...]
    unit: str
    names: tuple[tuple[str, ...], ...]
    unused: tuple[str, ...] = ()
    whole: tuple[tuple[str, str], ...] = ()
    bottleneck: str = ""
    unit_costs: tuple[float, ...] = ()

    @property
    def balance(self) -> tuple[int, ...]:
        """The number of units of each stage, which `fw.split(balance=…)` takes."""
        return tuple(map(len, self.names))

    @property
    def speedup(self) -> float:
        """Total cost over the largest: the speed-up over one worker if no stage ever waits."""
        return sum(self.costs) / max(self.costs) if max(self.costs) > 0 else 1.0

    @property
    def seconds(self) -> tuple[float, ...]:
        """The seconds of each stage's step on the example; empty if they were not measured."""
        return self.costs if self.unit == "s" else ()

    @property
    def shares(self) -> str:
        """The share of each stage, in percent."""
        return " / ".join(f"{100 * cost / (sum(self.costs) or 1):.0f}" for cost in self.costs) + " %"

    def __str__(self) -> str:
        total = sum(self.costs) or 1
        spans = [f"{' .. '.join(dict.fromkeys([n[0], n[-1]]))} ({len(n)})" for n in self.names if n]
        amounts = [f"{c:.3g} s" if self.unit == "s" else f"{c:,.0f} {self.unit}" for c in self.costs]
        wide, high = max(map(len, [*spans, "units"])), max(map(len, [*amounts, "cost"]))
        lines = [f"{'stage':<6} {'units':<{wide}} {'cost':<{high - 1}} share"]
        for stage, (span, amount, cost) in enumerate(zip(spans, amounts, self.costs)):
            lines.append(f"{stage:<6} {span:<{wide}} {amount:<{high}} {cost / total:4.0%}")
        count = f"{len(self.costs)} stage{'s' if len(self.costs) > 1 else ''}"
        lines.append(f"balance allows a speed-up of {self.speedup:.2f} with {count}")
        if self.bottleneck:
            lines.append(f"unbalanced: {self.bottleneck}")
        for reason in dict.fromkeys(reason for _, reason in self.whole):
            names = [name for name, why in self.whole if why == reason]
            rest = f" and {len(names) - 3} more" if len(names) > 3 else ""
            lines.append(f"kept whole: {', '.join(names[:3])}{rest}: {reason}")
        if self.unused:
            lines.append(f"in no stage because forward never uses them: {', '.join(self.unused)}")
        return "\n".join(lines)


class Stages(list[nn.Module]):
    """The stages of a model, in order: a list of modules with the model they come from.

    Attributes:
        model: The model that was split. The stages hold its own parameters and buffers, so training the
            stages trains the model.
        report: What each stage holds and costs.

    Example:
        >>> model = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
        >>> report = SplitReport(costs=(1, 1), unit="units", names=(("0",), ("1",)))
        >>> stages = Stages([model[0], model[1]], model=model, report=report)
        >>> len(stages), stages.report.speedup
        (2, 2.0)
    """

    def __init__(self, stages: Iterable[nn.Module], *, model: nn.Module, report: SplitReport) -> None:
        super().__init__(stages)
        self.model = model
        self.report = report
