"""Annotation on a local Ray against a scripted chat server: budgets, errors, losses, figures."""

import asyncio
import json
import os
import signal
from pathlib import Path

import pytest

from raylab.core.config.compose import load_config
from raylab.core.entrypoint import run_job
from raylab.core.errors import (
    ArchiveError,
    BudgetError,
    ConfigError,
    LlmError,
    OwnerError,
    RunError,
)
from raylab.core.runs.run import Run
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.codebook import EXAMPLES
from raylab.label.config.jobs import AnnotateConfig, ReviewConfig
from raylab.label.on_ray.annotate import run_annotate
from raylab.label.on_ray.driver import Annotator, Pool, Work
from raylab.label.pages.drift import report_drift
from raylab.label.pages.progress import AnnotationProgress
from raylab.label.protocol.run import find_annotation_run
from raylab.label.protocol.worker import Chunk, Tally
from raylab.label.review.reviews import DecisionForm
from raylab.label.review.server import open_reviews
from raylab.llm.limits import Share
from raylab.together.frames import cases
from tests.label.archive.rows import execute
from tests.label.review.office import NEITHER
from tests.llm.scripted_server import server_process
from tests.log_lines import id_in, lines_of

pytestmark = [pytest.mark.ray, pytest.mark.usefixtures("ray_cluster")]

MODELS = {
    "annotators.0": "m-a",
    "annotators.1": "m-b",
    "evaluator": "judge",
    "adjudicator": "chair",
}
ENDPOINT = "llm.endpoints.default"
AGREED = "[[gold=Lrn;a=Lrn;b=Lrn;eval_a=92;eval_b=92]]"
REFUSED = "[[gold=Evo;a=Evo;b=Sch;eval_a=90;eval_b=40]]"


def overrides(tmp_path: Path, url: str, *more: str) -> list[str]:
    return [
        "llm=openai",
        f"{ENDPOINT}.base_url={url}",
        f"{ENDPOINT}.api_key_env=null",
        f"storage={tmp_path}",
        "name=run",
        "actors=1",
        *(f"llm.{role}.model={model}" for role, model in MODELS.items()),
        *more,
    ]


def config(tmp_path: Path, url: str, *more: str) -> AnnotateConfig:
    return load_config(AnnotateConfig, overrides(tmp_path, url, *more))


def write_cases(path: Path, *marks: str) -> Path:
    rows = [{"id": f"c{n}", "description": f"System {n} {mark}"} for n, mark in enumerate(marks)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def statuses(tmp_path: Path, archive: str = "archive.db") -> dict[str, int]:
    with Archive.open(tmp_path / archive, create=False) as opened:
        return opened.run("run").counts()


def test_codebooks_of_files_share_an_archive_and_are_not_mixed_up(
    tmp_path: Path, chat: str
) -> None:
    *_, last = EXAMPLES
    for name in EXAMPLES:
        for run in (name, *([f"{name}-again"] if name == last else [])):
            run_annotate(config(tmp_path, chat, f"codebook={name}", f"name={run}", "fresh=true"))
            report = json.loads((tmp_path / run / "report.json").read_text())
            assert report["cases"]["total"] == report["cases"]["with_gold"] >= 20
            assert 0.3 < report["agreement"]["exact"]["value"] < 1
            assert report["distance"].startswith(name)
            assert (tmp_path / run / "report.html").stat().st_size > 10_000
        rows = cases(str(tmp_path / name))
        read = choose_codebook(find_annotation_run(str(tmp_path), name, None)[1]).read
        assert all(str(read(code)) == code for code in (*rows.code_a, *rows.code_b))
        assert {*rows.status} <= {"accepted", "adjudicated"} and len(rows) >= 20
    report_drift(str(tmp_path), None)
    drift = json.loads((tmp_path / "drift.json").read_text())
    pairs = {(row["before"], row["after"]) for row in drift["comparisons"]}
    assert pairs == {(last, f"{last}-again")} and len(drift["runs"]) == len(EXAMPLES) + 1


def test_a_spent_budget_stops_the_run_and_a_larger_one_and_new_cases_go_on(
    tmp_path: Path, chat: str
) -> None:
    def annotate(count: int, *more: str) -> None:
        cases = write_cases(tmp_path / "cases.jsonl", *[AGREED] * count)
        run_annotate(config(tmp_path, chat, f"cases.path={cases}", *more))

    lab = tmp_path / "lab.db"
    with pytest.raises(BudgetError, match=r"llm\.budget\.tokens and resume=true"):
        annotate(12, "llm.budget.tokens=30000", "actors=2", f"archive={lab}")
    assert sum(statuses(tmp_path, "lab.db").values()) < 12
    with Archive.open(lab) as archive:
        spent = archive.run("run").cost()
        assert 0 < (spent.billed + spent.uncertain).tokens <= 30000
        with archive.run("run").own(), pytest.raises(OwnerError, match="wait until that ends"):
            annotate(12, "llm.budget.tokens=1000000", "resume=true")
    run = Run.at(tmp_path / "run")
    # With new cases when it is finished too; its archive is its own.
    for count in (12, 13):
        annotate(count, "llm.budget.tokens=1000000", "resume=true")
        assert statuses(tmp_path, "lab.db") == {"accepted": count}
        report = json.loads((run / "report.json").read())
        note = run.record.archive
        assert note is not None
        assert (run.is_finished, report["cases"]["total"], note.cases) == (True, count, count)
    assert not (tmp_path / "archive.db").exists()


def test_a_key_that_a_worker_does_not_have_stops_the_run(
    tmp_path: Path, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ray.get_actor", lambda name: None)
    keyed = config(tmp_path, chat, f"{ENDPOINT}.api_key_env=RAYLAB_NO_SUCH_KEY")
    worker = Annotator(keyed, "run", "annotator-0", "writer", None, None, Share(0, 1))
    halt = asyncio.run(worker.annotate([])).halt
    assert isinstance(halt, ConfigError)
    assert "environment variable RAYLAB_NO_SUCH_KEY" in str(halt)


def test_an_archive_that_takes_no_answers_stops_the_run(tmp_path: Path, chat: str) -> None:
    cases = write_cases(tmp_path / "cases.jsonl", *[AGREED] * 12)
    location = tmp_path / "archive.db"
    Archive.open(location).close()
    refusal = "BEGIN SELECT RAISE(ABORT, 'no room'); END"
    execute(str(location), f"CREATE TRIGGER full BEFORE INSERT ON calls {refusal}")
    with pytest.raises(
        ArchiveError, match=r"(?s)\A[^\n]+archive\.db cannot be used \(no room\)[^\n]+\Z"
    ):
        run_annotate(config(tmp_path, chat, f"cases.path={cases}"))
    assert statuses(tmp_path) == {}


def test_a_case_whose_process_dies_each_time_stays_open(
    tmp_path: Path, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Mortal(Annotator):
        async def annotate(self, chunk: Chunk) -> Tally:
            os._exit(1)

    monkeypatch.setattr("raylab.label.on_ray.driver.Annotator", Mortal)
    monkeypatch.setattr("raylab.label.on_ray.driver.RETRIES", 1)
    cases = write_cases(tmp_path / "cases.jsonl", AGREED)
    with pytest.raises(LlmError, match=r"^1 case is open, first c0: its process died 2 times: "):
        run_annotate(config(tmp_path, chat, f"cases.path={cases}"))
    assert statuses(tmp_path) == {}


def test_a_stopped_run_does_not_wait_for_actors_that_have_not_started(
    tmp_path: Path, chat: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def submit(pool: Pool, work: Work) -> None:
        submit_work(pool, work)
        os.kill(os.getpid(), signal.SIGINT)

    submit_work = Pool._submit
    monkeypatch.setattr(Pool, "_submit", submit)
    monkeypatch.setattr("raylab.label.on_ray.driver.CPUS_OF_AN_ACTOR", 1000.0)
    cases = write_cases(tmp_path / "cases.jsonl", AGREED)
    with pytest.raises(KeyboardInterrupt):
        run_annotate(config(tmp_path, chat, f"cases.path={cases}"))
    assert statuses(tmp_path) == {}


def test_calls_are_shown_while_their_case_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[tuple[int, int]]()

    def show(progress: AnnotationProgress, every: float = 0.0) -> None:
        seen.append((progress.figures()["done"], progress.tally.sent))

    monkeypatch.setattr(AnnotationProgress, "show", show)
    cases = write_cases(tmp_path / "cases.jsonl", AGREED)
    with server_process("--latency-ms", "2500") as url:
        run_annotate(config(tmp_path, url, f"cases.path={cases}"))
    assert (0, 2) in seen and seen[-1] == (1, 4)


def test_the_job_tells_in_json_what_the_actors_count(
    tmp_path: Path, chat: str, capsys: pytest.CaptureFixture[str]
) -> None:
    cases = write_cases(tmp_path / "cases.jsonl", AGREED, AGREED)
    run_annotate(config(tmp_path, chat, f"cases.path={cases}"))
    capsys.readouterr()
    # These two were classified before, and their calls are not sent again.
    write_cases(cases, *[AGREED] * 3, REFUSED)
    price = "llm.prices={m-a:{input:1000,output:1000},judge:{input:0,output:2000}}"
    more = [f"cases.path={cases}", price, "name=counted", "log=json"]
    with pytest.raises(SystemExit) as ended:
        run_job(AnnotateConfig, None, run_annotate, overrides(tmp_path, chat, *more))
    assert ended.value.code == 0
    out, err = capsys.readouterr()
    run = tmp_path / "counted"
    estimate, *lines = lines_of(out)
    assert err == "" and estimate["message"].startswith("estimate") and estimate["run"] is None
    assert {(line["run"], line["run_id"]) for line in lines} == {("counted", id_in(run))}
    (progress,) = (line for line in lines if line["message"].startswith("4/4 cases"))
    counted = json.loads((run / "report.json").read_text())
    usage = counted["usage"]["total"]
    assert (progress["done"], progress["total"]) == (4, 4)
    assert progress["answered"] == usage["cached"] > 0
    assert progress["cases"] == {"accepted": 3, "adjudicated": 0, "human": 1, "failed": 0}
    assert progress["cost"] == pytest.approx(usage["priced"])
    with Archive.open(tmp_path / "archive.db") as archive:
        assert archive.run("counted").row().uid == id_in(run)
    logs = [json.loads(path.read_text()) for path in (run / "scores").rglob("*.json")]
    assert {log["eval"]["run_id"] for log in logs} <= {id_in(run)}


def decided(tmp_path: Path) -> list[tuple[str, str]]:
    with Archive.open(tmp_path / "archive.db", create=False) as archive:
        return [(row.case, row.status) for row in archive.run("run").decisions()]


@pytest.mark.slow
def test_the_next_run_has_decisions_judged_by_the_models_of_its_own_command(
    tmp_path: Path, chat: str
) -> None:
    path = write_cases(tmp_path / "cases.jsonl", REFUSED, NEITHER, AGREED)
    more = (f"cases.path={path}", "resume=true")
    run_annotate(config(tmp_path, chat, *more))
    assert decided(tmp_path) == []
    review = load_config(ReviewConfig, [f"storage={tmp_path}", "name=run"])
    with open_reviews(review) as (reviews, *_):
        places = {case.case: case.sequence for case in reviews.entries(reviews.reasons())}
        reviews.submit(places["c0"], "Ada", DecisionForm(choice="A", justification="It breeds."))
        reviews.submit(places["c1"], "Ada", DecisionForm(choice="B", justification="It learns."))
    # Where record and command name different endpoints, nothing is sent to either.
    with pytest.raises(RunError, match="another configuration"):
        run_annotate(config(tmp_path, "http://127.0.0.1:9/v1", *more))
    assert decided(tmp_path) == [("c0", "unconfirmed"), ("c1", "unconfirmed")]
    run_annotate(config(tmp_path, chat, *more))
    assert decided(tmp_path) == [("c0", "accepted"), ("c1", "human")]
