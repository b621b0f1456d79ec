"""Responses: one typed table of the scores of models on the items of a benchmark."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, cast

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.core.errors import DataError
from raylab.core.printable import join_names
from raylab.core.runs.records import Part
from raylab.core.stats import Array

NAMES = ("model", "task", "item", "group", "cluster", "generation", "scorer", "answer")
NUMBERS = {"run": np.int64, "epoch": np.int64, "score": np.float64, "weight": np.float64}
COLUMNS = (
    *("model", "task", "item", "group", "cluster", "generation", "run", "epoch"),
    *("scorer", "score", "weight", "answer"),
)
ITEM_COLUMNS = {"text": "", "target": "", "choices": np.nan}
"""Columns of items, with their values where no log has any."""
CHOICE = re.compile(r"\(?([a-z])[).:]?")
"""An answer that is a letter."""
NUMBER = re.compile(r"[$€£]?([-+]?[\d,]*\.?\d+)\.?")


class ScorersUsed(Part):
    """The score that was read of the logs of a task, and the others there."""

    task: str
    used: str
    """The scorer or metric, with a filter or reducer if there are several."""
    others: tuple[str, ...]
    logs: int
    """Number of logs."""


class Reading(Part):
    """The way in which the files of a benchmark were read."""

    scorers: tuple[ScorersUsed, ...] = ()
    notes: tuple[str, ...] = ()
    """Sentences on what a reader of the figures has to know."""
    left_out: Mapping[str, Mapping[str, int]] = {}
    """Numbers of responses that do not count, by model and reason."""

    @property
    def sentences(self) -> tuple[str, ...]:
        """Names the scores that were read where there are several, and the notes."""
        tasks = dict[tuple[str, tuple[str, ...]], list[str]]()
        for each in self.scorers:
            if each.others:
                tasks.setdefault((each.used, each.others), []).append(each.task or "the logs")
        return (
            *(
                f"{used} was read of {join_names(own)}; there is also {join_names(others, 6)}: "
                "choose with scorer= or metric="
                for (used, others), own in tasks.items()
            ),
            *self.notes,
        )


def no_items() -> pd.DataFrame:
    """Returns the items of logs that say nothing about them."""
    return pd.DataFrame(columns=list(ITEM_COLUMNS), index=pd.Index([], name="item", dtype=str))


@dataclass(frozen=True)
class Responses:
    """The scores of models on items, and what logs say about items, models and themselves.

    Attributes:
        table: A row for each response that counts, with the `COLUMNS`. `model`, `task`, `item`,
            `group`, `cluster`, `generation`, `scorer` and `answer` are categories, empty where
            there is none. An item's name is unique over tasks. `group` is its stratum within the
            task; items of one `cluster` vary together, and there are clusters only where a user
            declares them. `run` numbers the further logs of a model, task and generation, oldest
            first, and `epoch` the repetitions within a log, both from 1. `score` is in [0, 1];
            `weight` is the item's, 1 by default. A missing score has no row.
        items: The `text` and `target` of items by name, empty where unknown, and the number of
            their `choices`, NaN where unknown.
        logs: A row for each file that was read.
        left_out: Numbers of responses and files that do not count, by reason.
        examples: The first place where each reason applies, such as a file.
        reading: How the files were read.
    """

    table: pd.DataFrame
    items: pd.DataFrame = field(default_factory=no_items)
    logs: pd.DataFrame = field(default_factory=pd.DataFrame)
    left_out: Mapping[str, int] = field(default_factory=dict[str, int])
    examples: Mapping[str, str] = field(default_factory=dict[str, str])
    reading: Reading = field(default_factory=Reading)

    @cached_property
    def matrix(self) -> "Matrix":
        """The mean score of each model on each item, over generations, runs and epochs."""
        table = self.table
        models, items, cell = _cells(table)
        shape = len(models), len(items)
        counts = np.bincount(cell, minlength=shape[0] * shape[1])
        sums = np.bincount(cell, table["score"].to_numpy(float), minlength=len(counts))
        with np.errstate(invalid="ignore"):
            scores = np.where(counts > 0, sums / counts, np.nan).reshape(shape)
        firsts = np.unique(cell % shape[1], return_index=True)[1]
        first = table.iloc[firsts]
        task, group, cluster = (
            first[name].cat.codes.to_numpy(np.int64) for name in ("task", "group", "cluster")
        )
        strata = np.unique(np.stack([task, group]), axis=1, return_inverse=True)[1]
        alone = (first["cluster"] == "").to_numpy()
        clusters = np.where(alone, cluster.max(initial=0) + 1 + np.arange(len(first)), cluster)
        return Matrix(
            scores=scores,
            models=models,
            items=items,
            strata=strata.reshape(-1).astype(np.int64),
            clusters=np.unique(clusters, return_inverse=True)[1].astype(np.int64),
            weights=first["weight"].to_numpy(float),
        )

    @cached_property
    def answers(self) -> "AnswerTable":
        """The models' answers, where logs have them."""
        models, items, cell = _cells(self.table)
        answer = self.table["answer"].cat
        target = self.items["target"].reindex(items).fillna("").astype(str)
        texts = [*map(str, answer.categories), *target]
        codes, forms = pd.factorize(np.array([normalise(text) for text in texts], object))
        unknown = np.flatnonzero(forms == "")
        if len(unknown):
            codes = np.where(codes == unknown[0], -1, codes)
        names = np.full(len(forms), "", object)
        names[codes[::-1][codes[::-1] >= 0]] = np.array(texts, object)[::-1][codes[::-1] >= 0]
        own = codes[: len(answer.categories)]
        code = np.append(own, -1)[answer.codes.to_numpy()]
        answered, size = code >= 0, max(len(forms), 1)
        chosen = np.full(len(models) * len(items), -1, np.int32)
        _fill_with_commonest(chosen, cell[answered], code[answered], size)
        # A free answer may be right in other words than the target's.
        keys, right = codes[len(own) :].astype(np.int32), np.full(len(items), -1, np.int32)
        full = answered & (self.table["score"].to_numpy(float) == 1)
        _fill_with_commonest(right, cell[full] % len(items), code[full], size)
        matrix = chosen.reshape(len(models), len(items))
        missing = ~(matrix == keys).any(axis=0) & (right >= 0) & (keys >= 0)
        return AnswerTable(matrix, np.where(missing, right, keys), tuple(map(str, names)))


@dataclass(frozen=True)
class Matrix:
    """Mean scores of models on items over generations, runs and epochs.

    Attributes:
        scores: (models, items) in [0, 1]; NaN where a model has no score on an item.
        models: Names, sorted.
        items: Names, sorted.
        strata: (items,) numbers of the groups within tasks, which are fixed.
        clusters: (items,) numbers of the clusters; items of one cluster vary together. All differ
            where no cluster is declared.
        weights: (items,) weights > 0.
    """

    scores: Array
    models: tuple[str, ...]
    items: tuple[str, ...]
    strata: NDArray[np.int64]
    clusters: NDArray[np.int64]
    weights: Array

    @property
    def means(self) -> Array:
        """(models,) weighted means over the items of each model."""
        weights = np.where(np.isnan(self.scores), 0.0, self.weights)
        return np.nansum(self.scores * weights, axis=1) / weights.sum(axis=1)


@dataclass(frozen=True)
class AnswerTable:
    """The answers of models; models and items are those of the `Matrix`.

    Attributes:
        codes: (models, items) each model's commonest answer, -1 where logs have none. Equal codes
            are equal answers, whatever their case, white space, brackets and form of numbers.
        keys: (items,) codes of the targets, -1 where they are unknown. Where no model gives the
            target's text, it is the commonest answer with a full score.
        names: The text of each code.
    """

    codes: NDArray[np.int32]
    keys: NDArray[np.int32]
    names: tuple[str, ...]


def make_responses(
    rows: pd.DataFrame,
    items: pd.DataFrame | None = None,
    logs: pd.DataFrame | None = None,
    left_out: Mapping[str, int] | None = None,
    examples: Mapping[str, str] | None = None,
) -> Responses:
    """Returns responses from a frame with `model`, `item`, `score` and any other `COLUMNS`.

    Args:
        rows: The frame; names may be texts.
        items: The items, by name, with any columns of `ITEM_COLUMNS`.
        logs: The files that were read.
        left_out: See `Responses`.
        examples: See `Responses`.

    Raises:
        DataError: There are no rows.
    """
    if rows.empty:
        raise DataError("no response of a model can be used")
    columns = dict[str, Any]()
    for name in COLUMNS:
        if name in NUMBERS:
            column = rows[name] if name in rows else np.ones(len(rows))
            columns[name] = np.asarray(column, NUMBERS[name])
        else:
            column = (
                rows[name] if name in rows else pd.Categorical.from_codes([0] * len(rows), [""])
            )
            columns[name] = _as_sorted(column)
    described = no_items() if items is None else items.rename_axis("item")
    for name, missing in ITEM_COLUMNS.items():
        if name not in described:
            described = described.assign(**{name: missing})
    return Responses(
        pd.DataFrame(columns),
        described,
        pd.DataFrame() if logs is None else logs,
        left_out or {},
        examples or {},
    )


def normalise(text: str) -> str:
    """Returns the form in which answers are compared."""
    form = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if letter := CHOICE.fullmatch(form):
        return letter[1]
    if number := NUMBER.fullmatch(form):
        return f"{float(number[1].replace(',', '')):.12g}"
    return form


def _as_sorted(column: Any) -> pd.Categorical:
    """Returns names as categories in use, sorted."""
    if not isinstance(getattr(column, "dtype", None), pd.CategoricalDtype):
        column = pd.Series(column).astype("category")
    return pd.Categorical.from_codes(*_in_use(column))


def _in_use(column: Any) -> tuple[NDArray[np.int64], list[str]]:
    """Returns the codes of a column of categories without missing ones, and its names, sorted."""
    values = cast(pd.Categorical, getattr(column, "array", column))
    codes = values.codes
    used = np.flatnonzero(np.bincount(codes, minlength=len(values.categories)))
    every = values.categories.tolist()
    names = [str(every[place]) for place in used]
    order = sorted(range(len(names)), key=names.__getitem__)
    places = np.zeros(len(values.categories), np.int64)
    places[used[order]] = np.arange(len(order))
    return places[codes], [names[place] for place in order]


def _cells(table: pd.DataFrame) -> tuple[tuple[str, ...], tuple[str, ...], NDArray[np.int64]]:
    """Returns models, items, and the number of each row's cell in the matrix."""
    (model, models), (item, items) = (_in_use(table[name]) for name in ("model", "item"))
    return tuple(models), tuple(items), model * len(items) + item


def _fill_with_commonest(
    filled: NDArray[np.int32], places: NDArray[np.int64], codes: NDArray[np.int64], size: int
) -> None:
    """Sets each place to the commonest of its codes, the first of several."""
    pairs, firsts, counts = np.unique(places * size + codes, return_index=True, return_counts=True)
    order = np.lexsort((-firsts, counts))
    filled[pairs[order] // size] = pairs[order] % size
