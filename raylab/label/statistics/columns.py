"""The columns of cases, calls and scores, each declared once: name, type, value and meaning.

From them come the file of an export, the data frames, and the table of columns in the guide.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from operator import attrgetter
from statistics import fmean
from types import SimpleNamespace
from typing import Any, NamedTuple

import pyarrow as pa

from raylab.label.archive.records import CurrentCase
from raylab.label.archive.tables import as_json, utc_text
from raylab.label.codebooks.codebook import Codebook, Label, compare
from raylab.label.judgement import Decision
from raylab.label.protocol.outcome import Annotator, Call, Classification, Evaluation, Outcome

TEXT, WHOLE, REAL, TRUTH = pa.string(), pa.int64(), pa.float64(), pa.bool_()
TIME = pa.timestamp("us", tz="UTC")
SEPARATOR = "; "
"""Between the values of a cell that holds several."""
ADJUDICATED = "adjudicated"


class DataColumn(NamedTuple):
    """A column of a table.

    Attributes:
        kind: Arrow type of its values.
        read: Returns its value of the object that makes a row, None for a missing one.
        meaning: What it holds, in words.
    """

    kind: pa.DataType
    read: Callable[[Any], Any]
    meaning: str


Columns = Mapping[str, DataColumn]
"""Columns by name, in order."""


# What rows are made of


class AnswerRow(NamedTuple):
    """An answer, the evaluator's report on it, and the first call for each, if there is one."""

    answer: Classification
    report: Evaluation | None
    call: Call | None
    judging: Call | None


@dataclass(frozen=True)
class CaseEntry:
    """A case.

    Attributes:
        label: The label in force, which a person may have decided.
        open_book: True if the prompts name the systems of the cases with `meta.open_book`.
    """

    outcome: Outcome
    label: Label | None
    codebook: Codebook
    open_book: bool

    @property
    def held_out(self) -> bool:
        """True if gold measures accuracy."""
        named = self.open_book and self.outcome.meta.get("open_book") is True
        return self.outcome.gold_label is not None and not named

    @cached_property
    def answers(self) -> Mapping[str, AnswerRow]:
        """The answers by annotator, and the adjudicator's."""
        pairs = {
            name.lower(): (each.classification, each.evaluation)
            for name, each in self.outcome.answers.items()
        }
        if (settled := self.outcome.adjudication) is not None:
            pairs[ADJUDICATED] = settled.classification, settled.confirmation
        return {
            giver: AnswerRow(
                *pair, *(step.calls[0] if step and step.calls else None for step in pair)
            )
            for giver, pair in pairs.items()
        }

    @cached_property
    def agreement(self) -> SimpleNamespace | None:
        """The means of the measures over the pairs of codes; None without one."""
        # An outcome has no agreement where an evaluation failed.
        pairs = [
            self.outcome.agreements.get(f"{first}{second}") or compare(a, b, self.codebook.distance)
            for (first, a), (second, b) in combinations(self.outcome.labels.items(), 2)
        ]
        if not pairs:
            return None
        means = {name: fmean(getattr(pair, name) for pair in pairs) for name in AGREEMENT}
        return SimpleNamespace(**means | {"exact": all(pair.exact for pair in pairs)})


@dataclass(frozen=True)
class ArchivedEntry(CaseEntry):
    """A case of an archived run, with its codes for the audit."""

    run: str
    current: CurrentCase
    audit: Sequence[Decision] = ()

    @property
    def latest(self) -> Decision | None:
        """The latest decision."""
        return self.current.decisions[-1] if self.current.decisions else None


class ScoredAnswer(NamedTuple):
    """An answer to a case of a score tree; the case is a row of `Tables.cases` with its task."""

    model: str
    case: Any
    score: float


# The columns


def _declare(*rows: tuple[str, pa.DataType, str | Callable[[Any], Any], str]) -> Columns:
    """Returns columns whose values are those of a function or an attribute.

    Of an attribute such as `call.model`, the first part may be None.
    """

    def follow(path: str) -> Callable[[Any], Any]:
        first, _, rest = path.partition(".")
        if not rest:
            return attrgetter(path)
        begin, end = attrgetter(first), attrgetter(rest)
        return lambda row: None if (value := begin(row)) is None else end(value)

    return {
        name: DataColumn(kind, follow(value) if isinstance(value, str) else value, meaning)
        for name, kind, value, meaning in rows
    }


def is_cached(step: Classification | Evaluation | None) -> bool | None:
    """Returns whether the archive had the replies to all calls of a step; None without one."""
    return step and bool(step.calls) and all(call.reply.cached for call in step.calls)


def join(values: Iterable[str]) -> str:
    """Returns several values as one text, in order."""
    return SEPARATOR.join(sorted(value.replace(SEPARATOR, ", ") for value in values))


def as_decisions(decisions: Iterable[Decision]) -> str:
    """Returns people's decisions on a case as JSON."""
    return as_json([{**vars(d), "created": utc_text(d.created)} for d in decisions])


RUN = _declare(
    ("run", TEXT, "run", "name of the run"),
    ("sequence", WHOLE, "current.case.sequence", "place among the records of the run"),
    ("status", TEXT, "current.status", "state of the case, after people's decisions"),
    ("reviewer", TEXT, "latest.reviewer", "person who decided last"),
)
CASE = _declare(
    ("case", TEXT, "outcome.case", "id of the case"),
    ("description_hash", TEXT, "outcome.description_hash", "SHA-256 of the text"),
    ("generation", TEXT, "outcome.generation", "`published`, or a further case file"),
    ("run_status", TEXT, "outcome.status", "how the models left the case"),
    ("run_code", TEXT, "outcome.label", "the models' final code"),
    ("code", TEXT, "label", "the code in force, after people's decisions"),
    ("gold", TEXT, "outcome.gold", "gold as written; of several columns, as JSON"),
    ("gold_code", TEXT, "outcome.gold_label", "gold as the codebook reads it"),
    ("held_out", TRUTH, "held_out", "whether gold measures accuracy: no prompt names the case"),
    ("gold_reviewed", TRUTH, lambda c: c.outcome.meta.get("reviewed") is not False,
     "false if gold is one person's proposal"),
    ("trap", TRUTH, "outcome.trap", "whether the text suggests a wrong label"),
    ("bait", TEXT, lambda c: join(c.outcome.meta.get("bait") or ()), "the labels it suggests"),
    ("reason", TEXT, "outcome.reason", "why a person must decide, or why the case failed"),
    # Steps go without their scores, because endings are counted by the last step.
    ("path", TEXT, lambda c: " > ".join(":".join(s.split(":")[:2]) for s in c.outcome.path),
     "steps of the decision"),
)  # fmt: skip
ANSWER = _declare(
    ("code", TEXT, "answer.label", "code"),
    ("format", TEXT, "answer.format", "strict, repaired or unparsable"),
    ("requested", TEXT, "call.model", "model as requested"),
    ("model", TEXT, "call.reply.response_model", "model as the server names it"),
    ("prompt", TEXT, "call.prompt", "name and version of the prompt"),
    ("prompt_hash", TEXT, "call.prompt_hash", "hash of the prompt"),
    ("seed", WHOLE, "call.seed", "seed of the call"),
    ("cached", TRUTH, lambda a: is_cached(a.answer), "whether the archive had the answer"),
    ("verdict", TEXT, "report.verdict", "verdict after the caps"),
    ("raw_verdict", TEXT, "report.raw_verdict", "the evaluator's verdict, if it was asked"),
    ("score", WHOLE, "report.score", "score from 0 to 100, after the caps"),
    ("acceptable", TRUTH, "report.acceptable", "whether verdict and score suffice"),
    ("contradictory", TRUTH, "report.contradictory", "whether the report contradicts itself"),
    ("issues", TEXT, lambda a: a.report and join(a.report.issues), "criteria that are not met"),
    ("evaluator", TEXT, "judging.reply.response_model", "the evaluator's model"),
    ("evaluator_prompt_hash", TEXT, "judging.prompt_hash", "hash of the evaluator's prompt"),
    ("evaluator_cached", TRUTH, lambda a: is_cached(a.report), "whether the archive had it"),
)  # fmt: skip
"""The columns of an answer, whose names end in its annotator or `ADJUDICATED`."""
AGREEMENT = _declare(
    ("exact", TRUTH, "agreement.exact", "whether all codes are the same"),
    ("jaccard", REAL, "agreement.jaccard", "labels of both codes, per label of either"),
    ("levenshtein", REAL, "agreement.levenshtein", "edits from one code to the other"),
    ("levenshtein_normalised", REAL, "agreement.levenshtein_normalised", "the same by length"),
    ("weighted", REAL, "agreement.weighted", "1 minus the distance of the labels"),
    ("composition", REAL, "agreement.composition", "1 for one code, 0.5 for the same labels"),
)
"""The columns of agreement: means over the pairs of codes."""
EFFORT = _declare(
    ("choice", TEXT, lambda c: c.outcome.adjudication and c.outcome.adjudication.choice,
     "whose code the adjudicator chose"),
    ("shown", TEXT, lambda c: c.outcome.adjudication and "".join(c.outcome.adjudication.order),
     "annotators in the order in which it saw their codes"),
    ("prompt_tokens", WHOLE, "outcome.prompt_tokens", "tokens sent"),
    ("completion_tokens", WHOLE, "outcome.completion_tokens", "tokens of the replies"),
    ("cost", REAL, "outcome.cost", "cost of the calls sent, if all have a price"),
    ("started", TIME, "outcome.started", "start of the case"),
    ("finished", TIME, "outcome.finished", "end of the case"),
)  # fmt: skip
ARCHIVED = _declare(
    ("description_hash", TEXT, "current.case.description_hash", "SHA-256 of the text"),
    ("created", TIME, "current.case.created", "time of archiving"),
    ("description", TEXT, "current.case.description", "the text"),
    ("sha256", TEXT, "current.case.sha256", "SHA-256 of the archived case"),
    ("meta", TEXT, lambda c: as_json(c.current.case.body["meta"]), "meta of the case, as JSON"),
    ("decisions", TEXT, lambda c: as_decisions(c.current.decisions), "people's decisions, as JSON"),
    ("audit", TEXT, lambda c: as_decisions(c.audit), "people's codes for the audit, as JSON"),
    ("body", TEXT, lambda c: as_json(c.current.case.body), "the outcome, as JSON"),
)
TOKENS = ("prompt_tokens", "completion_tokens", "cached_prompt_tokens", "reasoning_tokens")
CALL = _declare(
    ("role", TEXT, "stage", "stage of the protocol"),
    ("model", TEXT, "model", "model as requested"),
    ("response_model", TEXT, "reply.response_model", "model as the server names it"),
    ("cached", TRUTH, "reply.cached", "whether the archive had the reply"),
    *((name, WHOLE, f"reply.{name}", name.replace("_", " ")) for name in TOKENS),
    ("cost", REAL, "reply.cost", "cost, if there is a price"),
    ("seconds", REAL, "reply.seconds", "time until the reply"),
)
SCORE = _declare(
    ("model", TEXT, "model", "the annotator, by the name of its model"),
    ("item", TEXT, "case.case", "id of the case"),
    ("group", TEXT, "case.task", "first label of gold"),
    ("generation", TEXT, "case.generation", "`published`, or a further case file"),
    ("score", REAL, "score", "1 for the right set of labels, else 0"),
)


def code_columns(annotators: Iterable[Annotator]) -> list[str]:
    """Returns the columns of the annotators' codes."""
    return [f"code_{name.lower()}" for name in annotators]


def case_columns(annotators: Sequence[Annotator], codebook: Codebook | None = None) -> Columns:
    """Returns the columns of a case; `codebook` is None if its answers are labels alone.

    A record has its values by field too, such as `code_a.kind`.
    """

    def answer_of(giver: str, column: DataColumn) -> DataColumn:
        def read(entry: CaseEntry) -> Any:
            row = entry.answers.get(giver)
            return row and column.read(row)

        return column._replace(read=read)

    def value_of(code: str, name: str, number: Sequence[float] | None) -> DataColumn:
        def read(entry: CaseEntry) -> str | float | None:
            label = codes[code].read(entry)
            text = None if label is None else label.show(name)
            return text if number is None else float(text) if text else None

        whole = all(isinstance(end, int) for end in number or ())
        kind = TEXT if number is None else WHOLE if whole else REAL
        return DataColumn(kind, read, f"{name} in {code}")

    givers = [*map(str.lower, annotators), ADJUDICATED]
    answers = {
        f"{name}_{giver}": answer_of(giver, column)
        for giver in givers
        for name, column in ANSWER.items()
    }
    codes, numbers = {**CASE, **answers}, dict[str, Sequence[float] | None]()
    if codebook is not None:
        numbers = {name: codebook.questions[name].number for name in codebook.fields}
    values = {
        f"{code}.{name}": value_of(code, name, number)
        for name, number in numbers.items()
        for code in ("code", "run_code", "gold_code", *(f"code_{giver}" for giver in givers))
    }
    return {**codes, **AGREEMENT, **EFFORT, **values}


def export_columns(annotators: Sequence[Annotator], codebook: Codebook | None = None) -> Columns:
    """Returns the columns of an export, in order."""
    return {**RUN, **case_columns(annotators, codebook), **ARCHIVED}


def as_arrow(rows: Sequence[Any], columns: Columns, *, repeated: bool = False) -> pa.Table:
    """Returns rows as an Arrow table, whose fields have the meanings as metadata.

    Repeated texts are stored once if `repeated`.
    """
    arrays, fields = list[pa.Array](), list[pa.Field]()
    for name, column in columns.items():
        kind = pa.dictionary(pa.int32(), TEXT) if repeated and column.kind == TEXT else column.kind
        values = map(column.read, rows)
        if column.kind == TEXT:
            values = [None if value is None else encodable(str(value)) for value in values]
        arrays.append(pa.array(values, kind))
        fields.append(pa.field(name, kind, metadata={"meaning": column.meaning}))
    return pa.Table.from_arrays(arrays, schema=pa.schema(fields))


def encodable(text: str) -> str:
    """Returns a text without lone surrogates, which UTF-8 cannot encode: they become U+FFFD."""
    if text.isascii():
        return text
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
