"""Training on Ray Train with any number of CPU or GPU workers; resumes after their deaths."""

import logging
from functools import partial
from typing import Any

import ray
import ray.train
from ray.exceptions import RayActorError
from ray.train import FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.torch import TorchConfig, TorchTrainer
from ray.util.queue import Empty, Queue

from raylab.arc.checkpoints import CHECKPOINTS, Checkpoint
from raylab.arc.config.jobs import TrainConfig
from raylab.arc.inputs import Inputs
from raylab.arc.on_ray.train_worker import SETTINGS, ForwardFailures, Line, WorkerSettings, work
from raylab.arc.records import TrainingMetrics
from raylab.arc.training.outcome import report_training, with_test
from raylab.arc.training.reporter import HEARTBEAT_SECONDS, EpochListener, ended_metrics, reporting
from raylab.core.background import beside, running
from raylab.core.errors import RaylabError, TrainingError, WorkersLostError
from raylab.core.live import progress
from raylab.core.log import log_line, prints_details
from raylab.core.on_ray.session import (
    cpus_here,
    cpus_per_worker,
    placement_options,
    session,
    this_node,
    uses_gpu,
)
from raylab.core.on_ray.workers import RayWorkers
from raylab.core.runs.run import Run

logger = logging.getLogger("raylab")

SILENT_SECONDS = 2 * HEARTBEAT_SECONDS
CONTROLLER_FAILURES = 3
WORKER_MEETING_SECONDS = 600


def train(inputs: Inputs) -> None:
    """Trains on Ray, and prints the metrics."""
    config = inputs.config
    with Run.open_alone(config) as run:
        with session(config.cluster, run):
            sides = ray.put(inputs.sides)
            metrics = fit(config, run, sides, start=inputs.start)
            metrics = with_test(config, run, metrics, sides, RayWorkers(config.cluster))
        report_training(config, run, metrics)


def fit(
    config: TrainConfig,
    run: Run,
    sides: Any,
    on_epoch: EpochListener | None = None,
    *,
    start: Checkpoint | None = None,
    here: bool = False,
) -> TrainingMetrics:
    """Trains in the current Ray session; writes and returns the metrics of the run.

    A run without epochs left is not trained again. A run with a checkpoint continues from its
    latest. The run is not marked as finished, because its best checkpoint is still to be tested.
    `sides` is what `Workers.put` returned, and `on_epoch` is called on another thread. With `here`
    this process trains, on the CPUs that Ray reserved for it; else Ray Train places workers.
    """
    if metrics := ended_metrics(config, run):
        return metrics
    if here:
        # Lightning takes seconds to import, and only processes that train need it.
        from raylab.arc.training import local

        pairs = ray.get(sides) if isinstance(sides, ray.ObjectRef) else sides
        return local.fit(config, run, pairs, start, on_epoch, threads=cpus_here())
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": this_node()})
    listen = partial(_listen, queue, config, run, on_epoch)
    try:
        with progress(), running(listen, stop=partial(queue.put, None)):
            trainer = _trainer(WorkerSettings(config, run, sides, ray.put(start), queue))
            # On the main thread Ray Train would handle Ctrl-C, and end the job with status 0.
            result = beside(trainer.fit).result()
    except ray.train.TrainingFailedError as error:
        # Other errors than a group's mean that the workers were lost or could not be placed. Ray
        # Train wraps the death of a worker in an error that has no public name.
        lost = not isinstance(error, ray.train.WorkerGroupError) or any(
            isinstance(getattr(failure, "health_check_failure", failure), RayActorError)
            for failure in error.worker_failures.values()
        )
        kind = WorkersLostError if lost else TrainingError
        raise kind(
            f"training of {run} failed: {error}\nfix the cause and continue with resume=true"
        ) from error
    finally:
        queue.shutdown()
    if isinstance(result.return_value, RaylabError):
        raise result.return_value
    metrics = run.read_record(TrainingMetrics)
    assert metrics is not None and metrics.ended
    return metrics


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
            **placement_options(cluster),
        ),
        run_config=RunConfig(
            # Ray Train notes there that all nodes see the storage.
            name=CHECKPOINTS,
            storage_path=settings.run.uri,
            failure_config=FailureConfig(
                max_failures=cluster.max_failures, controller_failure_limit=CONTROLLER_FAILURES
            ),
            callbacks=[ForwardFailures(settings.queue, cluster.max_failures)],
            logging_config=LoggingConfig(log_level="INFO" if prints_details() else "CRITICAL"),
        ),
    )


def _listen(queue: Queue, config: TrainConfig, run: Run, on_epoch: EpochListener | None) -> None:
    """Reports what the workers put on the queue, until None is put there."""
    with reporting(config.tracking, run, on_epoch) as reporter:
        while True:
            try:
                message = queue.get(timeout=SILENT_SECONDS)
            except Empty:
                free, total = ray.available_resources(), ray.cluster_resources()
                log_line(
                    f"no message from the workers for {SILENT_SECONDS:g} s: they start, validate, "
                    f"or wait for a place ({free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs "
                    "are free)"
                )
                continue
            match message:
                case None:
                    return
                case logging.LogRecord():
                    logger.handle(message)
                case Line(text, fields, None):
                    reporter.line(text, fields)
                case Line(text, _, worker):
                    log_line(text, logging.WARNING, training=run.name, worker=worker)
                case _:
                    reporter.epoch(message.figures, message.best)
