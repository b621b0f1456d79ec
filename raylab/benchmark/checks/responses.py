"""Responses: the scores of models on the items of a benchmark, in long form."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.core.errors import DataError
from raylab.core.stats import Array

COLUMNS = ("model", "item", "group", "generation", "epoch", "score", "weight")


@dataclass(frozen=True)
class Item:
    """An item as a log describes it; missing parts are empty."""

    text: str = ""
    target: str = ""
    answers: Mapping[str, str] = field(default_factory=dict[str, str])
    """An answer of each model."""


@dataclass(frozen=True)
class Responses:
    """The scores of models on items.

    Attributes:
        table: A row for each response that counts, with the `COLUMNS`: `model`, `item`, `group` (of
            the item; the item itself if it has none) and `generation` are categorical; `epoch`
            counts from 1; `score` lies in [0, 1]; `weight` is the item's, 1 by default. A missing
            score has no row.
        items: What the logs say about items, by name.
        left_out: Numbers of responses and files that do not count, by reason.
        examples: The first place where each reason applies, such as a file.
    """

    table: pd.DataFrame
    items: Mapping[str, Item] = field(default_factory=dict[str, Item])
    left_out: Mapping[str, int] = field(default_factory=Counter[str])
    examples: Mapping[str, str] = field(default_factory=dict[str, str])

    @cached_property
    def matrix(self) -> "Matrix":
        """The mean score of each model on each item."""
        table = self.table
        models, items = (table[name].cat.remove_unused_categories() for name in ("model", "item"))
        shape = len(models.cat.categories), len(items.cat.categories)
        cell = models.cat.codes.to_numpy(np.int64) * shape[1] + items.cat.codes.to_numpy(np.int64)
        size = shape[0] * shape[1]
        counts = np.bincount(cell, minlength=size)
        sums = np.bincount(cell, table["score"].to_numpy(float), minlength=size)
        with np.errstate(invalid="ignore"):
            scores = np.where(counts > 0, sums / counts, np.nan).reshape(shape)
        firsts = table.drop_duplicates("item").set_index("item").loc[items.cat.categories]
        return Matrix(
            scores=scores,
            models=tuple(map(str, models.cat.categories)),
            items=tuple(map(str, items.cat.categories)),
            groups=firsts["group"].cat.codes.to_numpy(np.int64),
            weights=firsts["weight"].to_numpy(float),
        )


@dataclass(frozen=True)
class Matrix:
    """Mean scores of models on items over generations and epochs.

    Attributes:
        scores: (models, items) in [0, 1]; NaN where a model has no score on an item.
        models: Names, sorted.
        items: Names, sorted.
        groups: (items,) numbers of the groups; items of one group vary together.
        weights: (items,) weights > 0.
    """

    scores: Array
    models: tuple[str, ...]
    items: tuple[str, ...]
    groups: NDArray[np.int64]
    weights: Array

    @property
    def means(self) -> Array:
        """(models,) weighted means over the items of each model."""
        weights = np.where(np.isnan(self.scores), 0.0, self.weights)
        return np.nansum(self.scores * weights, axis=1) / weights.sum(axis=1)


def make_responses(
    rows: pd.DataFrame | Iterable[tuple[str, str, str, str, int, float, float]],
    items: Mapping[str, Item],
    left_out: Mapping[str, int],
    examples: Mapping[str, str] | None = None,
) -> Responses:
    """Returns responses from rows in the order of `COLUMNS`; an empty group means the item.

    Raises:
        DataError: There are no rows.
    """
    table = pd.DataFrame(rows, columns=list(COLUMNS)).reset_index(drop=True)
    if table.empty:
        reasons = ", ".join(f"{count} {reason}" for reason, count in left_out.items())
        raise DataError(f"no response of a model can be used ({reasons or 'there are none'})")
    if np.any(table["group"] == ""):
        # Text, because a frame of categories has no category for another name.
        groups, names = (table[name].astype(str) for name in ("group", "item"))
        table["group"] = groups.where(groups != "", names)
    for name in COLUMNS[:4]:
        column = table[name].astype("category").cat.remove_unused_categories()
        table[name] = column.cat.reorder_categories(sorted(column.cat.categories))
    types = {"epoch": np.int64, "score": np.float64, "weight": np.float64}
    return Responses(table.astype(types), items, left_out, examples or {})
