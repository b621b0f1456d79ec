"""Training on a task's demonstrations: what it reads, what it changes, and what is kept."""

from itertools import count
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from pydantic import ValidationError

from raylab.arc.config.models import EncoderDecoderConfig
from raylab.arc.config.sections import TaskTrainingConfig, VotesConfig
from raylab.arc.data.batching import Grids
from raylab.arc.data.steps import TrainingStep
from raylab.arc.data.tasks import Pair, Task, store_pairs
from raylab.arc.loss import step_loss
from raylab.arc.models.base import GridModel
from raylab.arc.prize import answering
from raylab.arc.prize.answering import become_specialist, specialist_file, train_on_task
from raylab.arc.prize.votes import as_rows, draw_views
from raylab.arc.records import GridRows
from raylab.core.errors import CheckpointError, NonFiniteLossError
from raylab.core.files import Place
from tests.arc.conftest import batch_of, make_tasks, small_model
from tests.arc.tasks import grid, pair

CONFIG = EncoderDecoderConfig(d_model=16, d_ff=24, heads=2, encoder_layers=1, decoder_layers=1)
BRIEF = TaskTrainingConfig(steps=3, lr=0.01, augmentations=2, batch_size=4)


def train(model: GridModel, task: Task, training: TaskTrainingConfig = BRIEF) -> int:
    votes, cpu = VotesConfig(colours=False, symmetries=False), torch.device("cpu")
    return train_on_task(model, task, training, votes, demonstrations=0, device=cpu)


def trained(task: Task) -> tuple[GridModel, bytes]:
    model = small_model(CONFIG)
    assert train(model, task) == BRIEF.steps
    return model, specialist_file(model)


def same(one: GridModel, other: GridModel) -> bool:
    a, b = one.state_dict(), other.state_dict()
    return a.keys() == b.keys() and all(torch.allclose(a[name], b[name], atol=1e-6) for name in a)


@pytest.fixture
def task() -> Task:
    return make_tasks(1, longest_side=4)[0]


def test_a_specialist_is_loaded_again_and_read_no_output_of_a_question(task: Task, tmp_path: Path):
    altered = Task(task.id, task.demonstrations, (Pair(task.questions[0].input, grid("99/99")),))
    model, content = trained(task)
    assert same(model, trained(altered)[0])
    assert not same(model, small_model(CONFIG))
    (tmp_path / "task.pt").write_bytes(content)
    loaded = small_model(CONFIG)
    become_specialist(loaded, Place.at(tmp_path / "task.pt"))
    assert same(loaded, model)


def rows(grids: Grids, at: int) -> GridRows:
    height, width = grids.sizes[at].tolist()
    return as_rows(grids.cells[at, : height * width].view(height, width).numpy())


def test_each_demonstration_is_asked_for_of_the_others_in_the_same_view(
    monkeypatch: pytest.MonkeyPatch,
):
    (task,) = make_tasks(1, longest_side=4, questions=2)
    drawn: list[TrainingStep] = []

    def record(model: GridModel, step: TrainingStep, shape_weight: float) -> torch.Tensor:
        drawn.append(step)
        return step_loss(model, step, shape_weight)

    monkeypatch.setattr(answering, "step_loss", record)
    training, votes = BRIEF.model_copy(update={"augmentations": 8, "steps": 12}), VotesConfig()
    cpu = torch.device("cpu")
    train_on_task(small_model(CONFIG), task, training, votes, demonstrations=2, device=cpu)
    shown = task.demonstrations
    views = [
        {(as_rows(view.apply(p.input)), as_rows(view.apply(p.output))) for p in shown}
        for view in draw_views(task, 8, votes)
    ]
    asked = set[tuple[int, tuple[GridRows, GridRows]]]()
    for batch in (batch for step in drawn for batch in step.batches):
        for at, view in enumerate(batch.tasks.tolist()):
            query = rows(batch.source, at), rows(batch.target, at)
            others = [
                (rows(batch.demo_inputs, demo), rows(batch.demo_outputs, demo))
                for demo in batch.demo_index[at].tolist()
            ]
            assert {query, *others} <= views[view] and query not in others
            asked.add((view, query))
    assert len(asked) == 8 * len(shown)


def test_it_learns_the_task():
    flat = Task("flat", tuple(pair(source, "33") for source in ("00", "11", "22")))
    batch = batch_of(store_pairs([flat]), [0, 1, 2])
    before, after = small_model(CONFIG), small_model(CONFIG)
    train(after, flat, BRIEF.model_copy(update={"steps": 40}))
    with torch.no_grad():
        likelihoods = [
            float(model(batch).cells.log_softmax(-1)[..., 3].mean()) for model in (before, after)
        ]
    assert likelihoods[1] > likelihoods[0] + 1.0
    assert not after.training


def test_the_seconds_of_a_task_end_its_training(task: Task, monkeypatch: pytest.MonkeyPatch):
    clock = count()
    monkeypatch.setattr(answering, "time", SimpleNamespace(monotonic=lambda: next(clock)))

    def steps(**budget: float | None) -> int:
        return train(small_model(CONFIG), task, TaskTrainingConfig(augmentations=2, **budget))

    # A second a step: the eighth is the first that is over.
    assert steps(steps=None, seconds=7) == 8
    assert steps(steps=5, seconds=7) == 5
    with pytest.raises(ValidationError, match="set seconds"):
        TaskTrainingConfig(steps=None)


def test_a_specialist_of_another_model_is_refused(task: Task, tmp_path: Path):
    _, content = trained(task)
    (tmp_path / "task.pt").write_bytes(content)
    other = small_model(CONFIG.model_copy(update={"d_ff": 40}))
    with pytest.raises(CheckpointError, match="another model"):
        become_specialist(other, Place.at(tmp_path / "task.pt"))
    (tmp_path / "broken.pt").write_bytes(content[:-50])
    with pytest.raises(CheckpointError, match="broken"):
        become_specialist(small_model(CONFIG), Place.at(tmp_path / "broken.pt"))


def test_a_loss_that_is_not_finite_is_told(task: Task):
    with pytest.raises(NonFiniteLossError, match=f"task {task.id}.*lr"):
        train(small_model(CONFIG), task, BRIEF.model_copy(update={"steps": 20, "lr": 1e30}))
