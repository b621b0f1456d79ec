"""The calls of a run: running sums of numbers, tokens, cost and seconds."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Annotated, NamedTuple

from raylab.annotation.outcome import Call, Outcome
from raylab.annotation.statistics.texts import LISTED, OTHERS
from raylab.runs.measures import Measure
from raylab.runs.records import Part

BINS_PER_E_FOLD = 50
"""Bins for a factor e of time, which make quantiles accurate to 1 %."""
SHORTEST = 1e-6
"""Seconds below which all times share a bin."""


class Seconds(Part):
    """Times of calls or cases in seconds; quantiles are accurate to 1 %."""

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
    cached_prompt_tokens: int = 0
    """Those of the requests that the server had cached."""
    reasoning_tokens: int = 0
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


class UsageReport(Part):
    """The calls of a run."""

    total: CallUsage
    by_source: tuple[SourceUsage, ...]


class Durations:
    """Quantiles of times from counts in bins of equal ratio."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._count, self._total, self._longest = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        """Counts a time, at least 0."""
        self._bins[math.floor(math.log(max(seconds, SHORTEST)) * BINS_PER_E_FOLD)] += 1
        self._count += 1
        self._total += seconds
        self._longest = max(self._longest, seconds)

    def summary(self) -> Seconds | None:
        """Returns the mean, the quantiles and the longest; None without a time."""
        if not self._count:
            return None
        return Seconds(
            mean=self._total / self._count,
            p50=self._quantile(0.5),
            p90=self._quantile(0.9),
            p99=self._quantile(0.99),
            max=self._longest,
        )

    def _quantile(self, share: float) -> float:
        rank, seen = share * self._count, 0
        for place, count in sorted(self._bins.items()):
            seen += count
            if seen >= rank:
                return min(math.exp((place + 0.5) / BINS_PER_E_FOLD), self._longest)
        return self._longest


@dataclass
class Spending:
    """Counts of calls of one kind."""

    sent: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    cached_prompt_tokens: int = 0
    reasoning_tokens: int = 0
    unpriced: int = 0
    priced: float = 0.0
    seconds: Durations = field(default_factory=Durations)

    def add(self, call: Call) -> None:
        """Counts a call."""
        reply = call.reply
        if reply.cached:
            self.cached += 1
            return
        self.sent += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.cached_prompt_tokens += reply.cached_prompt_tokens
        self.reasoning_tokens += reply.reasoning_tokens
        self.seconds.add(reply.seconds)
        if reply.cost is None:
            self.unpriced += 1
        else:
            self.priced += reply.cost

    def summary(self) -> CallUsage:
        """Returns the report of the counts."""
        return CallUsage(
            sent=self.sent,
            cached=self.cached,
            prompt_tokens=self.prompt_tokens,
            completion_tokens=self.completion_tokens,
            cached_prompt_tokens=self.cached_prompt_tokens,
            reasoning_tokens=self.reasoning_tokens,
            cost=None if self.unpriced else self.priced,
            priced=self.priced,
            unpriced=self.unpriced,
            seconds=self.seconds.summary(),
        )


class CallSource(NamedTuple):
    """A served model in a stage of the protocol, with a prompt."""

    role: str
    model: str
    response_model: str
    prompt: str
    prompt_hash: str


class Usage:
    """Counts of the calls of a run, in total and by source."""

    def __init__(self) -> None:
        self._all = Spending()
        self._by_source: dict[CallSource, Spending] = {}

    def add(self, outcome: Outcome) -> None:
        """Counts the calls of a case."""
        for call in outcome.calls:
            source = CallSource(
                call.stage, call.model, call.reply.response_model, call.prompt, call.prompt_hash
            )
            if source not in self._by_source and len(self._by_source) >= LISTED:
                source = source._replace(response_model=OTHERS)
            self._all.add(call)
            self._by_source.setdefault(source, Spending()).add(call)

    def summary(self) -> UsageReport:
        """Returns the total and a row for each source, in the order of their names."""
        return UsageReport(
            total=self._all.summary(),
            by_source=tuple(
                SourceUsage(**dict(spending.summary()), **source._asdict())
                for source, spending in sorted(self._by_source.items())
            ),
        )
