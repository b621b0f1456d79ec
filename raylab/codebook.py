"""The interface that a taxonomy offers to the annotation protocol.

A codebook says which categories there are, how an answer is read as a label, how two labels
compare, and what models are told. `raylab.opt` is one.
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
        """The canonical line."""
        ...

    def __hash__(self) -> int:
        """Hash of the canonical line."""
        ...

    @property
    def composition(self) -> str:
        """What two answers must have in common to be the same answer."""
        ...

    @property
    def categories(self) -> Categories:
        """The categories named, however composed; at least one."""
        ...

    @property
    def primary(self) -> str:
        """The category that counts where a label has to count as one."""
        ...

    @property
    def parts(self) -> Sequence[tuple[str, str]]:
        """Operator and category of each part; the first part has no operator."""
        ...

    @property
    def fields(self) -> Mapping[str, str]:
        """Attributes beside the categories."""
        ...

    @property
    def repairs(self) -> tuple[str, ...]:
        """What was mended to read it."""
        ...

    @property
    def missing(self) -> tuple[str, ...]:
        """Fields that were asked for and are not given."""
        ...


class SetDistance(Protocol):
    """How far two sets of categories lie apart."""

    @property
    def version(self) -> str:
        """Name that results carry."""
        ...

    def __call__(self, a: Categories, b: Categories, /) -> float:
        """The distance of two sets that are not empty, in [0, 1]; a metric."""
        ...


class Agreement(Strict):
    """How far two labels agree, in the measures of the evaluation protocol.

    Attributes:
        exact: Whether the compositions are identical; fields do not count.
        jaccard: Of the sets of categories, in [0, 1].
        levenshtein: Edits between the canonical lines.
        levenshtein_normalised: The same by the longer line, in [0, 1]; 0 is equal.
        weighted: One less the distance of the sets, in [0, 1]; 1 only for equal sets.
        composition: 1 for the same composition, 0.5 for the same categories otherwise composed,
            else 0.
        distance: Version of the distance behind `weighted`.
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
        levenshtein=Levenshtein.distance(str(a), str(b)),
        levenshtein_normalised=Levenshtein.normalized_distance(str(a), str(b)),
        weighted=1.0 - distance(a.categories, b.categories),
        composition=1.0 if exact else 0.5 if same_categories else 0.0,
        distance=distance.version,
    )


VERDICTS = ("PASS", "WEAK_PASS", "FAIL")
"""What an evaluator may say of a label, the best first."""


@dataclass(frozen=True)
class Criterion:
    """A criterion that an evaluator judges a label by.

    Attributes:
        name: As reports and archives have it.
        cap: The highest score of a label that does not meet it; None leaves the score.
        synonyms: Other names that models use, in lower case.
        asked: Whether the evaluator judges it; if not it is computed.
    """

    name: str
    cap: int | None = None
    synonyms: tuple[str, ...] = ()
    asked: bool = True


FORMAT = Criterion("format", asked=False)
"""Met by labels that are read without a repair; each codebook has it."""


class AnswerForm(Protocol):
    """How models give a label in one style of prompts."""

    @property
    def reason_key(self) -> str:
        """Key of the reasons."""
        ...

    @property
    def label_key(self) -> str:
        """Key of the label's text."""
        ...

    @property
    def expected(self) -> str | None:
        """What stands at the label's key; None if a label may be read from other keys instead."""
        ...

    @property
    def failed_criterion(self) -> str | None:
        """The criterion that FAIL stands for where an evaluator lists none; None if it lists."""
        ...

    @property
    def names_choice(self) -> bool:
        """Whether an adjudicator names its choice; if not its label decides."""
        ...

    def read(self, text: str, repairs: list[str]) -> Label:
        """Reads the text at the label's key, and adds what it mended to `repairs`.

        Raises:
            LabelError: It gives no label; the message completes "it cannot be used: ...".
        """
        ...

    def read_prose(self, text: str, repairs: list[str]) -> Label:
        """Reads a reply without a JSON object; as `read`."""
        ...

    def show(self, label: Label) -> str:
        """Returns the label as models are shown it."""
        ...


@dataclass(frozen=True)
class PromptSet:
    """The prompts of one style.

    Attributes:
        classify: for the annotators.
        evaluate: for the evaluator, and for the confirmation of a settled label.
        adjudicate: for the adjudicator.
        repair: the second turn after a reply that cannot be read.
        form: how labels are given.
        warning: what such answers are not worth; None where nothing is to be said.
    """

    classify: PromptFile
    evaluate: PromptFile
    adjudicate: PromptFile
    repair: PromptFile
    form: AnswerForm
    warning: str | None = None


class Codebook(Protocol):
    """A taxonomy with its notation."""

    @property
    def name(self) -> str:
        """Name as data sets have it, such as `opt-code`."""
        ...

    @property
    def version(self) -> str:
        """Version of the set of categories."""
        ...

    @property
    def label_name(self) -> str:
        """What messages call a label, with its article, such as `an OPT-Code`."""
        ...

    @property
    def case_sets(self) -> Mapping[str, str]:
        """Locations of the cases that come with it, by name; `gold` is among them."""
        ...

    @property
    def categories(self) -> Mapping[str, str]:
        """Names for people by category, in the order of the taxonomy."""
        ...

    @property
    def criteria(self) -> tuple[Criterion, ...]:
        """The criteria in the order of reports; `FORMAT` is among them."""
        ...

    @property
    def execution_criterion(self) -> str:
        """Name of the criterion that is not met where execution is taken for a mechanism."""
        ...

    @property
    def execution_bait(self) -> Categories:
        """Categories that a trap baits unless it names others: execution may be taken for them."""
        ...

    @property
    def styles(self) -> tuple[str, ...]:
        """The styles of prompts that a configuration may choose."""
        ...

    def prompts(self, style: str) -> PromptSet:
        """Returns the prompts of a style, one of `styles`."""
        ...

    def prompt_catalogue(self) -> Mapping[str, PromptFile]:
        """Returns every prompt of the codebook by its hash."""
        ...

    @property
    def distance(self) -> SetDistance:
        """How far two sets of categories lie apart."""
        ...

    def parse(self, text: str) -> Label:
        """Reads the label that a text gives, mending what can be mended.

        Raises:
            LabelError: It gives none.
        """
        ...

    def read(self, line: str) -> Label:
        """Reads a canonical line, as `str(label)` wrote it.

        Raises:
            LabelError: It is none.
        """
        ...

    def parse_own(self, text: str) -> Label:
        """Reads the label that a person wrote; nothing is mended.

        Raises:
            LabelError: It is none.
        """
        ...
