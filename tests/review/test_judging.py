"""Decisions that wait while the evaluator is asked in the background."""

from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from threading import Barrier

import pytest

from raylab.annotation.human.judge import Judge
from raylab.annotation.outcome import read_decision
from raylab.archive.store import Archive
from raylab.config.jobs import AnnotateConfig
from raylab.errors import ArchiveError
from raylab.llm.limits import RateLimiter
from tests.annotation.outcomes import CODEBOOK
from tests.review.evaluators import HeldEvaluator, held_evaluator, wait_until
from tests.review.office import Office
from tests.review.runs import ENDPOINT, ONE, annotation, make_run

FILLED = {"choice": "A", "justification": "It breeds."}
MANY = 45


@pytest.fixture(scope="module")
def many(chat: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    storage = tmp_path_factory.mktemp("many")
    make_run(annotation(storage, chat), {f"c{n}": f"System {n}. {ONE}" for n in range(MANY)})
    return storage


@pytest.fixture
def evaluator() -> Generator[HeldEvaluator]:
    with held_evaluator() as evaluator:
        yield evaluator


@pytest.fixture
def held(storage: Path, evaluator: HeldEvaluator) -> AnnotateConfig:
    return annotation(storage, evaluator.url, "protocol.seed=5")


def settled(office: Office) -> Callable[[], bool]:
    return lambda: not office.archive.run("systems").pending().all()


def test_the_page_answers_while_the_evaluator_does_not(
    many: Path, evaluator: HeldEvaluator
) -> None:
    config = annotation(many, evaluator.url, f"{ENDPOINT}.limits.concurrency=4")
    with Archive.open(many / "archive.db", create=False) as archive:
        office = Office(archive, config)
        reviews = office.reviews()
        browser = office.browser("Ada", reviews)
        with reviews.judge.at_work():
            for case in range(1, MANY + 1):
                assert browser.post(f"/cases/{case}/decide", **FILLED).status_code == 303
            evaluator.wait_for(4)
            for path in ("/static/review.js", "/", "/cases/1", "/decided", "/sent"):
                assert browser.get(path).status_code == 200
            browser.get("/decided")
            assert browser.page.within["sent"].count("waits for the evaluator") == MANY
            assert len(evaluator.calls) == 4 and list(archive.run("systems").decisions()) == []
            evaluator.release()
            wait_until(settled(office))
        assert len(evaluator.calls) == len(set(evaluator.calls)) == MANY
        assert evaluator.most_in_flight == 4
        made = [read_decision(row.body, CODEBOOK) for row in archive.run("systems").decisions()]
        assert len(made) == MANY and all(one.confirmation for one in made)


def test_four_submissions_of_one_decision_at_once_are_one_call(
    office: Office, held: AnnotateConfig, evaluator: HeldEvaluator
) -> None:
    reviews = office.reviews(held)
    browsers = [office.browser("Ada", reviews) for _ in range(4)]
    together = Barrier(4)

    def submit(number: int) -> int:
        together.wait()
        return browsers[number].post("/cases/1/decide", **FILLED).status_code

    with reviews.judge.at_work():
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(submit, range(4))) == [303] * 4
        evaluator.wait_for(1)
        evaluator.release()
        wait_until(settled(office))
    assert len(evaluator.calls) == 1
    assert len(list(office.archive.run("systems").decisions())) == 1


def test_pages_that_serve_one_run_judge_each_decision_once(
    office: Office, held: AnnotateConfig, evaluator: HeldEvaluator
) -> None:
    pages = [office.reviews(held) for _ in range(2)]
    with ExitStack() as stack:
        for page in pages:
            stack.enter_context(page.judge.at_work())
        for case in range(1, 6):
            browser = office.browser("Ada", pages[case % 2])
            filled = {"choice": "own", "code": "Evo", "justification": "so"}
            assert browser.post(f"/cases/{case}/decide", **filled).status_code == 303
        evaluator.wait_for(1)
        evaluator.release()
        wait_until(settled(office))
    assert len(evaluator.calls) == 5 and len(list(office.archive.run("systems").decisions())) == 5


def test_a_page_that_is_started_again_goes_on_with_what_waits(
    office: Office,
    held: AnnotateConfig,
    evaluator: HeldEvaluator,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("raylab.annotation.human.judge.SECONDS_TO_END", 0.0)
    first = office.reviews(held)
    office.browser("Ada", first).post("/cases/1/decide", **FILLED)
    with first.judge.at_work():
        evaluator.wait_for(1)
    (waits,) = office.archive.run("systems").pending().all()
    assert (waits.tries, waits.problem) == (0, "")
    evaluator.release()
    with office.reviews(held).judge.at_work():
        wait_until(settled(office))
    assert len(list(office.archive.run("systems").decisions())) == 1


def test_a_judge_that_ends_archives_what_is_answered_in_time(
    office: Office, held: AnnotateConfig, evaluator: HeldEvaluator
) -> None:
    reviews = office.reviews(held)
    office.browser("Ada", reviews).post("/cases/1/decide", **FILLED)
    with reviews.judge.at_work():
        evaluator.wait_for(1)
        evaluator.release()
    assert settled(office)()


def test_a_decision_that_is_cancelled_while_the_evaluator_reads_is_not_archived(
    office: Office, held: AnnotateConfig, evaluator: HeldEvaluator
) -> None:
    reviews = office.reviews(held)
    browser = office.browser("Ada", reviews)
    browser.post("/cases/1/decide", **FILLED)
    with reviews.judge.at_work():
        evaluator.wait_for(1)
        assert browser.post("/cases/1/cancel").status_code == 303
        evaluator.release()
    run = office.archive.run("systems")
    assert list(run.decisions()) == [] and run.waiting() == [1, 2, 3, 4, 5]
    # What was answered is not asked again.
    browser.post("/cases/1/decide", **FILLED)
    reviews.judge.look()
    assert len(list(run.decisions())) == len(evaluator.calls) == 1


def test_decisions_wait_while_another_process_works_on_the_run(office: Office) -> None:
    reviews, run = office.reviews(), office.archive.run("systems")
    browser = office.browser("Ada", reviews)
    browser.post("/cases/1/decide", **FILLED)
    with run.own():
        reviews.judge.look()
        browser.get("/")
        told = browser.page.within["sent"]
        assert "Not judged yet: run systems" in told and "is worked on by" in told
        assert len(run.pending().all()) == 1 and "wait=true" not in told
    reviews.judge.look()
    assert [row.case for row in run.decisions()] == ["pool"] and reviews.judge.obstacle == ""


def test_a_page_on_which_nothing_waits_leaves_the_run_to_others(office: Office) -> None:
    reviews, run = office.reviews(), office.archive.run("systems")
    with reviews.judge.at_work():
        office.browser("Ada", reviews).post("/cases/1/decide", **FILLED)
        wait_until(settled(office))
        with run.own(wait=True):
            pass


def test_what_one_decision_fails_at_keeps_no_other_waiting(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    browser, run = office.browser("Ada"), office.archive.run("systems")
    for case in (1, 2):
        browser.post(
            f"/cases/{case}/decide", choice="own", code="Evo", justification=f"This is case {case}."
        )
    real = read_decision

    def read(body: dict[str, str], codebook: object) -> object:
        if body["justification"] == "This is case 1.":
            raise RuntimeError("a bug")
        return real(body, CODEBOOK)

    monkeypatch.setattr("raylab.annotation.human.judge.read_decision", read)
    office.judge()
    (waits,) = run.pending().all()
    assert (waits.sequence, waits.tries, waits.problem) == (1, 1, "RuntimeError: a bug")
    assert [row.case for row in run.decisions()] == ["valve/hybrid"]
    assert "could not be judged" in caplog.text


def test_an_archive_that_fails_for_a_moment_loses_no_decision(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    reviews, run = office.reviews(), office.archive.run("systems")
    office.browser("Ada", reviews).post("/cases/1/decide", **FILLED)

    def fail(*_: object) -> None:
        raise ArchiveError("the disk is full: make room")

    with monkeypatch.context() as patch:
        patch.setattr("raylab.archive.review.pending.PendingDecisions.all", fail)
        reviews.judge.look()
        assert reviews.judge.obstacle == "the disk is full: make room"
    with monkeypatch.context() as patch:
        patch.setattr("raylab.archive.run.RunArchive.add_decision", fail)
        patch.setattr("raylab.archive.review.pending.PendingDecisions.postpone", fail)
        reviews.judge.look()
    assert len(run.pending().all()) == 1
    reviews.judge.look()
    assert settled(office)() and len(list(run.decisions())) == 1 and reviews.judge.obstacle == ""


def test_a_judge_outlives_a_mistake_of_its_own(
    office: Office, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    reviews = office.reviews()
    with monkeypatch.context() as patch:
        patch.setattr(Judge, "_due", lambda _: 1 / 0)
        office.browser("Ada", reviews).post("/cases/1/decide", **FILLED)
        reviews.judge.look()
    assert "ZeroDivisionError" in reviews.judge.obstacle and "the judge failed" in caplog.text
    reviews.judge.look()
    assert settled(office)()


def test_decisions_of_one_page_share_budget_and_limits(
    office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = office.archive.run("systems")
    spent = run.cost()
    tokens = (spent.billed + spent.uncertain).tokens
    budget = office.config.llm.budget.model_copy(update={"tokens": tokens + 5000})
    limited = office.config.llm.endpoints["default"].limits.model_copy(
        update={"requests_per_minute": 1}
    )
    endpoint = office.config.llm.endpoints["default"].model_copy(update={"limits": limited})
    llm = office.config.llm.model_copy(
        update={"budget": budget, "endpoints": {"default": endpoint}}
    )
    reviews = office.reviews(office.config.model_copy(update={"llm": llm}))
    browser = office.browser("Ada", reviews)
    browser.post("/cases/1/decide", **FILLED)
    reviews.judge.look()
    assert [row.case for row in run.decisions()] == ["pool"]
    # The minute's one call has been made: the next decision waits for the next minute.
    filled = {"choice": "own", "code": "Ctl", "justification": "so"}
    browser.post("/cases/2/decide", **filled)
    granted: list[bool] = []
    reserve = RateLimiter.reserve

    def noted(limiter: RateLimiter, endpoint: str, tokens: int) -> float:
        wait = reserve(limiter, endpoint, tokens)
        granted.append(wait == 0)
        return wait

    with monkeypatch.context() as patch, reviews.judge.at_work():
        patch.setattr(RateLimiter, "reserve", noted)
        reviews.judge.wake()
        wait_until(lambda: granted)
    assert granted == [False] and len(run.pending().all()) == 1
    used_up = llm.model_copy(update={"budget": budget.model_copy(update={"tokens": tokens + 1})})
    office.judge(office.config.model_copy(update={"llm": used_up}))
    (waits,) = run.pending().all()
    assert "the budget is used up" in waits.problem
