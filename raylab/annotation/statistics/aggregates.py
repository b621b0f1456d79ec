"""Running counts over outcomes: the parts of a batch's quality, each summed case by case.

What a tally holds is bounded by the taxonomy, the protocol and `LISTED`, never by the cases.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import lru_cache
from typing import Any

import numpy as np
from scipy import stats

from raylab.annotation.outcome import (
    Adjudication,
    Classification,
    Evaluation,
    HumanDecision,
    Issue,
    Outcome,
    Verdict,
)
from raylab.annotation.statistics.agreement import cohen_kappa, krippendorff_alpha
from raylab.annotation.statistics.confusion import (
    Matrix,
    Roots,
    by_root,
    primary_confusion,
    set_confusion,
)
from raylab.annotation.statistics.estimates import DRAWS, QUANTILES, Estimate, proportion
from raylab.annotation.statistics.usage import LISTED, OTHERS, Spending
from raylab.codebook import Agreement, SetDistance, compare
from raylab.opt.code import Root, parse

Json = dict[str, Any]

REMEMBERED = 1 << 14
BAND = 10
"""Scores in one bin; the last holds 100 too."""
DRAWS_AT_ONCE = 50
MEASURES = ("jaccard", "levenshtein", "levenshtein_normalised", "weighted", "composition")
EXECUTION_BAIT = frozenset({Root.EVO, Root.SCH, Root.SWM})
"""What execution may be taken for: the roots to whose mechanism parallelism can belong."""
QUOTED = re.compile(r"(['\"]).*?\1")


@dataclass(frozen=True)
class Reading:
    """What a canonical line says of mechanisms."""

    composition: str
    roots: Roots
    primary: Root


def reading(line: str) -> Reading:
    """The mechanisms of a line as the archive has it, or of gold as it was written.

    Raises:
        OptCodeError: It holds no code.
    """
    return _reading(line.partition(";")[0] if line.startswith("OPT=") else line)


@lru_cache(maxsize=REMEMBERED)
def _reading(text: str) -> Reading:
    code = parse(text)
    return Reading(code.composition, code.roots, code.primary)


def mean_estimate(counts: Mapping[float, int], seed: int, draws: int = DRAWS) -> Estimate:
    """The mean of values that were counted, with a percentile bootstrap interval over cases.

    Args:
        counts: Cases by value.
        seed: Of the bootstrap.
        draws: Replicates; 0 leaves the interval out.
    """
    values = np.array(sorted(counts), float)
    cases = np.array([counts[value] for value in values], float)
    total = int(cases.sum())
    if not total:
        return Estimate(value=None, interval=None, count=0, reason="no cases")
    mean = float(values @ cases / total)
    if not draws or total < 2:
        reason = "one case has no spread" if draws else "no replicates"
        return Estimate(value=mean, interval=None, count=total, reason=reason)
    generator = np.random.default_rng(seed)
    sizes = [min(DRAWS_AT_ONCE, draws - start) for start in range(0, draws, DRAWS_AT_ONCE)]
    means = [generator.multinomial(total, cases / total, size) @ values / total for size in sizes]
    interval = np.quantile(np.concatenate(means), QUANTILES).tolist()
    return Estimate(value=mean, interval=interval, count=total, reason=None)


class Texts:
    """Counts of texts, of which only the first `LISTED` different ones are told apart."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, texts: Iterable[str]) -> None:
        """Count each of the texts."""
        for text in texts:
            known = text in self._counts or len(self._counts) < LISTED
            self._counts[text if known else OTHERS] += 1

    def summary(self) -> dict[str, int]:
        """Counts by text, the most frequent first."""
        return dict(sorted(self._counts.items(), key=lambda item: (-item[1], item[0])))


def repair_kind(repair: str) -> str:
    """A repair without what it quotes, so that repairs of one kind are counted together."""
    return re.sub(r"\d+", "n", QUOTED.sub("…", repair.partition(":")[0])).strip()


@dataclass
class Answers:
    """The form of one role's answers."""

    formats: Counter[str] = field(default_factory=Counter[str])
    repairs: Texts = field(default_factory=Texts)
    missing: int = 0

    def add(self, classification: Classification | None) -> None:
        """Count an answer; None is a case that did not get one."""
        if classification is None:
            self.missing += 1
            return
        self.formats[classification.format] += 1
        self.repairs.add({repair_kind(repair) for repair in classification.repairs})

    def summary(self) -> Json:
        """`answers`, `missing`, a proportion of each format, and cases by kind of `repairs`."""
        answers = self.formats.total()
        forms = ("strict", "repaired", "unparsable")
        return {
            "answers": answers,
            "missing": self.missing,
            **{form: proportion(self.formats[form], answers) for form in forms},
            "repairs": self.repairs.summary(),
        }


class Judgements:
    """What the evaluator said of one role's codes."""

    def __init__(self) -> None:
        self._verdicts: Counter[Verdict] = Counter()
        self._raw: Counter[Verdict | None] = Counter()
        self._scores: Counter[int] = Counter()
        self._issues: Counter[Issue] = Counter()
        self._caps, self._repairs = Texts(), Texts()
        self._acceptable = self._contradictory = self._repaired = 0

    def add(self, evaluation: Evaluation | None) -> None:
        """Count an evaluation, if there is one."""
        if evaluation is None:
            return
        self._verdicts[evaluation.verdict] += 1
        self._raw[evaluation.raw_verdict] += 1
        self._scores[evaluation.score] += 1
        self._issues.update(evaluation.issues)
        self._acceptable += evaluation.acceptable
        self._contradictory += evaluation.contradictory
        self._repaired += bool(evaluation.repairs)
        self._caps.add({re.split("[,:]", cap)[0] for cap in evaluation.caps})
        self._repairs.add({repair_kind(repair) for repair in evaluation.repairs})

    def summary(self) -> Json:
        """As `BatchQuality.report` describes it."""
        evaluated = self._verdicts.total()
        asked = evaluated - self._raw[None]
        total = sum(score * count for score, count in self._scores.items())
        bins = Counter[int]()
        for score, count in self._scores.items():
            bins[min(score, 99) // BAND * BAND] += count
        return {
            "evaluated": evaluated,
            "without_code": self._raw[None],
            "pass_rate": proportion(evaluated - self._verdicts[Verdict.FAIL], evaluated),
            "acceptable": proportion(self._acceptable, evaluated),
            "execution_issue": proportion(self._issues[Issue.EXECUTION], asked),
            "contradictory": proportion(self._contradictory, asked),
            "repaired": proportion(self._repaired, asked),
            "verdicts": {verdict.value: self._verdicts[verdict] for verdict in Verdict},
            "raw_verdicts": {verdict.value: self._raw[verdict] for verdict in Verdict},
            "issues": {issue.value: self._issues[issue] for issue in Issue},
            "mean_score": total / evaluated if evaluated else None,
            "scores": {str(low): bins[low] for low in range(0, 100, BAND)},
            "caps": self._caps.summary(),
            "repairs": self._repairs.summary(),
        }


class Pairs:
    """Codes of two sides for the same cases."""

    def __init__(self) -> None:
        self._sets: Counter[tuple[Roots, Roots]] = Counter()
        self._primaries: Counter[tuple[Root | None, Root | None]] = Counter()
        self._both = self._exact = self._same_roots = 0

    def add(self, row: str | None, column: str | None) -> None:
        """Count a case by its two lines, None where there is no code."""
        r, c = row and reading(row), column and reading(column)
        nothing: Roots = frozenset()
        self._sets[r.roots if r else nothing, c.roots if c else nothing] += 1
        self._primaries[r.primary if r else None, c.primary if c else None] += 1
        if r and c:
            self._both += 1
            self._exact += r.composition == c.composition
            self._same_roots += r.roots == c.roots

    @property
    def cases(self) -> int:
        """Cases, with or without codes."""
        return self._sets.total()

    def matrices(self) -> dict[str, Matrix]:
        """`sets` and `primary`, see `raylab.annotation.statistics.confusion`."""
        return {
            "sets": set_confusion(self._sets),
            "primary": primary_confusion(self._primaries),
        }

    def agreement(self, distance: SetDistance, seed: int) -> Json:
        """Of two annotators: `exact` and `same_roots` over cases with two codes, and corrected."""
        return {
            "cases": self.cases,
            "both": self._both,
            "exact": proportion(self._exact, self._both),
            "same_roots": proportion(self._same_roots, self._both),
            "kappa": cohen_kappa(self._primaries, seed=seed),
            "alpha": krippendorff_alpha(self._sets, distance, seed=seed),
        }

    def against_gold(self) -> Json:
        """Of gold (rows) and an answer: how often it is right, over all cases with an answer."""
        primary = sum(n for (r, c), n in self._primaries.items() if r == c)
        return {
            "cases": self.cases,
            "without_code": self.cases - self._both,
            "roots": proportion(self._same_roots, self.cases),
            "exact": proportion(self._exact, self.cases),
            "primary": proportion(primary, self.cases),
            "by_root": by_root(set_confusion(self._sets)),
        }


class Measures:
    """The measures of agreement that the archive keeps of each case with two codes."""

    def __init__(self, distance: SetDistance) -> None:
        self._distance = distance
        self._values = {name: Counter[float]() for name in MEASURES}

    def add(self, outcome: Outcome) -> None:
        """Count a case; measures of another table of distances are computed again."""
        record = agreement_of(outcome, self._distance)
        if record is None:
            return
        for name, values in self._values.items():
            values[getattr(record, name)] += 1

    def summary(self, seed: int) -> dict[str, Estimate]:
        """The mean of each measure."""
        return {name: mean_estimate(values, seed) for name, values in self._values.items()}


def agreement_of(outcome: Outcome, distance: SetDistance) -> Agreement | None:
    """How far A and B agree on a case; None unless both gave a code.

    What the archive keeps holds, unless it was computed with another table of distances.
    """
    a, b = outcome.a and outcome.a.code, outcome.b and outcome.b.code
    if a is None or b is None:
        return None
    record = outcome.agreement
    if record is None or record.distance != distance.version:
        record = compare(parse(a), parse(b), distance)
    return record


class Traps:
    """Cases where execution details or marketing suggest a wrong root, and one role's answers."""

    def __init__(self) -> None:
        self._answered = self._wrong = self._taken = self._baited = 0
        self._roots: Counter[Root] = Counter()

    def add(self, outcome: Outcome, code: str | None) -> None:
        """Count a trap with gold and a code; what the trap baits is in `meta`, see `Case`."""
        if not outcome.trap or outcome.gold is None or code is None:
            return
        gold, answer = reading(outcome.gold).roots, reading(code).roots
        named: Roots = frozenset(map(Root, outcome.meta.get("bait") or ()))
        taken = (answer - gold) & (named or EXECUTION_BAIT)
        self._answered += 1
        self._baited += bool(named)
        self._wrong += answer != gold
        self._taken += bool(taken)
        self._roots.update(taken)

    def summary(self) -> Json:
        """`taken` is the share whose answer names a root that the trap baits and gold lacks."""
        return {
            "answered": self._answered,
            "bait_named": self._baited,
            "wrong": proportion(self._wrong, self._answered),
            "taken": proportion(self._taken, self._answered),
            "taken_for": {root.value: self._roots[root] for root in Root if self._roots[root]},
        }


@dataclass(frozen=True, order=True)
class Source:
    """Who answered as an annotator, and what it was told.

    Attributes:
        model: As asked for; empty where the answer has no call.
        response_model: As the server named it.
        prompt: Name and version.
        prompt_hash: SHA-256 of what the prompt says.
    """

    model: str
    response_model: str
    prompt: str
    prompt_hash: str


@dataclass
class _SourceCounts:
    answers: int = 0
    cached: int = 0
    evaluated: int = 0
    passed: int = 0
    both: int = 0
    exact: int = 0
    gold: int = 0
    right: int = 0


class Sources:
    """One annotator's results by who answered, since a server may change within a run."""

    def __init__(self) -> None:
        self._counts: dict[Source, _SourceCounts] = {}

    def add(
        self,
        answer: Classification | None,
        evaluation: Evaluation | None,
        other: Classification | None,
        gold: str | None,
    ) -> None:
        """Count a case with an answer.

        Args:
            answer: Of the annotator.
            evaluation: Of that answer.
            other: The other annotator's answer.
            gold: The right line.
        """
        if answer is None:
            return
        source = source_of(answer)
        if source not in self._counts and len(self._counts) >= LISTED:
            source = replace(source, response_model=OTHERS)
        counts = self._counts.setdefault(source, _SourceCounts())
        counts.answers += 1
        counts.cached += is_cached(answer)
        if evaluation is not None:
            counts.evaluated += 1
            counts.passed += evaluation.verdict is not Verdict.FAIL
        if answer.code is not None and other is not None and other.code is not None:
            counts.both += 1
            counts.exact += reading(answer.code).composition == reading(other.code).composition
        if gold is not None:
            counts.gold += 1
            counts.right += has_roots(answer.code, gold)

    def summary(self) -> list[Json]:
        """A row a source: `answers`, of these `cached`, and estimates.

        `pass_rate`, `exact` (agreement with the other annotator) and `roots` (the right set).
        """
        return [
            {
                **asdict(source),
                "answers": counts.answers,
                "cached": counts.cached,
                "pass_rate": proportion(counts.passed, counts.evaluated),
                "exact": proportion(counts.exact, counts.both),
                "roots": proportion(counts.right, counts.gold),
            }
            for source, counts in sorted(self._counts.items())
        ]


def source_of(answer: Classification) -> Source:
    """Who gave an answer, by its first call."""
    if not answer.calls:
        return Source("", "", "", "")
    call = answer.calls[0]
    return Source(call.model, call.response_model, call.prompt, call.prompt_hash)


def is_cached(part: Classification | Evaluation) -> bool:
    """Whether nothing was asked anew for it."""
    return bool(part.calls) and all(call.cached for call in part.calls)


def has_roots(code: str | None, gold: str) -> bool:
    """Whether a code, None if none could be read, has the set of roots of gold."""
    return code is not None and reading(code).roots == reading(gold).roots


class Settlements:
    """What the adjudicator did."""

    def __init__(self) -> None:
        self._choices: Counter[str] = Counter()
        self._first = self._a_first = 0
        self._answers, self._confirmations = Answers(), Judgements()

    def add(self, adjudication: Adjudication | None) -> None:
        """Count an adjudication, if there was one."""
        if adjudication is None:
            return
        self._choices[adjudication.choice] += 1
        self._first += adjudication.choice == adjudication.order[0]
        self._a_first += adjudication.order[0] == "A"
        self._answers.add(adjudication.classification)
        self._confirmations.add(adjudication.confirmation)

    def summary(self) -> Json:
        """`first_shown` is the share of choices between the two that fell on the first shown."""
        chosen = self._choices["A"] + self._choices["B"]
        return {
            "cases": self._choices.total(),
            "choices": {name: self._choices[name] for name in ("A", "B", "synthesis")},
            "a_shown_first": self._a_first,
            "first_shown": proportion(self._first, chosen),
            "first_shown_p_value": _even_p_value(self._first, chosen),
            "chose_a": proportion(self._choices["A"], chosen),
            "chose_a_p_value": _even_p_value(self._choices["A"], chosen),
            "format": self._answers.summary(),
            "confirmation": self._confirmations.summary(),
        }


def _even_p_value(successes: int, trials: int) -> float | None:
    """Of the exact two-sided test that either is as likely; None without a trial."""
    return float(stats.binomtest(successes, trials).pvalue) if trials else None


class Reviews:
    """What people decided: the latest decision on each case holds, and an undo leaves none.

    This alone grows, with the cases that people decided.
    """

    def __init__(self, decisions: Iterable[HumanDecision]) -> None:
        """Take the decisions of a run in the order in which they were archived."""
        self._actions: Counter[str] = Counter()
        self._reviewers = Texts()
        self._holds: dict[str, tuple[str, str | None, bool | None]] = {}
        self._spent = Spending()
        for decision in decisions:
            self._actions[decision.action] += 1
            self._reviewers.add([decision.reviewer])
            for part in (decision.classification, decision.confirmation):
                for call in part.calls if part is not None else ():
                    self._spent.add(call)
            if decision.action == "undo":
                self._holds.pop(decision.case, None)
                continue
            code = decision.classification and decision.classification.code
            confirmed = decision.confirmation and decision.confirmation.acceptable
            self._holds[decision.case] = (decision.choice or "own", code, confirmed)

    @property
    def any(self) -> bool:
        """Whether a decision holds."""
        return bool(self._holds)

    def code_of(self, outcome: Outcome) -> str | None:
        """The code that holds for a case: a person's confirmed one, else that of the protocol."""
        _, code, confirmed = self._holds.get(outcome.case, (None, None, None))
        return code if confirmed and code is not None else outcome.code

    def summary(self, waiting: int) -> Json:
        """As `BatchQuality.report` describes it.

        Args:
            waiting: Cases that the protocol left to a person and that have no code yet.
        """
        choices = Counter(choice for choice, _, _ in self._holds.values())
        confirmed = Counter(confirmed for _, _, confirmed in self._holds.values())
        return {
            "actions": {name: self._actions[name] for name in ("decide", "undo")},
            "cases": len(self._holds),
            "choices": {name: choices[name] for name in ("A", "B", "own")},
            "confirmed": confirmed[True],
            "refused": confirmed[False],
            "unconfirmed": confirmed[None],
            "waiting": waiting,
            "reviewers": self._reviewers.summary(),
            "usage": self._spent.summary(),
        }
