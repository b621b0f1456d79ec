"""Scoring as ARC Prize does, by `Workers`.

Tasks are answered first, in a file each, and then scored. No task is answered twice.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import partial

from raylab.arc.config.jobs import EvaluateConfig
from raylab.arc.config.sections import VotesConfig
from raylab.arc.data.sources import load_tasks
from raylab.arc.evaluation.scores import run_calls
from raylab.arc.pages.prize import prize_page
from raylab.arc.prize.answering import QUERIES, Exam, Solved, solve
from raylab.arc.prize.pictures import picture_attempts
from raylab.arc.prize.scores import (
    prize_score,
    rule_scores,
    score_answers,
    solutions_of,
    unit_scores,
)
from raylab.arc.prize.submissions import SUBMISSION, read_submission, submission_bytes
from raylab.arc.prize.votes import ATTEMPTS, TaskAnswers
from raylab.arc.records import EvaluationMetrics, Example, PrizeScore
from raylab.arc.scoring.files import in_threads, missing_units, write_scores
from raylab.arc.scoring.plan import (
    SPECIALISTS,
    ModelOnGeneration,
    Scoring,
    open_run,
    plan_scoring,
    unit_file,
)
from raylab.arc.trained_models import file_name
from raylab.benchmark.run import diagnose_scores
from raylab.core.config.base import AS_PUBLISHED
from raylab.core.errors import RunError
from raylab.core.files import Place
from raylab.core.log import log_line
from raylab.core.page.page import PAGE, write_page
from raylab.core.page.table import print_tables
from raylab.core.printable import pluralize
from raylab.core.runs.run import Run
from raylab.core.workers import Workers

ANSWERS = "answers"
"""Directory of a run that holds `<model>/<generation>/<task>.json`."""
SUBMISSIONS = "submissions"
"""Directory of a run that holds `<model>/<generation>/submission.json`."""

PrizeScores = Mapping[str, Mapping[str, PrizeScore]]
"""Scores by model or rule, and generation."""
PairAnswers = Mapping[ModelOnGeneration, Mapping[str, TaskAnswers]]
"""Answers by pair of model and generation, and task."""


def run_submission(config: EvaluateConfig) -> None:
    """Scores the submission of `config` on the published tasks; its file names the model."""
    assert config.submission is not None
    file, run = Place.at(config.submission), Run.check(config)
    answers = read_submission(file, load_tasks(config.data, unanswered=True))
    update = {"votes": VotesConfig(), "test_time_training": None}
    scoring = config.scoring.model_copy(update=update)
    models = {file_name(file.stem): str(file)}
    planned = plan_scoring(models, (AS_PUBLISHED,), config.data, scoring, run, trained=False)
    planned = open_run(planned, config)
    _conclude(planned, dict.fromkeys(planned.plan.pairs, answers))


def run_prize(planned: Scoring, workers: Workers) -> None:
    """Answers the tasks that have no answer yet, then scores all."""
    scoring, tree = planned.plan.scoring, planned.tree

    def keep(pair: ModelOnGeneration, solved: Sequence[Solved]) -> str:
        def write(answers: TaskAnswers, specialist: bytes | None) -> None:
            # Written first, so that a task with answers has its specialist.
            if specialist is not None:
                (tree / unit_file(SPECIALISTS, pair, answers.task, "pt")).write(specialist)
            tree.write_record(answers, unit_file(ANSWERS, pair, answers.task))

        in_threads(write, *zip(*solved, strict=True))
        return f"{pluralize(len(solved), 'task')} answered"

    tasks = sorted(planned.plan.unit_of_task)
    missing = missing_units(planned, ANSWERS, tasks)
    exam = Exam(
        scoring,
        {
            generation: {
                task.id: task.without_outputs for task in planned.plan.tasks_in(generation)
            }
            for generation in dict.fromkeys(generation for _, generation in missing)
        },
    )
    together = max(1, QUERIES // max(scoring.votes.views, ATTEMPTS))
    size = 1 if scoring.test_time_training else together
    run_calls(planned, workers, missing, solve, exam, keep, size)

    def read(pair: ModelOnGeneration, task: str) -> TaskAnswers:
        name = unit_file(ANSWERS, pair, task)
        answers = tree.read_record(TaskAnswers, name)
        if answers is None:
            raise RunError(f"{tree / name} is missing: resume=true answers the task again")
        return answers

    answered = {
        pair: dict(zip(tasks, in_threads(partial(read, pair), tasks), strict=True))
        for pair in planned.plan.pairs
    }
    _conclude(planned, answered, workers)


def _conclude(planned: Scoring, answers: PairAnswers, workers: Workers | None = None) -> None:
    """Writes submissions, scores and page of a run whose tasks are all answered; finishes it.

    Generations without a known test output have submissions and no score.
    """
    run, plan, views = planned.tree, planned.plan, planned.plan.scoring.votes.views
    models: defaultdict[str, dict[str, PrizeScore]] = defaultdict(dict)
    rules: defaultdict[str, dict[str, PrizeScore]] = defaultdict(dict)
    pictures: list[Example] = []
    for (model, generation), own in answers.items():
        (run / SUBMISSIONS / model / generation / SUBMISSION).write(submission_bytes(own, views))
    for generation in plan.generations:
        tasks = plan.tasks_in(generation)
        solutions = solutions_of(tasks)
        outputs = [pair.is_answered for task in tasks for pair in task.questions]
        if unknown := outputs.count(False):
            log_line(f"{generation}: {unknown} of {len(outputs)} test outputs are not known")
        if not solutions:
            continue
        for model in plan.models:
            pair = model, generation
            models[model][generation] = prize_score(answers[pair], solutions, views)
            scores = score_answers(answers[pair], solutions, views)
            write_scores(planned, pair, unit_scores(scores, plan.unit_of_task))
        for rule, score in rule_scores(tasks, solutions).items():
            rules[rule][generation] = score
        # One generation has enough pictures to look at.
        pictures = pictures or picture_attempts(
            {model: answers[model, generation] for model in plan.models}, tasks, views
        )
    if models:
        diagnose_scores(run, planned.subdir, workers)
    _report(planned, dict(models), dict(rules), pictures)
    submissions = str(run / SUBMISSIONS)
    log_line(f"submissions {submissions}", uri=submissions)
    run.finish()


def _report(
    planned: Scoring, models: PrizeScores, rules: PrizeScores, pictures: Sequence[Example]
) -> None:
    """Writes and prints the scores of models and rules, with pictures of the attempts."""
    run, metric = planned.tree, planned.plan.scoring.metric

    def means(scored: PrizeScores) -> dict[str, dict[str, float]]:
        return {
            name: {generation: getattr(score, metric) for generation, score in scores.items()}
            for name, scores in scored.items()
        }

    metrics = EvaluationMetrics(
        metric=metric,
        models=means(models),
        rules=means(rules),
        by="pair" if planned.plan.by_pair else "task",
        prize=models,
        prize_rules=rules,
    )
    run.write_record(metrics)
    if not models:
        return
    page = prize_page(run, metrics, pictures)
    write_page(run, page)
    print_tables(*page.tables, **metrics.model_dump(include={"prize", "prize_rules"}))
    scores = str(run / planned.subdir)
    log_line(f"score tree {scores}\nreport {run / PAGE}", uri=scores, page=str(run / PAGE))
