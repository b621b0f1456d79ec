"""Logs and records that were altered: they are read, or refused with a reason."""

import io
import json
import random
import zlib
from pathlib import Path
from typing import Any

import pytest

from raylab.core.errors import DataError, RunError
from raylab.core.runs.eval_logs import read_score
from raylab.core.runs.records import Record
from raylab.core.runs.run import Run
from raylab.core.runs.run_record import RunRecord
from tests.benchmark.figures.qualities import quality
from tests.core.runs.records import run_record
from tests.core.runs.test_eval_logs import log
from tests.fuzzing import altered_values, try_all, try_altered
from tests.zips import PACK, member_zip


def check(content: bytes, name: str) -> None:
    outcome = read_score(io.BytesIO(content), name)
    if isinstance(outcome, str):
        assert 0 < len(outcome) < 300 and outcome.isprintable()
    else:
        assert 0.0 <= outcome <= 1.0


LOGS = [json.dumps(log(samples=samples)).encode() for samples in ([], [{"text": "x" * 99}] * 900)]


def test_altered_json_logs_have_a_score_or_a_reason() -> None:
    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(log(), draw)).encode()

    try_altered(LOGS, lambda content: check(content, "x.json"), DataError)
    try_all(make, lambda content: check(content, "x.json"), DataError)


def test_altered_eval_logs_have_a_score_or_a_reason() -> None:
    def packed(text: bytes, method: int, size: int) -> bytes:
        # With their own checksum: what is altered reaches the decoder.
        data, crc = PACK[method](text), zlib.crc32(text)
        return member_zip(method, data, b"header.json", size, crc).getvalue()

    def make(draw: random.Random) -> bytes:
        text = json.dumps(altered_values(log(), draw)).encode()
        return packed(text, draw.choice(list(PACK)), draw.choice((len(text), 0, 1, 1 << 31)))

    whole = [packed(LOGS[0], method, len(LOGS[0])) for method in PACK]
    try_altered(whole, lambda content: check(content, "x.eval"), DataError)
    try_all(make, lambda content: check(content, "x.eval"), DataError)


RECORDS: list[Record] = [run_record(), quality(figures={})]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_altered_records_are_read_or_refused(tmp_path: Path, record: Record) -> None:
    run = Run.at(str(tmp_path))
    file = tmp_path / record.file

    def read(content: bytes) -> None:
        file.write_bytes(content)
        altered = run.read_record(type(record))
        # What is read can be written and read again.
        if altered is not None:
            run.write_record(altered)
            assert run.read_record(type(record)) == altered

    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(record.content(), draw)).encode()

    try_altered([json.dumps(record.content()).encode()], read, RunError)
    try_all(make, read, RunError)


RECORD = run_record().content()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (RECORD | {"schema_version": 99}, "schema version 99, this raylab reads .*: use the"),
        ("[" * 100_000, "not valid JSON"),
        ('{"models": {"a": 1e999}}', "not valid JSON: Number out of range"),
        # A text is no number.
        (RECORD | {"cpus": "4"}, "record.json cannot be used: cpus"),
    ],
)
def test_a_record_of_another_shape_is_refused(tmp_path: Path, content: Any, reason: str) -> None:
    raw = json.dumps(content) if isinstance(content, dict) else content
    (tmp_path / RunRecord.file).write_text(raw)
    with pytest.raises(RunError, match=reason):
        Run.at(str(tmp_path)).read_record(RunRecord)
