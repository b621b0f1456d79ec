"""The free-running answers of a model to tasks in views."""

import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from raylab.arc.checkpoints import Checkpoint
from raylab.arc.config.sections import ScoringConfig
from raylab.arc.data.batching import Batch, BatchPlan
from raylab.arc.data.generations import Redrawing
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import Task
from raylab.arc.device import use_share
from raylab.arc.models.base import Answers
from raylab.arc.models.custom import import_model_classes
from raylab.arc.prize.adaptation import become_specialist, specialist_file, train_on_task
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
from raylab.core.files import Place
from raylab.core.workers import advance

Answerer = Callable[[Batch], Answers]
"""Answers a batch free-running: it reads no target."""
Solved = tuple[TaskAnswers, bytes | None]
"""The answers to a task, and the specialist to keep, as a file's content."""
QUERIES = 2048
"""Most views of test inputs in memory at once."""


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
    """Answers tasks of a generation in this process."""
    device, scoring = use_share(share), exam.scoring
    import_model_classes(scoring.model_classes)
    posed = [exam.tasks[pair[1]][task] for task in tasks]
    if scoring.test_time_training is not None:
        return [_specialise(checkpoint, pair, task, scoring, device) for task in posed]
    model, shown = model_on(checkpoint, device), checkpoint.model.context_pairs
    return [(own, None) for own in answer_tasks(model.answers, posed, scoring, shown, device)]


def _specialise(
    checkpoint: Checkpoint,
    pair: ModelOnGeneration,
    task: Task,
    scoring: ScoringConfig,
    device: torch.device,
) -> Solved:
    """Answers a task after training on its demonstrations, and with `before` also without it."""
    training, shown = scoring.test_time_training, checkpoint.model.context_pairs
    assert training is not None
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
    return after.model_copy(update={"trained": trained}), kept


@torch.inference_mode()
def answer_tasks(
    answer: Answerer,
    posed: Sequence[Task],
    scoring: ScoringConfig,
    demonstrations: int,
    device: torch.device,
) -> list[TaskAnswers]:
    """Answers the questions of tasks in every view, at least two of each; one result per task.

    `answer` is a model on `device`. Each task has a demonstration or more, of which
    `demonstrations` are shown with a question; the outputs of questions are not read. Views are
    decoded in batches of similar lengths. Reports the share of the input cells that is done to
    `raylab.core.workers.advance`.
    """
    views = max(scoring.votes.views, ATTEMPTS)
    total = views * sum(pair.input.size for task in posed for pair in task.questions)
    done = 0

    def answer_and_tell(batch: Batch) -> Answers:
        nonlocal done
        done += int(batch.source.sizes.prod(dim=1).sum())
        answers = answer(batch.to(device))
        advance(done / total)
        return answers

    with autocast_on(device):
        return [
            answers
            for chunk in _split(posed, views)
            for answers in _answer_chunk(answer_and_tell, chunk, scoring, demonstrations)
        ]


def _split(posed: Sequence[Task], views: int) -> Iterator[list[Task]]:
    """Yields chunks of at most `QUERIES` queries, or of one task."""
    chunk: list[Task] = []
    queries = 0
    for task in posed:
        more = views * len(task.questions)
        if chunk and queries + more > QUERIES:
            yield chunk
            chunk, queries = [], 0
        chunk.append(task)
        queries += more
    if chunk:
        yield chunk


def _answer_chunk(
    answer: Answerer, posed: Sequence[Task], scoring: ScoringConfig, demonstrations: int
) -> list[TaskAnswers]:
    start, answered = time.monotonic(), dict[int, tuple[GridRows, float, bool]]()
    views: list[Task] = []
    queries: dict[int, tuple[str, int, Redrawing]] = {}
    pairs = 0
    for task in posed:
        for view in draw_views(task, max(scoring.votes.views, ATTEMPTS), scoring.votes):
            views.append(view.task(task))
            first = pairs + len(task.demonstrations)
            queries |= {first + at: (task.id, at, view) for at in range(len(task.questions))}
            pairs += len(task.pairs)
    store = store_pairs(views)
    sizes = {"batch_size": scoring.batch_size, "demonstrations": demonstrations}
    for batch in BatchPlan(store, np.array([*queries]), **sizes).batches() if queries else ():
        answers = answer(batch)
        columns = batch.pairs, answers.log_likelihoods, answers.by_rule
        for grid, pair, likelihood, by_rule in zip(
            answers.grids.arrays(), *(column.tolist() for column in columns), strict=True
        ):
            *_, view = queries[pair]
            answered[pair] = as_rows(view.inverse.apply(grid)), likelihood, by_rule
    by_question: defaultdict[tuple[str, int], list[tuple[GridRows, float, bool]]]
    by_question = defaultdict(list)
    for pair, (id_, at, _) in queries.items():
        by_question[id_, at].append(answered[pair])
    seconds = (time.monotonic() - start) / len(posed)
    return [
        TaskAnswers(
            task=id_,
            questions=tuple(QuestionAnswers.of(by_question[id_, at]) for at in range(count)),
            seconds=seconds,
        )
        for id_, count in ((task.id, len(task.questions)) for task in posed)
    ]
