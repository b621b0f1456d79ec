"""The metrics that raylab reports to Ray, and their recording.

Ray collects them about every ten seconds, and once more when a process ends. It exports them to
Prometheus with the prefix `ray_`, and the suffix `_total` for a counter. The last values are lost
if a process is killed, or if the cluster ends before Prometheus asks; the files of the jobs hold
the final figures.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

from ray.util.metrics import Counter, Gauge, Histogram

LATENCY_SECONDS = [0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0]
"""Bounds of the buckets of a histogram."""
VERBS = {Counter: "inc", Gauge: "set", Histogram: "observe"}


@dataclass(frozen=True)
class RayMetric:
    """A metric. Besides its own labels, each has the label `run`, the name of the job's run.

    Attributes:
        kind: A counter grows from zero in every process, a gauge is set, a histogram counts
            seconds.
    """

    kind: type[Counter | Gauge | Histogram]
    name: str
    description: str
    labels: tuple[str, ...] = ()


SAMPLES = RayMetric(
    Gauge,
    "raylab_training_samples_per_second",
    "Pairs trained per second, over all workers, in the last epoch.",
    ("training",),
)
OBJECTIVE = RayMetric(
    Gauge,
    "raylab_training_objective",
    "The monitored metric (training.monitor) at the last validation.",
    ("training",),
)
EPOCH = RayMetric(Gauge, "raylab_training_epoch", "Epochs trained and validated.", ("training",))
WORKER_FAILURES = RayMetric(
    Counter,
    "raylab_training_worker_failures",
    "Workers that died or failed; the training restarts from the last epoch each time.",
    ("training",),
)

TRIALS_ENDED = RayMetric(Gauge, "raylab_trials_ended", "Trials of a sweep that have ended.")
BEST_SCORE = RayMetric(
    Gauge, "raylab_trials_best", "The best score of any trial of a sweep so far."
)

PAIRS = RayMetric(
    Counter, "raylab_evaluation_pairs", "Pairs of model and generation that are scored."
)
TASKS = RayMetric(
    Counter, "raylab_evaluation_tasks", "ARC tasks scored, once per model and generation."
)
FILES = RayMetric(
    Counter,
    "raylab_quality_files",
    "Score files that were read and, among them, those skipped.",
    ("outcome",),
)
COUNTERS = {"pairs": PAIRS, "tasks": TASKS, "files": FILES}
"""The counters of workers, by the names that code without Ray uses."""

ATTEMPTS = RayMetric(
    Counter,
    "raylab_llm_attempts",
    "Attempts at calls by result.",
    ("endpoint", "model", "outcome"),
)
TOKENS = RayMetric(
    Counter, "raylab_llm_tokens", "Tokens of answered calls.", ("endpoint", "model", "direction")
)
COST = RayMetric(
    Counter,
    "raylab_llm_cost",
    "Price of answered calls, in the currency of llm.prices.",
    ("endpoint", "model"),
)
SECONDS = RayMetric(Histogram, "raylab_llm_seconds", "Duration of attempts.", ("endpoint", "model"))
KNOWN = RayMetric(
    Counter, "raylab_llm_known", "Calls answered from the archive instead of an endpoint."
)
CASES = RayMetric(
    Counter,
    "raylab_cases",
    "Cases that ended, and decisions that were judged, by status.",
    ("status",),
)
CASES_IN_FLIGHT = RayMetric(Gauge, "raylab_cases_in_flight", "Cases that actors are working on.")


@dataclass(frozen=True)
class Meters:
    """Recorder of the metrics of a run.

    Attributes:
        run: name of the job's run.
    """

    run: str

    def record(self, metric: RayMetric, value: float = 1, /, **labels: str) -> None:
        """Adds to a counter, sets a gauge or counts seconds."""
        # Ray refuses to add 0.
        if value or metric.kind is not Counter:
            getattr(_register(metric), VERBS[metric.kind])(value, {"run": self.run, **labels})


@cache
def _register(metric: RayMetric) -> Any:
    """Returns Ray's own metric in this process."""
    bounds = [LATENCY_SECONDS] if metric.kind is Histogram else []
    kind: Any = metric.kind
    return kind(metric.name, metric.description, *bounds, ("run", *metric.labels))
