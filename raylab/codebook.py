"""The interface that a taxonomy offers to the annotation protocol.

A codebook defines the categories, reads answers as labels, compares labels and holds the prompts.
`raylab.opt` implements one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from rapidfuzz.distance import Levenshtein

from raylab.config.base import Strict
from raylab.llm.prompts import PromptFile

Categories = frozenset[str]
"""The categories of a label; empty where there is no label."""


@runtime_checkable
class Label(Protocol):
    """A classification of a case; hashable, and equal to those with the same canonical line.

    `str(label)` is the canonical line.
    """

    def __str__(self) -> str:
        """Returns the canonical line."""
        ...

    def __hash__(self) -> int:
        """Returns the hash of the canonical line."""
        ...

    @property
    def written(self) -> str:
        """The line as it was written, before it was brought to the canonical form."""
        ...

    @property
    def composition(self) -> str:
        """The part of the canonical line that decides whether two answers are the same."""
        ...

    @property
    def categories(self) -> Categories:
        """The set of categories in the label; at least one."""
        ...

    @property
    def primary(self) -> str:
        """The main category, for statistics that count one category per label."""
        ...

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """Operator and category of each part; the first part has no operator."""
        ...

    @property
    def fields(self) -> Mapping[str, str]:
        """The attributes of the label, by key."""
        ...

    @property
    def repairs(self) -> tuple[str, ...]:
        """The repairs that were needed to read the label."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """The fields that the prompt asks for and the answer lacks."""
        ...


class SetDistance(Protocol):
    """A distance between two sets of categories."""

    @property
    def version(self) -> str:
        """The name of the distance, recorded with results."""
        ...

    def __call__(self, a: Categories, b: Categories, /) -> float:
        """Returns the distance of two non-empty sets, in [0, 1]; a metric."""
        ...


class Agreement(Strict):
    """The agreement of two labels, in the measures of the evaluation protocol.

    Attributes:
        exact: True if the compositions are identical; fields do not count.
        jaccard: Jaccard index of the sets of categories, in [0, 1].
        levenshtein: Edits between the lines as written, the string distance of the protocol.
        levenshtein_normalised: Edits divided by the length of the longer line, in [0, 1]; 0 means
            equal lines.
        weighted: 1 minus the distance of the sets, in [0, 1]; 1 only for equal sets.
        composition: 1 for the same composition, 0.5 for the same categories composed differently,
            else 0.
        distance: Version of the distance used for `weighted`.
    """

    exact: bool
    jaccard: float
    levenshtein: int
    levenshtein_normalised: float
    weighted: float
    composition: float
    distance: str


def compare(a: Label, b: Label, distance: SetDistance) -> Agreement:
    """Compares two labels; symmetric.

    Args:
        a: One label.
        b: The other.
        distance: Between sets of categories.
    """
    exact, same_categories = a.composition == b.composition, a.categories == b.categories
    return Agreement(
        exact=exact,
        jaccard=len(a.categories & b.categories) / len(a.categories | b.categories),
        levenshtein=Levenshtein.distance(a.written, b.written),
        levenshtein_normalised=Levenshtein.normalized_distance(a.written, b.written),
        weighted=1.0 - distance(a.categories, b.categories),
        composition=1.0 if exact else 0.5 if same_categories else 0.0,
        distance=distance.version,
    )


VERDICTS = ("PASS", "WEAK_PASS", "FAIL")
"""The verdicts of an evaluator, the best first."""


@dataclass(frozen=True)
class Criterion:
    """A criterion by which an evaluator judges a label.

    Attributes:
        name: Name in reports and archives.
        cap: Highest score of a label that does not meet it; None does not limit the score.
        synonyms: Other names that models use, in lower case.
        asked: True if the evaluator judges it; otherwise it is computed.
    """

    name: str
    cap: int | None = None
    synonyms: tuple[str, ...] = ()
    asked: bool = True


FORMAT = Criterion("format", asked=False)
"""The criterion met by labels that need no repair; every codebook includes it."""


class AnswerForm(Protocol):
    """The form in which models give a label, in one style of prompts."""

    @property
    def reason_key(self) -> str:
        """The key of the reasons in a reply."""
        ...

    @property
    def label_key(self) -> str:
        """The key of the label in a reply."""
        ...

    @property
    def expected(self) -> str | None:
        """The text required at the label's key; None if other keys may hold the label instead."""
        ...

    @property
    def failed_criterion(self) -> str | None:
        """The criterion that FAIL implies; None if the evaluator lists the unmet criteria."""
        ...

    @property
    def names_choice(self) -> bool:
        """True if an adjudicator names its choice; otherwise its label determines the choice."""
        ...

    def read(self, text: str, repairs: list[str]) -> Label:
        """Reads the text at the label's key and adds its repairs to `repairs`.

        Raises:
            LabelError: The text holds no label; the message completes "it cannot be used: ...".
        """
        ...

    def read_prose(self, text: str, repairs: list[str]) -> Label:
        """Reads a reply without a JSON object, with the same arguments and errors as `read`."""
        ...

    def show(self, label: Label) -> str:
        """Returns the label as it is shown to models."""
        ...


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one style.

    Attributes:
        classify: Prompt of the annotators.
        evaluate: Prompt of the evaluator, also used to confirm adjudicated and human labels.
        adjudicate: Prompt of the adjudicator.
        repair: Second turn after a reply that cannot be read.
        form: Form in which labels are given.
        open_book: True if the prompts name the systems of the cases with `meta.open_book`, whose
            gold then measures no accuracy.
        warning: Limits on what such answers show; None if there are none.
    """

    classify: PromptFile
    evaluate: PromptFile
    adjudicate: PromptFile
    repair: PromptFile
    form: AnswerForm
    open_book: bool = False
    warning: str | None = None


class Codebook(Protocol):
    """A taxonomy with its notation."""

    @property
    def name(self) -> str:
        """The name in data sets, such as `opt-code`."""
        ...

    @property
    def version(self) -> str:
        """The version of the set of categories."""
        ...

    @property
    def label_name(self) -> str:
        """The noun for a label in messages, with its article, such as `an OPT-Code`."""
        ...

    @property
    def case_sets(self) -> Mapping[str, str]:
        """The locations of the packaged cases, by name; `gold` is one of them."""
        ...

    @property
    def categories(self) -> Mapping[str, str]:
        """The readable name of each category, in the order of the taxonomy."""
        ...

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria in the order of reports; `FORMAT` is one of them."""
        ...

    @property
    def execution_criterion(self) -> str:
        """The name of the criterion that fails when execution is mistaken for a mechanism."""
        ...

    @property
    def execution_bait(self) -> Categories:
        """The categories that execution details suggest: the bait of a trap that names none."""
        ...

    @property
    def styles(self) -> tuple[str, ...]:
        """The prompt styles that a configuration may choose."""
        ...

    def prompts(self, style: str) -> PromptSet:
        """Returns the prompts of a style, one of `styles`."""
        ...

    def prompt_catalogue(self) -> Mapping[str, PromptFile]:
        """Returns every prompt of the codebook by its hash."""
        ...

    @property
    def distance(self) -> SetDistance:
        """The distance between sets of categories."""
        ...

    def parse(self, text: str) -> Label:
        """Reads the label in a text, with repairs where necessary.

        Raises:
            LabelError: The text holds no label.
        """
        ...

    def read(self, line: str) -> Label:
        """Reads a canonical line, as written by `str(label)`.

        Raises:
            LabelError: The text is no canonical line.
        """
        ...

    def parse_own(self, text: str) -> Label:
        """Reads a label that a person wrote, without repairs.

        Raises:
            LabelError: The text is no label.
        """
        ...
