"""The score tree of a run: the accuracy of each annotator on the labels of gold.

`<annotator>/<generation>/<label>.json` is the accuracy of one annotator on the cases of one
generation whose gold code begins with that label. Where candidates are judged, they stand in place
of the annotators, as `candidates`.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np

from raylab.annotation.input.cases import generation_files, in_generation
from raylab.annotation.outcome import ANNOTATORS, CANDIDATE_ANNOTATOR, Annotator
from raylab.annotation.statistics.frame import Frame, Tables, code_columns
from raylab.codebook import Label, SetDistance, compare
from raylab.config.base import AS_PUBLISHED, Generation
from raylab.config.llm import ChatModel
from raylab.runs.eval_logs import EvalLog, is_estimated
from raylab.runs.records import Part

ACCURACY = "accuracy"
METRICS = (ACCURACY, "exact", "primary", "jaccard", "weighted")
ALL, HALF, FILE = "all cases", "random half", "case file"
NOTES = {
    HALF: "generations {} are random halves of the published cases: they differ only in which "
    "cases were drawn, so their consistency measures subsampling alone",
    FILE: "generations {} are case files of their own: consistency with them measures how accuracy "
    "changes between these sets of cases",
}
"""Sentences on what generations are, by their kind."""
CANDIDATES: Mapping[Annotator, str] = {CANDIDATE_ANNOTATOR: "candidates"}
"""The name in the tree of the rows' candidates."""
UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._+@-]")


class ScoreTreeReport(Part):
    """The score tree of a run, in its report."""

    files: int
    left_out: tuple[str, ...]
    """Sentences on what the tree leaves out, and why."""
    notes: tuple[str, ...]
    """Sentences on what its generations are, and so what their consistency measures."""


def annotator_names(models: Sequence[ChatModel]) -> dict[Annotator, str]:
    """Names the annotators in the tree by their models.

    Those of one model have the seed too, or their own name where two have the same seed.
    """
    names = [UNSAFE_IN_NAMES.sub("-", chat.model).lstrip(".") or "-" for chat in models]
    seeds: dict[str, list[int | None]] = {}
    for name, chat in zip(names, models, strict=True):
        seeds.setdefault(name.casefold(), []).append(chat.seed)
    named: dict[Annotator, str] = {}
    for annotator, name, chat in zip(ANNOTATORS, names, models, strict=False):
        beside = seeds[name.casefold()]
        end = f"@seed{chat.seed}" if len({*beside}) == len(beside) else f"@{annotator}"
        named[annotator] = f"{name}{end}" if len(beside) > 1 else name
    return named


def score_tree(
    tables: Tables,
    generations: Sequence[Generation],
    names: Mapping[Annotator, str],
    created: str,
) -> tuple[dict[str, EvalLog], ScoreTreeReport]:
    """Returns the score tree of a run.

    Accuracy is the share of answers with the right set of labels; an answer without a readable code
    is wrong. A case is scored if its gold is held out and all answered. A label is in the tree if
    every generation has such a case of it, so that all annotators and generations are scored on the
    same tasks.

    Args:
        tables: The run.
        generations: `published` stands for all cases except those of files; a seed for the half of
            these that `in_generation` draws, in a directory `seed-<n>`; a file for its own cases.
        names: Names of the annotators that answer: `annotator_names`, or `CANDIDATES`.
        created: Time in ISO 8601 with its zone.

    Returns:
        The files by their paths below the tree's directory, of the same labels for every annotator
        and generation, and the same in the report of the run; there may be none.

    Raises:
        ConfigError: Two generations have the same name.
    """
    categories, scored = tables.codebook.categories, _answered(tables, names)
    groups = list(_groups(scored, generations))
    counts = {name: Counter(rows.task) for name, _, rows in groups}
    kept = [name for name in categories if all(n[name] for n in counts.values())]
    logs = [
        EvalLog(
            model=names[annotator],
            task=task,
            created=created,
            **_scored(tables, rows[rows.task == task], annotator, name, kind),
        )
        for annotator, (name, kind, rows), task in product(names, groups, kept)
    ]
    report = ScoreTreeReport(
        files=len(logs),
        left_out=(*_left_out(categories, counts), *_unscored(tables.cases, scored)),
        notes=tuple(_notes(groups)),
    )
    files = {f"{log.model}/{log.metadata['generation']}/{log.task}.json": log for log in logs}
    return files, report


def score_answers(tables: Tables, names: Mapping[Annotator, str]) -> Iterator[tuple[Any, ...]]:
    """Yields the score of each annotator on each case of the tree: 1 for the right set of labels.

    A row is model, item, group, generation, epoch, score and weight, as the diagnosis of a
    benchmark reads them: the annotator, the case, the primary label of its gold, its generation.
    """
    scored = _answered(tables, names)
    for column, name in zip(code_columns(names), names.values(), strict=True):
        labels = map(tables.label, scored[column])
        cases = zip(scored.case, scored.task, scored.generation, scored.gold, strict=True)
        for label, (case, task, generation, gold) in zip(labels, cases, strict=True):
            right = label is not None and label.categories == gold.categories
            yield name, case, task, generation, 1, float(right), 1.0


def _answered(tables: Tables, annotators: Iterable[Annotator]) -> Frame:
    """Returns the cases with held-out gold that all answered, with it and its first label."""
    cases = tables.cases
    answered = [cases[f"format_{name.lower()}"].notna() for name in annotators]
    scored = tables.only(np.logical_and.reduce([cases.held_out, *answered]))
    gold = scored.labels("gold_code")
    return scored.cases.assign(gold=gold, task=[label.primary for label in gold])


def _groups(cases: Frame, generations: Sequence[Generation]) -> Iterator[tuple[str, str, Frame]]:
    """Yields the name, the kind and the cases of each generation."""
    published = cases[cases.generation.eq(AS_PUBLISHED)]
    if AS_PUBLISHED in generations:
        yield AS_PUBLISHED, ALL, published
    for seed in generations:
        if isinstance(seed, int):
            half = np.array([in_generation(case, seed) for case in published.case], bool)
            yield f"seed-{seed}", HALF, published[half]
    for name in generation_files(generations):
        yield name, FILE, cases[cases.generation.eq(name)]


def _scored(
    tables: Tables, cases: Frame, annotator: Annotator, name: str, kind: str
) -> dict[str, Any]:
    """Returns the fields of a log on these cases of a generation."""
    codebook, codes = tables.codebook, cases[f"code_{annotator.lower()}"]
    return {
        "dataset": f"{codebook.name}/{name}",
        "samples": len(cases),
        "metrics": _metrics(map(tables.label, codes), cases.gold, codebook.distance),
        "metadata": {
            "annotator": annotator,
            "generation": name,
            "generation_kind": kind,
            "accuracy_of": "set of labels",
            "distance": codebook.distance.version,
            "unparsable": int(codes.isna().sum()),
        },
    }


def _metrics(
    labels: Iterable[Label | None], golds: Sequence[Label], distance: SetDistance
) -> dict[str, float]:
    rows = [
        (
            label.categories == gold.categories,
            agreement.exact,
            label.primary == gold.primary,
            agreement.jaccard,
            agreement.weighted,
        )
        for label, gold in zip(labels, golds, strict=True)
        if label is not None
        for agreement in [compare(label, gold, distance)]
    ]
    sums = map(sum, zip(*rows, strict=True)) if rows else [0.0] * len(METRICS)
    metrics = {n: min(1.0, total / len(golds)) for n, total in zip(METRICS, sums, strict=True)}
    share = metrics[ACCURACY]
    if is_estimated(share, len(golds)):
        metrics["stderr"] = math.sqrt(share * (1 - share) / (len(golds) - 1))
    return metrics


def _notes(groups: Sequence[tuple[str, str, Frame]]) -> Iterator[str]:
    for kind, note in NOTES.items():
        if names := [name for name, other, _ in groups if other == kind]:
            yield note.format(", ".join(names))


def _left_out(categories: Iterable[str], counts: Mapping[str, Counter[str]]) -> Iterator[str]:
    for name in categories:
        if lacking := [generation for generation, tasks in counts.items() if not tasks[name]]:
            yield f"{name}: no case with this primary label in gold in {', '.join(lacking)}"


def _unscored(cases: Frame, scored: Frame) -> Iterator[str]:
    held_out = int(cases.held_out.sum())
    if held_out < len(cases):
        yield f"{len(cases) - held_out} cases without held-out gold"
    if len(scored) < held_out:
        yield f"{held_out - len(scored)} cases with gold that lack an answer"
