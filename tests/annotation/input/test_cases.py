import gzip
import hashlib
import itertools
import json
import re
import tracemalloc
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from raylab.annotation.input.cases import (
    CandidateCode,
    Case,
    in_generation,
    packaged_cases,
    read_cases,
)
from raylab.annotation.input.python_objects import python_cases
from raylab.errors import DataError
from raylab.opt.code import Root, parse
from tests.annotation.outcomes import CODEBOOK

PID = {"id": "pid", "description": "A valve follows an error.", "gold": "Ctl", "meta": {"n": 1}}


def jsonl(folder: Path, *rows: object, end: str = "\n") -> str:
    path = folder / "cases.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return str(path)


def parquet(folder: Path, table: pa.Table) -> str:
    path = folder / "cases.parquet"
    pq.write_table(table, path)
    return str(path)


def read(location: str) -> Iterator[Case]:
    return read_cases(location, CODEBOOK)


# Files


def test_rows_are_read_as_they_stand(tmp_path: Path):
    path = jsonl(tmp_path, PID, "", {"id": 7, "description": "x", "gold": None}, "  ")
    first, second = read(path)
    assert first == Case("pid", "A valve follows an error.", "Ctl", parse("Ctl"), {"n": 1})
    assert first.description_hash == hashlib.sha256(b"A valve follows an error.").hexdigest()
    assert (second.id, second.gold, second.meta) == ("7", None, {})
    assert (second.trap, second.reviewed, second.bait) == (False, True, frozenset())


def test_ids_that_are_numbers_are_text(tmp_path: Path):
    rows = [{"id": number, "description": "x"} for number in (1, -2, 1.5, 10**30)]
    cases = read(jsonl(tmp_path, *rows))
    assert [case.id for case in cases] == ["1", "-2", "1.5", str(10**30)]


def test_files_are_read_from_paths_uris_and_compressed(tmp_path: Path, monkeypatch: Any):
    path = Path(jsonl(tmp_path, PID))
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "bom.ndjson").write_bytes(
        b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
    )
    monkeypatch.chdir(tmp_path)
    uri = path.as_uri()
    for location in (str(path), uri, "cases.jsonl", "c.jsonl.gz", "bom.ndjson"):
        assert [case.id for case in read(location)] == ["pid"]


META_COLUMNS: list[pa.Array] = [
    pa.array([{"trap": True, "n": None}, None]),
    pa.array([[("trap", True)], None], pa.map_(pa.string(), pa.bool_())),
    pa.array(['{"trap": true}', None]),
]


@pytest.mark.parametrize("meta", META_COLUMNS, ids=["struct", "map", "text"])
def test_parquet_holds_meta_in_three_forms(tmp_path: Path, meta: pa.Array):
    table = pa.table(
        {
            "id": pa.array([1, 2]),
            "description": pa.array(["a", "b"]),
            "gold": pa.array(["Lrn", None]),
            "meta": meta,
        }
    )
    first, second = read(parquet(tmp_path, table))
    assert first == Case("1", "a", "Lrn", parse("Lrn"), {"trap": True})
    assert second == Case("2", "b")
    assert first.trap and not second.trap


def test_parquet_without_optional_columns(tmp_path: Path):
    table = pa.table({"description": ["a", "b", "c"], "id": ["x", "y", "z"]})
    assert [case.id for case in read(parquet(tmp_path, table))] == ["x", "y", "z"]


def test_a_file_is_streamed(tmp_path: Path):
    path = jsonl(tmp_path, PID, {"id": "b", "description": "x"}, "torn")
    cases = read(path)
    assert [case.id for case in itertools.islice(cases, 2)] == ["pid", "b"]
    with pytest.raises(DataError, match="line 3"):
        next(cases)


def test_memory_does_not_grow_with_the_rows(tmp_path: Path):
    path = tmp_path / "many.jsonl"
    with path.open("w") as file:
        for number in range(20_000):
            file.write(f'{{"id": {number}, "description": "{"x" * 1000}"}}\n')
    tracemalloc.start()
    assert sum(1 for _ in read(str(path))) == 20_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The file has 20 MB; 20,000 hashes in a set take about 2 MB.
    assert peak < 5e6


# Rows that cannot be used

WRONG_ROWS = [
    ("{", "line 2: '{' is no JSON object"),
    ("[]", r"line 2: \[\] is no JSON object"),
    ("3", "line 2: 3 is no JSON object"),
    ('{"id": "a", "id": "b", "description": "x"}', "line 2: .*the key 'id' occurs twice"),
    ('{"id": NaN, "description": "x"}', "line 2: .*NaN is no number"),
    ({"description": "x"}, "line 2: id is missing, should be text"),
    ({"id": None, "description": "x"}, "line 2: id is missing"),
    ({"id": True, "description": "x"}, "line 2: id is True, should be text"),
    ({"id": ["a"], "description": "x"}, r"line 2: id is \['a'\], should be text"),
    ({"id": " ", "description": "x"}, "line 2: id is ' ', should be text that is not empty"),
    ({"id": "a\0", "description": "x"}, "line 2: id is .*without NUL"),
    ({"id": "b"}, "line 2: description is missing"),
    ({"id": "b", "description": " \n"}, "line 2: description is .*not empty"),
    ({"id": "b", "description": 5}, "line 2: description is 5, should be text"),
    ({"id": "b", "description": "x\ud800"}, "line 2: .*lone surrogate"),
    ({"id": "pid", "description": "x"}, "line 2: id is 'pid', should be unique"),
    ({"id": "b", "description": "x", "gold": "Foo"}, "line 2: gold is 'Foo', .*no OPT-Code"),
    ({"id": "b", "description": "x", "gold": ""}, "line 2: gold is ''"),
    ({"id": "b", "description": "x", "gold": 3}, "line 2: gold is 3"),
    ({"id": "b", "description": "x", "gold": "OPT=Lrn+"}, "line 2: gold is .*column 9"),
    ({"id": "b", "description": "x", "meta": [1]}, r"line 2: meta is \[1\], should be an object"),
    ({"id": "b", "description": "x", "meta": "{"}, "line 2: meta is '{'"),
    ({"id": "b", "description": "x", "meta": "[]"}, "line 2: meta is"),
    ({"id": "b", "description": "x", "meta": {"trap": "yes"}}, r"meta\.trap is 'yes'"),
    ({"id": "b", "description": "x", "meta": {"reviewed": 0}}, r"meta\.reviewed is 0"),
    ({"id": "b", "description": "x", "meta": {"bait": "Swm"}}, r"meta\.bait is 'Swm'"),
    ({"id": "b", "description": "x", "meta": {"bait": ["Foo"]}}, r"meta\.bait is \['Foo'\]"),
    ({"id": "b", "description": "x", "opt": "Lrn"}, "line 2: opt is 'Lrn', .*move it into meta"),
    ('{"id": "b", "description": "' + "[" * 3000, "line 2"),
]


@pytest.mark.parametrize(("row", "message"), WRONG_ROWS)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: object, message: str):
    path = jsonl(tmp_path, PID, row)
    with pytest.raises(DataError, match=message) as caught:
        list(read(path))
    assert str(caught.value).startswith(f"cases {path}, line 2: ")
    assert len(str(caught.value)) < 400


def test_a_torn_last_line_is_told_from_a_wrong_one(tmp_path: Path):
    torn = '{"id": "b", "descr'
    with pytest.raises(DataError, match=r"line 2: .*the last line is torn"):
        list(read(jsonl(tmp_path, PID, torn, end="")))
    with pytest.raises(DataError, match=r"line 2: (?!.*torn)"):
        list(read(jsonl(tmp_path, PID, torn)))
    # A whole row needs no line end.
    assert len(list(read(jsonl(tmp_path, PID, end="")))) == 1


def test_wrong_parquet_rows_are_named(tmp_path: Path):
    table = pa.table({"id": ["a", "b", "a"], "description": ["x", "y", "z"]})
    with pytest.raises(DataError, match="row 3: id is 'a', should be unique"):
        list(read(parquet(tmp_path, table)))
    with pytest.raises(DataError, match="row 1: description is missing"):
        list(read(parquet(tmp_path, pa.table({"id": ["a"]}))))
    with pytest.raises(DataError, match="row 2: id is missing"):
        table = pa.table({"id": pa.array(["a", None]), "description": ["x", "y"]})
        list(read(parquet(tmp_path, table)))
    with pytest.raises(DataError, match="row 1: label is 'Lrn', is none of id"):
        table = pa.table({"id": ["a"], "description": ["x"], "label": ["Lrn"]})
        list(read(parquet(tmp_path, table)))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("absent.jsonl", None, "cannot be read"),
        ("cases.json", b"[]", "should end in .jsonl"),
        ("cases.csv", b"id", "should end in .jsonl"),
        ("empty.jsonl", b"\n\n", "holds no case"),
        ("cases.parquet", b"PAR1 no table", "cannot be read"),
        (
            "cases.jsonl.gz",
            gzip.compress(b'{"id": "a"}' * 999, mtime=0)[:-20],
            "cannot be read: Truncated",
        ),
        ("latin.jsonl", b'{"id": "\xe9", "description": "x"}\n', "line 1"),
    ],
)
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(DataError, match=message) as caught:
        list(read(str(path)))
    assert str(path) in str(caught.value)


def test_duplicates_are_found_across_the_whole_file(tmp_path: Path, monkeypatch: Any):
    monkeypatch.setattr("raylab.annotation.input.cases.RECENT_IDS", 8)
    rows = [{"id": f"case-{number}", "description": "x"} for number in range(300)]
    assert len(list(read(jsonl(tmp_path, *rows)))) == 300
    for twice in (0, 7, 8, 150, 299):
        with pytest.raises(DataError, match=f"line 301: id is 'case-{twice}', should be unique"):
            list(read(jsonl(tmp_path, *rows, rows[twice])))


# Packaged cases


def test_packaged_cases():
    gold, proposed = (
        list(packaged_cases("gold", CODEBOOK)),
        list(packaged_cases("proposed", CODEBOOK)),
    )
    assert (len(gold), len(proposed)) == (51, 14)
    assert all(case.gold is not None and case.meta["source"] for case in gold + proposed)
    assert all(case.reviewed and not case.trap for case in gold)
    assert not any(case.reviewed for case in proposed)
    traps = [case for case in proposed if case.trap]
    assert [case.id for case in traps] == [c.id for c in proposed if c.id.startswith("trap-")]
    assert len(traps) == 7
    for case in traps:
        assert case.gold_label is not None and not case.bait & case.gold_label.categories


def test_borderline_pairs_keep_their_roots():
    cases = packaged_cases("gold", CODEBOOK)
    roots = {case.id: case.gold_label.primary for case in cases if case.gold_label}
    assert (roots["kalman"], roots["particle-filter"]) == (Root.CTL, Root.PRB)
    assert (roots["strips-planner"], roots["dynamic-programming"]) == (Root.SYM, Root.SCH)
    assert (roots["clonal-selection"], roots["immune-network"]) == (Root.EVO, Root.SWM)
    assert (roots["neuroevolution"], roots["mcts"]) == (Root.EVO, Root.SCH)


# Python objects


def test_the_source_of_an_object_is_its_description():
    names = ["scipy.optimize.linprog", "json.decoder.JSONDecoder.decode", "heapq"]
    linprog, decode, heapq = python_cases(names)
    assert [linprog.id, decode.id, heapq.id] == names
    assert "def linprog(" in linprog.description
    assert decode.description.startswith("def decode(self")
    assert "def merge(" in heapq.description
    assert linprog.meta["package"] == "scipy" and linprog.meta["version"][0].isdigit()
    assert decode.meta["package"] == "python"
    assert linprog.gold is None


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (["scipy.optimize.absent"], "scipy.optimize.absent does not exist"),
        (["absent_package.thing"], "absent_package.thing: .*install its package"),
        (["math.sqrt"], "math.sqrt has no Python source"),
        (["json.decoder.NaN"], "json.decoder.NaN has no Python source"),
        (["not a name"], "'not a name': should be a dotted name"),
        ([""], "should be a dotted name"),
        (["heapq", "heapq"], "heapq is given twice"),
    ],
)
def test_objects_without_a_source_are_named(names: Sequence[str], message: str):
    with pytest.raises(DataError, match=message):
        list(python_cases(names))


def test_an_import_that_fails_is_named(tmp_path: Path, monkeypatch: Any):
    (tmp_path / "breaks_on_import.py").write_text("raise OSError('no licence')\n")
    (tmp_path / "needs_more.py").write_text("import an_absent_dependency\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(DataError, match=r"breaks_on_import.f: importing .* fails: no licence"):
        list(python_cases(["breaks_on_import.f"]))
    with pytest.raises(DataError, match="an_absent_dependency"):
        list(python_cases(["needs_more.f"]))


# Generations


def test_a_generation_is_a_share_that_the_seed_draws():
    ids = [f"case-{number}" for number in range(4000)]
    first = {name for name in ids if in_generation(name, 1)}
    second = {name for name in ids if in_generation(name, 2)}
    # Binomial: 2,000 and 1,000, standard deviations 32 and 27.
    assert abs(len(first) - 2000) < 160
    assert abs(len(first & second) - 1000) < 140
    assert all(in_generation(name, 1, 1.0) for name in ids)
    assert first > {name for name in ids if in_generation(name, 1, 0.25)}
    for fraction in (0.0, -0.1, 1.1, float("nan")):
        with pytest.raises(ValueError, match="fraction"):
            in_generation("a", 1, fraction)


@given(st.text(), st.integers(), st.floats(0.01, 1.0))
def test_membership_is_the_documented_hash(name: str, seed: int, fraction: float):
    digest = hashlib.sha256(f"{seed}:{name}".encode()).hexdigest()
    assert in_generation(name, seed, fraction) == (int(digest[:16], 16) / 2**64 < fraction)


# Candidates


def test_candidate_is_kept_as_written(tmp_path: Path):
    given = {"code": "roots: Evo", "rationale": "it breeds"}
    rows = [{**PID, "candidate": given}, {**PID, "id": "b", "candidate": {"code": "Evo"}}]
    first, second = read(jsonl(tmp_path, *rows))
    assert first.candidate == CandidateCode(code="roots: Evo", rationale="it breeds")
    assert second.candidate == CandidateCode(code="Evo", rationale="")


def test_parquet_holds_candidates_as_a_struct_or_text(tmp_path: Path):
    given = {"code": "Evo", "rationale": None}
    for column in (pa.array([given, None]), pa.array(['{"code": "Evo"}', None])):
        table = pa.table({"id": ["a", "b"], "description": ["x", "y"], "candidate": column})
        first, second = read(parquet(tmp_path, table))
        assert first.candidate == CandidateCode(code="Evo")
        assert second.candidate is None


@pytest.mark.parametrize(
    ("candidate", "problem"),
    [
        ("Evo", "candidate is 'Evo', should be an object"),
        ({"code": " "}, "candidate.code is ' ', should be text that is not empty"),
        ({"rationale": "r"}, "candidate.code is missing"),
        ({"code": "Evo", "score": 9}, "candidate.score is 9, is code or rationale"),
    ],
)
def test_bad_candidate_is_refused(tmp_path: Path, candidate: object, problem: str):
    with pytest.raises(DataError, match=re.escape(problem)):
        list(read(jsonl(tmp_path, {**PID, "candidate": candidate})))
