"""The annotation job as a user runs it, against a chat server that fails in every way it can."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import psutil
import pytest

from raylab.core.files import Place
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.input.cases import read_cases
from raylab.label.protocol.run import find_annotation_run
from tests.conftest import KEY, KEY_VARIABLE, RunScript
from tests.label.archive.postgres import PostgresServer
from tests.label.protocol.outcomes import CODEBOOK
from tests.llm.scripted_server import server_process
from tests.log_lines import id_in, lines_of
from tests.object_storage import ObjectStorage, assert_no_secret

ROOT = Path(__file__).parents[2]
ROOTS = ("Lrn", "Evo", "Sym", "Prb", "Sch", "Ctl", "Swm")
SECONDS = 300
FAULTS = ("--fault-rate", "0.2", "--latency-ms", "20")

pytestmark = [pytest.mark.ray, pytest.mark.slow]


@dataclass(frozen=True)
class Store:
    """An archive's place, and what serves it."""

    location: str
    server: PostgresServer | None


@pytest.fixture(params=["sqlite", "postgresql"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Store:
    if request.param == "sqlite":
        return Store(str(tmp_path / "archive.db"), None)
    server: PostgresServer = request.getfixturevalue("postgres")
    return Store(server.create_database("annotation"), server)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    return tmp_path / "calls.jsonl"


def mark(number: int) -> str:
    """What the scripted models say of a case: all ends of the protocol come up."""
    gold, other = ROOTS[number % 7], ROOTS[(number + 3) % 7]
    match number % 10:
        case 6:
            said = f"a={gold};b={other};eval_a=90;eval_b=75;adj=a;eval_adj=90"
        case 7:
            said = f"a={gold};b={gold}+{other};eval_a=90;eval_b=88;adj=b;eval_adj=30"
        case 8:
            said = f"a={gold};b={other};eval_a=90;eval_b=40"
        case 9:
            said = f"a={other};b={other};eval_a=20;eval_b=20"
        case _:
            said = f"a={gold};b={gold};eval_a=92;eval_b=92"
    return f"[[gold={gold};{said}]]"


def write_cases(tmp_path: Path, count: int) -> Path:
    path = tmp_path / "systems.jsonl"
    rows = (
        {
            "id": f"case-{number}",
            "description": f"System number {number} does what it does. {mark(number)}",
            "gold": ROOTS[number % 7],
        }
        for number in range(count)
    )
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def arguments(tmp_path: Path, chat: str, store: Store, cases: Path) -> list[str]:
    endpoint = "llm.endpoints.default"
    return [
        "llm=openai",
        f"{endpoint}.base_url={chat}",
        f"{endpoint}.api_key_env=null",
        f"{endpoint}.limits.timeout=2.0",
        f"{endpoint}.limits.concurrency=64",
        "llm.annotators.0.model=scripted-a",
        "llm.annotators.1.model=scripted-b",
        "llm.evaluator.model=scripted-judge",
        "llm.adjudicator.model=scripted-chair",
        f"storage={tmp_path / 'runs'}",
        "name=run",
        f"archive='{store.location}'",
        f"cases.path={cases}",
    ]


def command(*order: str) -> list[str]:
    return [sys.executable, f"{ROOT}/jobs/annotate.py", *order]


def start(
    order: list[str], tmp_path: Path, environment: dict[str, str] | None = None
) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        command(*order), cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip


def finish(order: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    done = subprocess.run(
        command(*order), cwd=tmp_path, capture_output=True, text=True, timeout=SECONDS
    )
    assert "Traceback" not in done.stderr, done.stderr
    return done


def assert_complete(store: Store, tmp_path: Path, cases: int) -> Counter[str]:
    """Every case has its one row, ended in one of the four ways, and there is a report."""
    with Archive.open(store.location) as archive:
        rows = [current.case for current in archive.run("run").cases()]
        assert Counter(row.case for row in rows) == {f"case-{n}": 1 for n in range(cases)}
    for row in rows:
        reason, code = row.body["reason"], row.body["label"]
        assert (code is not None) == (row.status in ("accepted", "adjudicated"))
        assert bool(reason) == (row.status in ("human", "failed"))
    assert (tmp_path / "runs" / "run" / "report.json").exists()
    return Counter(row.status for row in rows)


def archived_calls(store: Store, cases: Path) -> int:
    """How many calls the archive has answers of."""
    descriptions = [case.description_hash for case in read_cases(str(cases), CODEBOOK)]
    with Archive.open(store.location) as archive:
        return len(archive.calls_of(descriptions))


def whole_answers(log: Path) -> Counter[str]:
    """How often each call was answered so that nothing was left but to read the reply."""
    lines = map(json.loads, log.read_text().splitlines())
    whole = {"", "prose", "broken_json", "wrong_roots", "unknown_root"}
    return Counter(
        line["hash"] for line in lines if line["event"] == "answered" and line["fault"] in whole
    )


def wait_for_cases(store: Store, count: int, driver: "subprocess.Popen[str] | None" = None) -> None:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        assert driver is None or driver.poll() is None, driver.communicate()[1]
        if Path(store.location).exists() or store.server is not None:
            with Archive.open(store.location) as archive:
                names = [run.name for run in archive.runs()]
                if "run" in names and sum(archive.run("run").counts().values()) >= count:
                    return
        time.sleep(0.1)
    raise AssertionError(f"fewer than {count} cases after {SECONDS} s")


def content(path: Path) -> bytes:
    # Ray and the archive's writer, which end at this time, remove some of their files.
    with contextlib.suppress(FileNotFoundError):
        return path.read_bytes()
    return b""


def actor_of(driver: "subprocess.Popen[str]", name: str) -> psutil.Process:
    family = psutil.Process(driver.pid).children(recursive=True)
    return next(process for process in family if f"ray::{name}" in " ".join(process.cmdline()))


def test_a_stopped_run_keeps_every_answer_and_ends_all_cases_whatever_the_server_does(
    tmp_path: Path, log: Path, monkeypatch: pytest.MonkeyPatch, run_script: RunScript
) -> None:
    cases, store = write_cases(tmp_path, 100), Store(str(tmp_path / "archive.db"), None)
    monkeypatch.setenv(KEY_VARIABLE, KEY)
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    # The path of Ray's sockets must be short.
    with (
        tempfile.TemporaryDirectory(dir="/tmp", ignore_cleanup_errors=True) as ray_files,
        server_process(*FAULTS, "--log", str(log), "--key-env", KEY_VARIABLE) as chat,
    ):
        # How `ray start` leaves word of a cluster; a job joins none that it was not given.
        word = Path(ray_files, "ray", "ray_current_cluster")
        word.parent.mkdir()
        word.write_text("127.0.0.1:9")
        with_key = f"llm.endpoints.default.api_key_env={KEY_VARIABLE}"
        order = [*arguments(tmp_path, chat, store, cases), with_key, "log=json"]
        driver = start(order, tmp_path, {**os.environ, "RAY_TMPDIR": ray_files})
        wait_for_cases(store, 20, driver)
        # Ctrl-C reaches all processes of the terminal.
        os.killpg(driver.pid, signal.SIGINT)
        output, errors = driver.communicate(timeout=SECONDS)
        assert driver.returncode == 130, errors
        assert "stopping" in output and "resume=true continues" in errors
        with Archive.open(store.location) as archive:
            assert 20 <= sum(archive.run("run").counts().values()) < 100
        assert archived_calls(store, cases) == len(whole_answers(log))
        done = run_script("annotate", *order, "actors=1", "resume=true")
        output, errors = output + done.stdout, errors + done.stderr
        written = [p for d in (tmp_path, Path(ray_files)) for p in d.rglob("*") if p.is_file()]
        assert any(path.suffix == ".log" for path in written)
        assert not [path for path in written if KEY.encode() in content(path)]
    statuses = assert_complete(store, tmp_path, 100)
    # Every tenth case each is made to end these ways; faults send some more to a person.
    assert statuses["accepted"] > 30 and statuses["adjudicated"] > 2 and statuses["human"] >= 30
    assert done.returncode == (1 if statuses["failed"] else 0), done.stderr
    printed = lines_of(output)
    assert any(line["message"].startswith("100/100 cases") for line in printed)
    # The estimate comes before there is a run.
    of_run = (line for line in printed if not line["message"].startswith("estimate"))
    ids = {line["run_id"] for line in (*of_run, *lines_of(errors))}
    assert ids == {id_in(tmp_path / "runs" / "run")}
    assert not [word for word in (KEY, "Traceback", "__ray_") if word in output + errors]
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    injected = {line["fault"] for line in lines if line["event"] == "answered"}
    assert {"429", "500", "timeout", "cut", "prose", "broken_json", "wrong_roots"} <= injected
    assert max(whole_answers(log).values()) == 1


@pytest.mark.fault
def test_kills_lose_nothing_and_pay_nothing_twice(tmp_path: Path, store: Store, log: Path) -> None:
    cases = write_cases(tmp_path, 1000)

    def kill_annotator() -> None:
        actor_of(driver, "Annotator").kill()

    def kill_archive() -> None:
        actor_of(driver, "RunWriter").kill()
        if store.server is not None:
            store.server.kill()
            store.server.start()

    def kill_driver() -> None:
        os.killpg(driver.pid, signal.SIGKILL)
        driver.communicate()

    with server_process(*FAULTS, "--log", str(log)) as chat:
        order = arguments(tmp_path, chat, store, cases)
        driver = start(order, tmp_path)
        paid: list[tuple[int, set[str], int]] = []
        for count, kill in ((100, kill_annotator), (300, kill_archive), (500, kill_driver)):
            wait_for_cases(store, count, driver)
            archived = archived_calls(store, cases)
            paid.append((archived, {*whole_answers(log)}, log.stat().st_size))
            kill()
        done = finish([*order, "resume=true"], tmp_path)
    statuses = assert_complete(store, tmp_path, 1000)
    assert done.returncode == (1 if statuses["failed"] else 0), done.stderr
    for archived, answered, offset in paid:
        assert archived > 100
        lines = map(json.loads, log.read_bytes()[offset:].splitlines())
        asked_again = answered & {line["hash"] for line in lines if line["event"] == "received"}
        # What the archive did not have yet was in flight.
        assert len(asked_again) <= len(answered) - archived
    assert "answers known" in done.stdout
    assert json.loads((tmp_path / "runs" / "run" / "record.json").read_text())["resumed"]


def test_the_embedded_model_gives_valid_codes(run_script: RunScript, tmp_path: Path) -> None:
    order = [f"storage={tmp_path}", "name=smoke", "cases.take=1", "actors=1"]
    done = run_script("annotate", *order, "export=label-studio")
    assert done.returncode == 0, done.stderr
    assert "no classifier" in done.stdout
    run = tmp_path / "smoke"
    (task,) = json.loads((run / "label-studio.json").read_text())
    assert "label-studio.xml" in done.stdout and (run / "label-studio.xml").is_file()
    config = find_annotation_run(str(tmp_path), "smoke", None)[1]
    for answer in task["predictions"]:
        (code,) = answer["result"][0]["value"]["text"]
        assert str(choose_codebook(config).read(code)) == code and 0 <= answer.get("score", 0) <= 1
    report = json.loads((run / "report.json").read_text())
    assert report["smoke"] and report["cases"]["total"] == 1
    assert "Which labels are confused" in (run / "report.html").read_text()


def test_an_annotation_keeps_its_archive_on_disk(
    s3: ObjectStorage, run_script: RunScript, tmp_path: Path, chat: str
) -> None:
    runs = Place.at(s3.uri) / "opt"
    cases = runs / "systems.jsonl"
    cases.write(write_cases(tmp_path, 20).read_bytes())
    store = Store(str(tmp_path / "archive.db"), None)
    order = [*arguments(tmp_path, chat, store, tmp_path), f"storage={runs}"]
    order += [f"cases.path={cases}", "actors=1"]
    refused = run_script("annotate", *order, "archive=null")
    assert refused.returncode == 2 and "give archive=" in refused.stderr
    assert not (runs / "run").exists()
    made = run_script("annotate", *order)
    assert made.returncode == 0 and "20/20 cases" in made.stdout, made.stderr
    again = run_script("annotate", *order, "resume=true", "export=parquet")
    assert again.returncode == 0, again.stderr
    report = json.loads((runs / "run/report.json").read())
    assert report["cases"]["total"] == 20
    assert {"cases.parquet", "report.html", "record.json", "scores"} <= set((runs / "run").names())
    assert_no_secret(s3, runs)
