"""Logs and records that were altered: they are read, or refused with a reason."""

import io
import json
import random
import zipfile
import zlib
from pathlib import Path

import pytest

from raylab.bounded import ZSTANDARD
from raylab.errors import DataError, RunError
from raylab.quality.record import Quality
from raylab.runs.eval_logs import read_score
from raylab.runs.records import Record
from raylab.runs.run import Run
from raylab.runs.run_record import RunRecord
from tests.fuzzing import altered_values, try_all, try_altered
from tests.quality.qualities import quality
from tests.runs.records import run_record
from tests.runs.test_eval_logs import log
from tests.zips import PACK, member_zip


def check(content: bytes, name: str) -> None:
    outcome = read_score(io.BytesIO(content), name)
    if isinstance(outcome, str):
        assert 0 < len(outcome) < 300 and outcome.isprintable()
    else:
        assert 0.0 <= outcome <= 1.0


def eval_log(method: int, content: bytes) -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", method) as archive:
        archive.writestr("header.json", content)
        archive.writestr("samples/1.json", b"{}" * 50)
    return file.getvalue()


WHOLE = json.dumps(log(samples=[{"text": "x" * 100}] * 100)).encode()
SMALL = json.dumps(log()).encode()
EVALS = [
    eval_log(zipfile.ZIP_STORED, SMALL),
    eval_log(zipfile.ZIP_DEFLATED, SMALL),
    eval_log(zipfile.ZIP_BZIP2, SMALL),
]


def test_altered_json_logs_have_a_score_or_a_reason() -> None:
    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(log(), draw)).encode()

    try_altered([WHOLE, SMALL], lambda content: check(content, "x.json"), DataError)
    try_all(make, lambda content: check(content, "x.json"), DataError)


def test_altered_eval_logs_have_a_score_or_a_reason() -> None:
    def header(draw: random.Random) -> bytes:
        # With their own checksum: what is altered reaches the decoder.
        text = json.dumps(altered_values(log(), draw)).encode()
        method = draw.choice(list(PACK))
        size = draw.choice((len(text), 0, 1, 1 << 31))
        crc = zlib.crc32(text)
        data = PACK[method](text)
        return member_zip(method, data, b"header.json", size, crc).getvalue()

    zstd = member_zip(
        ZSTANDARD, PACK[ZSTANDARD](SMALL), b"header.json", len(SMALL), zlib.crc32(SMALL)
    )
    try_altered([*EVALS, zstd.getvalue()], lambda content: check(content, "x.eval"), DataError)
    try_all(header, lambda content: check(content, "x.eval"), DataError)


RECORDS: list[Record] = [run_record(), quality(figures={})]


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: type(record).__name__)
def test_altered_records_are_read_or_refused(tmp_path: Path, record: Record) -> None:
    run = Run.at(str(tmp_path))
    file = tmp_path / record.file

    def read(content: bytes) -> None:
        file.write_bytes(content)
        found = run.read_record(type(record))
        # What is read can be written and read again.
        if found is not None:
            run.write_record(found)
            assert run.read_record(type(record)) == found

    def make(draw: random.Random) -> bytes:
        return json.dumps(altered_values(record.content(), draw)).encode()

    try_altered([json.dumps(record.content()).encode()], read, RunError)
    try_all(make, read, RunError)


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ('{"schema_version": true}', "it is of schema version True, this raylab reads"),
        ('{"models": {}}', "it is of schema version None, this raylab reads"),
        ("[" * 100_000, "not valid JSON"),
        ('{"models": {"a": 1e999}}', "not valid JSON: Number out of range"),
    ],
)
def test_a_record_of_another_shape_is_refused(tmp_path: Path, content: str, reason: str) -> None:
    (tmp_path / Quality.file).write_text(content)
    with pytest.raises(RunError, match=reason):
        Run.at(str(tmp_path)).read_record(Quality)


def test_a_text_is_no_number(tmp_path: Path) -> None:
    content = run_record().content() | {"cpus": "4"}
    (tmp_path / RunRecord.file).write_text(json.dumps(content))
    with pytest.raises(RunError, match="cpus"):
        Run.at(str(tmp_path)).read_record(RunRecord)
