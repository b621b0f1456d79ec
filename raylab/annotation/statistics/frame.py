"""The cases of a run as one table, for statistics and for files.

A row is a case with its figures as columns; `COLUMNS` documents them. Statistics read the columns
from `Tables`; an export adds the texts and the archived body.
"""

import csv
import io
import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Annotated, Any, BinaryIO, Literal

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from raylab.annotation.outcome import (
    SIDES,
    Adjudication,
    Call,
    Classification,
    Evaluation,
    Outcome,
    current_label,
    read_outcome,
)
from raylab.archive.records import CurrentCase, StoredDecision
from raylab.archive.rows import canonical
from raylab.archive.run import RunArchive
from raylab.archive.tables import utc_text
from raylab.codebook import Agreement, Codebook, Label, SetDistance, compare
from raylab.files import Place

Row = dict[str, Any]
Frame = Annotated[Any, pd.DataFrame]
"""A DataFrame; pandas has no types that a strict checker could follow."""
Format = Literal["parquet", "jsonl", "csv"]

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
SEPARATOR = "; "
"""Between the values of a column that holds several."""
ADJUDICATED = "adjudicated"
VIEWS = (*(side.lower() for side in SIDES), ADJUDICATED)
"""The suffixes of the columns of an answer: both annotators, and the adjudicator."""
ANSWER_COLUMNS: dict[str, pa.DataType] = {
    "code": TEXT,
    "format": TEXT,
    "requested": TEXT,
    "model": TEXT,
    "prompt": TEXT,
    "prompt_hash": TEXT,
    "seed": WHOLE,
    "cached": TRUTH,
    "verdict": TEXT,
    "raw_verdict": TEXT,
    "score": WHOLE,
    "acceptable": TRUTH,
    "contradictory": TRUTH,
    "issues": TEXT,
    "evaluator": TEXT,
    "evaluator_prompt_hash": TEXT,
    "evaluator_cached": TRUTH,
}
"""The columns of each view: its answer, the first call for it, and the evaluator's report on it.

`requested` and `model` are the model as requested and as the server names it; issues are separated.
"""
MEASURES = ("exact", "jaccard", "levenshtein", "levenshtein_normalised", "weighted", "composition")
"""The fields of an agreement that are columns."""
FIGURES: dict[str, pa.DataType] = {
    "case": TEXT,
    "description_hash": TEXT,
    "generation": TEXT,
    "run_status": TEXT,
    "run_code": TEXT,
    "code": TEXT,
    "gold": TEXT,
    "gold_code": TEXT,
    "held_out": TRUTH,
    "gold_reviewed": TRUTH,
    "trap": TRUTH,
    "bait": TEXT,
    "reason": TEXT,
    "path": TEXT,
    **{f"{name}_{view}": kind for view in VIEWS for name, kind in ANSWER_COLUMNS.items()},
    **{name: WHOLE if name == "levenshtein" else REAL for name in MEASURES},
    "exact": TRUTH,
    "choice": TEXT,
    "shown_first": TEXT,
    "prompt_tokens": WHOLE,
    "completion_tokens": WHOLE,
    "cost": REAL,
    "started": TIME,
    "finished": TIME,
}
"""The columns of `Tables.cases`.

`run_status` and `run_code` are what the protocol left, `code` includes people's decisions;
`gold_code` is gold in canonical form; `held_out` is true if it measures accuracy, so not where the
prompts name the system; `path` has the steps without their scores; `bait` is what the case names.
"""
COLUMNS: dict[str, pa.DataType] = {
    "run": TEXT,
    "sequence": WHOLE,
    "status": TEXT,
    "reviewer": TEXT,
    **FIGURES,
    "created": TIME,
    "description": TEXT,
    "sha256": TEXT,
    "meta": TEXT,
    "decisions": TEXT,
    "body": TEXT,
}
"""The columns of an export in order; `status` and `code` include people's decisions."""
EXPORT_SCHEMA = pa.schema(list(COLUMNS.items()))
CALL_COLUMNS: dict[str, pa.DataType] = {
    "role": TEXT,
    "model": TEXT,
    "response_model": TEXT,
    "prompt": TEXT,
    "prompt_hash": TEXT,
    "cached": TRUTH,
    "prompt_tokens": WHOLE,
    "completion_tokens": WHOLE,
    "cached_prompt_tokens": WHOLE,
    "reasoning_tokens": WHOLE,
    "cost": REAL,
    "seconds": REAL,
}
"""The columns of `Tables.calls`; `role` is the stage of the protocol."""
REPLY_COLUMNS = CALL_COLUMNS.keys() - {"role", "model", "prompt", "prompt_hash"}
LISTED = 100
"""Most distinct names that are counted separately; the others are counted together."""
OTHERS = "others"
JSON_COLUMNS = ("meta", "decisions", "body")
ROW_GROUP_BYTES = 16 << 20
ROWS_AT_ONCE = 10_000
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet computes."""


@dataclass(frozen=True)
class Tables:
    """The outcomes of a run.

    Attributes:
        cases: A row for each case; columns `FIGURES`.
        calls: A row for each answered call of the protocol; columns `CALL_COLUMNS`.
        codebook: Of the run.
    """

    cases: Frame
    calls: Frame
    codebook: Codebook
    _labels: dict[str, Label] = field(default_factory=dict[str, Label], repr=False)

    def only(self, rows: Any) -> "Tables":
        """Returns the tables with some of the cases, chosen by a column of truths or by index."""
        return replace(self, cases=self.cases.loc[rows])

    def label(self, line: str | None) -> Label | None:
        """Returns the label of a canonical line; each line is read once."""
        if line is None:
            return None
        if line not in self._labels:
            self._labels[line] = self.codebook.read(line)
        return self._labels[line]


def view(cases: Frame, name: str) -> Frame:
    """Returns the columns of an answer, one of `VIEWS`, under the names of `ANSWER_COLUMNS`."""
    suffixed = {f"{column}_{name}": column for column in ANSWER_COLUMNS}
    return cases[[*suffixed]].rename(columns=suffixed)


def tally(rows: Frame, *columns: str) -> Counter[Any]:
    """Returns the numbers of rows by the values of some columns, None where one is missing.

    Keys are values of a single column, and tuples of several.
    """
    values = [list(_objects(rows[name])) for name in columns]
    return Counter(values[0]) if len(values) == 1 else Counter(zip(*values, strict=True))


def counted(column: Any) -> dict[str, int]:
    """Returns the numbers of rows by text, the most frequent first; missing texts do not count.

    Only the `LISTED` most frequent are told apart.
    """
    return _listed(Counter(list(column.dropna())))


def counted_values(column: Any) -> dict[str, int]:
    """Returns the numbers of rows that hold a value, of a column with several in each row."""
    counts: Counter[str] = Counter()
    for joined, rows in Counter(list(column.dropna())).items():
        counts.update(dict.fromkeys(filter(None, joined.split(SEPARATOR)), rows))
    return _listed(counts)


def by_source(rows: Frame, keys: list[str], served: str) -> Iterator[tuple[dict[str, Any], Frame]]:
    """Yields the rows of each combination of keys, in order; a missing key is empty.

    Args:
        rows: With the columns of the keys.
        keys: Names of the columns.
        served: The key with the names that servers give; only the `LISTED` most frequent of them
            are told apart.
    """
    texts = rows[keys].astype(object).fillna("")
    common = [*_listed(Counter(list(texts[served])))]
    texts[served] = texts[served].where(texts[served].isin(common), OTHERS)
    for values, group in rows.groupby([texts[key] for key in keys]):
        yield dict(zip(keys, values, strict=True)), group


def _listed(counts: Counter[str]) -> dict[str, int]:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    rest = sum(count for _, count in ordered[LISTED:])
    return dict(ordered[:LISTED]) | ({OTHERS: rest} if rest else {})


def _objects(column: Any) -> Any:
    values = column.astype(object)
    return values.where(values.notna(), None)


class _Chunks:
    """Rows that become a DataFrame; repeated texts are stored once."""

    def __init__(self, columns: Mapping[str, pa.DataType]) -> None:
        repeated = {TEXT: pa.dictionary(pa.int32(), TEXT)}
        self._schema = pa.schema([(name, repeated.get(k, k)) for name, k in columns.items()])
        self._tables: list[Any] = []
        self._rows: list[Row] = []

    def add(self, row: Row) -> None:
        self._rows.append(row)
        if len(self._rows) >= ROWS_AT_ONCE:
            self._flush()

    def frame(self) -> Frame:
        self._flush()
        return pa.concat_tables(self._tables).unify_dictionaries().to_pandas()

    def _flush(self) -> None:
        self._tables.append(pa.Table.from_pylist(self._rows, self._schema))
        self._rows = []


class Tabulator:
    """Collects the outcomes of a run as tables, one by one."""

    def __init__(self, codebook: Codebook, *, open_book: bool = False) -> None:
        """Starts without outcomes.

        Args:
            codebook: Of the run.
            open_book: True if the prompts name the systems of the cases with `meta.open_book`.
        """
        self._codebook, self._open_book = codebook, open_book
        self._cases, self._calls = _Chunks(FIGURES), _Chunks(CALL_COLUMNS)

    def add(self, outcome: Outcome, label: Label | None) -> None:
        """Adds a case with the label in force, which a person may have decided."""
        figures = case_figures(outcome, label, self._codebook.distance, self._open_book)
        self._cases.add(_sound_row(figures))
        for call in outcome.calls:
            self._calls.add(_sound_row(call_figures(call)))

    def tables(self) -> Tables:
        """Returns the tables of what was added."""
        return Tables(self._cases.frame(), self._calls.frame(), self._codebook)


def tabulate(
    outcomes: Iterable[tuple[Outcome, Label | None]], codebook: Codebook, *, open_book: bool = False
) -> Tables:
    """Returns outcomes with their labels in force as tables; see `Tabulator`."""
    tabulator = Tabulator(codebook, open_book=open_book)
    for outcome, label in outcomes:
        tabulator.add(outcome, label)
    return tabulator.tables()


def tabulate_calls(calls: Iterable[Call]) -> Frame:
    """Returns calls as a DataFrame with the columns `CALL_COLUMNS`."""
    chunks = _Chunks(CALL_COLUMNS)
    for call in calls:
        chunks.add(_sound_row(call_figures(call)))
    return chunks.frame()


def read_run(run: RunArchive, codebook: Codebook) -> Iterator[tuple[Outcome, Label | None]]:
    """Yields the outcomes of an archived run with the labels in force, streamed.

    Raises:
        ArchiveError: There is no such run, or it cannot be read.
    """
    return (_with_label(current, codebook) for current in run.current_cases())


def _with_label(current: CurrentCase, codebook: Codebook) -> tuple[Outcome, Label | None]:
    outcome = read_outcome(current.case.body, codebook)
    return outcome, current_label(current, codebook) if current.decisions else outcome.label


def case_figures(
    outcome: Outcome, label: Label | None, distance: SetDistance, open_book: bool
) -> Row:
    """Returns the columns `FIGURES` of a case; for the arguments see `Tabulator`."""
    settled, agreement = outcome.adjudication, agreement_of(outcome, distance)
    row: Row = {
        "case": outcome.case,
        "description_hash": outcome.description_hash,
        "generation": outcome.generation,
        "run_status": str(outcome.status),
        "run_code": _line(outcome.label),
        "code": _line(label),
        "gold": outcome.gold,
        "gold_code": _line(outcome.gold_label),
        "held_out": outcome.gold_label is not None and not is_open_book(outcome, open_book),
        "gold_reviewed": outcome.meta.get("reviewed") is not False,
        "trap": outcome.trap,
        "bait": _joined(outcome.meta.get("bait") or ()),
        "reason": outcome.reason,
        "path": " > ".join(":".join(step.split(":")[:2]) for step in outcome.path),
        **{name: agreement and getattr(agreement, name) for name in MEASURES},
        "choice": settled and settled.choice,
        "shown_first": settled and settled.order[0],
        "prompt_tokens": outcome.prompt_tokens,
        "completion_tokens": outcome.completion_tokens,
        "cost": outcome.cost,
        "started": outcome.started,
        "finished": outcome.finished,
    }
    for side in SIDES:
        row |= _answer(side.lower(), outcome.classification(side), outcome.evaluation(side))
    return row | _adjudicated(settled)


def _adjudicated(settled: Adjudication | None) -> Row:
    return _answer(
        ADJUDICATED, settled and settled.classification, settled and settled.confirmation
    )


def _answer(view: str, answer: Classification | None, report: Evaluation | None) -> Row:
    call, asked = _first_call(answer), _first_call(report)
    columns: Row = {
        "code": answer and _line(answer.label),
        "format": answer and answer.format,
        "requested": call and call.model,
        "model": call and call.reply.response_model,
        "prompt": call and call.prompt,
        "prompt_hash": call and call.prompt_hash,
        "seed": call and call.seed,
        "cached": answer and _is_cached(answer),
        "verdict": report and str(report.verdict),
        "raw_verdict": report and report.raw_verdict and str(report.raw_verdict),
        "score": report and report.score,
        "acceptable": report and report.acceptable,
        "contradictory": report and report.contradictory,
        "issues": report and _joined(report.issues),
        "evaluator": asked and asked.reply.response_model,
        "evaluator_prompt_hash": asked and asked.prompt_hash,
        "evaluator_cached": report and _is_cached(report),
    }
    return {f"{name}_{view}": value for name, value in columns.items()}


def is_open_book(outcome: Outcome, open_book: bool) -> bool:
    """Returns True if the prompts give the gold of a case away; for `open_book` see `Tabulator`."""
    return open_book and outcome.meta.get("open_book") is True


def call_figures(call: Call) -> Row:
    """Returns the columns `CALL_COLUMNS` of a call."""
    return {
        "role": call.stage,
        **{name: getattr(call, name) for name in ("model", "prompt", "prompt_hash")},
        **{name: getattr(call.reply, name) for name in REPLY_COLUMNS},
    }


def agreement_of(outcome: Outcome, distance: SetDistance) -> Agreement | None:
    """Returns the agreement of A and B on a case; None unless both gave a code.

    With another distance than the archived one, only what depends on it is computed again:
    archived labels are canonical, and the edits are those of the lines as written.
    """
    a, b = (outcome.label_of(side) for side in SIDES)
    if a is None or b is None:
        return None
    record, now = outcome.agreement, distance.version
    if record is None:
        return compare(a, b, distance)
    if record.distance == now:
        return record
    weighted = 1.0 - distance(a.categories, b.categories)
    return record.model_copy(update={"weighted": weighted, "distance": now})


def _first_call(part: Classification | Evaluation | None) -> Call | None:
    return part.calls[0] if part is not None and part.calls else None


def _is_cached(part: Classification | Evaluation) -> bool:
    """Returns True if the journal answered all of its calls."""
    return bool(part.calls) and all(call.reply.cached for call in part.calls)


def _line(label: Label | None) -> str | None:
    return None if label is None else str(label)


def _joined(values: Iterable[str]) -> str:
    return SEPARATOR.join(sorted(value.replace(SEPARATOR, ", ") for value in values))


def export_run(
    run: RunArchive,
    path: str | os.PathLike[str],
    codebook: Codebook,
    format: Format = "parquet",
    *,
    open_book: bool = False,
) -> int:
    """Writes the cases of a run with the decisions on them into one file, atomically.

    A row has the columns `COLUMNS`; body, meta and decisions are JSON values in JSONL and JSON text
    elsewhere. In CSV a text that a spreadsheet would compute begins with an apostrophe. The export
    shows the run at the time of the call.

    Args:
        run: The run.
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced.
        codebook: Of the run.
        format: parquet, jsonl or csv.
        open_book: See `Tabulator`.

    Returns:
        Cases written.

    Raises:
        RunError: The file cannot be written.
        ConfigError: No filesystem opens the URI.
        ArchiveError: There is no such run, or it cannot be read.
    """
    rows = _export_rows(run, codebook, open_book)
    write = {"parquet": _write_parquet, "jsonl": _write_lines, "csv": _write_csv}[format]
    with Place.at(path).replaced() as file:
        return write(rows, file)


def export_frame(run: RunArchive, codebook: Codebook, *, open_book: bool = False) -> pd.DataFrame:
    """Returns the rows of `export_run` as a DataFrame, with the same arguments and errors."""
    tables = list(_arrow_tables(_export_rows(run, codebook, open_book)))
    return pa.concat_tables(tables or [EXPORT_SCHEMA.empty_table()]).to_pandas()


def _export_rows(run: RunArchive, codebook: Codebook, open_book: bool) -> Iterator[Row]:
    for current in run.current_cases(until=run.row().records):
        yield _export_row(current, codebook, open_book)


def _export_row(current: CurrentCase, codebook: Codebook, open_book: bool) -> Row:
    case, last = current.case, current.decisions[-1] if current.decisions else None
    outcome, label = _with_label(current, codebook)
    return {
        **case_figures(outcome, label, codebook.distance, open_book),
        "run": case.run,
        "sequence": case.sequence,
        "status": current.status,
        "reviewer": None if last is None else last.reviewer,
        "created": case.created,
        "description_hash": case.description_hash,
        "description": case.description,
        "sha256": case.sha256,
        "meta": outcome.meta,
        "decisions": [_decision(decision) for decision in current.decisions],
        "body": case.body,
    }


def _decision(decision: StoredDecision) -> Row:
    return {**vars(decision), "created": utc_text(decision.created)}


def _write_lines(rows: Iterable[Row], file: BinaryIO) -> int:
    count = 0
    for row in rows:
        ordered = {name: _text_of_time(row[name]) for name in COLUMNS}
        file.write(json.dumps(ordered, separators=(",", ":"), allow_nan=False).encode() + b"\n")
        count += 1
    return count


def _write_csv(rows: Iterable[Row], file: BinaryIO) -> int:
    count = 0
    text = io.TextIOWrapper(file, "utf-8", newline="")
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in map(_flat_row, rows):
        writer.writerow(_defused(_text_of_time(row[name])) for name in COLUMNS)
        count += 1
    text.detach()
    return count


def _defused(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value


def _text_of_time(value: Any) -> Any:
    return utc_text(value) if isinstance(value, datetime) else value


def _write_parquet(rows: Iterable[Row], file: BinaryIO) -> int:
    count = 0
    with parquet.ParquetWriter(file, EXPORT_SCHEMA, compression="zstd") as writer:
        for table in _arrow_tables(rows):
            writer.write_table(table)
            count += table.num_rows
    return count


def _arrow_tables(rows: Iterable[Row]) -> Iterator[Any]:
    """Yields rows as Arrow tables of about `ROW_GROUP_BYTES` of text, to bound memory."""
    group: list[Row] = []
    size = 0
    for row in map(_flat_row, rows):
        group.append(row)
        size += len(row["body"]) + len(row["description"]) + len(row["decisions"])
        if size >= ROW_GROUP_BYTES:
            yield pa.Table.from_pylist(group, EXPORT_SCHEMA)
            group, size = [], 0
    if group:
        yield pa.Table.from_pylist(group, EXPORT_SCHEMA)


def _flat_row(row: Row) -> Row:
    """Returns a row with JSON texts for JSON values, encodable as UTF-8."""
    return _sound_row(row | {name: canonical(row[name]) for name in JSON_COLUMNS})


def _sound_row(row: Row) -> Row:
    """Returns a row without lone surrogates, which UTF-8 cannot encode: they become U+FFFD."""
    return {name: _sound(value) for name, value in row.items()}


def _sound(value: Any) -> Any:
    if not isinstance(value, str) or value.isascii():
        return value
    return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
