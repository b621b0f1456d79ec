"""The score tree of a run: the accuracy of each annotator on the labels of gold.

`<annotator>/<generation>/<label>.json` is the accuracy of one annotator on the cases of one
generation whose gold code begins with that label. Where candidates are judged, `candidates` stands
in place of the annotators.
"""

import math
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import product

import numpy as np

from raylab.core.printable import pluralize
from raylab.core.runs.eval_logs import EvalLog, is_estimated
from raylab.core.runs.records import Part
from raylab.label.protocol.outcome import ANNOTATORS, CANDIDATE_ANNOTATOR, Annotator
from raylab.label.statistics.columns import SCORE, ScoredAnswer, as_arrow, code_columns
from raylab.label.statistics.frame import Frame, Tables
from raylab.llm.config import ChatModel

CANDIDATES: Mapping[Annotator, str] = {CANDIDATE_ANNOTATOR: "candidates"}
"""The name in the tree of the rows' candidates."""
UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._+@-]")


class ScoreTreeReport(Part):
    """The score tree of a run, in its report."""

    files: int
    left_out: tuple[str, ...]
    """Sentences on the labels and cases that the tree leaves out."""


def annotator_names(models: Sequence[ChatModel]) -> dict[Annotator, str]:
    """Names the annotators in the tree by their models.

    Annotators of one model have their letter too.
    """
    # A folder of such a name is neither hidden nor above the tree.
    names = [UNSAFE_IN_NAMES.sub("-", chat.model).lstrip(".") or "-" for chat in models]
    # Some file systems hold names that differ in case alone for equal.
    counts = Counter(map(str.casefold, names))
    return {
        annotator: f"{name}@{annotator}" if counts[name.casefold()] > 1 else name
        for annotator, name in zip(ANNOTATORS, names, strict=False)
    }


def score_answers(tables: Tables, names: Mapping[Annotator, str]) -> Frame:
    """Returns the answers to the cases with held-out gold that all answered; columns `SCORE`.

    An answer is right if it has the set of labels of gold; one without a readable code is wrong.
    The names are `annotator_names`, or `CANDIDATES`.
    """
    cases, labels = tables.cases, tables.codebook.categories
    answered = [cases[f"format_{name.lower()}"].notna() for name in names]
    scored = tables.only(np.logical_and.reduce([cases.held_out, *answered]))
    # The first label of gold; a record of other values has none.
    tasks = [
        next((label for _, label in gold.parts if label in labels), "")
        for gold in scored.labels("gold_code")
    ]
    rows = scored.cases.assign(task=tasks)
    entries = [*rows[["case", "task", "generation"]].itertuples()]
    answers = [
        ScoredAnswer(name, entry, float(right))
        for name, column in zip(names.values(), code_columns(names), strict=True)
        for entry, right in zip(entries, tables.right(rows[column], rows.gold_code), strict=True)
    ]
    return as_arrow(answers, SCORE).to_pandas()


def score_tree(
    tables: Tables, names: Mapping[Annotator, str], created: str
) -> tuple[dict[str, EvalLog], ScoreTreeReport]:
    """Returns the files of the score tree by their paths below its directory, and their report.

    Accuracy is the share of right answers in `score_answers`. A label is in the tree if every
    generation has a case of it, so that all are scored on the same tasks.
    """
    answers, first = score_answers(tables, names), next(iter(names.values()))
    groups = answers.groupby(["model", "generation", "group"]).score
    scores: dict[tuple[str, ...], list[float]] = {key: own.tolist() for key, own in groups}
    generations = dict.fromkeys(tables.cases.generation)
    # All have answers to the same cases, so that the first one stands for them.
    lacking = {
        task: [name for name in generations if (first, name, task) not in scores]
        for task in tables.codebook.categories
    }
    kept = [task for task, without in lacking.items() if not without]
    files = dict[str, EvalLog]()
    for (annotator, model), generation, task in product(names.items(), generations, kept):
        right = scores[model, generation, task]
        share = sum(right) / len(right)
        metrics = {"accuracy": share}
        if is_estimated(share, len(right)):
            metrics["stderr"] = math.sqrt(share * (1 - share) / (len(right) - 1))
        # A label may have signs that no file name has.
        safe = re.sub(r"[/?*%]", lambda sign: f"%{ord(sign[0]):X}", task)
        files[f"{model}/{generation}/{safe}.json"] = EvalLog(
            model=model,
            task=task,
            created=created,
            samples=len(right),
            metrics=metrics,
            dataset=f"{tables.codebook.name}/{generation}",
            metadata={"annotator": annotator, "generation": generation},
        )
    left_out = [
        f"{task}: no case with this first label in gold in {', '.join(without)}"
        for task, without in lacking.items()
        if without
    ]
    held_out = int(tables.cases.held_out.sum())
    if without := len(tables.cases) - held_out:
        left_out.append(f"{pluralize(without, 'case')} without held-out gold")
    if unanswered := held_out - len(answers) // len(names):
        left_out.append(f"{pluralize(unanswered, 'case')} with gold and without all answers")
    return files, ScoreTreeReport(files=len(files), left_out=tuple(left_out))
