"""The metrics that raylab reports to Ray, and their recording.

Ray collects them from drivers and workers about every ten seconds, and once more when a process
ends. It exports them to Prometheus with the prefix `ray_`, and the suffix `_total` for a counter.
The last values are lost if a process is killed, or if the cluster ends before Prometheus asks. Jobs
do not wait for that, because their files hold the final figures.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from ray.util import metrics

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayMetric:
    """A metric. Besides its own labels, each has the label `run`, the name of the job's run."""

    name: str
    description: str
    labels: tuple[str, ...] = ()


class Counter(RayMetric):
    """A value that only grows, from zero in every process."""


class Gauge(RayMetric):
    """A value that is set."""


class Histogram(RayMetric):
    """Seconds, counted in the buckets of `LATENCY_SECONDS`."""


LATENCY_SECONDS = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]

SAMPLES = Gauge(
    "raylab_training_samples_per_second",
    "Pairs trained per second, over all workers, in the last epoch.",
    ("training",),
)
OBJECTIVE = Gauge(
    "raylab_training_objective",
    "The monitored metric (training.monitor) at the last validation.",
    ("training",),
)
EPOCH = Gauge("raylab_training_epoch", "Epochs trained and validated.", ("training",))
WORKER_FAILURES = Counter(
    "raylab_training_worker_failures",
    "Workers that died or failed; the training restarts from the last epoch each time.",
    ("training",),
)

TRIAL_STATES = Gauge("raylab_trials", "Trials of a sweep by state.", ("state",))
BEST_SCORE = Gauge("raylab_trials_best", "The best score of any trial of a sweep so far.")

PAIRS = Counter("raylab_evaluation_pairs", "Pairs of model and generation that are scored.")
TASKS = Counter("raylab_evaluation_tasks", "ARC tasks scored, once per model and generation.")

FILES = Counter(
    "raylab_quality_files",
    "Score files that were read and, among them, those skipped.",
    ("outcome",),
)

ATTEMPTS = Counter(
    "raylab_llm_attempts",
    "Attempts at calls by result.",
    ("endpoint", "model", "outcome"),
)
TOKENS = Counter(
    "raylab_llm_tokens", "Tokens of answered calls.", ("endpoint", "model", "direction")
)
COST = Counter(
    "raylab_llm_cost",
    "Price of answered calls, in the currency of llm.prices.",
    ("endpoint", "model"),
)
SECONDS = Histogram("raylab_llm_seconds", "Duration of attempts.", ("endpoint", "model"))
KNOWN = Counter("raylab_llm_known", "Calls answered from the archive instead of an endpoint.")
CASES = Counter(
    "raylab_cases", "Cases that ended, and decisions that were judged, by status.", ("status",)
)
CASES_IN_FLIGHT = Gauge("raylab_cases_in_flight", "Cases that actors are working on.")

COUNTERS = {"pairs": PAIRS, "tasks": TASKS, "files": FILES}
"""What workers count, by the names that rooms without Ray know."""


@dataclass(frozen=True)
class Meters:
    """Recorder of the metrics of a run. A value that Ray refuses is dropped with a warning.

    Attributes:
        run: name of the job's run.
    """

    run: str

    def add(self, metric: Counter, amount: float = 1, /, **labels: str) -> None:
        """Adds `amount`, 0 or more."""
        # Ray refuses to add 0.
        if amount > 0:
            self._record("inc", metric, amount, labels)

    def set(self, metric: Gauge, value: float, /, **labels: str) -> None:
        """Sets the current value."""
        self._record("set", metric, value, labels)

    def observe(self, metric: Histogram, seconds: float, /, **labels: str) -> None:
        """Counts a duration."""
        self._record("observe", metric, seconds, labels)

    def _record(self, how: str, metric: RayMetric, value: float, labels: dict[str, str]) -> None:
        try:
            getattr(_registered(metric), how)(value, {"run": self.run, **labels})
        except Exception as error:
            _warn_once(metric.name, str(error))


@cache
def _registered(metric: RayMetric) -> Any:
    """Returns Ray's own metric in this process."""
    labels = ("run", *metric.labels)
    match metric:
        case Counter():
            return metrics.Counter(metric.name, metric.description, labels)
        case Histogram():
            return metrics.Histogram(metric.name, metric.description, LATENCY_SECONDS, labels)
        case _:
            return metrics.Gauge(metric.name, metric.description, labels)


@cache
def _warn_once(name: str, reason: str) -> None:
    LOGGER.warning("metric %s is not recorded: %s", name, reason)
