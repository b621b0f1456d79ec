"""The interface that a taxonomy offers to the annotation protocol.

A codebook says which categories there are, how an answer is read as a label, how two labels
compare, and what models are told. `raylab.opt` is one.
"""

from collections.abc import Mapping, Sequence
from typing import Protocol, runtime_checkable

from rapidfuzz.distance import Levenshtein

from raylab.config.base import Strict

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


class Codebook(Protocol):
    """A taxonomy with its notation."""

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
    def execution_bait(self) -> Categories:
        """Categories that a trap baits unless it names others: execution may be taken for them."""
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
