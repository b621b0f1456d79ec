"""What holds of every page: it loads nothing, and shows foreign text as text."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pandas as pd
import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, sync_playwright

from raylab.arc.config.jobs import EvaluateConfig, TrainConfig
from raylab.arc.pages.prize import prize_page
from raylab.arc.pages.sweep import sweep_page
from raylab.arc.records import (
    AttemptScore,
    EvaluationMetrics,
    Example,
    PredictedGrid,
    PrizeScore,
    TrainedScore,
    VotesScore,
)
from raylab.arc.sweep import SweepMetrics, Trial
from raylab.benchmark.checks.diagnosis import diagnose
from raylab.benchmark.config import QualityConfig
from raylab.benchmark.pages.diagnosis import diagnosis_page
from raylab.benchmark.responses import make_responses
from raylab.core.page import page as content_of
from raylab.core.page.page import Section, render
from raylab.core.page.table import BEST, Cell, Column, Table
from raylab.core.runs.run_record import Checkout, RunRecord
from raylab.label.pages.annotation import annotation_page
from raylab.together.comparison import compare, comparison_page, find_runs
from raylab.together.config import PipelineConfig
from raylab.together.pipeline import pipeline_page
from tests.arc.measured import trained, training_metrics
from tests.benchmark.figures.qualities import figure, quality
from tests.core.page.pages import Page
from tests.core.runs.records import run_record
from tests.label.protocol.outcomes import outcome
from tests.pictures import CHROMIUM
from tests.together.runs import SPACE, content, every_kind, full_cases, left
from tests.together.test_pipeline_page import GROUP, example

HOSTILE = "<script>alert('x')</script>&\"$y$[/red]\x1b]0;t\x07\u202e\x00"
"""Text that a browser, a terminal or an XML parser would obey or refuse."""
MONITOR = "val_dense_grid_objective"


def record(**config: Any) -> RunRecord:
    git = Checkout(commit=HOSTILE, dirty=False)
    values = {"name": HOSTILE, **config}
    return run_record(name=HOSTILE, config=values, argv=(HOSTILE,), git=git, host=HOSTILE)


def pipeline(_: Path) -> content_of.Page:
    tree = quality(
        figures={"novelty": figure(None, reason=HOSTILE)},
        warnings=(HOSTILE,),
        models={HOSTILE: 0.5},
        generations={HOSTILE: {HOSTILE: 0.5}},
        priors={HOSTILE: {HOSTILE: 0.5}},
    )
    return pipeline_page(
        HOSTILE,
        record(),
        PipelineConfig(),
        {HOSTILE: training_metrics(groups={HOSTILE: GROUP})},
        {},
        tree=HOSTILE,
        quality=tree,
        examples=[example(HOSTILE, [[1]], {HOSTILE: [[1]]})],
        baselines={HOSTILE: {HOSTILE: 0.5}},
    )


def annotation(_: Path) -> content_of.Page:
    cases = [outcome(HOSTILE, "Evo", "Ctl", gold="Evo", reason=HOSTILE)]
    report = content(cases)
    full = full_cases(report, cases, description=HOSTILE)
    return annotation_page(HOSTILE, record(), report, full)


def sweep(_: Path) -> content_of.Page:
    trials = (
        Trial(trial=HOSTILE, drawn=None, trained=trained(0.5), failure=None),
        Trial(trial="b", drawn=None, trained=None, failure=HOSTILE),
    )
    history, metrics = {HOSTILE: [{"epoch": 1, MONITOR: 0.5}]}, SweepMetrics(trials=trials)
    return sweep_page(HOSTILE, record(space=SPACE), metrics, history, MONITOR, HOSTILE)


def prize(storage: Path) -> content_of.Page:
    run = left(EvaluateConfig(storage=str(storage), name="prize", models=("m",)))
    score = PrizeScore(
        first_attempt=0.25,
        two_attempts=0.5,
        tasks=2,
        outputs=3,
        errors=AttemptScore(first_attempt=0.1, two_attempts=0.2),
        curve=tuple(VotesScore(views=n, first_attempt=0.1, two_attempts=0.2) for n in (1, 2)),
        seconds=1.5,
        sizes_by_rule=0.75,
        trained=TrainedScore(
            before=AttemptScore(first_attempt=0.0, two_attempts=0.25), steps=8, seconds=2
        ),
    )
    metrics = EvaluationMetrics(metric="solve_rate", models={}, prize={HOSTILE: {HOSTILE: score}})
    return prize_page(run, metrics, [attempt(HOSTILE, HOSTILE)])


def diagnosis(storage: Path) -> content_of.Page:
    run = left(QualityConfig(storage=str(storage), name="measured"))
    solved = np.random.default_rng(0).integers(2, size=(13, 40))
    rows = [
        (f"model-{model:02}", item, float(solved[model, place]) * (place > 0), HOSTILE)
        for model in range(13)
        for place, item in enumerate([HOSTILE, *(f"item-{n}" for n in range(1, 40))])
    ]
    table = pd.DataFrame(rows, columns=["model", "item", "score", "answer"])
    # All models give another answer than the key, so the item is suspect.
    about = {"text": HOSTILE, "target": "key", "choices": 4.0}
    items = pd.DataFrame(about, index=[HOSTILE])
    logs = pd.DataFrame({"model": ["model-00", "model-01"], "sampled": True, "cost": [1.0, 2.0]})
    logs = logs.assign(tokens=1.0, seconds=float("nan"))
    responses = make_responses(table, items, logs, left_out={HOSTILE: 1})
    # The second form loses what the hostile item has.
    second = make_responses(table.assign(score=table["score"] * (table["item"] != "item-1")))
    return diagnosis_page(run, diagnose(responses, form=second).diagnosis, quality())


def attempt(task: str, *models: str) -> Example:
    wrong = PredictedGrid(grid=((1,),), solved=False)
    predictions = {f"{model}, attempt {place}": wrong for model in models for place in (1, 2)}
    return Example(task=task, input=((0,),), target=((2,),), predictions=predictions)


def comparison(storage: Path) -> content_of.Page:
    names = every_kind(storage, content())
    for name in ("a", "b"):
        config = TrainConfig.model_validate({"storage": str(storage), "name": name})
        run = left(config, training_metrics())
        changed = {**run.record.config, "init_from": f"{name}{HOSTILE}"}
        run.write_record(run.record.model_copy(update={"config": changed, "host": HOSTILE}))
    runs = find_runs([*names, "a", "b"], str(storage))
    return comparison_page(HOSTILE, HOSTILE, compare(runs))


PAGES = (pipeline, annotation, sweep, prize, comparison, diagnosis)


@pytest.fixture(params=PAGES, ids=lambda made: made.__name__, scope="module")
def html(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    made: Callable[[Path], content_of.Page] = request.param
    return render(made(tmp_path_factory.mktemp("runs")))


def test_foreign_text_is_escaped_and_printable(html: str):
    page = Page(html)
    assert not {"script", "img"} & set(page.tags)
    assert not {"\x1b", "\x07", "\u202e", "\x00"} & set(html)
    assert "<script>alert('x')</script>&\"$y$[/red]\\x1b]0;t\\x07\\u202e\\x00" in page.text


@pytest.mark.parametrize(("tasks", "best"), [(89, 8), (419, 1)])
def test_every_task_is_pictured_with_the_models_for_which_there_is_room(
    tmp_path: Path, tasks: int, best: int
):
    run = left(EvaluateConfig(storage=str(tmp_path), name="prize", models=("m",)))
    names = [f"model-{number:02}" for number in range(10)]
    scores = {
        name: {"published": PrizeScore(first_attempt=0.0, two_attempts=at / 10, tasks=1, outputs=1)}
        for at, name in enumerate(names)
    }
    metrics = EvaluationMetrics(metric="two_attempts", models={}, prize=scores)
    ids = [f"{number:08}" for number in range(tasks)]
    html = render(prize_page(run, metrics, [attempt(task, *names) for task in ids]))
    assert re.findall(r"<title>input of task (\d+),", html) == ids
    pictured = re.findall(r"<title>prediction of (model-\d+), attempt", html)
    # Two attempts each, at 89 tasks of the eight best models and at 419 of the best one.
    assert len(pictured) == 2 * best * tasks and {*pictured} == {*names[10 - best :]}


def test_the_scores_of_prize_pages_have_errors_and_what_training_changed(tmp_path: Path):
    page = Page(render(prize(tmp_path)))
    row = next(row for row in page.rows if row[2:4] == ["2", "3"])
    before = ["0.00 %", "25.00 %", "8", "2.0", "75.00 %", "1.50"]
    assert row[4:] == ["25.00 % ± 10.00", "50.00 % ± 20.00", *before]
    assert "Without training on the demonstrations it scores 25.00 %." in page.text


def test_nothing_is_loaded_and_every_link_finds_its_place(html: str):
    page = Page(html)
    assert page.loads == ["data:,"]
    assert len(page.ids) == len(set(page.ids))
    assert {target.removeprefix("#") for target in page.targets} <= set(page.ids)
    assert set(re.findall(r"https?://[^\"' ]*", html)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
    }
    assert "@import" not in html and "default-src 'none'" in html
    assert set(re.findall(r"url\(#?([^)]*)", html)) <= set(page.ids)


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.mark.slow
@pytest.mark.skipif(not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_nothing_keeps_people_out_and_all_fits_the_window(
    html: str, browser: Browser, scheme: Literal["light", "dark"]
):
    page = browser.new_page(color_scheme=scheme)
    page.set_content(html)
    for width in (400, 800, 1280):
        page.set_viewport_size({"width": width, "height": 800})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
    result = Axe().run(page, options={"runOnly": ["wcag2a", "wcag2aa", "best-practice"]})
    assert result.violations_count == 0, result.generate_report()
    page.close()


def test_a_table_has_shades_and_intervals_as_drawn():
    rows = [["a", Cell("0.25", "0.1 to 0.5", BEST, shade=0.5, bar=(0.1, 0.25, 0.5)), "x", "y"]]
    columns = ["", "figure", Column("why", text=True), Column("words", text=True, page_only=True)]
    table = Table("T", columns, rows, "Set `n=1`.")
    html = render(content_of.Page("test", "t", "/t", ["Lead."], [Section("s", "S", [table])]))
    assert ["a", "0.25 0.1 to 0.5", "x", "y"] in Page(html).rows
    assert '<td style="--shade: 25%"><span class="best">0.25</span>' in html
    assert 'style="--low: 10.0%; --at: 25.0%; --high: 50.0%"' in html
    assert "Set <code>n=1</code>." in html
