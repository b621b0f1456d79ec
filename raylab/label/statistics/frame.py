"""The cases of a run as one table, for all statistics, and as a file.

A row is a case with the columns of `figure_columns`; a file has its texts and decisions too.
"""

import csv
import io
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import combinations, islice
from statistics import fmean
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from raylab.core.files import Place
from raylab.label.archive.records import CurrentCase
from raylab.label.archive.run import RunArchive
from raylab.label.archive.tables import as_json, utc_text
from raylab.label.codebooks.codebook import Codebook, Label, SetDistance, compare, field_of
from raylab.label.protocol.outcome import (
    Annotator,
    Call,
    Classification,
    Evaluation,
    Outcome,
    current_label,
    read_outcome,
)

Row = dict[str, Any]
Columns = Mapping[str, pa.DataType]
Frame = Annotated[Any, pd.DataFrame]
"""A DataFrame; pandas has no types that a strict checker could follow."""

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
SEPARATOR = "; "
"""Between the values of a column that holds several."""
ADJUDICATED = "adjudicated"
ANSWER_COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("code", "format", "requested", "model", "prompt", "prompt_hash"), TEXT),
    "seed": WHOLE,
    "cached": TRUTH,
    **dict.fromkeys(("verdict", "raw_verdict"), TEXT),
    "score": WHOLE,
    **dict.fromkeys(("acceptable", "contradictory"), TRUTH),
    **dict.fromkeys(("issues", "evaluator", "evaluator_prompt_hash"), TEXT),
    "evaluator_cached": TRUTH,
}
"""The columns of an answer: the answer, the first call for it, and the evaluator's report on it.

`requested` and `model` are the model as requested and as the server names it.
"""
MEASURES = ("exact", "jaccard", "levenshtein", "levenshtein_normalised", "weighted", "composition")
"""The fields of an agreement that are columns."""
TOKENS = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens", "reasoning_tokens")
REPLY_COLUMNS: dict[str, pa.DataType] = {
    "response_model": TEXT,
    "cached": TRUTH,
    **dict.fromkeys(TOKENS, WHOLE),
    **dict.fromkeys(("cost", "seconds"), REAL),
}
CALL_COLUMNS = dict.fromkeys(("role", "model"), TEXT) | REPLY_COLUMNS
"""The columns of `Tables.calls`; `role` is the stage of the protocol."""
AT_ONCE = 1_000
"""Outcomes that are held at once, and rows in a group of a Parquet file."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet computes."""


@dataclass(frozen=True)
class Tables:
    """The outcomes of a run.

    Attributes:
        cases: A row for each case; columns `figure_columns`.
        calls: A row for each answered call of the protocol; columns `CALL_COLUMNS`.
        annotators: The annotators that may have answered.
    """

    cases: Frame
    calls: Frame
    codebook: Codebook
    annotators: Sequence[Annotator]
    _labels: dict[str, Label] = field(default_factory=dict[str, Label], repr=False)

    def only(self, rows: Any) -> "Tables":
        """Returns the tables with some of the cases, chosen by a column of truths or by index."""
        return replace(self, cases=self.cases.loc[rows])

    def label(self, line: object) -> Label | None:
        """Returns the label of a canonical line, None of a missing one; each line is read once."""
        if not isinstance(line, str):
            return None
        if line not in self._labels:
            self._labels[line] = self.codebook.read(line)
        return self._labels[line]

    def labels(self, column: str) -> list[Label]:
        """Returns the labels in a column of codes, without the missing ones."""
        labels = map(self.label, self.cases[column])
        return [label for label in labels if label is not None]

    def right(self, codes: Any, gold: Any) -> Any:
        """Returns where codes have the labels of gold, in the fields that gold has."""
        sides = (map(self.label, column.astype(object)) for column in (codes, gold))
        return pd.Series(list(map(has_labels, *sides)), codes.index, bool)

    def equal(self, first: Any, second: Any, name: str) -> Any:
        """Returns where two columns of codes are equal in an attribute, such as `categories`."""
        columns = [column.astype(object) for column in (first, second)]
        labels = {line: self.label(line) for column in columns for line in column.dropna().unique()}
        values = {line: getattr(label, name) for line, label in labels.items()}
        a, b = (column.map(values) for column in columns)
        return a.eq(b) & a.notna()


def has_labels(code: Label | None, gold: Label | None) -> bool:
    """Returns whether a code has the labels of gold, in the fields that gold has."""
    if code is None or gold is None:
        return False
    if code.categories == gold.categories:
        return True
    fields = {*map(field_of, gold.categories)}
    own = frozenset(each for each in code.categories if field_of(each) in fields)
    return own == gold.categories


def figure_columns(annotators: Sequence[Annotator], fields: Iterable[str] = ()) -> Columns:
    """Returns the columns of `Tables.cases`; those of an answer end in its annotator.

    `run_status` and `run_code` are what the protocol left; `code` includes people's decisions.
    `gold_code` is gold in canonical form; `held_out` is true if it measures accuracy, which it does
    not where the prompts name the system. `path` has the steps without their scores. `bait` has the
    labels that a trap suggests. `exact` is true if all codes are the same; the other measures of
    agreement are means over pairs of codes. `shown` names the annotators in the order in which the
    adjudicator saw their answers. Of a codebook with fields, `code.FIELD`, `gold_code.FIELD`,
    `code_a.FIELD` and so on have the value of each, empty where the answer leaves it so.
    """
    views = (*map(str.lower, annotators), ADJUDICATED)
    return {
        **dict.fromkeys(("case", "description_hash", "generation"), TEXT),
        **dict.fromkeys(("run_status", "run_code", "code", "gold", "gold_code"), TEXT),
        **dict.fromkeys(("held_out", "gold_reviewed", "trap"), TRUTH),
        **dict.fromkeys(("bait", "reason", "path"), TEXT),
        **{f"{name}_{view}": kind for view in views for name, kind in ANSWER_COLUMNS.items()},
        **dict.fromkeys(MEASURES, REAL),
        "exact": TRUTH,
        **dict.fromkeys(("choice", "shown"), TEXT),
        **dict.fromkeys(("prompt_tokens", "completion_tokens"), WHOLE),
        "cost": REAL,
        **dict.fromkeys(("started", "finished"), TIME),
        **{f"{column}.{name}": TEXT for name in fields for column in _given(annotators)},
    }


def _given(annotators: Sequence[Annotator]) -> Sequence[str]:
    """Returns the columns of codes that have the values of fields too."""
    return "code", "gold_code", *code_columns(annotators)


def export_columns(annotators: Sequence[Annotator], fields: Iterable[str] = ()) -> Columns:
    """Returns the columns of an export in order; `status` and `code` include people's decisions."""
    return {
        "run": TEXT,
        "sequence": WHOLE,
        "status": TEXT,
        "reviewer": TEXT,
        **figure_columns(annotators, fields),
        "created": TIME,
        **dict.fromkeys(("description", "sha256", "meta", "decisions", "body"), TEXT),
    }


def tabulate(
    outcomes: Iterable[tuple[Outcome, Label | None]],
    codebook: Codebook,
    annotators: Sequence[Annotator],
    *,
    open_book: bool = False,
) -> Tables:
    """Returns outcomes as tables.

    Args:
        outcomes: Each with the label in force, which a person may have decided; they are read once.
        open_book: True if the prompts name the systems of the cases with `meta.open_book`.
    """
    remaining, columns = iter(outcomes), figure_columns(annotators, codebook.fields)
    cases, calls = [_arrow((), columns)], [_arrow((), CALL_COLUMNS)]
    while batch := list(islice(remaining, AT_ONCE)):
        rows = (case_figures(*each, codebook, annotators, open_book) for each in batch)
        cases.append(_arrow(rows, columns))
        answered = (call for outcome, _ in batch for call in outcome.calls)
        calls.append(_arrow(map(_call_figures, answered), CALL_COLUMNS))
    return Tables(_frame(cases), _frame(calls), codebook, annotators)


def tabulate_calls(calls: Iterable[Call]) -> Frame:
    """Returns calls as a DataFrame with the columns `CALL_COLUMNS`."""
    return _frame([_arrow(map(_call_figures, calls), CALL_COLUMNS)])


def read_run(run: RunArchive, codebook: Codebook) -> Iterator[tuple[Outcome, Label | None]]:
    """Yields the outcomes of an archived run with the labels in force, streamed."""
    return (read_case(current, codebook) for current in run.cases())


def read_case(current: CurrentCase, codebook: Codebook) -> tuple[Outcome, Label | None]:
    """Returns the outcome of an archived case with the label in force."""
    outcome = read_outcome(current.case.body, codebook)
    return outcome, current_label(current, codebook) if current.decisions else outcome.label


def view(cases: Frame, name: str) -> Frame:
    """Returns the columns of an annotator's answer under the names of `ANSWER_COLUMNS`."""
    suffixed = {f"{column}_{name.lower()}": column for column in ANSWER_COLUMNS}
    return cases[[*suffixed]].rename(columns=suffixed)


def code_columns(annotators: Iterable[Annotator]) -> list[str]:
    """Returns the columns of the annotators' codes."""
    return [f"code_{name.lower()}" for name in annotators]


def tally(rows: Frame, *columns: str) -> Counter[Any]:
    """Counts rows by the values of some columns; None is a missing value.

    Keys are values of one column, or tuples of several.
    """
    texts = [rows[name].astype(object) for name in columns]
    values = [column.where(column.notna(), None) for column in texts]
    return Counter(values[0] if len(values) == 1 else zip(*values, strict=True))


def rank(counts: Mapping[str, int]) -> list[tuple[str, int]]:
    """Returns counted texts, the most frequent first."""
    return sorted(counts.items(), key=lambda item: (-item[1], item[0]))


def case_figures(
    outcome: Outcome,
    label: Label | None,
    codebook: Codebook,
    annotators: Sequence[Annotator],
    open_book: bool,
) -> Row:
    """Returns the columns `figure_columns` of a case; for the arguments see `tabulate`."""
    settled = outcome.adjudication
    same = ("case", "description_hash", "generation", "gold", "trap", "reason", "started")
    spent = ("prompt_tokens", "completion_tokens", "cost", "finished")
    row: Row = {
        **{name: getattr(outcome, name) for name in (*same, *spent)},
        "run_status": str(outcome.status),
        "run_code": _line(outcome.label),
        "code": _line(label),
        "gold_code": _line(outcome.gold_label),
        "held_out": is_held_out(outcome, open_book),
        "gold_reviewed": outcome.meta.get("reviewed") is not False,
        "bait": _join(outcome.meta.get("bait") or ()),
        "path": " > ".join(":".join(step.split(":")[:2]) for step in outcome.path),
        **_measures(outcome, codebook.distance),
        "choice": settled and settled.choice,
        "shown": settled and "".join(settled.order),
    }
    for name in annotators:
        row |= _answer(name.lower(), outcome.classification(name), outcome.evaluation(name))
    last = settled and settled.classification, settled and settled.confirmation
    labels = (label, outcome.gold_label, *map(outcome.label_of, annotators))
    for column, own in zip(_given(annotators), labels, strict=True):
        for name in codebook.fields:
            row[f"{column}.{name}"] = own.show(name) if own is not None else None
    return row | _answer(ADJUDICATED, *last)


def is_held_out(outcome: Outcome, open_book: bool) -> bool:
    """Returns whether a case has gold that measures accuracy; see `tabulate`."""
    named = open_book and outcome.meta.get("open_book") is True
    return outcome.gold_label is not None and not named


def export_run(
    run: RunArchive,
    path: str | os.PathLike[str],
    codebook: Codebook,
    annotators: Sequence[Annotator],
    *,
    open_book: bool = False,
) -> None:
    """Writes the cases of a run with the decisions on them into one file, atomically.

    A row has the columns `export_columns`; body, meta and decisions are JSON text. In CSV a text
    that a spreadsheet would compute begins with an apostrophe. The export shows the run at the time
    of the call.

    Args:
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced. It
            becomes CSV if its name ends so, else Parquet.
    """
    tables, place = _tables(run, codebook, annotators, open_book), Place.at(path)
    with place.writer() as file:
        if not place.name.endswith(".csv"):
            with parquet.ParquetWriter(file, next(tables).schema, compression="zstd") as rows:
                for table in tables:
                    rows.write_table(table)
            return
        text = io.TextIOWrapper(file, "utf-8", newline="")
        writer = csv.writer(text)
        for table in tables:
            # The first group is empty.
            if not table.num_rows:
                writer.writerow(table.column_names)
            writer.writerows(map(_cell, row.values()) for row in table.to_pylist())
        text.detach()


def export_frame(
    run: RunArchive,
    codebook: Codebook,
    annotators: Sequence[Annotator],
    *,
    open_book: bool = False,
) -> pd.DataFrame:
    """Returns the rows of `export_run` as a DataFrame, with the same arguments and errors."""
    return pa.concat_tables(_tables(run, codebook, annotators, open_book)).to_pandas()


def encodable(row: Row) -> Row:
    """Returns a row without lone surrogates, which UTF-8 cannot encode: they become U+FFFD."""
    return {
        name: value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        if isinstance(value, str) and not value.isascii()
        else value
        for name, value in row.items()
    }


def _arrow(rows: Iterable[Row], columns: Columns) -> pa.Table:
    """Returns rows as a table in which repeated texts are stored once."""
    repeated = {TEXT: pa.dictionary(pa.int32(), TEXT)}
    schema = pa.schema([(name, repeated.get(kind, kind)) for name, kind in columns.items()])
    return pa.Table.from_pylist(list(map(encodable, rows)), schema)


def _frame(tables: list[pa.Table]) -> Frame:
    return pa.concat_tables(tables).unify_dictionaries().to_pandas()


def _answer(view: str, answer: Classification | None, report: Evaluation | None) -> Row:
    call, judging = (step.calls[0] if step and step.calls else None for step in (answer, report))
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
        "issues": report and _join(report.issues),
        "evaluator": judging and judging.reply.response_model,
        "evaluator_prompt_hash": judging and judging.prompt_hash,
        "evaluator_cached": report and _is_cached(report),
    }
    return {f"{name}_{view}": value for name, value in columns.items()}


def _call_figures(call: Call) -> Row:
    return {
        "role": call.stage,
        "model": call.model,
        **{name: getattr(call.reply, name) for name in REPLY_COLUMNS},
    }


def _measures(outcome: Outcome, distance: SetDistance) -> Row:
    """Returns the columns `MEASURES`; an agreement has no record where an evaluation failed."""
    pairs = [
        outcome.agreements.get(f"{first}{second}") or compare(a, b, distance)
        for (first, a), (second, b) in combinations(outcome.labels.items(), 2)
    ]
    if not pairs:
        return dict.fromkeys(MEASURES)
    means = {name: fmean(getattr(pair, name) for pair in pairs) for name in MEASURES}
    return means | {"exact": all(pair.exact for pair in pairs)}


def _is_cached(step: Classification | Evaluation) -> bool:
    """Returns True if the journal answered all of its calls."""
    return bool(step.calls) and all(call.reply.cached for call in step.calls)


def _line(label: Label | None) -> str | None:
    return None if label is None else str(label)


def _join(values: Iterable[str]) -> str:
    return SEPARATOR.join(sorted(value.replace(SEPARATOR, ", ") for value in values))


def _tables(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator], open_book: bool
) -> Iterator[pa.Table]:
    """Yields the rows of an export in groups, the first of them empty."""
    schema = pa.schema([*export_columns(annotators, codebook.fields).items()])
    rows = (
        {
            "run": run.name,
            **case_figures(*read_case(current, codebook), codebook, annotators, open_book),
            **_archive_columns(current),
        }
        for current in run.cases(until=run.row().records)
    )
    yield schema.empty_table()
    while group := list(islice(map(encodable, rows), AT_ONCE)):
        yield pa.Table.from_pylist(group, schema)


def _archive_columns(current: CurrentCase) -> Row:
    case, decisions = current.case, current.decisions
    made = [{**vars(decision), "created": utc_text(decision.created)} for decision in decisions]
    return {
        **{name: getattr(case, name) for name in ("sequence", "created", "description", "sha256")},
        "description_hash": case.description_hash,
        "status": current.status,
        "reviewer": decisions[-1].reviewer if decisions else None,
        "meta": as_json(case.body["meta"]),
        "decisions": as_json(made),
        "body": as_json(case.body),
    }


def _cell(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    if isinstance(value, datetime):
        return utc_text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
