"""Run directories on a local path, a URI and object storage, which has no rename."""

import json
import os
import sys
import time
import uuid
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raylab.config.compose import load_config
from raylab.config.jobs import AnnotateConfig, TrainConfig
from raylab.config.llm import Endpoint, Limits
from raylab.errors import ConfigError, RunError
from raylab.runs.records import Record
from raylab.runs.run import Run
from raylab.runs.run_record import RECORD, RunRecord, config_hash
from tests.object_storage import ObjectStorage


class Note(Record):
    file: ClassVar[str] = "note.json"

    value: Any


@pytest.fixture(params=["path", "file URI", "object storage"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "object storage":
        s3: ObjectStorage = request.getfixturevalue("s3")
        return f"{s3.uri}/{uuid.uuid4().hex}"
    return f"file://{tmp_path}" if request.param == "file URI" else str(tmp_path)


def train(storage: str | Path, *overrides: str) -> TrainConfig:
    return load_config(TrainConfig, [f"storage='{storage}'", *overrides])


def change_record(run: Run, **changes: Any) -> None:
    """Writes a record by hand; a change to None takes the key out."""
    file = Path(run.path) / RECORD
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({key: of for key, of in content.items() if of is not None}))


def test_record_says_what_made_the_run(storage: str) -> None:
    config = train(storage, "name=night", "training.lr=0.5")
    run = Run.open(config, "train")
    assert (run.name, run.uri) == ("night", f"{config.storage}/night")
    record = run.record
    assert record.job == "train"
    assert TrainConfig.model_validate(record.config) == config
    assert record.config_hash == config_hash(config)
    assert list(record.argv) == sys.argv
    assert datetime.fromisoformat(record.started).utcoffset() == timedelta(0)
    assert record.versions.keys() >= {"python", "raylab", "ray", "torch", "numpy", "genai-prices"}
    assert record.versions["python"] == sys.version.split()[0]
    assert record.cpus == os.cpu_count()
    assert record.finished is None


def test_record_holds_nothing_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_API_KEY", "sk-0123456789")
    run = Run.open(train(tmp_path), "train")
    text = (Path(run.path) / RECORD).read_text()
    assert "sk-0123456789" not in text
    assert "SOME_API_KEY" not in text


def test_used_name_is_refused_with_the_ways_out(storage: str) -> None:
    Run.open(train(storage, "name=night"), "train")
    with pytest.raises(RunError) as caught:
        Run.open(train(storage, "name=night"), "train")
    for way_out in ("night", "resume=true", "name=", "remove the directory"):
        assert way_out in str(caught.value)


def test_resume_of_a_run_that_does_not_exist_starts_it(storage: str) -> None:
    run = Run.open(train(storage, "resume=true"), "train")
    assert run.record.resumed == ()


def test_resume_keeps_the_record_and_notes_each_time(storage: str) -> None:
    first = Run.open(train(storage, "name=night"), "train").record
    Run.open(train(storage, "name=night", "resume=true"), "train")
    run = Run.open(train(storage, "name=night", "resume=true", "cluster.workers=2"), "train")
    record = run.record
    assert [list(entry.argv) for entry in record.resumed] == [sys.argv, sys.argv]
    assert record.model_copy(update={"resumed": ()}) == first


def test_an_id_tells_runs_of_one_name_apart_and_stays(tmp_path: Path) -> None:
    configs = [train(tmp_path / place, "name=night") for place in ("a", "b")]
    first, second = (Run.open(config, "train").id for config in configs)
    assert first is not None and second is not None
    assert first != second and len(first) == 22
    # Milliseconds in front: ids sort by time.
    assert int(first[:12], 16) <= int(second[:12], 16) <= 1000 * time.time()
    again = Run.open(configs[0].model_copy(update={"resume": True}), "train")
    assert again.id == first == again.record.id == Run.at(again.uri).id


def test_a_record_of_a_later_raylab_is_refused_with_the_ways_out(tmp_path: Path) -> None:
    run = Run.open(train(tmp_path, "name=night"), "train")
    change_record(run, schema_version=99)
    for resume in ("false", "true"):
        with pytest.raises(RunError, match=r"schema version 99, this raylab reads \d+: use the"):
            Run.open(train(tmp_path, "name=night", f"resume={resume}"), "train")


def test_a_record_with_an_invalid_value_is_named(tmp_path: Path) -> None:
    run = Run.open(train(tmp_path, "name=night"), "train")
    change_record(run, git={"commit": 1, "dirty": False})
    with pytest.raises(RunError, match=r"record\.json cannot be used: git\.commit"):
        run.read_record(RunRecord)


def test_resume_of_another_configuration_names_what_differs(storage: str) -> None:
    Run.open(train(storage, "name=night", "training.lr=0.5"), "train")
    with pytest.raises(RunError) as caught:
        Run.open(train(storage, "name=night", "resume=true", "model=decoder_only"), "train")
    message = str(caught.value)
    assert "training.lr: the run has 0.5, now 0.00185" in message
    assert "model.architecture: the run has champion, now decoder_only" in message
    assert "model.rope_theta: the run has nothing, now 10000.0" in message
    assert "training.epochs" not in message
    assert "choose another name=" in message


def test_resume_of_another_job_is_refused(storage: str) -> None:
    Run.open(train(storage, "name=night"), "train")
    with pytest.raises(RunError, match="of job train, not pipeline"):
        Run.open(train(storage, "name=night", "resume=true"), "pipeline")


def test_derived_name_depends_on_the_work_alone(tmp_path: Path) -> None:
    config = train(tmp_path)
    name = Run.open(config, "train").name
    assert name == f"train-{config_hash(config)}"
    same = train(tmp_path / "b", "name=x", "resume=true", "log=json", "cluster.workers=4")
    assert config_hash(same) == config_hash(config)
    assert config_hash(train(tmp_path, "training.seed=1")) != config_hash(config)
    assert config_hash(train(tmp_path, "init_from=old.ckpt")) != config_hash(config)


def test_limits_budget_and_prices_may_change_but_models_may_not(tmp_path: Path) -> None:
    def annotate(*overrides: str) -> str:
        return config_hash(load_config(AnnotateConfig, [f"storage='{tmp_path}'", *overrides]))

    before = annotate()
    assert before == annotate("llm.endpoints.default.limits.concurrency=1")
    assert before == annotate("llm.budget.tokens=5", "actors=3", "archive=a.db", "export=jsonl")
    assert before == annotate("llm.prices={m: {input: 1, output: 2}}")
    assert before != annotate("llm.evaluator.seed=9")
    assert before != annotate("llm.endpoints.default.base_url='http://host/v1'")
    assert before != annotate("fresh=true")


NAMES_OF_KEYS = ("cluster", "limits", "archive", "budget", "prices", "name", "llm.budget")


@pytest.mark.parametrize("name", NAMES_OF_KEYS)
def test_an_endpoint_may_be_called_like_a_key_that_does_not_count(
    tmp_path: Path, name: str
) -> None:
    def annotate(host: str, calls: int = 8) -> AnnotateConfig:
        config = load_config(AnnotateConfig, [f"storage='{tmp_path}'", "name=night", "resume=true"])
        endpoint = Endpoint(base_url=f"http://{host}/v1", limits=Limits(concurrency=calls))
        endpoints = {**config.llm.endpoints, name: endpoint}
        return config.model_copy(
            update={"llm": config.llm.model_copy(update={"endpoints": endpoints})}
        )

    assert config_hash(annotate("a")) != config_hash(annotate("b"))
    assert config_hash(annotate("a")) == config_hash(annotate("a", calls=9))
    run = Run.open(annotate("a"), "annotate")
    with pytest.raises(
        RunError, match=rf"endpoints\.{name}\.base_url: the run has http://a/v1, now"
    ):
        Run.open(annotate("b"), "annotate")
    assert Run.open(annotate("a", calls=9), "annotate").id == run.id


def test_further_fields_of_a_request_may_be_called_like_keys_too(tmp_path: Path) -> None:
    def annotate(value: int) -> str:
        extra = f"llm.evaluator.extra={{budget: {value}, limits: {value}}}"
        return config_hash(load_config(AnnotateConfig, [f"storage='{tmp_path}'", extra]))

    assert annotate(1) != annotate(2)


def test_directory_without_a_record_is_refused_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "night" / "checkpoints").mkdir(parents=True)
    for resume in ("false", "true"):
        with pytest.raises(RunError, match=r"no record\.json but holds checkpoints"):
            Run.open(train(tmp_path, "name=night", f"resume={resume}"), "train")


def test_empty_directory_is_free(tmp_path: Path) -> None:
    (tmp_path / "night").mkdir()
    assert (Run.open(train(tmp_path, "name=night"), "train") / RECORD).exists()


@pytest.mark.parametrize("content", [b'{"job": "tra', b"", b"\xff\xfe", b"[1, 2]"])
def test_corrupt_file_is_named(tmp_path: Path, content: bytes) -> None:
    run = Run.open(train(tmp_path, "name=night"), "train")
    (tmp_path / "night" / "metrics.json").write_bytes(content)
    with pytest.raises(RunError, match=r"night/metrics\.json: not valid JSON"):
        run.read_record(Note, "metrics.json")
    (tmp_path / "night" / RECORD).write_bytes(content)
    with pytest.raises(RunError, match=r"night/record\.json: not valid JSON"):
        Run.open(train(tmp_path, "name=night", "resume=true"), "train")


def test_records_go_there_and_back_in_any_directory(storage: str) -> None:
    run = Run.at(f"{storage}/night")
    assert run.read_record(Note, "scores/a/b.json") is None
    note = Note(value={"name": "é", "list": [1, 2.5, True, None], "inner": {"a": "b"}})
    run.write_record(note, "scores/a/b.json")
    assert run.read_record(Note, "scores/a/b.json") == note
    assert (run / "scores/a").exists()
    assert not (run / "scores/c").exists()


def test_nan_and_infinity_are_written_as_null(storage: str) -> None:
    run = Run.at(f"{storage}/night")
    run.write_record(Note(value={"a": float("nan"), "b": [float("inf"), (-float("inf"), 1.0)]}))
    assert run.read_record(Note) == Note(value={"a": None, "b": [None, [None, 1.0]]})


def test_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Run.at(str(tmp_path / "night"))
    run.write_record(Note(value=1))

    def full_disk(_: int) -> None:
        raise OSError("no space left on device")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(RunError, match=r"note\.json cannot be written: no space left"):
        run.write_record(Note(value=2))
    assert run.read_record(Note) == Note(value=1)
    assert [path.name for path in (tmp_path / "night").iterdir()] == ["note.json"]


def test_files_are_readable_by_others_as_the_umask_says(tmp_path: Path) -> None:
    old = os.umask(0o022)
    try:
        Run.at(str(tmp_path)).write_record(Note(value=1))
    finally:
        os.umask(old)
    assert (tmp_path / "note.json").stat().st_mode & 0o777 == 0o644


def test_finish_notes_the_time_and_keeps_the_record(storage: str) -> None:
    run = Run.open(train(storage), "train")
    before = run.record
    run.finish()
    after = run.record
    assert after.finished is not None
    assert datetime.fromisoformat(after.finished) >= datetime.fromisoformat(before.started)
    assert after.model_copy(update={"finished": None}) == before


def test_unknown_storage_is_told() -> None:
    with pytest.raises(ConfigError, match="nothing://a cannot be opened"):
        Run.open(TrainConfig(storage="nothing://a", name="night"), "train")


def test_storage_that_cannot_be_written_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(RunError, match="file/night"):
        Run.open(train(tmp_path / "file", "name=night"), "train")


def test_storage_that_ray_will_delete_is_warned_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    Run.open(train(tmp_path / "runs"), "train")
    assert not caplog.records
    Run.open(train(tmp_path / "working_dir_files" / "_ray_pkg_0123" / "runs"), "train")
    assert "give storage= an absolute path or a URI" in caplog.text
