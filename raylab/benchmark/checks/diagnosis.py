"""The diagnosis of a benchmark from the responses of models, in one record."""

from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import numpy as np
import pandas as pd

from raylab.benchmark.checks.differences import Differences, compare_models
from raylab.benchmark.checks.forms import Forms, compare_forms
from raylab.benchmark.checks.models import (
    ModelMean,
    Slice,
    Usage,
    make_parts,
    measure_models,
    measure_stability,
    measure_usage,
)
from raylab.benchmark.checks.noise import Noise, measure_noise
from raylab.benchmark.checks.suspects import Suspects, find_suspects, judge_items
from raylab.benchmark.checks.wrong_keys import judge_keys
from raylab.benchmark.responses import Reading, Responses
from raylab.core.runs.records import Figure, Part, Record

ITEMS = "items.parquet"
"""Name of the table of items in a run directory."""


class Coverage(Part):
    """The items of a task that a model answered."""

    model: str
    task: str
    answered: int
    """Number of items with a response that counts."""
    items: int
    """Number of items of the task."""
    left_out: int
    """Number of responses that do not count."""


class Diagnosis(Record):
    """The diagnosis of a benchmark from the responses of models to its items."""

    file: ClassVar[str] = "diagnosis.json"
    version: ClassVar[int] = 4

    models: int
    items: int
    responses: int
    left_out: Mapping[str, int]
    """Numbers of responses and files that do not count, by reason."""
    means: tuple[ModelMean, ...]
    """Of all models, the best first."""
    slices: tuple[Slice, ...]
    """By task if there are several, and by topic."""
    usage: tuple[Usage, ...]
    """Of the models, if logs say what they took."""
    chance: float | None
    """Mean score of guessing; None where items have no known number of options."""
    coverage: tuple[Coverage, ...]
    """Of each model and task, if a model lacks an item; else empty."""
    reading: Reading
    differences: Differences
    noise: Noise
    stability: Figure
    """Expected Kendall's tau between the rankings by two halves of the items."""
    suspects: Suspects
    forms: Forms | None
    """The comparison with the second form; None if there is none."""
    confirmed: str = ""
    """A sentence on how many suspects people confirmed, for the example."""


class Findings(NamedTuple):
    """A diagnosis and the table of items behind it."""

    diagnosis: Diagnosis
    items: pd.DataFrame
    """A row per item, with the columns of `judge_items` and `judge_keys`, and `reasons`."""


def diagnose(
    responses: Responses,
    baseline: str | None = None,
    margin: float | None = None,
    detect: float | None = None,
    form: Responses | None = None,
) -> Findings:
    """Computes every figure of a benchmark's responses.

    `baseline`, `margin` and `detect` are those of `compare_models`; `form` has the responses to a
    second form of the benchmark.

    Raises:
        ConfigError: The baseline has no scores.
        DataError: The second form has no model or no item in common with the first.
    """
    matrix = responses.matrix
    choices = responses.items["choices"].reindex(list(matrix.items)).to_numpy(float)
    keys = judge_keys(matrix, responses.answers, choices)
    judged = judge_items(matrix).join(keys)
    suspects, reasons = find_suspects(responses, judged)
    means, slices = measure_models(responses)
    counts: Any = responses.coverage
    lacking = (counts["answered"] < counts["items"]).any()
    diagnosis = Diagnosis(
        models=len(matrix.models),
        items=len(matrix.items),
        responses=len(responses.table),
        left_out=responses.left_out,
        means=means,
        slices=slices,
        usage=measure_usage(responses),
        chance=None if np.isnan(choices).any() else float((1 / choices).mean()),
        coverage=make_parts(Coverage, counts.reset_index()) if lacking else (),
        reading=responses.reading,
        differences=compare_models(matrix, baseline, margin, detect),
        noise=measure_noise(responses),
        stability=measure_stability(matrix),
        suspects=suspects,
        forms=None if form is None else compare_forms(matrix, form.matrix),
    )
    return Findings(diagnosis, judged.assign(reasons=reasons))
