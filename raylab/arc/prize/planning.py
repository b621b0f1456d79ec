"""The plan of a scoring as ARC Prize does: models or a submission, and the tasks to answer."""

from functools import lru_cache

from raylab.arc.data.sources import load_tasks
from raylab.arc.data.tasks import Task
from raylab.arc.prize.submissions import read_submission
from raylab.arc.prize.votes import TaskAnswers
from raylab.arc.scoring.files import Missing, without_file
from raylab.arc.scoring.plan import (
    CheckpointFile,
    ModelOnGeneration,
    ScorePlan,
    Scoring,
    generation_configs,
    opened,
    plan_evaluation,
)
from raylab.arc.scoring.units import (
    choose_units,
    part_seen,
    refuse_equal_file_names,
    scores_by_pair,
)
from raylab.arc.trained_models import file_name, find_models
from raylab.config.arc import DataConfig, VotesConfig
from raylab.config.base import AS_PUBLISHED
from raylab.config.jobs import EvaluateConfig
from raylab.errors import DataError, RunError
from raylab.files import Place
from raylab.runs.run import SCORES, Run

ANSWERS = "answers"
"""Directory of a run that holds `<model>/<generation>/<task>.json`."""
SPECIALISTS = "specialists"
"""Directory of a run that holds `<model>/<generation>/<task>.pt`."""


def plan_models(config: EvaluateConfig) -> Scoring:
    """Plans the models of `config` as `plan_evaluation` does.

    Raises:
        DataError: No task has a test input, two would have the same file, or as `plan_evaluation`.
        RunError: No specialists of a model are where they are to be read, or as `plan_evaluation`.
        CheckpointError, ConfigError: as `plan_evaluation`.
    """
    if not scores_by_pair(config.data, config.scoring):
        tasks = load_tasks(config.data, unanswered=True)
        refuse_equal_file_names(task.id for task in tasks)
        if not any(task.questions for task in tasks):
            raise DataError(
                f"no task of data.source={config.data.source} has a test input: score its pairs "
                "with scoring=pairs, or those that the model has not seen with data.split_by=pair"
            )
    _require_specialists(config)
    return plan_evaluation(config)


def _require_specialists(config: EvaluateConfig) -> None:
    training = config.scoring.test_time_training
    if training is None or training.specialists is None:
        return
    place = Place.at(training.specialists) / SPECIALISTS
    for model in find_models(config.models, config.storage):
        if not (place / model).files("**/*.pt"):
            raise RunError(
                f"{place} holds no specialist of model {model}, only of: "
                f"{', '.join(place.names()) or 'none'}. Name a run that kept those of this model "
                "in scoring.test_time_training.specialists, or leave it out and train them"
            )


def plan_submission(config: EvaluateConfig) -> tuple[Scoring, dict[str, TaskAnswers]]:
    """Reads the submission of `config` and plans its score, as a model of the name of its file.

    It is scored on the tasks as published, with one view.

    Raises:
        DataError: The submission or the tasks cannot be used.
        RunError: The run cannot be used, or is of another submission.
    """
    assert config.submission is not None
    file = Place.at(config.submission)
    run = Run.planned(config, config.job)
    answers = read_submission(file, load_tasks(config.data, unanswered=True))
    update = {"votes": VotesConfig(), "test_time_training": None}
    scoring = config.scoring.model_copy(update=update)
    plan = ScorePlan(
        models={file_name(file.stem): CheckpointFile.at(str(file))},
        generations=generation_configs((AS_PUBLISHED,), config.data),
        scoring=scoring,
        units=choose_units({}, config.data, scoring),
    )
    before = run.read_record(ScorePlan)
    if before not in (None, plan):
        raise RunError(f"{run} scores another submission or other tasks: choose another name=")
    return opened(Scoring(plan, run, SCORES, {}), config), answers


def challenges_of(data: DataConfig, seen: frozenset[int]) -> tuple[Task, ...]:
    """Returns the tasks of a generation as they are posed and solved.

    Where some of a task's pairs were seen, those are its demonstrations and all others its test
    pairs.

    Args:
        data: As `Scoring.data` returns it.
        seen: As in `Scoring`.

    Raises:
        DataError: The tasks cannot be used.
    """
    return _challenges(data.model_dump_json(), seen)


def answers_file(pair: ModelOnGeneration, task: str) -> str:
    """Returns the name of the answers to a task within the run."""
    return f"{ANSWERS}/{'/'.join(pair)}/{file_name(task)}.json"


def specialist_file(pair: ModelOnGeneration, task: str) -> str:
    """Returns the name of the specialist of a task within the run."""
    return f"{SPECIALISTS}/{'/'.join(pair)}/{file_name(task)}.pt"


def missing_tasks(scoring: Scoring) -> Missing:
    """Returns the tasks that have no answers yet.

    Raises:
        DataError: The run cannot be listed.
    """
    return without_file(scoring, ANSWERS, answers_file, sorted(scoring.plan.tasks))


@lru_cache(maxsize=1)
def _challenges(data: str, seen: frozenset[int]) -> tuple[Task, ...]:
    config = DataConfig.model_validate_json(data)
    return part_seen(load_tasks(config), seen) if seen else load_tasks(config, unanswered=True)
