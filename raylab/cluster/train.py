"""Training on Ray Train with any number of CPU or GPU workers; resumes after their deaths."""

import logging
from collections.abc import Generator
from contextlib import contextmanager
from functools import partial
from typing import Any

import ray
import ray.train
from ray.exceptions import RayActorError, RayError
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.queue import Empty, Queue

from raylab.arc.checkpoints import CHECKPOINTS, Checkpoint
from raylab.arc.data.sides import Sides
from raylab.arc.inputs import Inputs, read_start
from raylab.arc.records import TrainingMetrics
from raylab.background import Listeners, running
from raylab.cluster.metrics import EPOCH, OBJECTIVE, SAMPLES, WORKER_FAILURES, Meters
from raylab.cluster.session import (
    cpus_here,
    cpus_per_worker,
    placement,
    session,
    this_node,
    uses_gpu,
)
from raylab.cluster.train_entry import SETTINGS, work
from raylab.cluster.train_messages import (
    ForwardFailures,
    LogMessage,
    WorkerFailure,
    WorkerSettings,
)
from raylab.cluster.workers import RayWorkers
from raylab.config.jobs import TrainConfig
from raylab.errors import RaylabError, TrainingError, WorkersLostError
from raylab.log import detailed, log_line
from raylab.runs.run import Run
from raylab.training.held_out import with_test
from raylab.training.listeners import (
    HEARTBEAT_SECONDS,
    EpochListener,
    ended_metrics,
    epoch_listeners,
)
from raylab.training.outcome import report_training

logger = logging.getLogger("raylab")

SILENT_SECONDS = 2 * HEARTBEAT_SECONDS
CONTROLLER_FAILURES = 3
WORKER_MEETING_SECONDS = 600


def train(inputs: Inputs) -> None:
    """Trains on Ray, and prints the metrics.

    Raises:
        RaylabError: the training failed for a reason that the user can act on.
    """
    config = inputs.config
    with Run.alone(config, config.job) as run:
        with session(config.cluster, run):
            sides = ray.put(inputs.sides)
            metrics = fit(config, run, sides, inputs.start)
            metrics = with_test(config, run, metrics, sides, RayWorkers(config.cluster, run.name))
        report_training(config, run, metrics)


def fit(
    config: TrainConfig,
    run: Run,
    sides: "ray.ObjectRef[Sides]",
    start: Checkpoint | None = None,
    on_epoch: EpochListener | None = None,
    *,
    within: Run | None = None,
) -> TrainingMetrics:
    """Trains in the current Ray session; writes and returns the metrics of the run.

    A run without epochs left is not trained again. A run with a checkpoint goes on from its latest.
    The run is not finished yet, because its best checkpoint is not tested.

    Args:
        config: configuration of the training.
        run: run of the training.
        sides: its pairs.
        start: the weights that it starts from; None for new ones.
        on_epoch: callback, called on a separate thread; if it fails, it is called again after the
            next epoch or at the end.
        within: run of the job, if the training is a part of one; it labels Ray's metrics.

    Raises:
        RaylabError: the training failed for a reason that the user can act on.
    """
    if metrics := ended_metrics(run):
        return metrics
    meters = Meters((within or run).name)
    with _listener(config, run, on_epoch, meters) as queue:
        settings = WorkerSettings(config, run, sides, ray.put(start), queue)
        try:
            result = _trainer(settings).fit()
        except ray.train.TrainingFailedError as error:
            kind = WorkersLostError if _is_loss(error) else TrainingError
            raise kind(
                f"training of {run} failed: {error}\nfix the cause and continue with resume=true"
            ) from error
    if isinstance(result.return_value, RaylabError):
        raise result.return_value
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None and metrics.ended
    return metrics


def fit_part(
    config: TrainConfig,
    run: Run,
    sides: Any,
    on_epoch: EpochListener | None = None,
    *,
    job: Run,
    here: bool,
) -> TrainingMetrics:
    """Trains as a part of a job; returns and raises as `fit`.

    Args:
        config: configuration of the training.
        run: run of the training.
        sides: what `Workers.put` returned for its pairs.
        on_epoch: as of `fit`.
        job: run of the job; it labels Ray's metrics.
        here: True to train in this process, an actor with the CPUs that Ray reserved for it;
            else Ray Train places the workers.
    """
    start = read_start(config)
    if not here:
        return fit(config, run, sides, start, on_epoch, within=job)
    # Lightning takes seconds to import, and only processes that train need it.
    from raylab.training import local

    listeners = _listeners_of(config.training.monitor, run.name, Meters(job.name), on_epoch)
    pairs = ray.get(sides) if isinstance(sides, ray.ObjectRef) else sides
    return local.fit(config, run, pairs, start, listeners, threads=cpus_here())


def _trainer(settings: WorkerSettings) -> TorchTrainer:
    cluster, gpu = settings.config.cluster, uses_gpu(settings.config.cluster)
    return TorchTrainer(
        work,
        train_loop_config={SETTINGS: settings},
        torch_config=TorchConfig("nccl" if gpu else "gloo", timeout_s=WORKER_MEETING_SECONDS),
        scaling_config=ScalingConfig(
            num_workers=cluster.workers,
            use_gpu=gpu,
            resources_per_worker={"CPU": cpus_per_worker(cluster), "GPU": int(gpu)},
            **placement(cluster),
        ),
        run_config=RunConfig(
            # Ray Train notes there that all nodes see the storage.
            name=CHECKPOINTS,
            storage_path=settings.run.uri,
            failure_config=FailureConfig(
                max_failures=cluster.max_failures, controller_failure_limit=CONTROLLER_FAILURES
            ),
            callbacks=[ForwardFailures(settings.queue, cluster.max_failures)],
            logging_config=LoggingConfig(log_level="INFO" if detailed() else "CRITICAL"),
        ),
    )


def _is_loss(error: ray.train.TrainingFailedError) -> bool:
    """Returns True if the workers were lost with the cluster and did not fail themselves."""
    if not isinstance(error, ray.train.WorkerGroupError):
        return True
    # Ray Train wraps the death of a worker in an error that has no public name.
    causes = (getattr(e, "health_check_failure", e) for e in error.worker_failures.values())
    return any(isinstance(cause, RayActorError) for cause in causes)


@contextmanager
def _listener(
    config: TrainConfig, run: Run, on_epoch: EpochListener | None, meters: Meters
) -> Generator[Queue]:
    """Yields a queue whose messages the driver logs and gives to the listeners of epochs.

    Raises:
        RunError: a file of the run could not be written after any epoch, nor at the end.
    """
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": this_node()})
    try:
        listen = partial(_listen, queue, config, run, on_epoch, meters)
        with running(listen, stop=partial(queue.put, None)):
            yield queue
    finally:
        queue.shutdown()


def _listen(
    queue: Queue, config: TrainConfig, run: Run, on_epoch: EpochListener | None, meters: Meters
) -> None:
    with epoch_listeners(config.tracking, config.training.epochs, run) as own:
        others = _listeners_of(config.training.monitor, run.name, meters, on_epoch)
        listeners = Listeners[TrainingMetrics]({**own, **others})
        _take_messages(queue, run.name, listeners, meters)
        listeners.finish()


def _take_messages(
    queue: Queue, training: str, listeners: Listeners[TrainingMetrics], meters: Meters
) -> None:
    while (message := _next(queue)) is not None:
        match message:
            case logging.LogRecord():
                logger.handle(message)
            case LogMessage(text, fields):
                log_line(text, training=training, **fields)
            case WorkerFailure(rank, reason):
                meters.add(WORKER_FAILURES, training=training)
                text = f"worker {rank} failed ({reason})"
                log_line(text, logging.WARNING, training=training, worker=rank)
            case TrainingMetrics():
                listeners.tell(message)
            case _:
                raise TypeError(f"no message of a training: {message}")


def _listeners_of(
    monitor: str, training: str, meters: Meters, on_epoch: EpochListener | None
) -> dict[str, EpochListener]:
    """Returns what sets Ray's metrics of a training after an epoch, and the caller's own."""

    def measure(metrics: TrainingMetrics) -> None:
        last = metrics.last
        meters.set(EPOCH, last.epoch, training=training)
        meters.set(OBJECTIVE, last.row()[monitor], training=training)
        meters.set(SAMPLES, last.samples_per_second, training=training)

    return {"metrics": measure} | ({} if on_epoch is None else {"report": on_epoch})


def _next(queue: Queue) -> Any:
    """Returns the next message; logs a likely reason while there is none."""
    while True:
        try:
            return queue.get(timeout=SILENT_SECONDS)
        except Empty:
            log_line(
                f"no sign of the workers for {SILENT_SECONDS:g} s: they start, validate, or wait "
                f"for a place ({_free_cpus()})"
            )


def _free_cpus() -> str:
    try:
        free, total = ray.available_resources(), ray.cluster_resources()
    except RayError as error:
        return f"Ray does not tell which CPUs are free: {error}"
    return f"{free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs are free"
