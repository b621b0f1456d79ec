"""Training speed of the architectures against the naive baseline, in one run.

Both train the same network on the same pairs with the same mean batch size; the time includes
building the batches. raylab's steps are the first of an epoch. Model FLOPs utilisation (MFU) is the
rate of the arithmetic that the samples require over the peak rate of the device in raylab's
precision. Models that write all cells at once have as baseline their own network on grids that are
padded to 900 cells, as published recursive models pad them.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from typing import ClassVar

import numpy as np
import torch
from lightning_fabric.utilities import move_data_to_device
from rich.table import Table
from torch import Tensor, nn

from raylab.arc.data.batching import MISSING, BatchDataset, Draw, demonstration_table
from raylab.arc.data.steps import Augmentation, StepDataset, StepPlan, TrainingStep
from raylab.arc.data.store import Indices, PairStore, store_pairs
from raylab.arc.data.tasks import PAD, Task
from raylab.arc.loss import loss_sums, step_loss, step_sums
from raylab.arc.models.base import build_model
from raylab.arc.precision import hardware_precision
from raylab.benchmarks.figures import Spread, spread_table, timed
from raylab.benchmarks.hardware import (
    DTYPES,
    Peak,
    device_peak,
    resident_bytes,
    with_peak_memory,
)
from raylab.benchmarks.model_flops import flops_per_sample
from raylab.benchmarks.naive_models import (
    build_naive_model,
    has_naive_model,
    naive_batch,
    padded_to_canvas,
)
from raylab.config.arc import Precision, TrainingConfig
from raylab.config.jobs import BenchmarkConfig
from raylab.config.models import ModelConfig
from raylab.log import log_line, log_tables
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

RECIPE = TrainingConfig()
GRIDS = ("source", "target", "demo_inputs", "demo_outputs")
"""The grids of a batch."""


COLUMNS = {
    "samples/s": ("samples_per_second", "{:.2f}"),
    "target cells/s": ("cells_per_second", "{:,.0f}"),
    "baseline samples/s": ("baseline_samples_per_second", "{:.2f}"),
    "baseline cells/s": ("baseline_cells_per_second", "{:,.0f}"),
    "times the samples/s": ("samples_ratio", "{:.1f}"),
    "times the cells/s": ("cells_ratio", "{:.1f}"),
    "MFU": ("mfu", "{:.1%}"),
}


@dataclass(frozen=True)
class Speed:
    """The speed of some training steps.

    Attributes:
        pairs: pairs trained, of a store.
        cells: target cells trained.
        seconds: time taken.
        memory: peak memory in bytes; None if unknown.
    """

    pairs: Indices
    cells: int
    seconds: float
    memory: int | None

    @property
    def samples_per_second(self) -> float:
        """Samples trained per second."""
        return len(self.pairs) / self.seconds

    @property
    def cells_per_second(self) -> float:
        """Target cells trained per second."""
        return self.cells / self.seconds


Round = tuple[Speed, Speed]
"""The speeds of raylab and of the baseline, measured by turns."""


class TrainingSpeeds(Part):
    """Speeds of an architecture and of its baseline, and their ratio within each round."""

    samples_per_second: Spread
    cells_per_second: Spread
    """Target cells."""
    baseline_samples_per_second: Spread
    baseline_cells_per_second: Spread
    samples_ratio: Spread
    cells_ratio: Spread
    flops_per_sample: float | None
    """Model FLOPs, forward and backward; None in records of before they were counted."""
    mfu: Spread | None
    memory: int | None
    """Peak in bytes, see `raylab.benchmarks.hardware.with_peak_memory`."""
    baseline_memory: int | None

    @classmethod
    def of(cls, rounds: Sequence[Round], flops: float, peak: Peak) -> "TrainingSpeeds":
        """Summarises rounds of samples of so many model FLOPs on a device of such a peak."""
        ours, naive = zip(*rounds, strict=True)
        samples = [speed.samples_per_second for speed in ours]
        cells = [speed.cells_per_second for speed in ours]
        naive_samples = [speed.samples_per_second for speed in naive]
        naive_cells = [speed.cells_per_second for speed in naive]
        return cls(
            samples_per_second=Spread.of(samples),
            cells_per_second=Spread.of(cells),
            baseline_samples_per_second=Spread.of(naive_samples),
            baseline_cells_per_second=Spread.of(naive_cells),
            samples_ratio=Spread.of([a / b for a, b in zip(samples, naive_samples, strict=True)]),
            cells_ratio=Spread.of([a / b for a, b in zip(cells, naive_cells, strict=True)]),
            flops_per_sample=flops,
            mfu=Spread.of([rate * flops / peak.flops_per_second for rate in samples]),
            memory=_most(ours),
            baseline_memory=_most(naive),
        )


def _most(speeds: Sequence[Speed]) -> int | None:
    return max((speed.memory for speed in speeds if speed.memory is not None), default=None)


class TrainBenchmark(Record):
    """Training speeds by architecture."""

    file: ClassVar[str] = METRICS
    version: ClassVar[int] = 2
    peak: Peak
    """The peak rate of the device in raylab's precision."""
    models: dict[str, TrainingSpeeds]


Step = Callable[[], tuple[Indices, Tensor]]
"""Function that builds a batch, trains on it, and returns its pairs and loss."""


def benchmark_train(config: BenchmarkConfig, tasks: Sequence[Task]) -> None:
    """Times every architecture against its baseline; prints the ratios and writes `metrics.json`.

    Raises:
        RaylabError: there is no pair, or the run's name is taken.
    """
    store = store_pairs(tasks)
    run = Run.open(config, config.job)
    torch.set_num_threads(config.threads)
    precision = hardware_precision(config.precision)
    peak = device_peak(_device(), precision)
    log_line(
        f"{len(store.task_of):,} pairs of {len(store.task_ids)} tasks, batch size "
        f"{config.batch_size}, {config.threads} threads, {_device().type}, raylab in "
        f"{precision.value}, baseline in 32-true, peak {peak.flops_per_second / 1e9:,.0f} GFLOP/s "
        f"({peak.source})"
    )
    results: dict[str, TrainingSpeeds] = {}
    for model in config.models:
        results[model.architecture] = _speeds(model, store, config, peak)
        run.write_record(TrainBenchmark(peak=peak, models=results))
    log_tables(
        spread_table(
            "Training speed, minimum and median of the rounds", "architecture", COLUMNS, results
        ),
        _needs_table(results),
        models={name: speeds.model_dump() for name, speeds in results.items()},
    )
    run.finish()


def _needs_table(results: Mapping[str, TrainingSpeeds]) -> Table:
    table = Table(title="Arithmetic of a sample, and peak memory")
    for head in ("architecture", "model GFLOPs", "GB", "baseline GB"):
        table.add_column(head, justify="left" if head == "architecture" else "right")
    for name, of in results.items():
        needs = (of.flops_per_sample, of.memory, of.baseline_memory)
        table.add_row(name, *("-" if need is None else f"{need / 1e9:.2f}" for need in needs))
    return table


def _speeds(
    model: ModelConfig, store: PairStore, config: BenchmarkConfig, peak: Peak
) -> TrainingSpeeds:
    resident = resident_bytes()
    pairs = _pairs(store, model)
    ours = _raylab_steps(model, store, pairs, config)
    naive = _naive_steps(model, store, pairs, config)
    for warm_up in (ours, naive):
        _time(warm_up[:1], store, resident)
    rounds: list[Round] = []
    for index in range(config.rounds):
        fast, slow = (_time(steps, store, resident) for steps in (ours, naive))
        rounds.append((fast, slow))
        ratio = fast.samples_per_second / slow.samples_per_second
        log_line(
            f"{model.architecture} round {index + 1}/{config.rounds}: "
            f"{fast.samples_per_second:.2f} samples/s, baseline {slow.samples_per_second:.2f}, "
            f"{ratio:.1f} times",
            model=model.architecture,
            done=index + 1,
            total=config.rounds,
            samples_per_second=fast.samples_per_second,
            baseline_samples_per_second=slow.samples_per_second,
        )
    flops = flops_per_sample(model, store, rounds[0][0].pairs)
    return TrainingSpeeds.of(rounds, flops, peak)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _pairs(store: PairStore, model: ModelConfig) -> Indices:
    """Returns the pairs that have every demonstration, which the baseline needs."""
    pairs = np.arange(len(store.task_of))
    table = demonstration_table(store, pairs, model.context_pairs, None)
    return pairs[(table != MISSING).all(axis=1)]


def _raylab_steps(
    model: ModelConfig, store: PairStore, pairs: Indices, config: BenchmarkConfig
) -> list[Step]:
    plan = StepPlan(
        store,
        pairs,
        batch_size=config.batch_size,
        demonstrations=model.context_pairs,
        augmentation=Augmentation.of(RECIPE, relabelled=model.colour_relabelling),
        seed=RECIPE.seed,
    )
    network = build_model(model).to(_device())
    update = _updater(network, fused=True)
    if config.compile:
        network.compile(dynamic=True)
    dataset = StepDataset(plan)
    precision = hardware_precision(config.precision)
    mixed = precision is not Precision.FLOAT32

    def step(draws: tuple[Draw, ...]) -> tuple[Indices, Tensor]:
        given = dataset[draws].to(_device())
        with torch.autocast(_device().type, DTYPES[precision], enabled=mixed):
            loss = step_loss(step_sums(network, given), given, RECIPE.shape_loss_weight)
        return np.concatenate([draw.pairs for draw in draws]), update(loss)

    return [partial(step, draws) for draws in islice(cycle(plan), config.batches)]


def _naive_steps(
    model: ModelConfig, store: PairStore, pairs: Indices, config: BenchmarkConfig
) -> list[Step]:
    if not has_naive_model(model):
        return _padded_steps(model, store, pairs, config)
    rng = np.random.default_rng(RECIPE.seed)
    network = build_naive_model(model).to(_device())
    update = _updater(network, fused=False)

    def step() -> tuple[Indices, Tensor]:
        drawn = rng.choice(pairs, config.batch_size, replace=False)
        table = demonstration_table(store, drawn, model.context_pairs, rng)
        batch = move_data_to_device(naive_batch(store, drawn, table), _device())
        with _device():
            prediction = network(batch)
        cells, sizes = batch.target.cells[..., 0], batch.target.sizes
        sums = loss_sums(prediction, cells, sizes)
        mean = sums.cells / (cells != PAD).sum() + RECIPE.shape_loss_weight * sums.sizes / len(
            sizes
        )
        return drawn, update(mean)

    return [step] * config.naive_batches


def _padded_steps(
    model: ModelConfig, store: PairStore, pairs: Indices, config: BenchmarkConfig
) -> list[Step]:
    """Returns steps of raylab's own network on random pairs, all grids padded to 900 cells."""
    rng = np.random.default_rng(RECIPE.seed)
    network, dataset = build_model(model).to(_device()), BatchDataset(store)
    update = _updater(network, fused=True)

    def step() -> tuple[Indices, Tensor]:
        drawn = rng.choice(pairs, config.batch_size, replace=False)
        table = demonstration_table(store, drawn, model.context_pairs, rng)
        given = dataset[Draw(drawn, table)]
        grids = {name: padded_to_canvas(getattr(given, name)) for name in GRIDS}
        batch = given._replace(**grids).to(_device())
        cells = float((batch.target.cells != PAD).sum())
        padded = TrainingStep((batch,), cells, len(drawn))
        return drawn, update(
            step_loss(step_sums(network, padded), padded, RECIPE.shape_loss_weight)
        )

    return [step] * config.naive_batches


def _updater(network: nn.Module, *, fused: bool) -> Callable[[Tensor], Tensor]:
    """Returns a function for the backward pass and optimiser step; it returns the detached loss."""
    optimizer = torch.optim.Adam(network.parameters(), RECIPE.lr, betas=RECIPE.betas, fused=fused)

    def update(loss: Tensor) -> Tensor:
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(network.parameters(), RECIPE.gradient_clip)
        optimizer.step()
        return loss.detach()

    return update


def _time(steps: Sequence[Step], store: PairStore, resident: int) -> Speed:
    def train() -> list[Indices]:
        done = [step() for step in steps]
        done[-1][1].item()  # waits for the GPU
        return [pairs for pairs, _ in done]

    (seconds, done), memory = with_peak_memory(lambda: timed(train), _device(), resident)
    pairs = np.concatenate(done)
    return Speed(pairs, int(store.lengths[pairs, 1].sum()), seconds, memory)
