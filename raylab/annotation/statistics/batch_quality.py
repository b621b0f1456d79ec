"""The quality of one run of the OPT-Code protocol, from a stream of its outcomes.

Outcomes are counted and let go: memory depends on the taxonomy, on how many models, prompts and
generations there are, and on how many cases people decided, but not on how many cases there are.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from raylab.annotation.outcome import HumanDecision, Outcome, Status
from raylab.annotation.statistics.aggregates import (
    Answers,
    Judgements,
    Measures,
    Pairs,
    Reviews,
    Settlements,
    Sources,
    Texts,
    Traps,
)
from raylab.annotation.statistics.confusion import LABELS
from raylab.annotation.statistics.estimates import proportion
from raylab.annotation.statistics.usage import LISTED, Durations, Usage
from raylab.codebook import SetDistance
from raylab.llm.embedded import SMOKE_NOTICE

Json = dict[str, Any]

PROPOSED = (
    "{proposed} of {gold} gold codes are one person's proposals that nobody reviewed "
    "(meta.reviewed is false): accuracy against them is provisional."
)
CANDIDATES = {"A": "annotator A", "B": "annotator B", "final": "final code"}
REVIEWED = "reviewed"
EXAMPLES = 200
"""Characters of an example of why a case ended as it did."""


def batch_quality(
    outcomes: Iterable[Outcome],
    decisions: Iterable[HumanDecision],
    distance: SetDistance,
    *,
    smoke: bool = False,
    warnings: Sequence[str] = (),
    seed: int = 307,
) -> Json:
    """The content of `report.json`, see `BatchQuality.report`.

    Args:
        outcomes: Of one run, each case once; they are read once and not kept.
        decisions: Of people on cases of that run, in the order in which they were archived.
        distance: Between roots.
        smoke: Whether the embedded model answered, so that the figures mean nothing.
        warnings: What else makes the results worth less, as `Settings.warnings`.
        seed: Of the bootstrap intervals.

    Raises:
        OptCodeError: A case's gold is no code.
    """
    quality = BatchQuality(decisions, distance)
    for outcome in outcomes:
        quality.add(outcome)
    return quality.report(smoke=smoke, warnings=warnings, seed=seed)


class BatchQuality:
    """Counts the outcomes of a run as they come."""

    def __init__(self, decisions: Iterable[HumanDecision], distance: SetDistance) -> None:
        """Start without outcomes.

        Args:
            decisions: Of people, in the order in which they were archived.
            distance: Between roots.
        """
        self._distance = distance
        self._reviews = Reviews(decisions)
        self._all = _Group()
        self._generations: dict[str, _Group] = {}
        self._answers = {"A": Answers(), "B": Answers()}
        self._judgements = {"A": Judgements(), "B": Judgements()}
        self._sources = {"A": Sources(), "B": Sources()}
        self._measures = Measures(distance)
        self._traps = {name: Traps() for name in CANDIDATES}
        self._settlements = Settlements()
        self._usage, self._durations = Usage(), Durations()
        self._paths, self._endings = Texts(), Texts()
        self._examples: dict[str, str] = {}
        self._trap_cases = self._proposed = self._waiting = 0

    def add(self, outcome: Outcome) -> None:
        """Count a case.

        Raises:
            OptCodeError: The case's gold is no code.
        """
        reviewed = self._reviews.code_of(outcome)
        self._all.add(outcome, reviewed)
        self._generations.setdefault(outcome.generation, _Group()).add(outcome, reviewed)
        self._waiting += outcome.status is Status.HUMAN and reviewed is None
        a, b = outcome.a, outcome.b
        for side, answer, other, evaluation in (
            ("A", a, b, outcome.evaluation_a),
            ("B", b, a, outcome.evaluation_b),
        ):
            self._answers[side].add(answer)
            self._judgements[side].add(evaluation)
            self._sources[side].add(answer, evaluation, other, outcome.gold)
        self._measures.add(outcome)
        self._trap_cases += outcome.trap
        self._proposed += outcome.gold is not None and outcome.meta.get("reviewed") is False
        for name, code in _codes(outcome).items():
            self._traps[name].add(outcome, code)
        self._settlements.add(outcome.adjudication)
        self._usage.add(outcome)
        self._durations.add((outcome.finished - outcome.started).total_seconds())
        self._add_path(outcome)

    def _add_path(self, outcome: Outcome) -> None:
        steps = [":".join(step.split(":")[:2]) for step in outcome.path]
        self._paths.add([" > ".join(steps)])
        ending = steps[-1] if steps else outcome.status.value
        self._endings.add([ending])
        if outcome.reason is not None and len(self._examples) < LISTED:
            self._examples.setdefault(ending, f"{outcome.case}: {outcome.reason}"[:EXAMPLES])

    def report(self, *, smoke: bool = False, warnings: Sequence[str] = (), seed: int = 307) -> Json:
        """Everything that was counted, as `report.json` has it.

        An *estimate* is `{"value", "interval", "count", "reason"}`: a number or null, its 95 %
        interval [low, high] or null, the cases it rests on, and why something is null. Proportions
        have Wilson intervals, all others percentile bootstrap intervals over cases. Nothing that
        is missing counts as zero: it is left out, and counted where this says so.

        Returns:
            `smoke` and `notices`: Whether a model answered whose answers mean nothing; sentences
                that belong beside the figures.
            `distance`: Version of the distances between roots.
            `cases`: `total`; `with_gold`, of these `proposed_gold` that nobody reviewed; `traps`;
                `status`, an estimate of the share of each status as the protocol left it;
                `endings`, by last step of the protocol `cases` and an `example` of the reason;
                `paths`, cases by steps taken, without scores; `seconds` that a case took.
            `annotators`: For A and B `format`: answers, cases `missing` one, estimates of the
                `strict`, `repaired` and `unparsable`, cases by kind of repair; and `evaluation`:
                how many were `evaluated`, of these `without_code` (which FAIL without an evaluator
                being asked); estimates `pass_rate` (PASS or WEAK_PASS, after the caps),
                `acceptable`, and, where an evaluator was asked, `execution_issue` (execution taken
                for a mechanism), `contradictory` and `repaired` reports; counts of `verdicts` as
                they hold, `raw_verdicts` as given, `issues`, `scores` by lowest of the ten (90 to
                100 in the last), reasons of `caps`, kinds of `repairs`; and the `mean_score`;
                and `sources`, a row for each model, version served and prompt that answered: its
                `answers`, of these `cached`, estimates `pass_rate`, `exact` and `roots`.
            `agreement`: Of A and B: `cases`, and those in which `both` gave a code, on which all
                else rests: estimates `exact` (the consensus rate: equal composition), `same_roots`,
                `kappa` (Cohen, primary root), `alpha` (Krippendorff, sets of roots), and the means
                of `jaccard`, `levenshtein`, `levenshtein_normalised` (0 is equal), `weighted` and
                `composition`.
            `gold`: For A, B, `final` (the protocol's code) and `reviewed` (with what people
                decided; null while they have not): `cases` with gold and an answer (an answer
                without a readable code is one, `without_code`, and wrong), `left_out` with gold
                and no answer or decision; estimates `roots` (the right set), `exact` (the right
                composition), `primary`; and `by_root` with `gold`, `answered`, `right`, `recall`
                and `precision`.
            `confusion`: `labels` of rows and columns; `panels` `a_b` and, with gold, `gold_A`,
                `gold_B` and `gold_final`, each with the names of `rows` and `columns`, the matrix
                `sets` of `set_confusion` and that of `primary` roots.
            `sensitivity`: For A, B and `final`, on traps with gold: `answered`; in how many
                `bait_named` says what the trap baits (else Evo, Sch and Swm, to which parallelism
                can belong); estimates `wrong` (another set of roots) and `taken` (names a baited
                root that gold lacks); `taken_for`, cases by that root.
            `adjudication`: `cases`, `choices`, how often A was `a_shown_first`; estimates
                `first_shown` (the first shown chosen, of choices between A and B) and `chose_a`,
                with p-values of the exact test against one half; `format` as of an annotator;
                `confirmation` as an annotator's `evaluation`.
            `decisions`: Of people: `actions`, `cases` decided now, `choices`, `confirmed`,
                `refused` or `unconfirmed` by the evaluator; `waiting` for a decision; `reviewers`;
                `usage` of the confirmations, as `usage.total`, which leaves them out.
            `usage`: `total`, and `by_source` rows by role, model, served, prompt and prompt_hash,
                each with calls `sent` and `cached` (answered from the journal); tokens, cost
                and seconds are of those sent: `prompt_tokens`, `completion_tokens`, `cost` (null
                with a call that has no price), `priced` (cost of the others), `unpriced` calls,
                `seconds` a call with mean, p50, p90, p99 (to 1 %) and max, null without calls.
            `generations`: Where there are several, by name: `cases`, `status`, `agreement` and
                `gold` as above, without the means of the measures.
        """
        several = self._generations if len(self._generations) > 1 else {}
        return {
            "smoke": smoke,
            "notices": [*([SMOKE_NOTICE] if smoke else []), *self._notices(), *warnings],
            "distance": self._distance.version,
            "cases": self._cases(),
            "annotators": {
                side: {
                    "format": self._answers[side].summary(),
                    "evaluation": self._judgements[side].summary(),
                    "sources": self._sources[side].summary(),
                }
                for side in ("A", "B")
            },
            "agreement": {
                **self._all.pairs.agreement(self._distance, seed),
                **self._measures.summary(seed),
            },
            "gold": self._all.gold_summary(self._reviews.any),
            "confusion": {"labels": list(LABELS), "panels": self._all.panels()},
            "sensitivity": {name: traps.summary() for name, traps in self._traps.items()},
            "adjudication": self._settlements.summary(),
            "decisions": self._reviews.summary(self._waiting),
            "usage": self._usage.summary(),
            "generations": {
                name: group.summary(self._distance, seed, self._reviews.any)
                for name, group in sorted(several.items())
            },
        }

    def _notices(self) -> list[str]:
        if not self._proposed:
            return []
        return [PROPOSED.format(proposed=self._proposed, gold=self._all.with_gold)]

    def _cases(self) -> Json:
        return {
            "total": self._all.total,
            "with_gold": self._all.with_gold,
            "proposed_gold": self._proposed,
            "traps": self._trap_cases,
            "status": self._all.status(),
            "endings": {
                ending: {"cases": count, "example": self._examples.get(ending)}
                for ending, count in self._endings.summary().items()
            },
            "paths": self._paths.summary(),
            "seconds": self._durations.summary(),
        }


class _Group:
    """The counts that are kept of all cases and of each generation."""

    def __init__(self) -> None:
        self._statuses: Counter[Status] = Counter()
        self.pairs = Pairs()
        self._gold = {name: Pairs() for name in (*CANDIDATES, REVIEWED)}
        self.with_gold = 0

    @property
    def total(self) -> int:
        return self._statuses.total()

    def add(self, outcome: Outcome, reviewed: str | None) -> None:
        self._statuses[outcome.status] += 1
        self.pairs.add(outcome.a and outcome.a.code, outcome.b and outcome.b.code)
        if outcome.gold is None:
            return
        self.with_gold += 1
        for name, answer in (("A", outcome.a), ("B", outcome.b)):
            if answer is not None:
                self._gold[name].add(outcome.gold, answer.code)
        for name, code in (("final", outcome.code), (REVIEWED, reviewed)):
            if code is not None:
                self._gold[name].add(outcome.gold, code)

    def status(self) -> Json:
        return {status.value: proportion(self._statuses[status], self.total) for status in Status}

    def gold_summary(self, any_reviewed: bool) -> Json:
        return {
            name: None
            if name == REVIEWED and not any_reviewed
            else {"left_out": self.with_gold - pairs.cases, **pairs.against_gold()}
            for name, pairs in self._gold.items()
        }

    def panels(self) -> Json:
        found: Json = {
            "a_b": {"rows": CANDIDATES["A"], "columns": CANDIDATES["B"], **self.pairs.matrices()}
        }
        if self.with_gold:
            for name, shown in CANDIDATES.items():
                matrices = self._gold[name].matrices()
                found[f"gold_{name}"] = {"rows": "gold", "columns": shown, **matrices}
        return found

    def summary(self, distance: SetDistance, seed: int, any_reviewed: bool) -> Json:
        return {
            "cases": self.total,
            "status": self.status(),
            "agreement": self.pairs.agreement(distance, seed),
            "gold": self.gold_summary(any_reviewed),
        }


def _codes(outcome: Outcome) -> dict[str, str | None]:
    """What each candidate gave."""
    return {
        "A": outcome.a and outcome.a.code,
        "B": outcome.b and outcome.b.code,
        "final": outcome.code,
    }
