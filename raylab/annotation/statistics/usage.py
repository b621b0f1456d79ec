"""What the calls of a run took: numbers, tokens, cost and seconds, each summed as it comes."""

import math
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from raylab.annotation.outcome import Call, Outcome

Json = dict[str, Any]

LISTED = 100
"""Different names that are counted on their own; those that come later are counted together."""
OTHERS = "others"
BINS_PER_E_FOLD = 50
"""Bins of a factor e of time: a quantile is right to 1 %."""
SHORTEST = 1e-6
"""Seconds below which all times are one."""
QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99}


class Durations:
    """Quantiles of times from counts in bins of equal ratio."""

    def __init__(self) -> None:
        self._bins: Counter[int] = Counter()
        self._count, self._total, self._longest = 0, 0.0, 0.0

    def add(self, seconds: float) -> None:
        """Count a time, at least 0."""
        self._bins[math.floor(math.log(max(seconds, SHORTEST)) * BINS_PER_E_FOLD)] += 1
        self._count += 1
        self._total += seconds
        self._longest = max(self._longest, seconds)

    def summary(self) -> Json | None:
        """`mean`, `p50`, `p90`, `p99` (each to 1 %) and `max` in seconds; None without a time."""
        if not self._count:
            return None
        quantiles = {name: self._quantile(share) for name, share in QUANTILES.items()}
        return {"mean": self._total / self._count, **quantiles, "max": self._longest}

    def _quantile(self, share: float) -> float:
        rank, seen = share * self._count, 0
        for place, count in sorted(self._bins.items()):
            seen += count
            if seen >= rank:
                return min(math.exp((place + 0.5) / BINS_PER_E_FOLD), self._longest)
        return self._longest


@dataclass
class Spending:
    """Calls of one kind; tokens, cost and seconds are of those that were sent."""

    sent: int = 0
    cached: int = 0
    prompt_tokens: int = 0
    completion_tokens: int = 0
    unpriced: int = 0
    priced: float = 0.0
    seconds: Durations = field(default_factory=Durations)

    def add(self, call: Call) -> None:
        """Count a call."""
        reply = call.reply
        if reply.cached:
            self.cached += 1
            return
        self.sent += 1
        self.prompt_tokens += reply.prompt_tokens
        self.completion_tokens += reply.completion_tokens
        self.seconds.add(reply.seconds)
        if reply.cost is None:
            self.unpriced += 1
        else:
            self.priced += reply.cost

    def summary(self) -> Json:
        """The counts; `cost` is None with calls that have no price, `priced` is of the others."""
        return {
            "sent": self.sent,
            "cached": self.cached,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": self.completion_tokens,
            "cost": None if self.unpriced else self.priced,
            "priced": self.priced,
            "unpriced": self.unpriced,
            "seconds": self.seconds.summary(),
        }


class Usage:
    """The calls of a run, together and by who was asked what."""

    def __init__(self) -> None:
        self._all = Spending()
        self._by_source: dict[tuple[str, str, str, str, str], Spending] = {}

    def add(self, outcome: Outcome) -> None:
        """Count the calls of a case."""
        for call in outcome.calls:
            key = (call.stage, call.model, call.reply.response_model, call.prompt, call.prompt_hash)
            if key not in self._by_source and len(self._by_source) >= LISTED:
                key = (call.stage, call.model, OTHERS, call.prompt, call.prompt_hash)
            self._all.add(call)
            self._by_source.setdefault(key, Spending()).add(call)

    def summary(self) -> Json:
        """`total`, and `by_source` as rows by role, model, served, prompt and prompt_hash."""
        names = ("role", "model", "response_model", "prompt", "prompt_hash")
        rows = sorted(self._by_source.items())
        return {
            "total": self._all.summary(),
            "by_source": [
                {**dict(zip(names, key, strict=True)), **spending.summary()}
                for key, spending in rows
            ],
        }
