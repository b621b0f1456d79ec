"""Case files and review files made to hang, to fill memory or to fail late."""

import gzip
import io
import json
from datetime import datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raylab.annotation.input import cases
from raylab.annotation.input.cases import LONGEST_ID, Case, CaseIds, read_cases
from raylab.annotation.input.sources import select_cases
from raylab.config.annotation import CasesConfig
from raylab.errors import DataError, LimitError
from tests.annotation.outcomes import CODEBOOK
from tests.fuzzing import limits, try_altered
from tests.memory import MIB, memory

ROW = {"id": "pid", "description": "A valve follows an error.", "gold": "Ctl", "meta": {"n": 1}}


def read(path: Path) -> list[Case]:
    return list(read_cases(str(path), CODEBOOK))


def line(**changes: Any) -> bytes:
    return json.dumps(ROW | changes).encode() + b"\n"


def packed(piece: bytes, count: int) -> bytes:
    file = io.BytesIO()
    with gzip.open(file, "wb", compresslevel=1) as out:
        for _ in range(count):
            out.write(piece)
    return file.getvalue()


REPEATED = b'{"id": "a", "description": "x", "meta": {' + b'"k": 1, ' * 1_000_000 + b'"l": 2}}\n'
HOSTILE_FILES = {
    "c.jsonl.gz": (packed(b"\n" * MIB, 200), LimitError, "line 1001.*blank lines in a row: remove"),
    "zeros.jsonl.gz": (packed(bytes(MIB), 200), LimitError, "line 1: more than .* bytes"),
    "wide.jsonl.gz": (packed(line() * 9999, 200), DataError, "line 2: id is 'pid'.*rename one"),
    "repeated.jsonl": (REPEATED, DataError, "line 1: .*the key 'k' occurs twice in one object"),
    "deep.jsonl": (b"[" * 1_000_000, LimitError, "line 1: more than 100 lists and objects"),
    "meta.jsonl": (line(meta="[" * 100_000), DataError, "line 1: meta is .*an object"),
    "digits.jsonl": (line(id=0)[:7] + b"9" * MIB + b"}", LimitError, "digits in one number"),
    "latin.jsonl": ('{"id": "é"}\n'.encode("latin-1"), DataError, "line 1: .*not UTF-8 text"),
    "utf16.jsonl": (line().decode().encode("utf-16"), DataError, "line 1: .*not UTF-8 text"),
    "torn.jsonl.gz": (
        packed(line(), 9)[:-9],
        DataError,
        "torn.jsonl.gz cannot be read: ",
    ),
    "no.jsonl.zst": (line(), DataError, "no.jsonl.zst cannot be read: "),
}


@pytest.mark.timeout(60)
@pytest.mark.parametrize("name", HOSTILE_FILES)
def test_hostile_file_is_refused(tmp_path: Path, name: str) -> None:
    content, kind, message = HOSTILE_FILES[name]
    path = tmp_path / name
    path.write_bytes(content)
    with limits(), pytest.raises(kind, match=message) as caught:
        read(path)
    assert len(str(caught.value)) < 1000


# Ids


HIDDEN_IDS = [
    *("a\nb", "a\tb", "\x1b[31mred", "\x7f", "\x85", "a\u2028b", "\u202egnp.exe", "\u200b", "\0"),
    *(" a", "a ", "\u00a0a", "x" * (LONGEST_ID + 1), "é" * 128),
]


@pytest.mark.parametrize("name", HIDDEN_IDS, ids=ascii)
@pytest.mark.parametrize("form", ["jsonl", "parquet"])
def test_id_that_looks_like_another_or_moves_the_screen_is_refused(
    tmp_path: Path, name: str, form: str
) -> None:
    path = tmp_path / f"c.{form}"
    path.write_bytes(line(id=name))
    if form == "parquet":
        pq.write_table(pa.table({"id": [name], "description": ["x"]}), path)
    with pytest.raises(DataError, match=r"(line|row) 1: id is .*should be") as caught:
        read(path)
    assert str(caught.value).isprintable()


@pytest.mark.parametrize("name", ["a b", "a/b", "é", "漢字", "x" * LONGEST_ID, "..", "-"])
def test_other_ids_are_kept(tmp_path: Path, name: str) -> None:
    path = tmp_path / "c.jsonl"
    path.write_bytes(line(id=name))
    assert [case.id for case in read(path)] == [name]


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_number_that_is_none_is_no_id(tmp_path: Path, number: float) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table({"id": [number], "description": ["x"]}), path)
    with pytest.raises(DataError, match=r"row 1: id is (nan|inf), should be text"):
        read(path)


def selected(published: Path, *generations: Path, **config: Any) -> list[str]:
    chosen = CasesConfig(path=str(published), **config)
    found = select_cases(chosen, ["published", *map(str, generations)], CODEBOOK)
    return [case.id for _, case in found]


def test_ids_that_would_meet_in_the_archive_are_refused(tmp_path: Path) -> None:
    published, drawn = tmp_path / "p.jsonl", tmp_path / "g.jsonl"
    published.write_bytes(line(id="g/1") + line(id="1"))
    drawn.write_bytes(line(id="2") + line(id="1"))
    with pytest.raises(DataError, match=r"g\.jsonl, line 2: id is 'g/1', should be unique.*rename"):
        selected(published, drawn)
    published.write_bytes(line(id="1") + line(id="h/1"))
    assert selected(published, drawn) == ["1", "h/1", "g/2", "g/1"]


def test_id_is_measured_with_its_generation(tmp_path: Path) -> None:
    published, drawn = tmp_path / "p.jsonl", tmp_path / "g.jsonl"
    published.write_bytes(line())
    drawn.write_bytes(line(id="x" * (LONGEST_ID - 1)))
    with pytest.raises(DataError, match=rf"line 1: id is 'g/x+.*at most {LONGEST_ID} bytes"):
        selected(published, drawn)


def test_ids_are_told_apart() -> None:
    ids = CaseIds()
    assert all(ids.add(f"{n}") for n in range(1000))
    assert not any(ids.add(f"{n}") for n in range(1000))


# Parquet

FAR = pa.array([2**50], pa.timestamp("ms"))
COLUMNS: dict[str, dict[str, Any]] = {
    "time beyond Python": {
        "id": ["a"],
        "description": ["x"],
        "meta": pa.StructArray.from_arrays([FAR], ["t"]),
    },
    "time as id": {"id": FAR, "description": ["x"]},
    "bytes as keys": {
        "id": ["a"],
        "description": ["x"],
        "meta": pa.array([[(b"k", 1)]], pa.map_(pa.binary(), pa.int64())),
    },
    "NaN": {"id": ["a"], "description": ["x"], "meta": [{"n": float("nan")}]},
    "bytes": {"id": [b"a"], "description": ["x"]},
    "list": {"id": [["a"]], "description": ["x"]},
    "decimal": {"id": [Decimal("1.5")], "description": ["x"]},
    "duration": {"id": pa.array([2**50], pa.duration("s")), "description": ["x"]},
    "no columns": {},
    "other columns": {"ID": ["a"], "description": ["x"]},
}


@pytest.mark.parametrize("columns", COLUMNS.values(), ids=COLUMNS)
def test_parquet_of_other_types_is_refused(tmp_path: Path, columns: dict[str, Any]) -> None:
    path = tmp_path / "c.parquet"
    pq.write_table(pa.table(columns), path)
    with pytest.raises(DataError, match=r"cases .*c\.parquet"):
        read(path)


def test_parquet_of_other_values_in_meta_is_read(tmp_path: Path) -> None:
    path = tmp_path / "c.parquet"
    meta = [{"when": datetime(2026, 1, 2), "how": Decimal("1.5")}]  # noqa: DTZ001
    pq.write_table(pa.table({"id": ["a"], "description": ["x"], "meta": meta}), path)
    assert read(path)[0].meta == {"when": "2026-01-02 00:00:00", "how": "1.5"}


@pytest.mark.timeout(60)
def test_parquet_that_stands_for_far_more_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cases, "ROW_BYTES", 30 * MIB)
    path = tmp_path / "c.parquet"
    table = pa.table({"id": ["a"], "description": ["x" * 40 * MIB]})
    pq.write_table(table, path, compression="zstd", use_dictionary=False)
    del table
    assert path.stat().st_size < MIB
    with (
        limits(30 * MIB),
        pytest.raises(LimitError, match=r"c\.parquet: more than .* bytes in a row"),
    ):
        read(path)


@pytest.mark.timeout(60)
@pytest.mark.parametrize("column", ["description", "meta", "candidate"])
def test_rows_that_repeat_a_long_text_are_read_within_little_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, column: str
) -> None:
    # 600 times one text of a megabyte are a few kB of dictionary.
    monkeypatch.setattr(cases, "ROW_BYTES", 30 * MIB)
    count, path = 600, tmp_path / "c.parquet"
    once = pa.DictionaryArray.from_arrays(pa.array([0] * count, pa.int32()), pa.array(["x" * MIB]))
    columns = {"id": list(map(str, range(count))), "description": ["x"] * count}
    columns[column] = {
        "description": once,
        "meta": pa.StructArray.from_arrays([once], ["note"]),
        "candidate": pa.StructArray.from_arrays([once, once], ["code", "rationale"]),
    }[column]
    pq.write_table(pa.table(columns), path, compression="zstd", store_schema=False)
    assert path.stat().st_size < MIB
    few = tmp_path / "few.parquet"
    pq.write_table(pa.table({"id": ["a"], "description": ["x"]}), few)
    # Starts pyarrow's threads, whose stacks count too.
    read(few)
    with memory(256 * MIB):
        assert sum(1 for _ in read_cases(str(path), CODEBOOK)) == count


# Altered files


def sample(folder: Path, form: str) -> bytes:
    path = folder / "sample"
    if form == "parquet":
        rows = [ROW | {"id": f"{n}"} for n in range(20)]
        pq.write_table(pa.Table.from_pylist(rows), path)
        return path.read_bytes()
    content = b"".join(line(id=f"{n}", meta='{"trap": true}') for n in range(5))
    return gzip.compress(content) if form == "jsonl.gz" else content


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "parquet"])
def test_altered_cases_are_read_or_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"c.{form}"

    def read_bytes(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    try_altered([sample(tmp_path, form)], read_bytes, DataError)
