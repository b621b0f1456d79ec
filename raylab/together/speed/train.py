"""Training speed of the architectures, compared with random padded batches in the same run.

Both train the same network with the same optimiser. raylab makes the steps of a training, in its
precision; the baseline makes steps of random pairs, padded to the longest, in float32. Times
include building the batches.
"""

from collections.abc import Iterator, Sequence
from itertools import count, islice

import numpy as np
import torch
from torch import nn

from raylab.arc.config.models import ModelConfig
from raylab.arc.config.sections import Precision, TrainingConfig
from raylab.arc.data.batching import Draw, build_batch, demonstration_table
from raylab.arc.data.steps import Augmentation, StepPlan, TrainingStep
from raylab.arc.data.tasks import PairStore, Task, store_pairs
from raylab.arc.device import hardware_precision
from raylab.arc.loss import step_loss
from raylab.arc.models import build_model
from raylab.arc.optimisation import build_optimiser
from raylab.together.config import BenchmarkConfig
from raylab.together.speed.figures import benchmark, rate

RECIPE = TrainingConfig()
STEPS = 4
"""Steps that raylab, and then its baseline, train per round."""
DTYPES = {Precision.BFLOAT16: torch.bfloat16, Precision.FLOAT16: torch.float16}


def benchmark_train(config: BenchmarkConfig, tasks: Sequence[Task]) -> None:
    """Times every architecture against its baseline; prints the rates and writes `metrics.json`."""
    store, size = store_pairs(tasks), config.batch_size
    torch.set_num_threads(config.threads)
    precision = hardware_precision(Precision.AUTO)
    machine = (
        torch.cuda.get_device_name()
        if torch.cuda.is_available()
        else f"a CPU with {torch.backends.cpu.get_cpu_capability()}"
    )
    conditions = (
        f"Training on {machine} with {config.threads} threads in {precision.value}, "
        f"baseline in {Precision.FLOAT32.value}, {len(store.task_of):,} pairs of "
        f"{len(store.task_ids)} tasks, batch size {size}"
    )
    with benchmark(config, "samples/s", conditions) as compare:
        for model in config.models:
            raylab = Learner(model, precision, training_steps(model, store, size))
            baseline = Learner(model, Precision.FLOAT32, random_steps(model, store, size))
            for learner in (raylab, baseline):
                learner.train(1)  # warms up
            compare(
                model.architecture,
                lambda _, own=raylab: rate(lambda: own.train(STEPS)),
                lambda _, own=baseline: rate(lambda: own.train(STEPS)),
            )


class Learner:
    """A network in training by the published recipe, on the GPU if there is one."""

    def __init__(
        self, model: ModelConfig, precision: Precision, steps: Iterator[TrainingStep]
    ) -> None:
        """Builds the network, which is to train `steps`."""
        torch.manual_seed(RECIPE.seed)
        self._device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self._dtype, self._steps = DTYPES.get(precision), steps
        self._network = build_model(model).to(self._device)
        self._optimiser = build_optimiser(self._network, RECIPE, fused=True)

    def train(self, steps: int) -> int:
        """Trains the next `steps`, at least one; returns the number of their pairs."""
        losses, samples = [], 0
        for step in islice(self._steps, steps):
            samples += sum(len(batch.pairs) for batch in step.batches)
            moved = step.to(self._device)
            with torch.autocast(self._device.type, self._dtype, enabled=self._dtype is not None):
                loss = step_loss(self._network, moved, RECIPE.shape_loss_weight)
            self._optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(self._network.parameters(), RECIPE.gradient_clip)
            self._optimiser.step()
            losses.append(loss.detach())
        torch.stack(losses).sum().item()  # waits for a GPU
        return samples


def training_steps(model: ModelConfig, store: PairStore, batch_size: int) -> Iterator[TrainingStep]:
    """Yields the steps of a training on all pairs, epoch by epoch, without end."""
    plan = StepPlan(
        store,
        store.pairs,
        batch_size=batch_size,
        demonstrations=model.context_pairs,
        augmentation=Augmentation.of(RECIPE, relabelled=model.colour_relabelling),
        seed=RECIPE.seed,
    )
    for epoch in count():
        plan.set_epoch(epoch)
        for draws in plan:
            yield plan[draws]


def random_steps(model: ModelConfig, store: PairStore, batch_size: int) -> Iterator[TrainingStep]:
    """Yields steps of one batch of random pairs without end."""
    rng, total = np.random.default_rng(RECIPE.seed), len(store.task_of)
    while True:
        pairs = rng.choice(total, min(batch_size, total), replace=False)
        table = demonstration_table(store, pairs, model.context_pairs, rng)
        cells = float(store.lengths[pairs, 1].sum())
        yield TrainingStep((build_batch(store, Draw(pairs, table)),), cells, len(pairs))
