"""What a finished annotation leaves, from an archive alone: no Ray, no model."""

import hashlib
import json
import shlex
from collections.abc import Iterable
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from inspect_ai.analysis import samples_df
from inspect_ai.log import read_eval_log

from raylab.benchmark.checks.diagnosis import Diagnosis
from raylab.benchmark.checks.suspects import Fault
from raylab.benchmark.pages.diagnosis import DIAGNOSIS_PAGE
from raylab.core.config.compose import load_config
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import identity_of
from raylab.label.archive.ledger import ClaimEnd
from raylab.label.archive.records import CaseRow
from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import choose_codebook
from raylab.label.config.jobs import AnnotateConfig, ReviewConfig
from raylab.label.judgement import AUDIT, Decision
from raylab.label.pages.annotation_run import write_results
from raylab.label.pages.drift import report_drift
from raylab.label.protocol.decisions import decision_row
from raylab.label.protocol.export import EXPORTERS
from raylab.label.protocol.outcome import Outcome, Status
from raylab.label.protocol.run import AnnotationRun
from raylab.label.statistics.drift import Drift
from raylab.label.statistics.report import AnnotationReport
from raylab.llm.chat import Claim, Cost
from raylab.llm.config import Budget
from raylab.together import frames
from tests.core.page.pages import Page
from tests.label.protocol.outcomes import answer, call, decision, outcome, report
from tests.together.runs import LLM

MODELS = [{**LLM["annotators"][0], "model": name} for name in "mn"]
THREE = [{**MODELS[0], "seed": seed} for seed in (1, 2, 3)]


def row(case: Outcome, description: str) -> CaseRow:
    description_hash = hashlib.sha256(description.encode(errors="surrogatepass")).hexdigest()
    body = case.model_copy(update={"description_hash": description_hash}).model_dump(mode="json")
    return CaseRow(case.case, description_hash, description, case.status.value, body)


def differing(case: str, a: str, b: str) -> CaseRow:
    differs = outcome(
        case, a, b, status=Status.HUMAN, path=("human:one-acceptable",), reason="only A",
        evaluation_b=report("WEAK_PASS", 80),
    )  # fmt: skip
    return row(differs, f"What {case} does.")


def answered(right: int) -> list[CaseRow]:
    """Ten cases, of which A has the first right, and fails on the others, and B all."""
    codes = ["Lrn"] * right + ["Sch"] * (10 - right)
    b = answer("Lrn", [call("classify-b", model="n")])
    verdicts = {"Lrn": report(), "Sch": report("FAIL", 20)}
    return [
        row(outcome(f"c{n}", a, b, gold="Lrn", evaluation_a=verdicts[a]), f"What c{n} does.")
        for n, a in enumerate(codes)
    ]


class Storage:
    """Runs of one storage and archive, whose cases are put there by hand."""

    def __init__(self, path: Path, archive: Archive) -> None:
        self.path, self.archive = path, archive
        self.protocol: dict[str, str] = {}
        self.llm: dict[str, Any] = {}
        self.review: dict[str, Any] = {}
        self.export: str | None = None

    def annotate(self, name: str, rows: Iterable[CaseRow]) -> Run:
        config = self.config(name)
        run = Run.open(config)
        self.archive.start_run(name, identity_of(config), {}, run.id)
        self.archive.run(name).add_cases(list(rows))
        run.finish()
        return run

    def write_results(self, run: Run) -> tuple[AnnotationReport, Page]:
        config = self.config(run.name)
        write_results(AnnotationRun(config, choose_codebook(config), run, self.archive))
        report = run.read_record(AnnotationReport)
        assert report is not None
        return report, Page(Path(run.path, "report.html").read_text())

    def config(self, name: str) -> AnnotateConfig:
        keys = {"protocol": self.protocol, "review": self.review, "export": self.export}
        llm = {**LLM, "annotators": MODELS, **self.llm}
        values = {"storage": str(self.path), "name": name, "llm": llm, **keys}
        return AnnotateConfig.model_validate(values)


@pytest.fixture
def storage(tmp_path: Path) -> Iterable[Storage]:
    with Archive.open(tmp_path / "archive.db") as archive:
        yield Storage(tmp_path, archive)


def test_the_page_has_the_disagreements_with_descriptions_and_decisions(storage: Storage):
    # Distances .30, 1.00 and .80, all with a lower score of 80.
    rows = [differing(*each) for each in (("near", "Sym", "Sch"), ("far", "Evo", "Ctl"),
                                        ("middle", "Lrn", "Evo"))]  # fmt: skip
    run = storage.annotate("run", rows)
    for made in (decision("far", "Swm", False), decision("far", "Ctl", justification="It steers.")):
        body = made.model_dump(mode="json")
        status = "accepted" if made.confirmation and made.confirmation.acceptable else "human"
        storage.archive.run("run").reviews().add(Decision("far", "decide", "R", status, body))
    figures, page = storage.write_results(run)
    shown = figures.disagreements.shown
    assert [each.case for each in shown] == ["far", "middle", "near"]
    # The latest decision holds.
    assert "It steers." in page.text
    descriptions = [page.text.index(f"What {each.case} does.") for each in shown]
    assert descriptions == sorted(descriptions)
    # The configuration names the embedded model.
    assert "smoke test" in page.text
    assert "No earlier run of the archive asked" in page.text and "fresh=true" in page.text
    assert figures.score_tree.files == 0


# Inspect calls pandas in a way that is deprecated.
@pytest.mark.filterwarnings("ignore:The inplace keyword:DeprecationWarning")
def test_inspect_and_frames_open_the_logs_of_an_export(storage: Storage):
    unread = outcome("unread", None, "Lrn", status=Status.HUMAN, path=("human:unparsable",))
    odd = "lone \ud800 and nul \0"
    storage.export = "inspect"
    run = storage.annotate("run", [*answered(7), row(unread, odd)])
    for _ in range(2):
        storage.write_results(run)
    logs = Path(run.path, "inspect")
    paths = {path.stem.rpartition("_")[2]: path for path in logs.iterdir()}
    assert paths.keys() == {"final", "m", "n"}
    # A is right on seven of ten cases with gold, B on all; A's codes are in force.
    accuracy = {}
    for path in paths.values():
        log = read_eval_log(str(path))
        assert log.status == "success" and log.results is not None and log.samples is not None
        (score,) = log.results.scores
        accuracy[log.eval.model] = (score.name, score.metrics["accuracy"].value, len(log.samples))
    assert accuracy == {"m": ("gold", 0.7, 10), "n": ("gold", 1.0, 11), "final": ("gold", 0.7, 11)}
    samples = samples_df(str(paths["m"]), quiet=True).set_index("id")
    first, last = samples.loc["c0"], samples.loc["c9"]
    assert "What c0 does." in first.input and first.target == "OPT=Lrn"
    assert (first.score_gold, first.score_evaluator) == (1.0, 0.9)
    assert (last.score_gold, last.score_evaluator) == (0.0, 0.2)
    assert (last.metadata_status, last.metadata_rationale) == ("accepted", "since")
    samples = samples_df(str(paths["n"]), quiet=True).set_index("id")
    assert "lone \ufffd and nul" in samples.loc["unread"].input
    table = frames.responses(str(logs))
    assert table.groupby("model", observed=True).score.agg(["size", "mean"]).to_dict() == {
        "size": {"final": 10, "m": 10, "n": 10},
        "mean": {"final": 0.7, "m": 0.7, "n": 1.0},
    }


def last_code(path: Path) -> str:
    """The code of the third annotator in an export."""
    if path.is_dir():
        samples = read_eval_log(str(*path.glob("*_m@C.json"))).samples
        return samples[0].output.completion if samples else ""
    if path.suffix == ".json":
        return pd.read_json(path).predictions[0][2]["result"][0]["value"]["text"][0]
    return (pd.read_csv if path.suffix == ".csv" else pd.read_parquet)(path).code_c[0]


@pytest.mark.parametrize("form", EXPORTERS)
def test_an_export_has_the_answers_of_all_annotators(storage: Storage, form: str):
    storage.llm = {"annotators": THREE}
    storage.export = form
    run = storage.annotate("run", [row(outcome("c", "Lrn", "Lrn", "Evo"), "What c does.")])
    storage.write_results(run)
    assert last_code(Path(run.path, EXPORTERS[form][0])) == "OPT=Evo"


def test_two_people_a_case_say_whether_the_models_may_stand_in(storage: Storage):
    storage.review = {"people": 2, "epsilon": 0.2}
    cases = [f"c{number}" for number in range(60)]
    run = storage.annotate("run", [row(outcome(case, "Lrn", "Sch"), case) for case in cases])
    reviews = storage.archive.run("run").reviews()
    reviews.draw(cases, {"share": 1.0, "seed": 5})
    for number, case in enumerate(cases):
        pair = [*combinations(("Ada", "Bo", "Cy"), 2)][number % 3]
        for place, name in enumerate(pair):
            code = "Evo" if place and number < 6 else "Lrn"
            made = decision(case, code, None, reviewer=name, independent=True)
            decides = bool(place) and number >= 6
            reviews.add(decision_row(made, AUDIT, decides=decides))
    figures, page = storage.write_results(run)
    people = figures.people["audit"]
    assert (people.once, people.twice, people.waiting) == (0, 60, 6)
    assert people.equal.value == 0.9 and people.people == {"Ada": 40, "Bo": 40, "Cy": 40}
    # Where two differ, the code is that of one of them.
    assert figures.audit is not None and (figures.audit.drawn, figures.audit.audited) == (60, 60)
    assert figures.audit.right.value == 1.0
    assert {name: each.winning_rate for name, each in figures.substitutes.items()} == {
        "A": 1.0,
        "B": 0.0,
        "final": 1.0,
    }
    assert "The final codes may stand in for people's" in page.text
    assert "Krippendorff's alpha" in page.text and "winning rate" in page.text


def test_the_command_for_review_names_the_storage_and_counts_rightly(
    storage: Storage, capsys: pytest.CaptureFixture[str]
):
    run = storage.annotate("run", [differing("a", "Sym", "Sch")])
    storage.write_results(run)
    command = f"python jobs/review.py name=run storage={storage.path}"
    assert f"1 case waits for a person: {command}\n" in capsys.readouterr().out
    database = "postgresql://u@h:5432/db?sslmode=require"
    on_a_server = storage.config("run").model_copy(update={"archive": database})
    written = on_a_server.command("review", "run")
    assert load_config(ReviewConfig, shlex.split(written)[2:]).archive == database


@pytest.mark.parametrize(
    ("stages", "names", "accuracy"), [("all", {"m", "n"}, 1.0), ("evaluate", {"candidates"}, 0.5)]
)
def test_a_run_leaves_its_score_tree(
    storage: Storage, stages: str, names: set[str], accuracy: float
):
    storage.protocol = {"stages": stages}
    judged = [outcome(f"x{n}", a, None, gold="Evo") for n, a in enumerate(("Evo", "Lrn"))]
    rows = [row(each, f"{n}") for n, each in enumerate(judged)]
    run = storage.annotate("run", answered(10) if stages == "all" else rows)
    report, _ = storage.write_results(run)
    files = list(Path(run.path).glob("scores/*/published/*.json"))
    assert len(files) == report.score_tree.files > 0
    assert {file.parts[-3] for file in files} == names
    for file in files:
        scores = json.loads(file.read_text())["results"]["scores"]
        assert scores[0]["metrics"]["accuracy"]["value"] == accuracy


def test_three_annotators_are_reported_together_and_by_pairs(storage: Storage):
    storage.llm = {"annotators": THREE}
    cases = [
        outcome("1", "Lrn", "Lrn", "Evo", gold="Lrn"),
        outcome("2", "Lrn", "Lrn", "Lrn", gold="Lrn"),
        outcome("3", "Evo", "Sch", gold="Evo", status=Status.HUMAN, path=("human:disagreement",)),
    ]
    run = storage.annotate("three", [row(case, f"What {case.case} does.") for case in cases])
    report, page = storage.write_results(run)
    assert (report.agreement.compared, report.agreement.exact.cases) == (3, 1)
    pairs = report.agreement.pairs.items()
    shares = {names: (pair.cases, pair.exact.value) for names, pair in pairs}
    assert shares == {"AB": (3, pytest.approx(2 / 3)), "AC": (2, 0.5), "BC": (2, 0.5)}
    assert {"A and B", "A and C", "B and C"} <= {cell for line in page.rows for cell in line}
    assert (
        "Rows: annotator A (m-1) or annotator B. Columns: annotator B or annotator C." in page.text
    )
    trees = {path.name for path in Path(run.path, "scores").iterdir()}
    assert trees == {"m@A", "m@B", "m@C"}


def test_the_annotators_answers_to_gold_are_diagnosed(storage: Storage):
    storage.llm = {"endpoints": {"default": {"base_url": "http://127.0.0.1:9/v1"}}}
    rows = answered(4)
    # The texts of the first and the last case are the same.
    rows[9] = replace(rows[9], description=rows[0].description)
    run = storage.annotate("run", rows)
    _, page = storage.write_results(run)
    record = run.read_record(Diagnosis)
    assert record is not None
    (pair,) = record.differences.shown
    # B is right in all ten cases, A in four of them.
    assert (pair.first, pair.second, pair.difference) == ("n", "m", pytest.approx(0.6))
    assert record.items == record.suspects.texts == 10
    assert record.suspects.counts == {Fault.DUPLICATE: 1}
    assert "The diagnosis of 2 models on 10 items" in page.text
    assert (run / DIAGNOSIS_PAGE).exists()


def test_runs_stand_beside_each_other_with_their_changes(
    storage: Storage, capsys: pytest.CaptureFixture[str]
):
    january = storage.annotate("january", answered(10))
    storage.write_results(january)
    storage.annotate("february", [differing("x", "Evo", "Ctl")])
    figures, page = storage.write_results(storage.annotate("march", answered(0)))
    rows = {row[0]: row[1:] for row in page.rows}
    # February shares no case with the others.
    assert {change.before for change in figures.changes} == {"january"}
    assert "right labels, A (m): 10 of 10 shared cases in january, 0 in march" in page.text
    change = ["10 of 10 january", "0 of 10 march", "10", "0", "0.00195*"]
    assert rows["right labels, A"] == [*change, "10 of 10", "-"]
    assert rows["right labels, B"][4:] == ["1", "0 of 10", "-"]
    # A run that is concluded again is compared with no later one.
    assert storage.write_results(january)[0].changes == ()
    capsys.readouterr()
    report_drift(str(storage.path), None)
    drift = Run.at(str(storage.path)).read_record(Drift)
    assert drift is not None and drift.comparisons[-5:] == figures.changes
    assert drift.runs == ("january", "february", "march")
    printed = capsys.readouterr().out
    assert "10 of 10" in printed and "alarm: right labels, A (m): 10 of 10" in printed
    assert f"{storage.path}/drift.json" in printed


def test_what_could_not_be_compared_is_said_with_the_reason(
    storage: Storage, capsys: pytest.CaptureFixture[str]
):
    storage.annotate("first", answered(9))
    copied = [
        row(outcome(f"c{n}", answer("Lrn", [call(cached=True)]), gold="Lrn", evaluation_a=None),
            f"What c{n} does.")
        for n in range(10)
    ]  # fmt: skip
    storage.llm = {"annotators": [MODELS[0], {**MODELS[1], "model": "other"}]}
    _, page = storage.write_results(storage.annotate("second", copied))
    assert "Nothing could be compared with an earlier run." in page.text
    assert "No change is significant" not in page.text
    assert "Right labels, A (m) cannot be compared in first and second: no shared" in page.text
    assert "No earlier run of its codebook asked other as B;" in page.text
    storage.annotate("died", [])
    capsys.readouterr()
    report_drift(str(storage.path), None)
    printed = " ".join(capsys.readouterr().out.split())
    assert "note: died: it has no case yet" in printed
    assert "note: second: no earlier run of its codebook asked other as B" in printed
    assert "note: right labels, A (m) cannot be compared in first and second" in printed


def test_what_may_have_been_billed_is_reported_apart(storage: Storage):
    run = storage.annotate("run", [differing("x", "Evo", "Ctl")])
    archived = storage.archive.run("run")
    with archived.own() as ownership:
        ledger = archived.ledger(ownership.token, Budget())
        claim = Claim("1", "k", Cost(1, 60, 40, 0.5))
        ledger.write([claim])
        ledger.write([ClaimEnd(claim, paid=True)])
    figures, page = storage.write_results(run)
    assert figures.usage.uncertain == Cost(1, 60, 40, 0.5)
    assert "1 lost answer may be billed as well, at 0.5 at most." in page.text


def test_a_report_says_which_rows_of_the_input_were_left_out(storage: Storage):
    run = storage.annotate("run", answered(1))
    run.write_record(run.record.model_copy(update={"notices": ("Left out: 2 of 3 rows.",)}))
    figures, page = storage.write_results(run)
    assert "Left out: 2 of 3 rows." in figures.notices and "Left out: 2 of 3 rows." in page.text
