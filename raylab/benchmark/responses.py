"""Responses: one typed table of the scores of models on the items of a benchmark."""

import re
import unicodedata
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.core.errors import DataError
from raylab.core.printable import join_names
from raylab.core.runs.records import Part
from raylab.core.stats import Array

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
        tasks, used = dict[tuple[str, tuple[str, ...]], list[str]](), dict[str, set[str]]()
        for each in self.scorers:
            used.setdefault(each.task, set()).add(each.used.removesuffix("/mean"))
            if each.others:
                tasks.setdefault((each.used, each.others), []).append(each.task or "the logs")
        return (
            *(
                f"{used} was read of {join_names(own)}; there is also {join_names(others, 6)}: "
                "choose with scorer= or metric="
                for (used, others), own in tasks.items()
            ),
            *(
                f"models on {task or 'the benchmark'} have different scores, "
                f"{join_names(sorted(names))}: choose with scorer= or metric="
                for task, names in used.items()
                if len(names) > 1
            ),
            *self.notes,
        )


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
        logs: A row for each log that was read: its names, status, score and the others there are,
            published accuracy, numbers of samples and of those `left_out`, and what it took in
            `tokens`, `cost` and `seconds`, NaN where the file does not say.
        left_out: Numbers of responses and files that do not count, by reason.
        examples: The first place where each reason applies, such as a file.
        reading: How the files were read.
    """

    table: pd.DataFrame
    items: pd.DataFrame
    logs: pd.DataFrame
    left_out: Mapping[str, int]
    examples: Mapping[str, str]
    reading: Reading

    @cached_property
    def matrix(self) -> "Matrix":
        """The mean score of each model on each item, over generations, runs and epochs."""
        models, items, cell = self._cells
        shape = len(models), len(items)
        counts = np.bincount(cell, minlength=shape[0] * shape[1])
        sums = np.bincount(cell, self.table["score"].to_numpy(float), minlength=len(counts))
        with np.errstate(invalid="ignore"):
            scores = np.where(counts > 0, sums / counts, np.nan).reshape(shape)
        first = np.empty(len(items), np.int64)
        # Of several rows of an item the last one written stays: backwards, that is the first row.
        first[cell[::-1] % len(items)] = np.arange(len(cell))[::-1]
        about = self.table.iloc[first]
        # An item without a declared cluster is a cluster of its own.
        alone = np.where(about["cluster"] == "", np.arange(len(about)), -1)
        return Matrix(
            scores=scores,
            models=tuple(models),
            items=tuple(items),
            strata=about.groupby(["task", "group"], observed=True).ngroup().to_numpy(np.int64),
            clusters=about.groupby([alone, "cluster"], observed=True).ngroup().to_numpy(np.int64),
            weights=about["weight"].to_numpy(float),
        )

    @cached_property
    def answers(self) -> "AnswerTable":
        """The models' answers, where logs have them."""
        models, items, cell = self._cells
        answer = self.table["answer"].cat
        target = self.items["target"].reindex(items).fillna("").astype(str)
        texts = np.array(["", *map(str, answer.categories), *target], object)
        codes, forms = pd.factorize(np.array([*map(normalise, texts)], object))
        # The empty text is the first of all, and means that there is none.
        codes, names = codes - 1, pd.Series(texts[1:]).groupby(codes[1:]).first()
        keys = codes[len(answer.categories) + 1 :].astype(np.int32)
        code = codes[1 + answer.codes.to_numpy()]
        answered = code >= 0
        chosen = _commonest(len(models) * len(items), cell[answered], code[answered])
        # A free answer may be right in other words than the target's.
        full = answered & (self.table["score"].to_numpy(float) == 1)
        right = _commonest(len(items), cell[full] % len(items), code[full])
        matrix = chosen.reshape(len(models), len(items))
        other = ~(matrix == keys).any(axis=0) & (right >= 0) & (keys >= 0)
        shown = names.reindex(range(1, len(forms)), fill_value="")
        return AnswerTable(matrix, np.where(other, right, keys), tuple(map(str, shown)))

    @property
    def coverage(self) -> pd.DataFrame:
        """The items that each model answered, by model and task.

        Columns: the numbers of items `answered`, of the task's `items`, and of responses
        `left_out`. A model has a row too where all of its responses are left out.
        """
        pairs = ["model", "task"]
        rows: Any = self.table[[*pairs, "item"]].drop_duplicates().astype(str)
        counts: Any = pd.DataFrame({"answered": rows.groupby(pairs).size()})
        if "left_out" in self.logs:
            counts = counts.join(self.logs.groupby(pairs)["left_out"].sum(), how="outer")
        items = rows.drop_duplicates("item").groupby("task").size()
        counts = counts.reindex(pd.MultiIndex.from_product(counts.index.levels, names=pairs))
        counts["items"] = items.reindex(counts.index.get_level_values("task")).to_numpy()
        return counts.reindex(columns=["answered", "items", "left_out"]).fillna(0).astype(int)

    @cached_property
    def _cells(self) -> tuple[list[str], list[str], NDArray[np.int64]]:
        """The models, the items, and the number of each row's cell in the matrix."""
        columns: list[Any] = [self.table[name].array for name in ("model", "item")]
        model, item = map(_in_use, columns)
        cell = model.codes.astype(np.int64) * len(item.categories) + item.codes
        return model.categories.tolist(), item.categories.tolist(), cell


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

    def select(self, models: NDArray[np.int64], items: NDArray[np.int64]) -> "Matrix":
        """Returns the scores of some models on some items, by their places."""
        return Matrix(
            self.scores[models][:, items],
            tuple(self.models[model] for model in models),
            tuple(self.items[item] for item in items),
            self.strata[items],
            self.clusters[items],
            self.weights[items],
        )


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

    Names may be texts. The items are indexed by name and have any of the `ITEM_COLUMNS`; all else
    is as in `Responses`.

    Raises:
        DataError: There are no rows.
    """
    if rows.empty:
        raise DataError("no response of a model can be used")
    columns = dict[str, Any]()
    for name in COLUMNS:
        if name in NUMBERS:
            columns[name] = np.asarray(rows.get(name, np.ones(len(rows))), NUMBERS[name])
        else:
            nothing = pd.Categorical.from_codes(np.zeros(len(rows), np.int8), [""])
            columns[name] = _in_use(pd.Categorical(rows.get(name, nothing)))
    about = pd.DataFrame(index=pd.Index([], dtype=str)) if items is None else items
    described = about.rename_axis("item")
    missing = {name: value for name, value in ITEM_COLUMNS.items() if name not in described}
    return Responses(
        pd.DataFrame(columns, copy=False),
        described.assign(**missing),
        pd.DataFrame() if logs is None else logs,
        left_out or {},
        examples or {},
        Reading(),
    )


def normalise(text: str) -> str:
    """Returns the form of an answer that is compared with others."""
    form = " ".join(unicodedata.normalize("NFKC", text).casefold().split())
    if letter := CHOICE.fullmatch(form):
        return letter[1]
    if number := NUMBER.fullmatch(form):
        return f"{float(number[1].replace(',', '')):.12g}"
    return form


def _in_use(names: pd.Categorical) -> pd.Categorical:
    """Returns names with sorted categories, without those that no row has."""
    every = np.asarray(names.categories, object)
    used = np.flatnonzero(np.bincount(names.codes, minlength=len(every)))
    order = sorted(used, key=lambda place: str(every[place]))
    places = np.zeros(len(every), np.int64)
    places[order] = np.arange(len(order))
    return pd.Categorical.from_codes(places[names.codes], [str(every[place]) for place in order])


def _commonest(size: int, places: NDArray[np.int64], codes: NDArray[np.int64]) -> NDArray[np.int32]:
    """Returns the commonest code of each place, the first of several, -1 where there is none."""
    commonest, span = np.full(size, -1, np.int32), int(codes.max(initial=0)) + 1
    pairs, first, counts = np.unique(places * span + codes, return_index=True, return_counts=True)
    # Of two assignments to one place the later counts: the greatest count, and the first of equals.
    order = np.lexsort((-first, counts))
    commonest[pairs[order] // span] = pairs[order] % span
    return commonest
