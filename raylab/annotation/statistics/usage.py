"""The calls of a run, and people's decisions."""

from collections import Counter
from collections.abc import Sequence
from itertools import chain
from typing import Annotated, Any

import numpy as np

from raylab.annotation.outcome import HumanDecision, Status
from raylab.annotation.statistics.frame import TOKENS, Frame, Tables, tabulate_calls
from raylab.runs.records import Measure, Part

SOURCE = ["role", "model", "response_model", "prompt", "prompt_hash"]
"""The columns of a call that tell sources apart."""
UNCLEAR = "unclear"
"""The choice of a person who finds that no code is right."""


class Seconds(Part):
    """Times of calls or cases in seconds."""

    mean: float
    p50: Annotated[float, Measure("a call took, median", "seconds", "lower")]
    p90: float
    p99: Annotated[float, Measure("a call took, 99th percentile", "seconds", "lower")]
    max: float


class CallUsage(Part):
    """Calls of one kind; tokens, cost and seconds count only the calls that were sent."""

    sent: Annotated[int, Measure("calls sent", "count", None)]
    cached: Annotated[int, Measure("calls answered from the journal", "count", None)]
    """Calls paid earlier, by this run or another."""
    prompt_tokens: Annotated[int, Measure("tokens of requests", "count", "lower")]
    completion_tokens: Annotated[int, Measure("tokens of replies", "count", "lower")]
    cached_prompt_tokens: int
    """Those of the requests that the server had cached."""
    reasoning_tokens: int
    """Those of the replies that are reasoning."""
    cost: Annotated[float | None, Measure("cost", "number", "lower")]
    """None if a call has no price."""
    priced: float
    """Cost of the calls that have a price."""
    unpriced: int
    """Calls that have no price."""
    seconds: Seconds | None
    """Time of a call; None without calls."""


class SourceUsage(CallUsage):
    """The calls to one model in one role with one prompt."""

    role: str
    """The stage of the protocol."""
    model: str
    response_model: str
    """The model as the server names it."""
    prompt: str
    """Name and version."""
    prompt_hash: str
    """SHA-256 of the prompt's text."""

    @property
    def shown_model(self) -> str:
        """The model as the server names it, or else as requested."""
        return self.response_model or self.model


class UncertainUsage(Part):
    """Attempts that may have been billed, at the most that they may have cost.

    The server did not say, or its answer was lost; no other figure counts them.
    """

    attempts: Annotated[int, Measure("calls perhaps billed as well", "count", None)] = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cost: Annotated[float, Measure("their cost, at most", "number", None)] = 0.0
    """Of the attempts that have a price."""


class UsageReport(Part):
    """The calls of a run."""

    total: CallUsage
    by_source: tuple[SourceUsage, ...]
    uncertain: UncertainUsage


class DecisionReport(Part):
    """Counts of people's decisions; the latest on each case holds, and an undo removes it."""

    cases: Annotated[int, Measure("decided by people", "count", None)]
    """Cases with a decision that holds."""
    choices: dict[str, int]
    """Cases by choice: A, B, an own code, or unclear: none of these."""
    insisted: Annotated[int, Measure("their codes over the evaluator", "count", None)]
    """Codes on which a person insisted, over the evaluator."""
    unclear: Annotated[int, Measure("found unclear by people", "count", None)]
    """Cases for which a person found no code."""
    confirmed: Annotated[int, Measure("their codes, confirmed", "count", None)]
    """Codes that the evaluator confirmed."""
    refused: Annotated[int, Measure("their codes, refused", "count", None)]
    """Codes that the evaluator refused."""
    unconfirmed: Annotated[int, Measure("their codes, waiting for the evaluator", "count", None)]
    """Codes that wait for the evaluator."""
    waiting: Annotated[int, Measure("waiting for a person now", "count", None)]
    """Cases that wait for a person now."""
    reviewers: dict[str, int]
    """Decisions by reviewer."""
    usage: CallUsage
    """The calls of the confirmations, which the usage of the run does not include."""


def usage_report(tables: Tables, uncertain: UncertainUsage) -> UsageReport:
    """Returns the calls of a run, in total and by source, and apart from them the uncertain."""
    names = tables.calls[SOURCE].astype(object).fillna("")
    return UsageReport(
        uncertain=uncertain,
        total=call_usage(tables.calls),
        by_source=tuple(
            SourceUsage(**dict(call_usage(rows)), **dict(zip(SOURCE, source, strict=True)))
            for source, rows in tables.calls.groupby([names[key] for key in SOURCE])
        ),
    )


def call_usage(calls: Frame) -> CallUsage:
    """Returns the numbers, tokens, cost and times of calls."""
    sent = calls[~calls.cached]
    priced, unpriced = float(sent.cost.sum()), int(sent.cost.isna().sum())
    return CallUsage(
        sent=len(sent),
        cached=len(calls) - len(sent),
        **{name: int(sent[name].sum()) for name in TOKENS},
        cost=None if unpriced else priced,
        priced=priced,
        unpriced=unpriced,
        seconds=times(sent.seconds),
    )


def times(seconds: Any) -> Seconds | None:
    """Returns the mean, the quantiles and the longest of times; None without a time."""
    values = np.asarray(seconds, float)
    if not len(values):
        return None
    p50, p90, p99 = np.quantile(values, (0.5, 0.9, 0.99), method="inverted_cdf").tolist()
    return Seconds(mean=float(values.mean()), p50=p50, p90=p90, p99=p99, max=float(values.max()))


def decision_report(tables: Tables, decisions: Sequence[HumanDecision]) -> DecisionReport:
    """Returns the counts of people's decisions, in the order in which they were archived."""
    latest = {decision.case: decision for decision in decisions}
    standing = [last for last in latest.values() if last.choice is not None]
    choices = Counter(decision.choice or "own" for decision in standing)
    judged = [one for one in standing if not one.insisted and one.choice != UNCLEAR]
    verdicts = Counter(one.confirmation and one.confirmation.acceptable for one in judged)
    settled = [one.case for one in standing if one.choice == UNCLEAR or one.confirmation is None]
    calls = chain.from_iterable(one.confirmation.calls for one in decisions if one.confirmation)
    left = tables.cases[tables.cases.run_status.eq(Status.HUMAN) & tables.cases.code.isna()]
    return DecisionReport(
        cases=len(standing),
        choices={name: choices[name] for name in ("A", "B", "own", UNCLEAR)},
        insisted=sum(decision.insisted for decision in standing),
        unclear=choices[UNCLEAR],
        confirmed=verdicts[True],
        refused=verdicts[False],
        unconfirmed=verdicts[None],
        waiting=int((~left.case.isin(settled)).sum()),
        reviewers=dict(Counter(decision.reviewer for decision in decisions).most_common()),
        usage=call_usage(tabulate_calls(calls)),
    )
