"""The part of each annotator in a panel, and the cheapest panel that is as accurate.

A panel's answer is the most frequent one, or that of its first annotator. It is compared with the
labels of people: gold that no prompt names, and the codes of an audit. Without any, errors that
annotators share cannot be told from answers that are right, so nothing is said.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain, combinations

import numpy as np
from scipy.stats import norm

from raylab.core.runs.records import Figure, Part
from raylab.core.stats import Array, proportion
from raylab.label.codebooks.codebook import Label
from raylab.label.protocol.outcome import AGAIN, Annotator, classify_stage, evaluate_stage
from raylab.label.statistics.accuracy import CODES
from raylab.label.statistics.frame import Tables, has_labels

MARGIN = 0.03
"""Loss of accuracy below which a panel counts as equal."""
MIN_CASES = 30


class PanelReport(Part):
    """The annotators of a run as a panel that votes."""

    accuracy: Figure
    """Cases in which the most frequent answer is that of people."""
    without: dict[Annotator, Figure]
    """Change of this share if an annotator is left out."""
    cheapest: tuple[Annotator, ...] = ()
    """The cheapest panel that loses less than `MARGIN`, by an interval that allows for the number
    of panels compared; empty if that is shown of none but the whole."""
    change: Figure | None = None
    """Its change of the share."""
    saving: float | None = None
    """Part of the cost of the annotators and their evaluation that it saves."""


def panel_report(tables: Tables, audited: Mapping[str, Sequence[Label]]) -> PanelReport:
    """Returns what the annotators are worth together, by gold and the codes of an even audit."""
    names, truths = tuple(tables.annotators), dict[str, Label]()
    for case, line in tables.cases[tables.cases.held_out][["case", "gold_code"]].itertuples(False):
        truths |= {case: gold} if (gold := tables.label(line)) else {}
    truths |= {case: codes[0] for case, codes in audited.items() if len(codes) == 1}
    rows = tables.cases[tables.cases.case.isin([*truths])]
    reason = f"it needs two annotators and {MIN_CASES} cases that people labelled"
    if len(rows) < MIN_CASES or len(names) < 2:
        return PanelReport(accuracy=Figure(count=len(rows), reason=reason), without={})
    answers = {name: [*map(tables.label, rows[CODES[name]])] for name in names}
    golds = [truths[case] for case in rows.case]
    sizes = range(1, len(names) + 1)
    panels = chain.from_iterable(combinations(names, size) for size in sizes)
    right = dict[tuple[Annotator, ...], Array]()
    for panel in panels:
        correct = list[bool]()
        for gold, *said in zip(golds, *(answers[name] for name in panel), strict=True):
            labels = {label.categories: label for label in said if label is not None}
            votes = Counter(label.categories for label in said if label is not None)
            # Of equally frequent answers the first one counts.
            correct.append(bool(votes) and has_labels(labels[votes.most_common(1)[0][0]], gold))
        right[panel] = np.array(correct, float)
    # What the calls of an annotator and their evaluation cost, also where the archive answered
    # them; as tokens, if a call has no price.
    roles, spent = tables.calls.role.astype(str).str.removesuffix(AGAIN), tables.calls.cost
    if spent.isna().any():
        spent = tables.calls.prompt_tokens + tables.calls.completion_tokens
    costs = {
        name: float(spent[roles.isin([classify_stage(name), evaluate_stage(name)])].sum())
        for name in names
    }
    whole = right[names]
    without = {
        name: _change(right[tuple(other for other in names if other != name)], whole, 1)
        for name in names
    }
    report = PanelReport(accuracy=proportion(int(whole.sum()), len(whole)), without=without)
    total = sum(costs.values())
    for panel in sorted(right, key=lambda panel: sum(costs[name] for name in panel)):
        change = _change(right[panel], whole, len(right) - 1)
        assert change.interval is not None
        if panel != names and change.interval[0] > -MARGIN:
            saving = 1 - sum(costs[name] for name in panel) / total if total else None
            update = {"cheapest": panel, "change": change, "saving": saving}
            return report.model_copy(update=update)
    return report


def _change(panel: Array, whole: Array, panels: int) -> Figure:
    """Returns the change of a share of the same cases, with an interval for one of several.

    It is that of Bonett and Price (2012, J. Educ. Behav. Stat. 37:479), with Bonferroni's level.
    """
    gained, lost, total = (panel > whole).sum(), (panel < whole).sum(), len(whole)
    up, down = (gained + 1) / (total + 2), (lost + 1) / (total + 2)
    half = norm.ppf(1 - 0.025 / panels) * np.sqrt((up + down - (up - down) ** 2) / (total + 2))
    value, middle = float(panel.mean() - whole.mean()), up - down
    return Figure(value=value, interval=(float(middle - half), float(middle + half)), count=total)
