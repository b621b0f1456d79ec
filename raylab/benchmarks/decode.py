"""Speed of validation and of free-running decoding, and what its three savings bring.

The ways to decode differ in what they leave out of raylab's key-value cache, early stop and
batching. All write the same pairs by turns, and their grids are compared; in float32, because
sums in another order may break ties of bfloat16 logits another way. The networks are untrained,
with a size head that answers the size of the input, as most ARC tasks do; a random one would set
the length of the outputs, and so the speed, by chance.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import ClassVar, NamedTuple

import numpy as np
import torch
from rich.table import Table
from torch import Tensor

from raylab.arc.data.batching import Batch, BatchDataset, BatchPlan, Draw, demonstration_table
from raylab.arc.data.sides import Sides
from raylab.arc.data.store import Indices, PairStore
from raylab.arc.data.tasks import MAX_SIDE
from raylab.arc.models.autoregressive import AutoregressiveModel
from raylab.arc.models.base import GridModel, SizeHead, build_model
from raylab.benchmarks.figures import Spread, timed
from raylab.benchmarks.naive_decoding import naive_decode
from raylab.config.arc import TrainingConfig
from raylab.config.jobs import BenchmarkConfig
from raylab.config.models import ModelConfig
from raylab.errors import RaylabError
from raylab.log import log_line, log_tables
from raylab.runs.records import Part, Record
from raylab.runs.run import METRICS, Run

Answers = dict[int, tuple[int, ...]]
"""The colours that answer each pair, row by row."""
Answer = Callable[[AutoregressiveModel, Batch], Tensor]
"""Returns (B, at least L) colours of the answers to a batch, the first L of each its cells."""


class Way(NamedTuple):
    """A way to answer pairs."""

    answer: Answer
    batched: bool


def teacher_forced(model: AutoregressiveModel, batch: Batch) -> Tensor:
    """Returns the likeliest colour of each target cell, given the true cells before it."""
    return model(batch).cells.argmax(dim=-1)


def free_running(model: AutoregressiveModel, batch: Batch) -> Tensor:
    """Returns what raylab decodes."""
    return model.answers(batch).grids.cells


def plainly(model: AutoregressiveModel, batch: Batch, *, cache: bool, early_stop: bool) -> Tensor:
    """Returns what is decoded without the cache or the early stop."""
    return naive_decode(model, batch, cache=cache, early_stop=early_stop).cells


VALIDATION = {
    "raylab": Way(teacher_forced, batched=True),
    "one by one": Way(teacher_forced, batched=False),
}
"""Ways of teacher-forced validation, raylab's first."""
DECODING = {
    "raylab": Way(free_running, batched=True),
    "no cache": Way(partial(plainly, cache=False, early_stop=True), batched=True),
    "no early stop": Way(partial(plainly, cache=True, early_stop=False), batched=True),
    "one by one": Way(free_running, batched=False),
    "none of them": Way(partial(plainly, cache=False, early_stop=False), batched=False),
}
"""Ways of free-running decoding, raylab's first."""


class WaySpeed(Part):
    """The speed of a way to answer pairs."""

    pairs_per_second: Spread
    cells_per_second: Spread
    """Cells of the answers, without padding and without the rest of a canvas."""
    times: Spread
    """How many times faster raylab's way was in the same round."""


class DecodingSpeeds(Part):
    """Speeds of an architecture, by way."""

    validation: dict[str, WaySpeed]
    decoding: dict[str, WaySpeed]


class DecodeBenchmark(Record):
    """Speeds of validation and decoding of so many pairs, by architecture."""

    file: ClassVar[str] = METRICS
    pairs: int
    models: dict[str, DecodingSpeeds]


def benchmark_decode(config: BenchmarkConfig, sides: Sides) -> None:
    """Times every way on validation pairs; prints the speeds and writes `metrics.json`.

    Raises:
        RaylabError: two ways answered differently, or the run's name is taken.
    """
    run = Run.open(config, config.job)
    torch.set_num_threads(config.threads)
    pairs = _at_even_places(sides.store, sides.val, config.decoded_pairs)
    log_line(
        f"{len(pairs)} validation pairs of {sides.store.lengths[pairs, 0].sum():,} input cells, "
        f"batch size {config.batch_size}, {config.threads} threads, {_device().type}, 32-true"
    )
    results: dict[str, DecodingSpeeds] = {}
    for model in config.models:
        network = untrained(model).to(_device())
        if not isinstance(network, AutoregressiveModel):
            log_line(f"{model.architecture} writes all cells at once, and is left out")
            continue
        measure = partial(_speeds, model, network, sides.store, pairs, config)
        results[model.architecture] = DecodingSpeeds(
            validation=measure(VALIDATION, sides.store.lengths[:, 1]),
            decoding=measure(DECODING, sides.store.lengths[:, 0]),
        )
        run.write_record(DecodeBenchmark(pairs=len(pairs), models=results))
    log_tables(
        _table("Teacher-forced validation", {n: of.validation for n, of in results.items()}),
        _table("Free-running decoding", {n: of.decoding for n, of in results.items()}),
        models={name: speeds.model_dump() for name, speeds in results.items()},
    )
    run.finish()


def untrained(config: ModelConfig) -> GridModel:
    """Returns a network in evaluation mode whose size head answers the size of the input."""
    torch.manual_seed(TrainingConfig().seed)
    model = build_model(config).eval()
    answer_input_size(model)
    return model


@torch.no_grad()
def answer_input_size(model: GridModel) -> None:
    """Makes the size head answer the size of the input, whatever it is told."""
    for part in model.modules():
        if isinstance(part, SizeHead):
            part.linear.bias.zero_()
            part.linear.weight.zero_()[:, -2 * MAX_SIDE :] = torch.eye(2 * MAX_SIDE)


def _device() -> torch.device:
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _at_even_places(store: PairStore, pairs: Indices, number: int) -> Indices:
    """Returns at most `number` of `pairs`, at even places by length."""
    by_length = pairs[np.argsort(store.lengths[pairs].sum(axis=1), kind="stable")]
    number = min(number, len(pairs))
    return by_length[((np.arange(number) + 0.5) * len(pairs) / number).astype(np.int64)]


def _speeds(
    model: ModelConfig,
    network: AutoregressiveModel,
    store: PairStore,
    pairs: Indices,
    config: BenchmarkConfig,
    ways: dict[str, Way],
    lengths: Indices,
) -> dict[str, WaySpeed]:
    """Returns the speed of every way, whose answers have (pairs,) `lengths`."""
    plan = BatchPlan(store, pairs, batch_size=config.batch_size, demonstrations=model.context_pairs)
    table = demonstration_table(store, pairs, model.context_pairs, None)
    single = [Draw(pairs[i : i + 1], table[i : i + 1], None) for i in range(len(pairs))]
    draws = {name: list(plan) if way.batched else single for name, way in ways.items()}
    for name, way in ways.items():  # warms up
        _answers(network, way.answer, store, draws[name][:1], lengths)
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    for index in range(config.rounds):
        found: dict[str, Answers] = {}
        for name, way in ways.items():
            work = partial(_answers, network, way.answer, store, draws[name], lengths)
            taken, found[name] = timed(work)
            seconds[name].append(taken)
        _check_equal(model.architecture, found)
        told = ", ".join(f"{name} {taken[-1]:.2f} s" for name, taken in seconds.items())
        log_line(f"{model.architecture} round {index + 1}/{config.rounds}: {told}")
    cells = int(lengths[pairs].sum())
    return {
        name: WaySpeed(
            pairs_per_second=Spread.of([len(pairs) / second for second in taken]),
            cells_per_second=Spread.of([cells / second for second in taken]),
            times=Spread.of([a / b for a, b in zip(taken, seconds["raylab"], strict=True)]),
        )
        for name, taken in seconds.items()
    }


@torch.inference_mode()
def _answers(
    network: AutoregressiveModel,
    answer: Answer,
    store: PairStore,
    draws: Sequence[Draw],
    lengths: Indices,
) -> Answers:
    batches, answers = BatchDataset(store), Answers()
    for draw in draws:
        rows = answer(network, batches[draw].to(_device())).tolist()
        for pair, row in zip(draw.pairs.tolist(), rows, strict=True):
            answers[pair] = tuple(row[: lengths[pair]])
    return answers


def _check_equal(architecture: str, found: dict[str, Answers]) -> None:
    """Checks that every way gave the same answers.

    Raises:
        RaylabError: two ways did not.
    """
    for name, answers in found.items():
        if answers != found["raylab"]:
            raise RaylabError(
                f"{architecture}: the way '{name}' does not answer as raylab does, so its speed "
                "means nothing; this is a fault of raylab, please report it"
            )


def _table(title: str, results: dict[str, dict[str, WaySpeed]]) -> Table:
    table = Table(title=f"{title}, minimum and median of the rounds")
    for head in ("architecture", "way", "pairs/s", "cells/s", "raylab is faster by"):
        left = head in ("architecture", "way")
        table.add_column(head, justify="left" if left else "right")
    for model, ways in results.items():
        for name, of in ways.items():
            pairs, cells, times = of.pairs_per_second, of.cells_per_second, of.times
            table.add_row(
                model,
                name,
                f"{pairs.min:.2f} / {pairs.median:.2f}",
                f"{cells.min:,.0f} / {cells.median:,.0f}",
                f"{times.min:.1f} / {times.median:.1f}",
            )
    return table
