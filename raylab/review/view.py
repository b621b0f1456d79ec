"""The view of a case on the page: chips, differences between two answers, the description."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from markupsafe import Markup, escape
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import PythonLexer

from raylab.annotation.outcome import Classification, Evaluation, Outcome
from raylab.annotation.protocol import draw_order
from raylab.annotation.reviews import Opened
from raylab.codebook import Codebook, Label
from raylab.errors import LabelError
from raylab.printable import printable

LONGEST_HIGHLIGHTED = 100_000
LONGEST_LINE_HIGHLIGHTED = 2_000
"""Characters; what is longer is shown plain, because colouring it takes seconds."""
KINDS = {
    "one-acceptable": "One answer acceptable",
    "none-acceptable": "Neither acceptable",
    "disagreement": "Codes differ",
    "candidate": "Candidate refused",
    "unconfirmed": "Adjudication refused",
    "unparsable": "Answer without a code",
    "unreadable": "Reply unreadable",
    "audit": "Audit",
}
"""Names for people of the reasons why a case waits."""


@dataclass(frozen=True)
class Chip:
    """A root of a code.

    Attributes:
        root: such as Lrn.
        name: such as Learnon.
        operator: joins it to the root before; empty for the first.
        only: true if the other code lacks it.
    """

    root: str
    name: str
    operator: str
    only: bool


@dataclass(frozen=True)
class Field:
    """A field of a code; `differs` if the other code has another value or none."""

    key: str
    value: str
    differs: bool


@dataclass(frozen=True)
class AnswerView:
    """A code with its rationale and its evaluation.

    Attributes:
        name: A, B or the adjudicator's.
        line: the canonical line; None if no code could be read.
        chips: its roots.
        fields: its fields.
        rationale: the reasons of the model.
        problem: the reason why no code could be read.
        report: the evaluator's.
    """

    name: str
    line: str | None
    chips: Sequence[Chip]
    fields: Sequence[Field]
    rationale: str
    problem: str | None
    report: Evaluation | None


@dataclass(frozen=True)
class Reading:
    """An own code as it is typed: its line and roots, or the problem with it."""

    line: str = ""
    chips: Sequence[Chip] = ()
    problem: str = ""


@dataclass(frozen=True)
class CaseView:
    """A case as the page shows it; one that is drawn for the audit has its description alone.

    Attributes:
        reason: the reason why it is open.
        kind: the same in a few words.
        description: as markup that holds no markup of the description's own.
        answers: of A and B, in the order drawn.
        differences: between them, in sentences.
        proposal: the adjudicator's, if one was made.
    """

    reason: str
    kind: str
    description: Markup
    answers: Sequence[AnswerView] = ()
    differences: Sequence[str] = ()
    proposal: AnswerView | None = None


def case_view(opened: Opened, seed: int, codebook: Codebook) -> CaseView:
    """Returns the view of a case.

    Args:
        opened: The case.
        seed: Of the order of the answers; that of the protocol.
        codebook: Of the run.
    """
    kind = kind_in_words(opened.kind)
    description = shown_description(opened.stored.description, opened.source)
    if opened.blind:
        return CaseView("Drawn at random; nobody's code is shown.", kind, description)
    outcome = opened.outcome
    a, b = outcome.label_of("A"), outcome.label_of("B")
    return CaseView(
        outcome.reason or "",
        kind,
        description,
        answers=list(_answers(outcome, seed, codebook)),
        differences=list(differences(a, b)),
        proposal=outcome.adjudication
        and _answer(
            "proposal",
            outcome.adjudication.classification,
            outcome.adjudication.confirmation,
            None,
            codebook,
        ),
    )


def kind_in_words(kind: str) -> str:
    """Returns the name for people of a kind such as `one-acceptable`."""
    return KINDS.get(kind, kind)


def read_own(text: str, codebook: Codebook) -> Reading | None:
    """Reads a code that is typed; None if it is empty."""
    if not text.strip():
        return None
    try:
        code = codebook.parse_own(text.strip())
    except LabelError as error:
        return Reading(problem=str(error))
    return Reading(str(code), chips(code, codebook))


def chips(code: Label, codebook: Codebook, other: Label | None = None) -> list[Chip]:
    """Returns the roots of a code in canonical order, marked where another code lacks them."""
    return [
        Chip(
            str(root),
            codebook.categories[root],
            operator,
            other is not None and root not in other.categories,
        )
        for operator, root in code.parts
    ]


def differences(a: Label | None, b: Label | None) -> Iterator[str]:
    """Yields a sentence for each difference of the codes of A and B; none if one has no code."""
    if a is None or b is None:
        return
    for name, mine, other in (("A", a, b), ("B", b, a)):
        if only := sorted(mine.categories - other.categories):
            yield f"Only {name} names {' and '.join(only)}."
    if a.categories == b.categories and a.composition != b.composition:
        yield f"The same roots are joined otherwise: {a.composition} in A, {b.composition} in B."
    for key in dict.fromkeys([*a.fields, *b.fields]):
        values = [code.fields.get(key, "nothing") for code in (a, b)]
        if values[0] != values[1]:
            yield f"{key} is {values[0]} in A and {values[1]} in B."
    if a == b:
        yield "Both give the same code."


def shown_description(text: str, source: bool) -> Markup:
    """Returns a description as markup: escaped, and coloured if it is source of bearable size."""
    text = printable(text)
    longest = max(map(len, text.splitlines()), default=0)
    if not source or len(text) > LONGEST_HIGHLIGHTED or longest > LONGEST_LINE_HIGHLIGHTED:
        return escape(text)
    formatter = HtmlFormatter[str](nowrap=True)
    return Markup(highlight(text, PythonLexer(stripnl=False), formatter))


def _answers(outcome: Outcome, seed: int, codebook: Codebook) -> Iterator[AnswerView]:
    for side in draw_order(seed, outcome.case):
        if side in outcome.answers:
            answer, other = outcome.answers[side], outcome.label_of("B" if side == "A" else "A")
            yield _answer(side, answer.classification, answer.evaluation, other, codebook)


def _answer(
    name: str,
    classification: Classification,
    report: Evaluation | None,
    other: Label | None,
    codebook: Codebook,
) -> AnswerView:
    """Returns an answer, marked against the other one."""
    code = classification.label
    fields = code.fields if code else {}
    return AnswerView(
        name=name,
        line=None if code is None else str(code),
        chips=chips(code, codebook, other) if code else (),
        fields=[
            Field(key, value, other is not None and other.fields.get(key) != value)
            for key, value in fields.items()
        ],
        rationale=classification.rationale,
        problem=classification.problem,
        report=report,
    )
