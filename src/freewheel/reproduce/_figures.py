"""The figures of the papers, read from `figures.toml`."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from decimal import Decimal
from functools import cache
from importlib.resources import files
from typing import Any

PAPERS = {
    "asyncfgd": "Zhao et al., Accelerated on-device forward neural network training with module-wise descending "
    "asynchronism, 2023",
    "fdg": "Zhuang et al., Fully decoupled neural network learning using delayed gradients, 2019",
    "dsp": "Xu, Huo and Huang, On the acceleration of deep learning model parallelism with staleness, 2020",
    "async-lu": "Anonymous, Asynchronous stochastic gradient descent with decoupled backpropagation and layer-wise "
    "updates, 2024",
}
WITHOUT_NUMBER = ("drawn", "lost")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """A number of a paper, with the decimal places in which it is printed.

    `kind` says why there is none: `drawn` in a picture only, or `lost` in our copy.
    """

    value: float | None = None
    deviation: float | None = None
    places: int | None = None
    kind: str = "number"

    @classmethod
    def read(cls, given: Any) -> Figure:
        """An entry of a row.

        Example:
            >>> Figure.read([Decimal("93.70"), Decimal("0.16")])
            Figure(value=93.7, deviation=0.16, places=2, kind='number')
        """
        if given in WITHOUT_NUMBER:
            return cls(kind=given)
        value, *others = given if isinstance(given, list) else (given,)
        places = len(str(value).partition(".")[2]) if isinstance(value, Decimal) else None
        return cls(value=float(value), deviation=float(others[0]) if others else None, places=places)


@dataclass(frozen=True, kw_only=True)
class PaperTable:
    """A table or picture of a paper, in the paper's layout; see the head of `figures.toml` for the fields."""

    name: str
    paper: str
    where: str
    title: str
    unit: str
    statistic: str
    columns: tuple[str, ...]
    rows: Mapping[str, tuple[Any, ...]]
    units: Mapping[str, str] = field(default_factory=dict)
    quoted: tuple[str, ...] = ()
    settings: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    def unit_of(self, column: str) -> str:
        """The unit of a column."""
        return self.units.get(column, self.unit)

    def entry(self, row: str, column: str) -> Any:
        """What stands in a row and a column."""
        return self.rows[row][self.columns.index(column)]

    def setting(self, row: str, column: str) -> float:
        """The number in a column that says how something was measured."""
        return float(self.entry(row, column))

    def figure(self, row: str, column: str) -> Figure:
        """The number there."""
        return Figure.read(self.entry(row, column))

    def cells(self) -> Iterator[tuple[str, str]]:
        """Every row and column with a number to measure, in order."""
        for row in self.rows:
            for column in self.columns:
                if self.entry(row, column) != "" and column not in (*self.quoted, *self.settings):
                    yield row, column


@cache
def tables() -> Mapping[str, PaperTable]:
    """All tables, by the name of their experiment.

    Example:
        >>> tables()["fdg-table3"].figure("ResNet-20", "FDG, best β").value
        7.23
    """
    text = files("freewheel.reproduce").joinpath("figures.toml").read_text(encoding="utf-8")
    raw = tomllib.loads(text, parse_float=Decimal)
    return {name: _table(name, table) for name, table in raw.items()}


def _table(name: str, raw: Mapping[str, Any]) -> PaperTable:
    values = {key: tuple(value) if isinstance(value, list) else value for key, value in raw.items()}
    rows = {row: tuple(entries) for row, entries in raw["rows"].items()}
    return PaperTable(**{**values, "name": name, "rows": rows})
