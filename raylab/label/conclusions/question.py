"""The targets of a question, which it counts, and the columns of the cases that it needs."""

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from raylab.core.errors import DataError
from raylab.core.printable import join_names, pluralize
from raylab.core.stats import Array
from raylab.label.codebooks.codebook import Codebook, Label
from raylab.label.conclusions.evidence import Evidence, LabelledCase
from raylab.label.config.jobs import ConcludeConfig

MAX_GROUPS = 20
"""Most groups, and values of a covariate in words."""
MAX_SHOWN = 12


@dataclass(frozen=True)
class Target:
    """A quantity that is counted: the cases with a label, or the mean of a number."""

    name: str
    value: Callable[[Label], float]
    is_share: bool


def require_columns(
    evidence: Evidence, config: ConcludeConfig, review: str
) -> tuple[dict[str, int], list[int]]:
    """Returns what is left out, and the places of the cases that have all columns."""
    if not evidence.judged and not all(case.is_certain for case in evidence.cases):
        raise DataError(
            f"run {config.run}: {pluralize(evidence.waiting, 'case')} are drawn for the audit, and "
            f"people have labelled none: {review} audit=0.1 draws one in ten and opens the page"
        )
    metas = [case.meta for case in evidence.cases]
    wanted = (config.by, *config.covariates, config.outcome, config.cluster)
    columns = [*dict.fromkeys(filter(None, wanted))]
    there = sorted({key for meta in metas for key, value in meta.items() if _is_there(value)})
    if unknown := [name for name in columns if name not in there]:
        raise DataError(
            f"the cases of run {config.run} have no column {join_names(unknown)}: they have "
            f"{join_names(there or ['none'], MAX_SHOWN)}"
        )
    left_out, kept = Counter(evidence.left_out), list[int]()
    for place, meta in enumerate(metas):
        missing = [name for name in columns if not _is_there(meta.get(name))]
        left_out.update([f"have no {join_names(missing)}"] if missing else [])
        kept += [] if missing else [place]
    if not kept:
        raise DataError(f"run {config.run} has no case with a label and all of these columns")
    return dict(left_out), kept


def _is_there(value: object) -> bool:
    return value is not None and value != "" and value == value


def as_numbers(values: Sequence[Any]) -> Array | None:
    """Returns a column as numbers; None if it holds words."""
    try:
        numbers = np.array([*map(float, values)])
    except (TypeError, ValueError):
        return None
    return numbers if np.isfinite(numbers).all() else None


def as_covariates(name: str, values: Sequence[Any]) -> dict[str, Array]:
    """Returns a column of numbers, or of words a column for each but the most frequent one."""
    if (numbers := as_numbers(values)) is not None:
        return {name: numbers}
    words = [str(value) for value in values]
    counts = Counter(words).most_common()
    if len(counts) > MAX_GROUPS:
        raise DataError(
            f"covariates: {name} has {len(counts)} different words: name a column of numbers, or "
            f"of at most {MAX_GROUPS} words"
        )
    (reference, _), *others = counts
    return {
        f"{name}: {word} (not {reference})": np.array([own == word for own in words], float)
        for word, _ in others
    }


def choose_targets(
    codebook: Codebook, config: ConcludeConfig, cases: Sequence[LabelledCase]
) -> Iterator[Target]:
    """Yields what is counted of the field: each label that occurs, or a mean."""
    questions = codebook.questions
    field = next(iter(questions), "") if config.field is None else config.field
    if field not in (questions or {"": None}):
        fields = [name for name in questions if name]
        there = f"has the fields {join_names(fields)}" if fields else "is one of labels alone"
        raise DataError(f"field={field}: the codebook {there}")
    question = questions.get(field)
    if question is not None and question.labels is None:
        if question.number is None or question.optional:
            kind = "a text" if question.number is None else "a number that may be missing"
            raise DataError(f"field={field} is {kind}, which has no share and no mean")
        yield Target(field, lambda label: float(label.answers[field][0]), is_share=False)
        return
    names = [*(codebook.categories if question is None else question.labels or ())]
    if unknown := [name for name in config.labels or () if name not in names]:
        raise DataError(f"labels: there is no {join_names(unknown)}, but {join_names(names)}")
    used = Counter(value for case in cases for value in case.label.answers.get(field, ()))
    for name in dict.fromkeys(config.labels or [name for name in names if used[name]]):
        yield Target(name, partial(_has, field, name), is_share=True)
    if question is not None and question.distance == "graded" and not question.optional:
        scale = f"{names[0]} = 1 to {names[-1]} = {len(names)}"
        yield Target(scale, lambda label: 1.0 + names.index(label.answers[field][0]), False)


def _has(field: str, name: str, label: Label) -> float:
    return float(name in label.answers.get(field, ()))
