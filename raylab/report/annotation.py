"""Tables of an annotation run, and of runs over time, for the terminal.

They read `report.json` and `drift` as `raylab.annotation.statistics` describes them.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from rich.table import Table

from raylab.report.progress import duration

Json = Mapping[str, Any]

NAMES = {"A": "annotator A", "B": "annotator B", "final": "final code", "reviewed": "with reviews"}
STATUSES = {
    "accepted": "accepted",
    "adjudicated": "adjudicated",
    "human": "left to a person",
    "failed": "failed",
}
EVALUATION = {
    "pass_rate": "pass rate",
    "acceptable": "acceptable",
    "execution_issue": "execution taken for a mechanism",
    "contradictory": "contradictory reports",
}
FORMATS = {
    "strict": "answers as asked for",
    "repaired": "repaired answers",
    "unparsable": "answers without a code",
}
AGREEMENT = {
    "exact": "equal composition (consensus)",
    "same_roots": "equal set of roots",
    "jaccard": "Jaccard of the sets",
    "weighted": "weighted by distance",
    "composition": "composition",
    "levenshtein": "Levenshtein, edits",
    "levenshtein_normalised": "Levenshtein by length",
    "kappa": "Cohen's kappa, primary root",
    "alpha": "Krippendorff's alpha, sets",
}
SHARES = ("exact", "same_roots")
GOLD = {"roots": "set of roots", "exact": "composition", "primary": "primary root"}
MEASURES = {"roots": "right roots", "pass_rate": "passed", "exact": "equal composition"}
HASH_DIGITS = 8


def shown_share(estimate: Json | None) -> str:
    """An estimated share in percent with its interval; a dash where it is missing."""
    if estimate is None or estimate["value"] is None:
        return "-"
    value = f"{100 * estimate['value']:.1f} %"
    interval = estimate["interval"]
    if interval is None:
        return value
    return f"{value} [{100 * interval[0]:.1f}, {100 * interval[1]:.1f}]"


def shown_number(estimate: Json) -> str:
    """An estimated number with its interval, or why it is missing."""
    if estimate["value"] is None:
        return f"undefined: {estimate['reason']}"
    value = f"{estimate['value']:.3f}"
    interval = estimate["interval"]
    return value if interval is None else f"{value} [{interval[0]:.3f}, {interval[1]:.3f}]"


def annotation_tables(report: Json) -> Iterator[Table]:
    """The tables of a run: how its cases ended, its annotators, their agreement, and gold.

    Args:
        report: content of a `report.json`.
    """
    yield summary_table(report)
    yield annotator_table(report)
    yield agreement_table(report["agreement"])
    if report["cases"]["with_gold"]:
        yield gold_table(report["gold"])
        yield root_table(report["gold"])


def summary_table(report: Json) -> Table:
    """How the cases ended and what that took."""
    cases, usage = report["cases"], report["usage"]["total"]
    table = Table(title=f"{cases['total']:,} cases, intervals of 95 %")
    table.add_column("")
    table.add_column("cases", justify="right")
    table.add_column("share", justify="right")
    for status, label in STATUSES.items():
        estimate = cases["status"][status]
        count = round((estimate["value"] or 0) * estimate["count"])
        table.add_row(label, f"{count:,}", shown_share(estimate))
    table.add_row("waiting for a person now", f"{report['decisions']['waiting']:,}", "")
    table.add_section()
    for label, value in _spent(usage):
        table.add_row(label, value, "")
    return table


def annotator_table(report: Json) -> Table:
    """What the evaluator said of each annotator, and the form of its answers."""
    table = Table(title="Annotators")
    table.add_column("share of the answers")
    for side in ("A", "B"):
        table.add_column(NAMES[side], justify="right")
    for part, labels in (("evaluation", EVALUATION), ("format", FORMATS)):
        for key, label in labels.items():
            estimates = [report["annotators"][side][part][key] for side in ("A", "B")]
            table.add_row(label, *map(shown_share, estimates))
    traps = [report["sensitivity"][side]["taken"] for side in ("A", "B")]
    table.add_row("traps that were taken", *map(shown_share, traps))
    position = report["adjudication"]["first_shown"]
    table.add_section()
    table.add_row("adjudicator chose the first shown", shown_share(position), "")
    return table


def agreement_table(agreement: Json) -> Table:
    """How far A and B agree."""
    table = Table(title=f"Agreement of A and B on {agreement['both']:,} cases with both codes")
    table.add_column("measure")
    table.add_column("mean", justify="right")
    for key, label in AGREEMENT.items():
        shown = shown_share if key in SHARES else shown_number
        table.add_row(label, shown(agreement[key]))
    return table


def gold_table(gold: Json) -> Table:
    """How often each code is right against gold."""
    found = {name: of for name, of in gold.items() if of is not None}
    table = Table(title="Right against gold")
    table.add_column("")
    for name in found:
        table.add_column(NAMES[name], justify="right")
    for key, label in GOLD.items():
        table.add_row(label, *(shown_share(of[key]) for of in found.values()))
    table.add_section()
    for key, label in (("cases", "cases"), ("left_out", "left out, no answer or decision")):
        table.add_row(label, *(f"{of[key]:,}" for of in found.values()))
    return table


def root_table(gold: Json) -> Table:
    """Recall and precision of each root, recall first."""
    found = {name: of for name, of in gold.items() if of is not None}
    table = Table(title="Recall / precision of each root in gold")
    table.add_column("root")
    table.add_column("cases", justify="right")
    for name in found:
        table.add_column(NAMES[name], justify="right")
    for root in next(iter(found.values()))["by_root"]:
        of = [by["by_root"][root] for by in found.values()]
        shares = [f"{_bare_share(one['recall'])} / {_bare_share(one['precision'])}" for one in of]
        table.add_row(root, f"{max(one['gold'] for one in of):,}", *shares)
    return table


def drift_tables(drift: Json) -> Iterator[Table]:
    """The runs in the order of time, and how each compares with the one before it."""
    yield runs_table(drift["runs"])
    yield drift_table(drift)


def runs_table(runs: Sequence[Json]) -> Table:
    """A row for each run and whoever answered in it."""
    table = Table(title="Runs over time")
    for label in ("run", "started", "side", "response_model", "prompt"):
        table.add_column(label)
    for label in ("answers", *MEASURES.values()):
        table.add_column(label, justify="right")
    for run in runs:
        for row in run["sources"]:
            table.add_row(
                run["run"],
                run["started"][:16].replace("T", " "),
                row["side"],
                row["response_model"],
                f"{row['prompt']} {row['prompt_hash'][:HASH_DIGITS]}",
                f"{row['answers']:,}",
                *(_bare_share(row[measure]) for measure in MEASURES),
            )
    return table


def drift_table(drift: Json) -> Table:
    """A row for each measure of a run against the earlier run of the same models."""
    table = Table(title=f"Change on the canary cases; * is flagged at {drift['level']:g} (Holm)")
    for label in ("measure", "before", "after"):
        table.add_column(label)
    for label in ("right before", "right after", "lost", "gained", "p", "p paired"):
        table.add_column(label, justify="right")
    table.add_column("changed")
    for row in drift["comparisons"]:
        measure = f"{MEASURES[row['measure']]}, {row['side']}"
        names = (measure, row["before"], row["after"])
        if row["tests"] is None:
            table.add_row(*names, *["-"] * 6, row["reason"])
            continue
        tests = row["tests"]
        table.add_row(
            *names,
            f"{row['right_before']} of {row['cases']}",
            f"{row['right_after']} of {row['cases']}",
            str(row["lost"]),
            str(row["gained"]),
            *(_p_value(tests[name]) for name in ("two_proportion", "mcnemar")),
            ", ".join(row["changed"]) or "-",
        )
    return table


def _spent(usage: Json) -> Iterator[tuple[str, str]]:
    yield "calls sent", f"{usage['sent']:,}"
    yield "calls answered from the journal", f"{usage['cached']:,}"
    yield "tokens of requests", f"{usage['prompt_tokens']:,}"
    yield "tokens of replies", f"{usage['completion_tokens']:,}"
    unknown = f"unknown: {usage['unpriced']:,} calls without a price"
    yield "cost", unknown if usage["cost"] is None else f"{usage['cost']:,.4f}"
    seconds = usage["seconds"]
    if seconds is not None:
        times = " / ".join(shown_seconds(seconds[name]) for name in ("p50", "p90", "p99"))
        yield "a call took, p50 / p90 / p99", times


def shown_seconds(seconds: float) -> str:
    return f"{seconds:.2g} s" if seconds < 10 else duration(seconds)


def _bare_share(estimate: Json) -> str:
    return "-" if estimate["value"] is None else f"{100 * estimate['value']:.0f} %"


def _p_value(test: Json) -> str:
    return f"{test['p_value']:.3g}{'*' if test['flagged'] else ''}"
