"""The free-running answers of a model to tasks in views, and its training on tasks before them.

In test-time training a copy of a model learns from the demonstrations of one task: each in turn is
left out of the context and becomes a query, in several views of the task.
"""

import hashlib
import io
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import count

import numpy as np
import torch
from torch import nn

from raylab.arc.checkpoints import Checkpoint, load_tensors
from raylab.arc.config.sections import (
    Precision,
    ScoringConfig,
    TaskTrainingConfig,
    TrainingConfig,
    VotesConfig,
)
from raylab.arc.data.batching import Batch, BatchPlan, Draw
from raylab.arc.data.steps import StepPlan
from raylab.arc.data.tasks import Task, store_pairs
from raylab.arc.device import hardware_precision, use_share
from raylab.arc.loss import step_loss
from raylab.arc.models.base import Answers, GridModel
from raylab.arc.models.custom import import_model_classes
from raylab.arc.prize.votes import (
    ATTEMPTS,
    QuestionAnswers,
    TaskAnswers,
    TaskTraining,
    as_rows,
    draw_views,
)
from raylab.arc.records import GridRows
from raylab.arc.scoring.evaluation import autocast_on, model_on
from raylab.arc.scoring.plan import SPECIALISTS, ModelOnGeneration, unit_file
from raylab.core.config.base import ClusterConfig
from raylab.core.errors import CheckpointError, NonFiniteLossError
from raylab.core.files import Place
from raylab.core.workers import advance

Answerer = Callable[[Batch], Answers]
"""Answers a batch free-running: it reads no target."""
Solved = tuple[TaskAnswers, bytes | None]
"""The answers to a task, and the specialist to keep, as a file's content."""
QUERIES = 2048
"""Most views of test inputs in memory at once, unless a single task has more."""
SPECIALIST_BYTES = 1 << 30


@dataclass(frozen=True)
class Exam:
    """Tasks to answer, without the outputs of their questions."""

    scoring: ScoringConfig
    """The views, and how to train on each task."""
    tasks: Mapping[str, Mapping[str, Task]]
    """The posed tasks by generation and id."""


def solve(
    exam: Exam,
    pair: ModelOnGeneration,
    tasks: Sequence[str],
    checkpoint: Checkpoint,
    share: ClusterConfig,
) -> list[Solved]:
    """Answers tasks of a generation in this process, each after training on its demonstrations.

    Without `test_time_training` there is no training, and with its `before` both are answered.
    """
    device, scoring = use_share(share), exam.scoring
    import_model_classes(scoring.model_classes)
    posed = [exam.tasks[pair[1]][task] for task in tasks]
    training, shown = scoring.test_time_training, checkpoint.model.context_pairs
    if training is None:
        model = model_on(checkpoint, device)
        return [(own, None) for own in answer_tasks(model.answers, posed, scoring, shown, device)]
    solved: list[Solved] = []
    for task in posed:
        # Training changes the model, so each task has a copy of its own.
        model, before = model_on(checkpoint, device), tuple[QuestionAnswers, ...]()
        if training.before:
            (own,) = answer_tasks(model.answers, [task], scoring, shown, device)
            before = own.questions
        advance(0.0)
        start, steps, kept, file = time.monotonic(), 0, None, None
        if training.specialists is not None:
            file = Place.at(training.specialists) / unit_file(SPECIALISTS, pair, task.id, "pt")
        if file is not None and file.exists():
            become_specialist(model, file)
        elif task.demonstrations:
            steps = train_on_task(
                model, task, training, scoring.votes, demonstrations=shown, device=device
            )
            kept = specialist_file(model) if training.keep else None
        seconds = time.monotonic() - start
        (after,) = answer_tasks(model.answers, [task], scoring, shown, device)
        trained = TaskTraining(steps=steps, seconds=seconds, before=before)
        solved.append((after.model_copy(update={"trained": trained}), kept))
    return solved


@torch.inference_mode()
def answer_tasks(
    answer: Answerer,
    posed: Sequence[Task],
    scoring: ScoringConfig,
    demonstrations: int,
    device: torch.device,
) -> list[TaskAnswers]:
    """Answers the questions of tasks in every view, at least two of each; one result per task.

    `answer` is a model on `device`. Each task has a demonstration or more; at most `demonstrations`
    of them are shown with a question. The outputs of questions are not read. Views are decoded in
    batches of similar lengths. `raylab.core.workers.advance` gets the share of the input cells that
    is done.
    """
    views = max(scoring.votes.views, ATTEMPTS)
    total = views * sum(pair.input.size for task in posed for pair in task.questions)
    done, queries, chunks = 0, 0, list[list[Task]]()
    # Tasks with many test inputs would fill the memory together.
    for task in posed:
        more = views * len(task.questions)
        if not chunks or queries + more > QUERIES:
            chunks.append([])
            queries = 0
        chunks[-1].append(task)
        queries += more

    def answer_and_tell(batch: Batch) -> Answers:
        nonlocal done
        done += int(batch.source.sizes.prod(dim=1).sum())
        answers = answer(batch.to(device))
        advance(done / total)
        return answers

    with autocast_on(device):
        return [
            answers
            for chunk in chunks
            for answers in _answer_chunk(answer_and_tell, chunk, scoring, demonstrations)
        ]


def _answer_chunk(
    answer: Answerer, posed: Sequence[Task], scoring: ScoringConfig, demonstrations: int
) -> list[TaskAnswers]:
    start, views = time.monotonic(), max(scoring.votes.views, ATTEMPTS)
    drawn = [(task, view) for task in posed for view in draw_views(task, views, scoring.votes)]
    store = store_pairs([view.task(task) for task, view in drawn])
    queries = np.setdiff1d(store.pairs, np.concatenate(store.demonstrations))
    answered: dict[int, tuple[GridRows, float, bool]] = {}
    sizes = {"batch_size": scoring.batch_size, "demonstrations": demonstrations}
    for batch in BatchPlan(store, queries, **sizes).batches() if len(queries) else ():
        answers = answer(batch)
        columns = batch.pairs, batch.tasks, answers.log_likelihoods, answers.by_rule
        for grid, pair, at, likelihood, by_rule in zip(
            answers.grids.arrays(), *(column.tolist() for column in columns), strict=True
        ):
            rows = as_rows(drawn[at][1].inverse.apply(grid))
            answered[pair] = rows, likelihood, by_rule
    by_task: defaultdict[str, list[list[tuple[GridRows, float, bool]]]] = defaultdict(list)
    for at, (task, _) in enumerate(drawn):
        own = queries[store.task_of[queries] == at].tolist()
        by_task[task.id].append([answered[pair] for pair in own])
    seconds = (time.monotonic() - start) / len(posed)
    return [
        TaskAnswers(
            task=id_,
            # From the answers of each view to those of each question.
            questions=tuple(map(QuestionAnswers.of, zip(*by_view, strict=True))),
            seconds=seconds,
        )
        for id_, by_view in by_task.items()
    ]


def train_on_task(
    model: GridModel,
    task: Task,
    training: TaskTrainingConfig,
    votes: VotesConfig,
    *,
    demonstrations: int,
    device: torch.device,
) -> int:
    """Trains a model on the demonstrations of a task, not its questions; returns the steps made.

    Afterwards the model is in evaluation mode. Random draws depend only on the task and
    `votes.seed`. `model` is a copy on `device`, and changes. Each query has `demonstrations` in its
    context.
    """
    seed = int.from_bytes(hashlib.sha256(task.id.encode()).digest()[:4]) ^ votes.seed
    shown = Task(task.id, task.demonstrations)
    views = draw_views(shown, training.augmentations, votes)
    store = store_pairs([view.task(shown) for view in views])
    plan = StepPlan(
        store,
        store.pairs,
        batch_size=training.batch_size,
        demonstrations=demonstrations,
        seed=votes.seed,
    )

    def draw_epochs() -> Iterator[tuple[Draw, ...]]:
        for epoch in count():
            plan.set_epoch(epoch)
            yield from plan

    optimizer = torch.optim.Adam(model.parameters(), lr=training.lr)
    defaults = TrainingConfig()
    half = hardware_precision(Precision.AUTO, device.type) is Precision.BFLOAT16
    total = torch.zeros((), device=device)
    model.train()
    # Dropout draws from torch's stream, which then goes on as if nothing had been drawn.
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        start, done = time.monotonic(), 0
        for done, draws in enumerate(draw_epochs(), 1):
            step = plan[draws].to(device)
            with torch.autocast(device.type, torch.bfloat16, enabled=half):
                loss = step_loss(model, step, defaults.shape_loss_weight)
            optimizer.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), defaults.gradient_clip)
            optimizer.step()
            total += loss.detach()
            is_late = training.seconds and time.monotonic() - start > training.seconds
            if done == training.steps or is_late:
                break
    # Asked once, since each question waits for the GPU.
    if not bool(total.isfinite()):
        raise NonFiniteLossError(
            f"training on task {task.id} gave a loss of {float(total)}: lower "
            f"scoring.test_time_training.lr, which is {training.lr}"
        )
    model.eval()
    return done


def specialist_file(model: GridModel) -> bytes:
    """Returns the weights of a model as a file that torch loads with `weights_only`."""
    buffer = io.BytesIO()
    torch.save({name: weight.cpu() for name, weight in model.state_dict().items()}, buffer)
    return buffer.getvalue()


def become_specialist(model: GridModel, file: Place) -> None:
    """Gives a model the weights of a specialist."""
    weights = load_tensors(file, SPECIALIST_BYTES)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise CheckpointError(
            f"{file} is a specialist of another model than the one that answers: name the run "
            "that kept those of this model, or leave scoring.test_time_training.specialists out"
        ) from error
