"""How evenly training steps weigh cells and tasks, how fast they are, and how well a model learns.

Three ways to make a step of the same mean size:

- *even*, raylab's: several batches of like lengths, the loss divided by the mean cells of a step;
- *like length*: one batch of like lengths, the loss divided by its own cells, as raylab had it;
- *random*: pairs drawn at random, the loss divided by their own cells. They are sorted by length
  into batches, which changes nothing but the padding.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import count, islice
from typing import ClassVar

import numpy as np
import torch
from rich.table import Table
from torch import Tensor, nn

from raylab.arc.data.batching import (
    BatchDataset,
    BatchPlan,
    Draw,
    demonstration_table,
    length_quanta,
)
from raylab.arc.data.sides import Sides
from raylab.arc.data.steps import RUN_PAIRS, StepPlan, TrainingStep
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.loss import loss_sums, step_loss, step_sums
from raylab.arc.models.base import build_model
from raylab.arc.precision import hardware_precision
from raylab.benchmarks.figures import Spread, timed
from raylab.config.arc import Precision, TrainingConfig
from raylab.config.jobs import BenchmarkConfig
from raylab.config.models import ModelConfig
from raylab.log import log_line, log_tables
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

RECIPE = TrainingConfig()
WINDOWS = 5
HELD_OUT = 256

Draws = tuple[Draw, ...]


class Evenness(Part):
    """How evenly the steps of an epoch weigh tasks and cells."""

    steps: int
    tasks: float
    """Tasks of a step, median."""
    effective_tasks: float
    """1 / sum of the squared shares of tasks in the weight of a step, median."""
    weight_p95: float
    """Weight of a cell over its mean over all cells, 95th percentile over steps."""
    weight_max: float
    few_cells: float
    """Share of steps with under a third of the mean target cells."""


class Curve(Part):
    """Losses of a training, nats per cell."""

    seed: int
    train: tuple[float, ...]
    """Mean over the cells of each window of steps."""
    held_out: tuple[float, ...]
    """Mean over the cells of held-out pairs, after each window."""


class WayFigures(Part):
    """Figures of one way to make steps."""

    evenness: Evenness
    samples_per_second: Spread
    curves: tuple[Curve, ...]


class BatchesBenchmark(Record):
    """Figures by way to make steps."""

    file: ClassVar[str] = METRICS
    ways: dict[str, WayFigures]


@dataclass(frozen=True)
class Workload:
    """The pairs to train on, and the model.

    Attributes:
        store: all pairs.
        pairs: pairs to train on.
        held_out: pairs to measure the loss on.
        model: the model.
        batch_size: mean pairs of a step.
    """

    store: PairStore
    pairs: Indices
    held_out: Indices
    model: ModelConfig
    batch_size: int

    @cached_property
    def plan(self) -> StepPlan:
        """Raylab's steps."""
        return StepPlan(
            self.store,
            self.pairs,
            batch_size=self.batch_size,
            demonstrations=self.model.context_pairs,
        )

    def draw(self, pairs: Indices, rng: np.random.Generator) -> Draw:
        """Returns a batch with random demonstrations."""
        table = demonstration_table(self.store, pairs, self.model.context_pairs, rng)
        return Draw(pairs, table)


Way = Callable[[Workload, int], Iterator[Draws]]
"""Draws of the steps of an epoch, from a workload and a seed."""


def even_steps(work: Workload, seed: int) -> Iterator[Draws]:
    """Yields raylab's steps."""
    work.plan.set_epoch(seed)
    yield from work.plan


def like_length_steps(work: Workload, seed: int) -> Iterator[Draws]:
    """Yields steps of one batch of like lengths."""
    rng = np.random.default_rng(seed)
    plan = BatchPlan(work.store, work.pairs, batch_size=work.batch_size, demonstrations=0)
    for index in rng.permutation(len(plan)).tolist():
        yield (work.draw(plan.pairs[plan.runs[index]], rng),)


def random_steps(work: Workload, seed: int) -> Iterator[Draws]:
    """Yields steps of random pairs, sorted by length into batches."""
    rng = np.random.default_rng(seed)
    steps = -(-len(work.pairs) // work.batch_size)
    for pairs in np.array_split(rng.permutation(work.pairs), steps):
        by_length, _ = length_quanta(work.store, pairs)
        batches = np.array_split(by_length, -(-len(pairs) // RUN_PAIRS))
        yield tuple(work.draw(batch, rng) for batch in batches)


WAYS: dict[str, Way] = {
    "even": even_steps,
    "like length": like_length_steps,
    "random": random_steps,
}


def benchmark_batches(config: BenchmarkConfig, sides: Sides) -> None:
    """Measures every way to make steps; prints the figures and writes `metrics.json`.

    Evenness is that of an epoch of the training pairs. Speed is that of the first of `models`, in
    the precision of a training, by turns. With `curve_steps`, the model is trained for so many
    steps from as many seeds as there are rounds, in float32 with a constant learning rate.

    Raises:
        RaylabError: the run's name is taken.
    """
    work = _workload(config, sides)
    run = Run.open(config, config.job)
    torch.set_num_threads(config.threads)
    log_line(f"{len(work.pairs):,} pairs of training tasks, {work.batch_size} pairs a step")
    speeds = _speeds(work, config)
    curves: dict[str, list[Curve]] = {name: [] for name in WAYS}
    figures: dict[str, WayFigures] = {}

    def store_figures() -> None:
        for name, way in WAYS.items():
            known = figures.get(name)
            figures[name] = WayFigures(
                evenness=known.evenness if known else evenness(work, way),
                samples_per_second=speeds[name],
                curves=tuple(curves[name]),
            )
        run.write_record(BatchesBenchmark(ways=figures))

    store_figures()
    for seed in range(RECIPE.seed, RECIPE.seed + config.rounds if config.curve_steps else 0):
        for name, way in WAYS.items():
            curves[name].append(_curve(work, way, seed, config.curve_steps))
            losses = " ".join(f"{loss:.3f}" for loss in curves[name][-1].held_out)
            log_line(f"{name}, seed {seed}: held-out loss {losses}", way=name, seed=seed)
            store_figures()
    log_tables(*_tables(figures, config), ways={n: f.model_dump() for n, f in figures.items()})
    run.finish()


def _workload(config: BenchmarkConfig, sides: Sides) -> Workload:
    kept = np.sort(np.concatenate((sides.val, sides.test)))
    held_out = kept[:: -(-len(kept) // HELD_OUT)]
    return Workload(sides.store, sides.train, held_out, config.models[0], config.batch_size)


def _divisors(work: Workload, way: Way, draws: Draws) -> tuple[float, float]:
    """Returns what the summed losses of the cells and of the sizes of a step are divided by."""
    if way is even_steps:
        return work.plan.mean_cells, work.plan.mean_grids
    pairs = np.concatenate([draw.pairs for draw in draws])
    return float(work.store.lengths[pairs, 1].sum()), float(len(pairs))


def evenness(work: Workload, way: Way) -> Evenness:
    """Returns how evenly the steps of an epoch weigh tasks and cells."""
    store, tasks, effective, cells, weights = work.store, [], [], [], []
    lengths = store.lengths[:, 1]
    for draws in way(work, RECIPE.seed):
        pairs = np.concatenate([draw.pairs for draw in draws])
        of_task = np.bincount(store.task_of[pairs], lengths[pairs])
        tasks.append(np.count_nonzero(of_task))
        effective.append(of_task.sum() ** 2 / (of_task**2).sum())
        cells.append(of_task.sum())
        weights.append(1 / _divisors(work, way, draws)[0])
    relative = np.array(weights) / np.average(weights, weights=cells)
    return Evenness(
        steps=len(cells),
        tasks=float(np.median(tasks)),
        effective_tasks=float(np.median(effective)),
        weight_p95=float(np.quantile(relative, 0.95)),
        weight_max=float(relative.max()),
        few_cells=float(np.mean(np.array(cells) < np.mean(cells) / 3)),
    )


class _Learner:
    """A model in training."""

    def __init__(self, work: Workload, precision: Precision) -> None:
        self.work = work
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.half = precision is not Precision.FLOAT32
        self.model = build_model(work.model).to(self.device)
        self.batches = BatchDataset(work.store)
        self.optimizer = torch.optim.Adam(
            self.model.parameters(), RECIPE.lr, betas=RECIPE.betas, fused=True
        )

    def train(self, way: Way, draws: Draws) -> Tensor:
        """Trains a step and returns the summed loss of its cells."""
        batches = tuple(self.batches[draw] for draw in draws)
        step = TrainingStep(batches, *_divisors(self.work, way, draws)).to(self.device)
        with torch.autocast(self.device.type, torch.bfloat16, enabled=self.half):
            sums = step_sums(self.model, step)
        loss = step_loss(sums, step, RECIPE.shape_loss_weight)
        self.optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(self.model.parameters(), RECIPE.gradient_clip)
        self.optimizer.step()
        return sums.cells.detach()

    @torch.inference_mode()
    def loss(self, pairs: Indices) -> float:
        """Returns the mean loss of the cells of `pairs`."""
        self.model.eval()
        demonstrations = self.work.model.context_pairs
        plan = BatchPlan(self.work.store, pairs, batch_size=32, demonstrations=demonstrations)
        total = 0.0
        for draw in plan:
            batch = self.batches[draw].to(self.device)
            total += float(
                loss_sums(self.model(batch), batch.target.cells, batch.target.sizes).cells
            )
        self.model.train()
        return total / float(self.work.store.lengths[pairs, 1].sum())


def _speeds(work: Workload, config: BenchmarkConfig) -> dict[str, Spread]:
    """Returns samples per second by way, measured by turns."""
    learner = _Learner(work, hardware_precision(Precision.AUTO))
    steps = {name: _typical(way(work, RECIPE.seed), config.batches) for name, way in WAYS.items()}
    learner.train(even_steps, steps["even"][0])
    rounds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(config.rounds):
        for name, way in WAYS.items():

            def train(name: str = name, way: Way = way) -> float:
                losses = [learner.train(way, draws) for draws in steps[name]]
                return torch.stack(losses).sum().item()  # waits for a GPU

            seconds, _ = timed(train)
            samples = sum(len(draw.pairs) for draws in steps[name] for draw in draws)
            rounds[name].append(samples / seconds)
    return {name: Spread.of(values) for name, values in rounds.items()}


def _typical(steps: Iterator[Draws], number: int) -> list[Draws]:
    """Returns steps at even places of an epoch sorted by pairs, which together represent it."""
    by_pairs = sorted(steps, key=lambda draws: sum(len(draw.pairs) for draw in draws))
    return [by_pairs[int((index + 0.5) * len(by_pairs) / number)] for index in range(number)]


def _curve(work: Workload, way: Way, seed: int, steps: int) -> Curve:
    """Returns the losses of a model that is trained for `steps` steps."""
    torch.manual_seed(seed)
    learner = _Learner(work, Precision.FLOAT32)
    draws = islice(_epochs(work, way, seed), steps)
    lengths = work.store.lengths[:, 1]
    train: list[float] = []
    held_out: list[float] = []
    for window in range(WINDOWS):
        loss, cells = 0.0, 0
        for step in islice(draws, steps * (window + 1) // WINDOWS - steps * window // WINDOWS):
            loss += learner.train(way, step).item()
            cells += int(sum(lengths[draw.pairs].sum() for draw in step))
        train.append(loss / cells)
        held_out.append(learner.loss(work.held_out))
    return Curve(seed=seed, train=tuple(train), held_out=tuple(held_out))


def _epochs(work: Workload, way: Way, seed: int) -> Iterator[Draws]:
    for epoch in count():
        yield from way(work, 1000 * seed + epoch)


def _tables(figures: Mapping[str, WayFigures], config: BenchmarkConfig) -> list[Table]:
    table = Table(title="Training steps")
    heads = ("way", "tasks", "effective", "weight p95", "max", "few cells", "samples/s")
    for head in heads:
        table.add_column(head, justify="left" if head == "way" else "right")
    for name, of in figures.items():
        even, speed = of.evenness, of.samples_per_second
        table.add_row(
            name,
            f"{even.tasks:.0f}",
            f"{even.effective_tasks:.1f}",
            f"{even.weight_p95:.1f}",
            f"{even.weight_max:.1f}",
            f"{even.few_cells:.1%}",
            f"{speed.min:.2f} / {speed.median:.2f}",
        )
    if not config.curve_steps:
        return [table]
    losses = Table(title="Loss of a cell, mean and range over the seeds: train, held-out")
    losses.add_column("way")
    for window in range(WINDOWS):
        losses.add_column(f"{config.curve_steps * (window + 1) // WINDOWS} steps", justify="right")
    for name, of in figures.items():
        for kind in ("train", "held_out"):
            windows = zip(*(getattr(curve, kind) for curve in of.curves), strict=True)
            cells = (f"{np.mean(w):.3f} ({min(w):.3f} to {max(w):.3f})" for w in windows)
            losses.add_row(f"{name}, {kind.replace('_', ' ')}", *cells)
    return [table, losses]
