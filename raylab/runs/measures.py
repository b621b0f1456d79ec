"""Measures: the labels, formats and good ends of the figures in records.

A field that is shown to people carries a `Measure` in its type, and its docstring is its
explanation:

    pass_rate: Annotated[Estimate, Measure("pass rate")]
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from raylab.runs.records import Part


@dataclass(frozen=True)
class Measure:
    """A figure that is shown to people.

    Attributes:
        label: Its name in tables and charts.
        form: Its format; a share is in [0, 1].
        better: The good end of its scale; None if neither is.
    """

    label: str
    form: Literal["share", "number", "count", "seconds"] = "share"
    better: Literal["higher", "lower"] | None = "higher"

    def best(self, values: Sequence[float | None]) -> float | None:
        """Returns the best of several values; None if there is nothing to compare."""
        present = {value for value in values if value is not None}
        if self.better is None or len(present) < 2:
            return None
        return max(present) if self.better == "higher" else min(present)


def measures_of(kind: type[Part]) -> dict[str, Measure]:
    """Returns the measures of a part by the names of their fields, in the order of the fields."""
    return {
        name: mark
        for name, field in kind.model_fields.items()
        for mark in field.metadata
        if isinstance(mark, Measure)
    }


def meaning_of(kind: type[Part], name: str) -> str:
    """Returns the docstring of a field on one line."""
    return " ".join((kind.model_fields[name].description or "").split())
