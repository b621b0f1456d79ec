"""Every metric that raylab gives to Ray, and how they are recorded.

Ray collects them from drivers and workers every ten seconds or so, and once more when a process
ends, and exports them to Prometheus with `ray_` before the name, and `_total` behind that of a
counter. What is recorded last is lost only where a process is killed from outside, or the cluster
goes away before Prometheus asks: no job waits for that, for its files hold the final figures.
"""

import logging
from dataclasses import dataclass
from functools import cache
from typing import Any

from ray.util import metrics

LOGGER = logging.getLogger(__name__)


@dataclass(frozen=True)
class RayMetric:
    """A metric by its name; every one also has the label `run`, the name of the job's run."""

    name: str
    description: str
    labels: tuple[str, ...] = ()


class Counter(RayMetric):
    """What only grows, from zero in every process."""


class Gauge(RayMetric):
    """What is as it was last set."""


class Histogram(RayMetric):
    """Seconds, counted by `LATENCY_SECONDS`."""


LATENCY_SECONDS = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]

SAMPLES = Gauge(
    "raylab_training_samples_per_second",
    "Pairs trained a second, over all workers, in the last epoch.",
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
    "Workers that died or failed; all of the training start again from the last epoch.",
    ("training",),
)

TRIAL_STATES = Gauge("raylab_trials", "Trials of a sweep by state.", ("state",))
BEST_SCORE = Gauge("raylab_trials_best", "The best score that any trial of a sweep had so far.")

PAIRS = Counter(
    "raylab_evaluation_pairs",
    "Pairs of model and generation by how their scoring ended: scored or failed.",
    ("outcome",),
)
TASKS = Counter("raylab_evaluation_tasks", "ARC tasks scored, each once a model and generation.")

FILES = Counter(
    "raylab_quality_files",
    "Score files by what became of them: read, cached or skipped.",
    ("outcome",),
)
DIRECTORIES_LEFT = Gauge("raylab_quality_directories_left", "Directories of scores not yet read.")

ATTEMPTS = Counter(
    "raylab_llm_attempts",
    "Attempts at calls by how they ended.",
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
KNOWN = Counter("raylab_llm_known", "Calls answered from the archive, which are not sent again.")
CASES = Counter("raylab_cases", "Cases by how they ended.", ("status",))
CASES_IN_FLIGHT = Gauge("raylab_cases_in_flight", "Cases handed to actors that have not ended.")


@dataclass(frozen=True)
class Meters:
    """Records the metrics of a run; what Ray refuses is lost with a warning, and fails no job.

    Attributes:
        run: name of the job's run.
    """

    run: str

    def add(self, metric: Counter, amount: float = 1, /, **labels: str) -> None:
        """Count `amount` more, 0 or more."""
        # Ray refuses to add nothing.
        if amount > 0:
            self._record("inc", metric, amount, labels)

    def set(self, metric: Gauge, value: float, /, **labels: str) -> None:
        """Note the value of now."""
        self._record("set", metric, value, labels)

    def observe(self, metric: Histogram, seconds: float, /, **labels: str) -> None:
        """Count a duration."""
        self._record("observe", metric, seconds, labels)

    def _record(self, how: str, metric: RayMetric, value: float, labels: dict[str, str]) -> None:
        try:
            getattr(_registered(metric), how)(value, {"run": self.run, **labels})
        except Exception as error:
            _warn_once(metric.name, str(error))


@cache
def _registered(metric: RayMetric) -> Any:
    """The metric as Ray has it in this process."""
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
