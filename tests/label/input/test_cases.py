import gzip
import hashlib
import itertools
import json
import os
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from raylab.core.errors import ConfigError, DataError
from raylab.label.codebooks.codebook import Codebook
from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig
from raylab.label.config.jobs import AnnotateConfig, CasesConfig, LlmConfig
from raylab.label.input.cases import MAX_ID_BYTES, CandidateCode, Case, read_cases, select_cases
from raylab.label.opt.code import parse
from tests.fuzzing import limits, try_altered
from tests.label.protocol.fruits import FRUITS
from tests.label.protocol.outcomes import CODEBOOK, NOON, PACKAGED
from tests.memory import MIB

PID = {"id": "pid", "description": "A valve follows an error.", "gold": "Ctl", "meta": {"n": 1}}

RECORD: dict[str, Any] = {
    "name": "tickets",
    "task": "Read.",
    "fields": {
        "severity": {"labels": {"1": "Low.", "2": "High."}},
        "topics": {"labels": {"a": "Apples.", "b": "Bees."}, "several": True},
        "score": {"number": [0, 9.5]},
    },
}


def jsonl(folder: Path, *rows: object, end: str = "\n", name: str = "cases") -> Path:
    path = folder / f"{name}.jsonl"
    lines = (row if isinstance(row, str) else json.dumps(row) for row in rows)
    path.write_text("\n".join(lines) + end, encoding="utf-8")
    return path


def parquet(folder: Path, **columns: Any) -> Path:
    path = folder / "cases.parquet"
    pq.write_table(pa.table(columns), path)
    return path


def configured(cases: CasesConfig, *generations: str) -> AnnotateConfig:
    llm = LlmConfig.model_construct(prompt="maximal")
    return AnnotateConfig.model_construct(llm=llm, cases=cases, generations=generations)


def read(path: Path | str) -> list[Case]:
    return list(read_cases(str(path), CODEBOOK))


# Files


def test_rows_are_read_as_they_stand(tmp_path: Path):
    candidate = {"code": "roots: Evo", "rationale": "it breeds"}
    third = {"id": 1.5, "description": "x", "candidate": candidate, "meta": '{"bait": ["Swm"]}'}
    path = jsonl(tmp_path, PID, "", {"id": 7, "description": "x", "gold": None}, "  ", third)
    first, second, last = read(path)
    assert first == Case("pid", "A valve follows an error.", "Ctl", parse("Ctl"), {"n": 1})
    assert first.description_hash == hashlib.sha256(b"A valve follows an error.").hexdigest()
    assert second == Case("7", "x")
    read_candidate = CandidateCode(code="roots: Evo", rationale="it breeds")
    assert last == Case("1.5", "x", None, None, {"bait": ["Swm"]}, read_candidate)


def test_files_are_read_from_paths_uris_and_compressed(tmp_path: Path, monkeypatch: Any):
    path = jsonl(tmp_path, PID)
    (tmp_path / "c.jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
    (tmp_path / "bom.jsonl").write_bytes(
        b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n")
    )
    monkeypatch.chdir(tmp_path)
    for location in (path, path.as_uri(), "cases.jsonl", "c.jsonl.gz", "bom.jsonl"):
        assert [case.id for case in read(location)] == ["pid"]


def test_parquet_holds_meta_as_struct_or_text(tmp_path: Path):
    candidate = pa.array([{"code": "Evo", "rationale": None}, None])
    gold = pa.array(["Lrn", None])
    columns = {"id": [1, 2], "description": ["a", "b"], "gold": gold, "candidate": candidate}
    for meta in ([{"trap": True, "n": None}, None], ['{"trap": true}', None]):
        first, second = read(parquet(tmp_path, **columns, meta=pa.array(meta)))
        code = CandidateCode(code="Evo")
        assert first == Case("1", "a", "Lrn", parse("Lrn"), {"trap": True}, code)
        assert second == Case("2", "b")


def test_a_file_is_streamed(tmp_path: Path):
    cases = read_cases(str(jsonl(tmp_path, PID, {"id": "b", "description": "x"}, "torn")), CODEBOOK)
    assert [case.id for case in itertools.islice(cases, 2)] == ["pid", "b"]
    with pytest.raises(DataError, match="line 3"):
        next(cases)
    rows = ({"id": number, "description": "x" * 4000} for number in range(5_000))
    many = jsonl(tmp_path, *rows)
    tracemalloc.start()
    assert sum(1 for _ in read_cases(str(many), CODEBOOK)) == 5_000
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    # The file has 20 MB, its ids half of one.
    assert peak < 5e6


# Tables as people have them

TICKETS = CasesConfig(path="t", id="Nr", text="body", gold="Label")
TABLE = """Nr ;Body;LABEL;Score\r\n12.0;"He said ""late"";\r\n“twice”";nut;1,5\r\n\r\n\
="007";=A1;;\r\n;;;\r\n"""
"""With ids as spreadsheets write them, decimal commas, blank rows, and a text that is a formula."""
TOLD = [
    Case("12", 'He said "late";\r\n“twice”', "nut", FRUITS.parse_own("nut"), {"Score": "1,5"}),
    Case("007", "=A1"),
]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
@pytest.mark.parametrize("mark", [";", "\t", ","])
def test_tables_of_spreadsheets_are_read(tmp_path: Path, encoding: str, mark: str) -> None:
    path = tmp_path / ("t.tsv" if mark == "\t" else "t.csv")
    content = TABLE.replace(";", mark).replace("1,5", '"1,5"').encode(encoding)
    for packed in (path, path.with_suffix(f"{path.suffix}.gz")):
        packed.write_bytes(gzip.compress(content) if packed.suffix == ".gz" else content)
        first, second = read_cases(str(packed), FRUITS, TICKETS)
        assert first == replace(TOLD[0], description=TOLD[0].description.replace(";", mark))
        assert second == TOLD[1]


def test_objects_of_a_list_have_the_same_columns(tmp_path: Path) -> None:
    rows = [{"NR": 12.0, "Body": "x", "label": "", "when": None}, {"Nr": "b", "body": "y", "n": 1}]
    for name in ("list.json", "list.jsonl"):
        (tmp_path / name).write_text(f"\ufeff {json.dumps(rows, indent=1)}\n")
        read = [*read_cases(str(tmp_path / name), FRUITS, TICKETS)]
        assert read == [Case("12", "x"), Case("b", "y", meta={"n": 1})]


def test_dates_of_parquet_go_into_meta_as_text(tmp_path: Path) -> None:
    path = parquet(tmp_path, id=[1.0], description=["x"], day=[NOON], gone=[float("nan")])
    assert read(path) == [Case("1", "x", meta={"day": str(NOON)})]


@pytest.mark.parametrize(
    ("names", "lacks"),
    [
        ({}, r"description \(cases.text=\)"),
        ({"text": "Bodi", "gold": "Gold"}, r"Bodi \(cases.text=\) and Gold \(cases.gold=\)"),
        ({"text": "Body", "id": "id"}, r"id \(cases.id=\)"),
    ],
)
def test_a_missing_column_is_told_with_those_there_are(
    tmp_path: Path, names: dict[str, Any], lacks: str
) -> None:
    table, rows = tmp_path / "t.csv", jsonl(tmp_path, {"Nr": 1, "Body": "x"})
    table.write_text("Nr;Body\n1;x\n")
    for path in (table, rows, parquet(tmp_path, Nr=[1], Body=["x"])):
        config = CasesConfig(path=str(path), **names)
        with pytest.raises(DataError, match=f"no column {lacks}.*are 'Nr' and 'Body': say which"):
            list(read_cases(str(path), CODEBOOK, config))
    with pytest.raises(ValueError, match=r"give cases\.path"):
        CasesConfig(text="Body")


def test_rows_without_ids_are_numbered_as_in_a_spreadsheet(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text('Body,Channel\n"a\nb",mail\n\nc,mail\n')
    notices = list[str]()
    config = configured(CasesConfig(path=str(tmp_path / "t.csv"), text="body"))
    ids = [case.id for _, case in select_cases(config, CODEBOOK, notices)]
    assert ids == ["row-2", "row-4"]
    assert [notice.partition("t.csv")[2] for notice in notices] == [
        " has no column id: row 12 has the id row-12, and so on.",
        ": 'Channel' went into meta.",
    ]


def test_rows_of_several_people_on_one_text_are_told(tmp_path: Path) -> None:
    path = tmp_path / "long.csv"
    path.write_text("coder,description,gold\n1,x,nut\n2,x,berry\n1,y,nut\n2,y,\n3,x,nut\n")
    notices = list[str]()
    chosen = select_cases(configured(CasesConfig(path=str(path))), FRUITS, notices)
    assert len([*chosen]) == 5
    assert notices[-1] == f"{path}: 3 rows repeat the text of another, and each counts."


def test_a_column_does_not_mean_what_meta_of_its_name_means(tmp_path: Path) -> None:
    path = jsonl(tmp_path, {"description": "x", "trap": True, "reviewed": "no", "bait": "Foo"})
    notices = list[str]()
    ((_, case),) = select_cases(configured(CasesConfig(path=str(path))), CODEBOOK, notices)
    assert not case.trap
    assert case.meta == {"trap (column)": True, "reviewed (column)": "no", "bait (column)": "Foo"}
    assert "'trap' (as 'trap (column)'), 'reviewed'" in notices[1]
    path = jsonl(tmp_path, {"description": "x", "trap": "old", "meta": {"trap": True}})
    (case,) = read_cases(str(path), CODEBOOK)
    assert case.trap and case.meta == {"trap": True, "trap (column)": "old"}


def test_gold_of_a_record_may_have_a_column_for_each_field(tmp_path: Path) -> None:
    book = make_codebook(CodebookConfig.model_validate(RECORD))
    gold = {"topics": "Topics", "severity": "How bad", "score": "Score"}
    config = CasesConfig(path="t", gold=gold)
    path = tmp_path / "t.csv"
    path.write_text("id;description;Topics;How bad;Score\n1;x;b,A;2.0;3,5\n2;y;;1;\n3;z;;;\n")
    golds = [case.gold_label for case in read_cases(str(path), book, config)]
    assert [gold and gold.line for gold in golds] == [
        'severity: "2", topics: [a, b], score: 3.5',
        'severity: "1"',
        None,
    ]
    path.write_text("id;description;Topics;How bad;Score\n1;x;a,c;1;\n")
    message = r"(?ms)wrong gold in 1: 2\).*row 2: Topics should be 'a' or 'b', found 'c'$"
    with pytest.raises(DataError, match=message):
        list(read_cases(str(path), book, config))
    wrong = configured(CasesConfig(path="t", gold={"topic": "Topics"}))
    with pytest.raises(ConfigError, match=r"names topic, but .* has severity, topics, score"):
        next(select_cases(wrong, book))


@pytest.mark.parametrize(
    ("gold", "several", "read"),
    [
        # A list of one label, as doccano and Prodigy write it, and of none.
        (["a"], False, "a"),
        ([], False, None),
        # Codes that pandas has written as fractions, or JSON as numbers.
        ("1.0", False, "1"),
        (1, False, "1"),
        # Several labels of a cell, as spreadsheets and doccano separate them.
        *((text, True, "a, b") for text in ("a; b", "a|b", "b\na", "a#b", "a, b", ["a", "b"])),
        # Missing values as R, pandas, SQL and people write them; a label of such a name is one.
        *((text, each, None) for text in ("NA", "n/a", "NULL", " - ") for each in (False, True)),
        ("nan", False, "nan"),
    ],
)
def test_gold_is_read_as_programs_and_people_write_it(
    tmp_path: Path, gold: object, several: bool, read: str | None
) -> None:
    labels = {"a": "Apples.", "b": "Bees.", "1": "One.", "nan": "Grandmother."}
    book = {"name": "n", "task": "Read.", "labels": labels, "several": several}
    path = jsonl(tmp_path, {"id": 1, "description": "x", "gold": gold})
    (case,) = read_cases(str(path), make_codebook(CodebookConfig.model_validate(book)))
    assert (case.gold_label and case.gold_label.line) == read
    assert (case.gold is None) == (read is None)


def test_a_quotation_mark_that_is_none_takes_no_rows_into_its_text(tmp_path: Path) -> None:
    rows = ['1\t"The late" bus', "2\tx", '3\t"Late', "4\ty", '5\tsaid "so" twice', '6\t"a\tb"']
    path = tmp_path / "t.tsv"
    path.write_text("\n".join(["id\tdescription", *rows]) + "\n")
    # As pandas reads it with csv.QUOTE_NONE, but for the last: Excel quotes cells with tabs.
    texts = ['"The late" bus', "x", '"Late', "y", 'said "so" twice', "a\tb"]
    assert [case.description for case in read(path)] == texts
    path = tmp_path / "t.csv"
    path.write_text("\n".join(["id,description", *(row.replace("\t", ",") for row in rows)]))
    with pytest.raises(
        DataError, match=r"(?s)2 of 6 rows .*marks in 2: 2 and 4\).*row 4: its quot"
    ):
        read(path)


def test_all_faults_are_told_at_once_or_their_rows_left_out(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    rows = ["id,description,gold", "1,fîne,", "2,,", "3,a\0b,", "1,again,", "4,x,apple", "5,x"]
    rows += [f"6,{'x' * 100_001},", "7,\xe9,", *[",x,"] * 30, "8,y,"]
    path.write_bytes("\n".join(rows).encode().replace("\xe9".encode(), b"\xe9"))
    config = configured(CasesConfig(path=str(path)))
    with pytest.raises(DataError) as caught:
        list(select_cases(config, FRUITS))
    head, *faults, more = str(caught.value).splitlines()
    kinds = "no text in 1: 3; NUL in 1: 4; id twice in 1: 5; wrong gold in 1: 6; "
    assert f"37 of 39 rows are unusable ({kinds}" in head
    assert [line.split(":")[0] for line in faults] == [f"  row {n}" for n in range(3, 23)]
    assert "100,001 characters, where prompts take 100,000" in faults[5] and "'7,é,'" in faults[6]
    assert "3 cells" not in more and more.endswith("cases.skip_unusable=true")
    notices = list[str]()
    chosen = configured(CasesConfig(path=str(path), skip_unusable=True))
    assert [case.id for _, case in select_cases(chosen, FRUITS, notices)] == ["1", "8"]
    assert notices[0].startswith("Left out by cases.skip_unusable: ")
    assert "wrong id in 30: 10, " in notices[0]
    path.write_text("id,description\n,x\n")
    with pytest.raises(DataError, match="1 of 1 rows are unusable"):
        list(select_cases(chosen, FRUITS))


@pytest.mark.parametrize("name", ["t.csv", "t.csv.gz", "t.jsonl", "t.json"])
def test_text_of_another_encoding_is_refused_as_a_whole_or_read_as_it_is(
    tmp_path: Path, name: str
) -> None:
    rows = [{"id": "1", "description": "plain"}, {"id": "2", "description": "Café “Zoë”, 5 €"}]
    lines = [json.dumps(row, ensure_ascii=False) for row in rows]
    text = "\n".join(lines) if name == "t.jsonl" else f"[{', '.join(lines)}]"
    if ".csv" in name:
        text = "id;description\n1;plain\n2;Café “Zoë”, 5 €\n"
    path = tmp_path / name

    def read_as(encoding: str | None) -> list[Case]:
        config = CasesConfig(path=str(path), encoding=encoding, skip_unusable=True)
        return [*read_cases(str(path), CODEBOOK, config)]

    for encoding in ("windows-1252", "utf-16-le"):
        content = text.encode(encoding)
        path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
        assert [case.description for case in read_as(encoding)] == ["plain", "Café “Zoë”, 5 €"]
    content = text.encode("windows-1252")
    path.write_bytes(gzip.compress(content) if name.endswith("gz") else content)
    with pytest.raises(DataError, match=r"is not UTF-8, (row|line) .: .*Café “Zoë”.*cases\.enc"):
        read_as(None)
    with pytest.raises(ValueError, match="no encoding of text that Python knows"):
        read_as("klingon")
    # One bad row of a file that is UTF-8 is a row of its own.
    path.write_bytes(gzip.compress(text.encode().replace("ë".encode(), b"\xeb")))
    path = path.rename(tmp_path / f"bad.{name.removesuffix('.gz').removeprefix('t.')}.gz")
    assert [case.id for case in read_as(None)] == ["1"]


# Rows that cannot be used

WRONG_ROWS = [
    ("{", "line 2: not valid JSON"),
    ("[]", r"line 2: '\[\]' is no JSON object"),
    ({"description": "x"}, "line 2: id is missing"),
    ({"id": True, "description": "x"}, "line 2: id is 'true', should be text"),
    ({"id": "b"}, "line 2: description is missing"),
    ({"id": "b", "description": " \n"}, "no text in 1: 2.*line 2: description is .*not be empty"),
    ({"id": "b", "description": "a\0"}, "NUL in 1: 2.*line 2: description is .*no NUL"),
    ({"id": "b", "description": 5}, "line 2: description is '5', should be text"),
    ({"id": "b", "description": "x\ud800"}, "line 2: .*surrogates not allowed"),
    ({"id": "pid", "description": "x"}, "line 2: id is 'pid', as in an earlier row: rename"),
    ({"id": "b", "description": "x", "gold": "Foo"}, "line 2: gold is 'Foo', .*no OPT-Code"),
    ({"id": "b", "description": "x", "gold": "OPT=Lrn+"}, "line 2: gold is .*column 9"),
    ({"id": "b", "description": "x", "meta": "{"}, "line 2: meta is '{', should be an object"),
    ({"id": "b", "description": "x", "meta": {"trap": "yes"}}, r"meta\.trap is 'yes'"),
    ({"id": "b", "description": "x", "meta": {"bait": ["Foo"]}}, r'meta\.bait is .*\["Foo"\]'),
    ({"id": "b", "description": "x", "candidate": "Evo"}, "candidate is 'Evo', should be an obj"),
    ({"id": "b", "description": "x", "candidate": {"code": " "}}, r"candidate\.code is ' '"),
    ({"id": "b", "description": "x", "candidate": {"rationale": "r"}}, "candidate.code is missing"),
    ('{"id": "b", "description": "' + "[" * 3000, "line 2"),
]


@pytest.mark.parametrize(("row", "message"), WRONG_ROWS)
def test_a_row_that_cannot_be_used_is_named(tmp_path: Path, row: object, message: str):
    path = jsonl(tmp_path, PID, row)
    with pytest.raises(DataError, match=f"(?s){message}") as caught:
        read(path)
    whole = str(caught.value)
    assert whole.startswith(f"cases {path}: 1 of 2 rows are unusable (") and len(whole) < 500
    assert whole.endswith("leave them out with cases.skip_unusable=true")


WRONG_COLUMNS: list[tuple[dict[str, Any], str]] = [
    ({"id": ["a", "b", "a"], "description": ["x", "y", "z"]}, "row 3: id is 'a'"),
    ({"id": pa.array(["a", None]), "description": ["x", "y"]}, "row 2: id is 'null'"),
    ({"id": pa.array([2**50], pa.timestamp("ms")), "description": ["x"]}, "cannot be read"),
    ({"id": ["a"], "description": ["x"], "meta": [{"n": float("nan")}]}, r"meta\.n.* finite"),
    ({"id": ["a"], "description": ["x"], "meta": [{"n": NOON}]}, r"meta\.n .*not a valid JSON"),
    ({}, "no column description .* columns are none"),
]


@pytest.mark.parametrize(("columns", "message"), WRONG_COLUMNS)
def test_wrong_parquet_is_named(tmp_path: Path, columns: dict[str, Any], message: str):
    with pytest.raises(DataError, match=rf"(?s)cases .*c.*\.parquet.*{message}"):
        read(parquet(tmp_path, **columns))


WRONG_FILES: list[tuple[str, bytes | None, str]] = [
    ("absent.jsonl", None, "cannot be read"),
    ("cases.doc", b"", r"should end in \.csv, \.tsv, \.jsonl, "),
    ("cases.json", b"[]", "holds no case"),
    ("torn.json", b'[{"id": "a", "description": "x"}', "not JSON.*cut off"),
    ("wide.json", "[]".encode("utf-16"), "holds no case"),
    ("cases.xlsx", b"PK", "save a spreadsheet as CSV UTF-8"),
    ("renamed.csv", b"PK\3\4...", "save a spreadsheet as CSV UTF-8"),
    ("zeros.csv.gz", gzip.compress(bytes(200 * MIB), 1, mtime=0), "line 1: more than .* bytes"),
    ("open.csv", b'id,description\n1,"a\n', r"quotation marks in 1: 2\).*row 2: its quotation"),
    ("empty.jsonl", b"\n\n", "holds no case"),
    (
        "object.json",
        b'{\n  "data": [{"id": "a"}]\n}\n',
        "begins with '{', an object over several l",
    ),
    ("keys.json", b' {"columns": [\n"id"],\n"data": []}', r"columns\": \['.*on a line of its own"),
    ("cases.parquet", b"PAR1 no table", "cannot be read"),
    (
        "torn.jsonl.gz",
        gzip.compress(b'{"id": 1}' * 999, mtime=0)[:-20],
        "cannot be read: Truncated",
    ),
    ("latin.jsonl", b'{"id": "\xe9"}\n', "not UTF-8, line 1: .*'.*é.*'.*cases.enc"),
    ("zeros.jsonl.gz", gzip.compress(bytes(200 * MIB), 1, mtime=0), "line 1: more than .* bytes"),
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize(("name", "content", "message"), WRONG_FILES, ids=lambda v: str(v)[:20])
def test_a_file_that_cannot_be_used_is_named(
    tmp_path: Path, name: str, content: bytes | None, message: str
):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with limits(), pytest.raises(DataError, match=f"(?s){message}") as caught:
        read(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < 1000


@pytest.mark.timeout(10)
def test_a_pipe_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "cases.jsonl")
    with pytest.raises(DataError, match="no regular file: write its content into one"):
        next(read_cases(str(pipe), CODEBOOK))


@pytest.mark.parametrize("form", ["jsonl", "jsonl.gz", "json", "csv", "parquet"])
def test_altered_cases_are_read_or_refused(tmp_path: Path, form: str) -> None:
    path = tmp_path / f"c.{form}"
    pq.write_table(pa.Table.from_pylist([PID | {"id": f"{n}"} for n in range(20)]), path)
    whole = path.read_bytes()
    if form == "csv":
        whole = 'id,description,gold\n1,"a ""b""\n",Lrn\n2,é,\n'.encode()
    elif form == "json":
        whole = json.dumps([PID | {"id": n} for n in range(5)], indent=1).encode()
    elif form != "parquet":
        whole = jsonl(tmp_path, *(PID | {"id": n} for n in range(5))).read_bytes()
    if form == "jsonl.gz":
        whole = gzip.compress(whole)

    def read_bytes(content: bytes) -> None:
        path.write_bytes(content)
        read(path)

    try_altered([whole], read_bytes, DataError)


# Ids


def test_ids_that_look_like_others_or_move_the_screen_are_refused(tmp_path: Path) -> None:
    for name in ("", "a\nb", "\x1b[31mred", "\u202egnp.exe", "\u200b", "é" * 128):
        with pytest.raises(DataError, match=r"line 1: id is .*should ") as caught:
            read(jsonl(tmp_path, {"id": name, "description": "x"}))
        assert str(caught.value).replace("\n", "").isprintable()
    names = ["a b", "a/b", "é", "漢字", "x" * MAX_ID_BYTES, "..", "-"]
    rows = [{"id": name, "description": "x"} for name in names]
    assert [case.id for case in read(jsonl(tmp_path, *rows))] == names


def test_ids_are_unique_and_measured_with_their_generation(tmp_path: Path) -> None:
    def select(*drawn: str) -> list[str]:
        path = jsonl(tmp_path, *(PID | {"id": name} for name in drawn), name="g")
        chosen = configured(CasesConfig(path=str(published)), str(path))
        return [case.id for _, case in select_cases(chosen, CODEBOOK)]

    published = jsonl(tmp_path, PID | {"id": "g/1"}, PID | {"id": "1"})
    with pytest.raises(DataError, match=r"g\.jsonl: [^\n]*\n  line 2: id is 'g/1', as in .*rename"):
        select("2", "1")
    with pytest.raises(DataError, match=rf"line 1: id is 'x+.*at most {MAX_ID_BYTES} bytes"):
        select("x" * (MAX_ID_BYTES - 1))
    assert select("2", "3") == ["g/1", "1", "g/2", "g/3"]
    for name in ("published", "g"):
        twice = jsonl(tmp_path, PID, name=name)
        chosen = configured(CasesConfig(path=str(published)), str(twice), f"{tmp_path}/g.parquet")
        with pytest.raises(ConfigError, match="rename it"):
            list(select_cases(chosen, CODEBOOK))


# Packaged cases


def test_the_first_packaged_set_is_the_default() -> None:
    by_default = [case for _, case in select_cases(configured(CasesConfig()), CODEBOOK)]
    assert by_default == PACKAGED["systems+gold"]


@pytest.mark.parametrize(
    ("codebook", "packaged", "problem"),
    [
        (CODEBOOK, "silver", "opt-code has no case set silver: .* takes systems.gold, gold, "),
        (FRUITS, None, "fruits has no cases of its own: give cases.path=FILE"),
    ],
)
def test_a_codebook_without_such_cases_is_named(
    codebook: Codebook, packaged: str | None, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        next(select_cases(configured(CasesConfig(packaged=packaged)), codebook))
