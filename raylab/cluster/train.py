"""Training on Ray Train: any number of CPU or GPU workers, resumed after deaths."""

import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from logging.handlers import QueueHandler
from pathlib import Path
from typing import Any, NamedTuple, cast

import pytorch_lightning as pl
import ray
import ray.train
import torch
import torch.distributed as dist
from ray.exceptions import RayActorError
from ray.train import CheckpointConfig, FailureConfig, LoggingConfig, RunConfig, ScalingConfig
from ray.train.lightning import RayDDPStrategy, RayLightningEnvironment, prepare_trainer
from ray.train.torch import TorchConfig, TorchTrainer
from ray.train.v2._internal.exceptions import WorkerHealthCheckFailedError
from ray.util.queue import Empty, Queue

from raylab import errors
from raylab.arc.checkpoints import (
    CHECKPOINT_FILE,
    CHECKPOINTS,
    Checkpoint,
    load_weights,
    read_checkpoint,
)
from raylab.arc.models import build_model
from raylab.arc.training import EpochRecorder, Experiment, build_experiment, build_trainer
from raylab.cluster.metrics import EPOCH, OBJECTIVE, SAMPLES, WORKER_FAILURES, Meters
from raylab.cluster.models import fetch_checkpoint
from raylab.cluster.session import cpus_per_worker, session, this_node, uses_gpu
from raylab.config import TrainConfig
from raylab.errors import RaylabError, TrainingError, WorkersLostError
from raylab.log import say, show
from raylab.report.curves import Curves
from raylab.report.page import PAGE, write_page
from raylab.report.pipeline_page import PipelineReport, render_pipeline
from raylab.report.progress import epoch_line
from raylab.report.tables import comparison_table, group_table
from raylab.runs import METRICS, RECORD, Json, Run

logger = logging.getLogger("raylab")

TRAIN_SETTINGS = {
    # Reports are collected once a poll; at the default of 2 s short epochs wait for it, and a
    # checkpoint that is written but not yet collected is lost with its worker.
    "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.25",
    # Read by Ray Train's controller; off a spot node it only logs errors about missing events.
    "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
}
HEARTBEAT_SECONDS = 30.0
SILENT_SECONDS = 60
"""Twice the time after which a worker at least gives a sign of life."""
CONTROLLER_FAILURES = 3
WORKER_MEETING_SECONDS = 600


def train(config: TrainConfig) -> None:
    """Train one architecture as `config` says, and print its metrics.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    run = Run.open(config, config.job)
    with session(config.cluster, run):
        metrics = fit(config, run)
    best, models = metrics["best"], {config.model.architecture: metrics}
    page = PipelineReport(
        f"raylab train {run.name}", run.uri, models, record=run.read_json(RECORD) or {}
    )
    write_page(run, render_pipeline(page))
    tables = comparison_table(models), group_table(best["groups"])
    show(*tables, models={config.model.architecture: best})
    checkpoint = str(run / best["checkpoint"])
    say(
        f"run {run}\nbest checkpoint {checkpoint}\nreport {run / PAGE}",
        uri=run.uri,
        checkpoint=checkpoint,
    )


EpochListener = Callable[[Json], None]
"""Called with a run's `metrics.json` after each epoch that is safely stored."""


def fit(
    config: TrainConfig,
    run: Run,
    on_epoch: EpochListener | None = None,
    *,
    within: Run | None = None,
) -> Json:
    """Train in the current Ray session; returns what is written to the run's `metrics.json`.

    A finished run is not trained again. A run with a checkpoint goes on from its latest.

    Args:
        config: what is trained.
        run: the training's own run.
        on_epoch: called on a thread of its own.
        within: the run of the job, if the training is a part of it; Ray's metrics name it.

    Raises:
        RaylabError: what a user can act on, with the way out.
    """
    if run.finished:
        say(f"run {run.name} is finished, nothing is left to do", training=run.name)
        return run.read_json(METRICS) or {}
    for name, value in TRAIN_SETTINGS.items():
        os.environ.setdefault(name, value)
    start = _start(config)
    gpu = uses_gpu(config.cluster)
    resources = {"CPU": cpus_per_worker(config.cluster)} | ({"GPU": 1} if gpu else {})
    meters = Meters((within or run).name)
    with _listener(config, run, on_epoch, meters) as queue:
        trainer = TorchTrainer(
            _work,
            train_loop_config={
                "config": config.model_dump(mode="json"),
                "start": ray.put(start),
                "run_id": run.id,
                "queue": queue,
            },
            torch_config=TorchConfig("nccl" if gpu else "gloo", timeout_s=WORKER_MEETING_SECONDS),
            scaling_config=ScalingConfig(
                num_workers=config.cluster.workers, use_gpu=gpu, resources_per_worker=resources
            ),
            run_config=RunConfig(
                name=CHECKPOINTS,
                storage_path=run.uri,
                failure_config=FailureConfig(
                    max_failures=config.cluster.max_failures,
                    controller_failure_limit=CONTROLLER_FAILURES,
                ),
                checkpoint_config=CheckpointConfig(
                    num_to_keep=config.training.keep_checkpoints,
                    checkpoint_score_attribute=config.training.monitor.value,
                ),
                callbacks=[_Forward(queue, config.cluster.max_failures)],
                logging_config=LoggingConfig(log_level="CRITICAL"),
            ),
        )
        try:
            result = trainer.fit()
        except ray.train.TrainingFailedError as error:
            kind = WorkersLostError if _is_loss(error) else TrainingError
            raise kind(
                f"training of {run} failed: {error}\nmend the cause and go on with resume=true"
            ) from error
    if result.return_value is not None:
        kind, message = result.return_value
        raise cast("RaylabError", getattr(errors, kind)(message))
    metrics = cast("Json", result.metrics)["summary"]
    run.write_json(METRICS, metrics)
    run.finish()
    return metrics


def _is_loss(error: ray.train.TrainingFailedError) -> bool:
    """Whether the cluster failed the workers, and not they themselves."""
    if not isinstance(error, ray.train.WorkerGroupError):
        return True
    lost = RayActorError, WorkerHealthCheckFailedError
    return any(isinstance(cause, lost) for cause in error.worker_failures.values())


def _start(config: TrainConfig) -> Checkpoint | None:
    """The checkpoint of `config.init_from`, checked to fit the model."""
    if config.init_from is None:
        return None
    checkpoint = fetch_checkpoint(config.init_from)
    load_weights(build_model(config.model), config.model, checkpoint)
    return checkpoint


def _work(settings: dict[str, Any]) -> tuple[str, str] | None:
    """Train as one worker. Returns the error that no retry would mend, or None."""
    config = TrainConfig.model_validate(settings["config"])
    context = ray.train.get_context()
    rank, world = context.get_world_rank(), context.get_world_size()
    queue = cast("Queue", settings["queue"])
    if rank == 0:
        _forward_logs(queue)
    torch.set_num_threads(int(ray.get_runtime_context().get_assigned_resources().get("CPU", 1)))
    try:
        experiment = _prepare(config, rank, world, settings["start"])
        experiment.module.run_id = settings["run_id"]
        _fit_worker(config, experiment, queue)
    except RaylabError as error:
        return type(error).__name__, str(error)
    return None


def _prepare(config: TrainConfig, rank: int, world: int, start: ray.ObjectRef[Any]) -> Experiment:
    """Build this worker's share; if any worker fails, all raise its error instead of waiting."""
    experiment, error = None, None
    try:
        experiment = build_experiment(config, rank=rank, world=world)
        checkpoint = cast("Checkpoint | None", ray.get(start))
        if checkpoint is not None:
            experiment.module.start_from(checkpoint)
    except RaylabError as caught:
        error = caught
    found: list[RaylabError | None] = [None] * world
    dist.all_gather_object(found, error)
    for error in found:
        if error is not None:
            raise error
    assert experiment is not None
    return experiment


def _fit_worker(config: TrainConfig, experiment: Experiment, queue: Queue) -> None:
    module, data = experiment.module, experiment.data
    recorder = EpochRecorder(config.training.monitor, len(data.train.pairs))
    callbacks = [recorder, _Report(recorder, queue)]
    trainer = prepare_trainer(
        build_trainer(
            config,
            callbacks=callbacks,
            accelerator="auto",
            devices="auto",
            # Nothing to broadcast: the buffers are constants, and workers may validate apart.
            strategy=RayDDPStrategy(broadcast_buffers=False),
            plugins=[RayLightningEnvironment()],
        )
    )
    latest = ray.train.get_checkpoint()
    _announce(config, experiment, trainer, queue)
    if latest is None:
        trainer.fit(module, datamodule=data)
        return
    with latest.as_directory() as directory:
        path = Path(directory) / CHECKPOINT_FILE
        read_checkpoint(path)
        trainer.fit(module, datamodule=data, ckpt_path=path, weights_only=True)


def _announce(
    config: TrainConfig, experiment: Experiment, trainer: pl.Trainer, queue: Queue
) -> None:
    if trainer.global_rank == 0:
        parameters = sum(parameter.numel() for parameter in experiment.module.parameters())
        train, val = experiment.data.train, experiment.data.val
        message = (
            f"{config.model.architecture}: {parameters:,} parameters, {len(train.pairs):,} "
            f"training pairs in {len(train):,} steps, {len(val.pairs):,} validation pairs, "
            f"{trainer.world_size} worker(s), {trainer.strategy.root_device.type}, "
            f"{trainer.precision}"
        )
        fields = {"parameters": parameters, "pairs": len(train.pairs), "steps": len(train)}
        queue.put(_Line(message, {**fields, "workers": trainer.world_size}))


class _Line(NamedTuple):
    """What the driver is to say."""

    message: str
    fields: Json


class _WorkerFailure(NamedTuple):
    rank: int
    reason: str


def checkpoint_name(epoch: int) -> str:
    """Directory of the checkpoint after `epoch`, counted from 1."""
    return f"epoch-{epoch:04d}"


class _Report(pl.Callback):
    """Reports each epoch with its checkpoint to Ray Train, and signs of life in between."""

    def __init__(self, recorder: EpochRecorder, queue: Queue) -> None:
        self.recorder, self.queue = recorder, queue
        self._last_sign = time.monotonic()

    def on_train_batch_end(
        self,
        trainer: pl.Trainer,
        pl_module: pl.LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
    ) -> None:
        if trainer.global_rank == 0 and time.monotonic() > self._last_sign + HEARTBEAT_SECONDS:
            self._last_sign = time.monotonic()
            epoch, step, loss = trainer.current_epoch + 1, batch_idx + 1, float(outputs["loss"])
            steps = trainer.num_training_batches
            message = f"  epoch {epoch}: {step} of {steps} steps, loss {loss:.4f}"
            fields = {"epoch": epoch, "done": step, "total": steps, "loss": loss}
            self.queue.put(_Line(message, fields))

    def on_train_epoch_end(self, trainer: pl.Trainer, pl_module: pl.LightningModule) -> None:
        summary = self.recorder.summary
        row = summary["last"]
        name = checkpoint_name(row["epoch"])
        best = checkpoint_name(summary["best"]["epoch"])
        summary["best"] = summary["best"] | {
            "checkpoint": f"{CHECKPOINTS}/{best}/{CHECKPOINT_FILE}"
        }
        with tempfile.TemporaryDirectory() as directory:
            trainer.save_checkpoint(Path(directory) / CHECKPOINT_FILE, weights_only=False)
            checkpoint = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(
                {**row, "summary": summary},
                checkpoint=checkpoint if trainer.global_rank == 0 else None,
                checkpoint_dir_name=name,
            )
        self._last_sign = time.monotonic()


class _Forward(ray.train.UserCallback):
    """Tells the driver, from Ray Train's controller, what is safely stored and what failed."""

    def __init__(self, queue: Queue, max_failures: int) -> None:
        self.queue, self.left = queue, max_failures

    def after_report(self, run_context: Any, metrics: list[Json], checkpoint: Any) -> None:
        self.queue.put(metrics[0]["summary"])

    def after_exception(self, run_context: Any, worker_exceptions: dict[int, Exception]) -> None:
        for rank, error in worker_exceptions.items():
            reason = str(error).strip().rpartition("\n")[2]
            self.queue.put(_WorkerFailure(rank, f"{type(error).__name__}: {reason}"))
        if self.left:
            self.queue.put(_Line("all workers start again from the last checkpoint", {}))
        self.left -= 1


def _forward_logs(queue: Queue) -> None:
    """Send raylab's warnings in this process to the driver."""
    handler = QueueHandler(cast("Any", queue))
    logger.addHandler(handler)
    logger.propagate = False


@contextmanager
def _listener(
    config: TrainConfig, run: Run, on_epoch: EpochListener | None, meters: Meters
) -> Generator[Queue]:
    """A queue whose messages the driver says, records and writes into the run."""
    queue = Queue(actor_options={"num_cpus": 0, "scheduling_strategy": this_node()})
    arguments = (queue, config, run, on_epoch, meters)
    thread = threading.Thread(target=_listen, args=arguments, daemon=True)
    thread.start()
    try:
        yield queue
    finally:
        queue.put(None)
        thread.join()
        queue.shutdown()


def _listen(
    queue: Queue, config: TrainConfig, run: Run, on_epoch: EpochListener | None, meters: Meters
) -> None:
    curves = Curves(run)
    training, epochs = run.name, config.training.epochs
    while (message := _next(queue)) is not None:
        match message:
            case logging.LogRecord():
                logger.handle(message)
            case _Line(text, fields):
                say(text, training=training, **fields)
            case _WorkerFailure(rank, reason):
                meters.add(WORKER_FAILURES, training=training)
                text = f"worker {rank} failed ({reason})"
                say(text, logging.WARNING, training=training, worker=rank)
            case _:
                row = message["last"]
                run.write_json(METRICS, message)
                curves.add(row)
                say(epoch_line(row, epochs), training=training, epochs=epochs, **row)
                meters.set(EPOCH, row["epoch"], training=training)
                meters.set(OBJECTIVE, row[config.training.monitor], training=training)
                meters.set(SAMPLES, row["samples_per_second"], training=training)
                if on_epoch is not None:
                    on_epoch(message)
    curves.close()


def _next(queue: Queue) -> Any:
    """The next message; while there is none, what keeps the workers from sending one."""
    while True:
        try:
            return queue.get(timeout=SILENT_SECONDS)
        except Empty:
            free, total = ray.available_resources(), ray.cluster_resources()
            say(
                f"no sign of the workers for {SILENT_SECONDS} s: they start, validate, or wait for "
                f"a place ({free.get('CPU', 0):g} of {total.get('CPU', 0):g} CPUs are free)"
            )
