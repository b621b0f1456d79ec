"""The cases and calls of a run as data frames for all statistics, and the cases as a file."""

import csv
import io
import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from itertools import islice
from typing import Annotated, Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from raylab.core.files import Place
from raylab.label.archive.records import CurrentCase
from raylab.label.archive.run import RunArchive
from raylab.label.archive.tables import utc_text
from raylab.label.codebooks.codebook import Codebook, Label, field_of
from raylab.label.judgement import AUDIT, DRAW, Decision
from raylab.label.protocol.outcome import Annotator, Call, Outcome, current_label, read_outcome
from raylab.label.statistics.columns import (
    ANSWER,
    CALL,
    ArchivedEntry,
    CaseEntry,
    as_arrow,
    case_columns,
    export_columns,
)

Frame = Annotated[Any, pd.DataFrame]
"""A DataFrame; pandas has no types that a strict checker could follow."""

AT_ONCE = 1_000
"""Outcomes that are held at once, and rows in a group of a Parquet file."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of a cell that a spreadsheet computes."""


@dataclass(frozen=True)
class Tables:
    """The outcomes of a run.

    Attributes:
        cases: A row for each case; columns `case_columns`.
        calls: A row for each answered call of the protocol; columns `CALL`.
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
    entries = (CaseEntry(*each, codebook, open_book) for each in outcomes)
    columns = case_columns(annotators, codebook)
    # The first tables are empty, so that a run without cases has the columns too.
    cases = [as_arrow((), columns, repeated=True)]
    calls = [as_arrow((), CALL, repeated=True)]
    while batch := list(islice(entries, AT_ONCE)):
        cases.append(as_arrow(batch, columns, repeated=True))
        answered = [call for entry in batch for call in entry.outcome.calls]
        calls.append(as_arrow(answered, CALL, repeated=True))
    return Tables(_frame(cases), _frame(calls), codebook, annotators)


def tabulate_calls(calls: Sequence[Call]) -> Frame:
    """Returns calls as a DataFrame with the columns `CALL`."""
    return _frame([as_arrow(calls, CALL, repeated=True)])


def _frame(tables: Sequence[pa.Table]) -> Frame:
    # Each batch has its own dictionary of texts; pandas needs one for all.
    return pa.concat_tables(tables).unify_dictionaries().to_pandas()


def read_run(run: RunArchive, codebook: Codebook) -> Iterator[tuple[Outcome, Label | None]]:
    """Yields the outcomes of an archived run with the labels in force, streamed."""
    return (read_case(current, codebook) for current in run.cases())


def read_case(current: CurrentCase, codebook: Codebook) -> tuple[Outcome, Label | None]:
    """Returns the outcome of an archived case with the label in force."""
    outcome = read_outcome(current.case.body, codebook)
    return outcome, current_label(current, codebook) if current.decisions else outcome.label


def audits_of(run: RunArchive) -> Mapping[str, list[Decision]]:
    """Returns what people said for the audit of a run, by case."""
    audits = defaultdict[str, list[Decision]](list)
    for decision in run.decisions(AUDIT):
        if decision.action != DRAW:
            audits[decision.case].append(decision)
    return audits


def view(cases: Frame, name: str) -> Frame:
    """Returns the columns of an annotator's answer under the names of `ANSWER`."""
    suffixed = {f"{column}_{name.lower()}": column for column in ANSWER}
    return cases[[*suffixed]].rename(columns=suffixed)


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


def export_run(
    run: RunArchive,
    path: str | os.PathLike[str],
    codebook: Codebook,
    annotators: Sequence[Annotator],
    *,
    open_book: bool = False,
) -> None:
    """Writes the cases of a run with the decisions on them into one file, atomically.

    A row has the columns `export_columns`. In CSV a text that a spreadsheet would compute begins
    with an apostrophe. The export shows the run at the time of the call.

    Args:
        path: The file, or a URI that pyarrow's filesystems open; one that exists is replaced. It
            becomes CSV if its name ends so, else Parquet.
    """
    tables, place = export_tables(run, codebook, annotators, open_book=open_book), Place.at(path)
    with place.writer() as file:
        if not place.name.endswith(".csv"):
            with parquet.ParquetWriter(file, next(tables).schema, compression="zstd") as rows:
                for table in tables:
                    rows.write_table(table)
            return
        # Excel takes a file without the mark for one in a national encoding.
        text = io.TextIOWrapper(file, "utf-8-sig", newline="")
        writer = csv.writer(text)
        writer.writerow(next(tables).column_names)
        for table in tables:
            writer.writerows(map(_cell, row.values()) for row in table.to_pylist())
        text.detach()


def export_tables(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator], *, open_book: bool
) -> Iterator[pa.Table]:
    """Yields the cases of a run with the columns `export_columns` in groups, the first empty."""
    columns, audits = export_columns(annotators, codebook), audits_of(run)
    entries = (
        ArchivedEntry(
            *read_case(current, codebook),
            codebook,
            open_book,
            run.name,
            current,
            audits.get(current.case.case, ()),
        )
        for current in run.cases(until=run.row().records)
    )
    yield as_arrow((), columns)
    while group := list(islice(entries, AT_ONCE)):
        yield as_arrow(group, columns)


def _cell(value: Any) -> Any:
    """Returns a cell that no spreadsheet takes for a formula; numbers stay as they are."""
    if isinstance(value, datetime):
        return utc_text(value)
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULA) else value
