"""The page of an annotation run."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from raylab.report import annotation, charts
from raylab.report.page import counted, listed, render

Json = Mapping[str, Any]

MEANINGS = {
    "exact": "Both gave the same code: the same roots, joined in the same way.",
    "same_roots": "Both named the same roots, however joined.",
    "jaccard": "Roots that both named, as a share of all that either named; 1 is the same set.",
    "weighted": "1 less the distance between the two sets of roots, so that a near miss costs less "
    "than a far one.",
    "composition": "1 for the same code, 0.5 for the same roots joined otherwise, 0 for others.",
    "levenshtein": "Characters to change to turn one line into the other.",
    "levenshtein_normalised": "The same as a share of the longer line; 0 is equal.",
    "kappa": "Agreement on the first root beyond what guessing at the same rates would give: 0 is "
    "chance, 1 is full agreement, below 0 is worse than chance.",
    "alpha": "Agreement on the sets of roots beyond chance, where a near miss counts as less of a "
    "disagreement than a far one: 0 is chance, 1 is full agreement.",
}
PLOTTED = ("exact", "same_roots", "jaccard", "weighted", "composition", "kappa", "alpha")
"""Measures that are better the nearer they are to 1."""
RELIABLE, TENTATIVE = 0.8, 0.667
"""Krippendorff's conventional limits of alpha."""
ENDINGS = {
    "accept": "a code that was acceptable to the evaluator",
    "human:one-acceptable": "only one of the two codes was acceptable",
    "human:none-acceptable": "neither code was acceptable",
    "human:unparsable": "an answer held no code that could be read",
    "human:unconfirmed": "the evaluator refused the adjudicated code",
}
CHOICES = {
    "A": "the code of annotator A",
    "B": "the code of annotator B",
    "synthesis": "a code of its own",
    "own": "a code of their own",
}
ROLES = {
    "classify-a": "annotator A",
    "classify-b": "annotator B",
    "evaluate-a": "evaluator of A",
    "evaluate-b": "evaluator of B",
    "adjudicate": "adjudicator",
    "confirm": "evaluator of adjudicated codes",
}


@dataclass(frozen=True)
class AnnotationReport:
    """What the page shows.

    Attributes:
        uri: The run directory.
        report: Content of `report.json`.
        over_time: The runs of the archive, each with the content of its `report.json` or null, and
            how they compare: `runs`, `earlier`, `level`, `comparisons` and `alarms`.
        record: Content of `record.json`.
    """

    uri: str
    report: Json
    over_time: Json
    record: Json


def render_annotation(page: AnnotationReport) -> str:
    """The page, a complete HTML document; whatever people and models wrote is escaped."""
    report = page.report
    return render(
        "annotation.html",
        page=page,
        report=report,
        lead=list(summary(report)),
        tiles=list(_tiles(report)),
        sections=_sections(report),
        words=annotation,
        meanings=MEANINGS,
        choices=CHOICES,
        roles=ROLES,
        usage=sorted(report["usage"]["by_source"], key=lambda row: _place(row["role"])),
        ending=_ending,
        seconds=annotation.shown_seconds,
        agreement=_agreement_plot(report["agreement"]),
        judged=_evaluation_plot(report["annotators"]),
        confusion=[
            (panel, _confusion_map(report["confusion"], name))
            for name, panel in report["confusion"]["panels"].items()
        ],
        cells=charts.confusion_cells,
        scores=_score_map(report["score_tree"]["scores"]),
        trends=_trend_plots(page.over_time["runs"]),
    )


def summary(report: Json) -> Iterator[str]:
    """What was done and found, in sentences."""
    cases, agreement = report["cases"], report["agreement"]
    settled = report["adjudication"]["cases"]
    yield (
        f"{counted(cases['total'], 'case')}, classified by {_served(report, 'classify-a')} and "
        f"{_served(report, 'classify-b')}, judged by {_served(report, 'evaluate-a')}"
        + (
            f", and settled by {_served(report, 'adjudicate')} where they differed."
            if settled
            else "."
        )
    )
    counts = {status: _cases(estimate) for status, estimate in cases["status"].items()}
    ended = [f"{n:,} {annotation.STATUSES[status]}" for status, n in counts.items() if n]
    if ended:
        yield f"How they ended: {listed(ended)}."
    if agreement["exact"]["value"] is not None:
        yield (
            f"Where both annotators gave a code, they gave the same one in "
            f"{annotation.shown_share(agreement['exact']).partition(' [')[0]} of the cases."
        )
    alpha = agreement["alpha"]["value"]
    if alpha is not None:
        yield (f"Krippendorff's alpha is {alpha:.2f}, by convention {_reliability(alpha)}.")


def _reliability(alpha: float) -> str:
    if alpha >= RELIABLE:
        return "reliable"
    return "good for tentative conclusions" if alpha >= TENTATIVE else "too low to rely on"


def _cases(estimate: Json) -> int:
    """The cases that an estimated share stands for."""
    return round((estimate["value"] or 0.0) * estimate["count"])


def _served(report: Json, role: str) -> str:
    """The models that answered in a role, as they were served."""
    rows = [row for row in report["usage"]["by_source"] if row["role"] == role]
    names = list(dict.fromkeys(row["response_model"] or row["model"] for row in rows))
    return listed([charts.shortened(name, 60) for name in names] or ["nobody"])


def _place(role: str) -> int:
    """Of a role in the order of the protocol; unknown ones come last."""
    return [*ROLES, role].index(role)


def _tiles(report: Json) -> Iterator[tuple[str, str, str]]:
    """Value, label and note of the large numbers at the top."""
    cases, agreement, usage = report["cases"], report["agreement"], report["usage"]["total"]
    by_protocol = sum(_cases(cases["status"][name]) for name in ("accepted", "adjudicated"))
    if cases["total"]:
        share = f"{100 * by_protocol / cases['total']:.1f} %"
        yield share, "decided by the protocol", f"{by_protocol:,} of {cases['total']:,} cases"
    yield f"{report['decisions']['waiting']:,}", "wait for a person", "now"
    alpha = agreement["alpha"]
    if alpha["value"] is not None:
        yield f"{alpha['value']:.3f}", "Krippendorff's alpha", _interval(alpha)
    right = (report["gold"]["final"] or {}).get("roots")
    if right is not None and right["value"] is not None:
        note = f"{right['count']:,} decided cases with gold"
        yield f"{100 * right['value']:.1f} %", "right roots in the final code", note
    tokens = usage["prompt_tokens"] + usage["completion_tokens"]
    cost = usage["cost"]
    if cost is None or not cost:
        yield f"{tokens:,}", "tokens", "cost is not known" if cost is None else "no call was sent"
    else:
        yield f"{cost:,.2f}", "cost", f"{tokens:,} tokens"


def _interval(estimate: Json) -> str:
    interval = estimate["interval"]
    return "" if interval is None else f"95 % interval {interval[0]:.3f} to {interval[1]:.3f}"


def _sections(report: Json) -> dict[str, str]:
    """Titles of the sections by their id."""
    gold = {"gold": "Right against gold"} if report["cases"]["with_gold"] else {}
    scores = {"scores": "Accuracy by root"} if report["score_tree"]["scores"] else {}
    return {
        "endings": "How the cases ended",
        "agreement": "Agreement",
        "annotators": "Annotators",
        **gold,
        "confusion": "Confusion",
        **scores,
        "disagreements": "Instructive disagreements",
        "cost": "Cost and latency",
        "drift": "Over time",
        "provenance": "Provenance",
    }


def _ending(step: str) -> str:
    """The last step of a protocol in words."""
    kind, _, what = step.partition(":")
    if what.endswith("-unreadable"):
        return f"the reply of {ROLES.get(what.removesuffix('-unreadable'), what)} cannot be read"
    if kind == "failed":
        return f"the call to {ROLES.get(what, what)} failed"
    return ENDINGS.get(step, step)


def _agreement_plot(agreement: Json) -> Markup:
    rows = {annotation.AGREEMENT[key]: {"": agreement[key]} for key in PLOTTED}
    title = "Measures of agreement with their 95 % intervals"
    return Markup(charts.interval_plot(rows, title, prefix="agreement-plot"))


def _evaluation_plot(annotators: Json) -> Markup:
    keys = ("pass_rate", "acceptable", "execution_issue")
    rows = {
        annotation.EVALUATION[key]: {
            annotation.NAMES[side]: of["evaluation"][key] for side, of in annotators.items()
        }
        for key in keys
    }
    title = "What the evaluator said of the annotators' codes, with 95 % intervals"
    return Markup(charts.interval_plot(rows, title, prefix="evaluation-plot", shares=True))


def _confusion_map(confusion: Json, name: str) -> Markup:
    panels = {name: confusion["panels"][name]}
    return Markup(charts.confusion_maps({**confusion, "panels": panels}, f"confusion-{name}"))


def _score_map(scores: Sequence[Json]) -> Markup | None:
    """Accuracies by annotator and generation (rows) and root (columns)."""
    rows: dict[str, dict[str, float | None]] = {}
    for score in scores:
        row = rows.setdefault(f"{score['annotator']}, {score['generation']}", {})
        row[score["root"]] = score["accuracy"]["value"]
    if not rows:
        return None
    title = "Accuracy by annotator, generation and root, in percent"
    return Markup(charts.heat_map(rows, "score-map", title))


def _trend_plots(runs: Sequence[Json]) -> list[Markup]:
    """Pass rates, and agreement, of the runs that have a report, the earliest on top."""
    reported = {row["run"]: row["report"] for row in runs if row["report"] is not None}
    if len(reported) < 2:
        return []
    rates = {
        name: {
            annotation.NAMES[side]: of["evaluation"]["pass_rate"]
            for side, of in report["annotators"].items()
        }
        for name, report in reported.items()
    }
    alphas = {name: {"": report["agreement"]["alpha"]} for name, report in reported.items()}
    return [
        Markup(charts.interval_plot(rates, "Pass rate by run", "drift-passed", shares=True)),
        Markup(charts.interval_plot(alphas, "Krippendorff's alpha by run", "drift-alpha")),
    ]
