"""Agreement of two OPT-Codes, and the distance between sets of roots."""

import math
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib import resources

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from scipy.optimize import linear_sum_assignment

from raylab import codebook
from raylab.codebook import Agreement, Categories, Label
from raylab.config.base import Strict
from raylab.errors import DataError
from raylab.files import Place
from raylab.opt.code import Root

PLACES: dict[str, int] = {root: place for place, root in enumerate(Root)}
TOLERANCE = 1e-9


def compare(a: Label, b: Label, distance: "Distance | None" = None) -> Agreement:
    """Compares two codes; symmetric.

    Args:
        a: One code.
        b: The other.
        distance: Distance between roots; None takes the packaged opt-l1-v1.

    Returns:
        The measures described by `raylab.codebook.Agreement`; `weighted` is 1 minus the
        1-Wasserstein distance of the sets of roots.
    """
    return codebook.compare(a, b, distance or load_distance())


@dataclass(frozen=True)
class Distance:
    """Semantic distances between roots.

    Attributes:
        version: Name recorded with results.
        table: (7, 7) distances in [0, 1], in the order of `Root`; a metric.
    """

    version: str
    table: tuple[tuple[float, ...], ...]

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the 1-Wasserstein distance of uniform masses on two sets of roots, in [0, 1].

        Both sets are expanded to lcm(|a|, |b|) equal masses, for which an optimal transport is an
        assignment. The result is exact, and a metric since the distance of the roots is one.

        Raises:
            ValueError: A set is empty.
        """
        return _wasserstein(a, b, self.table)


@lru_cache(maxsize=1 << 15)
def _wasserstein(a: Categories, b: Categories, table: tuple[tuple[float, ...], ...]) -> float:
    if not a or not b:
        raise ValueError("an empty set of roots has no distance to another")
    size = math.lcm(len(a), len(b))
    rows = np.repeat([PLACES[root] for root in sorted(a)], size // len(a))
    columns = np.repeat([PLACES[root] for root in sorted(b)], size // len(b))
    costs = np.array(table)[np.ix_(rows, columns)]
    return float(costs[linear_sum_assignment(costs)].mean())


class _DistanceFile(Strict):
    version: str
    description: str = ""
    roots: tuple[Root, ...]
    table: tuple[tuple[float, ...], ...]


@cache
def load_distance(location: str | None = None) -> Distance:
    """Reads a table of root distances, once in a process.

    Args:
        location: Path or URI of a JSON file `{"version": ..., "roots": [...], "table": [[...],
            ...]}` with the seven roots in any order; None takes the packaged opt-l1-v1.

    Raises:
        DataError: The file cannot be read, or its table is no metric in [0, 1] on the seven roots.
        ConfigError: The storage of its URI cannot be opened.
    """
    place = Place.at(
        location or str(resources.files("raylab.opt") / "data/distance_opt_l1_v1.json")
    )
    file = _read_file(place)
    if sorted(file.roots) != sorted(Root) or {*map(len, (file.table, *file.table))} != {len(Root)}:
        raise DataError(
            f"distances {place}: should have each of the roots {', '.join(Root)}, and a table with "
            "a row and a column for each"
        )
    order = [file.roots.index(root) for root in Root]
    table = np.array(file.table)[np.ix_(order, order)]
    _check_metric(table, f"distances {place}")
    return Distance(file.version, tuple(map(tuple, table.tolist())))


def _read_file(place: Place) -> _DistanceFile:
    try:
        return _DistanceFile.model_validate_json(place.read(), strict=True)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        key = ".".join(map(str, first["loc"])) or "the file"
        raise DataError(f"distances {place}: {key}: {first['msg']}") from error


def _check_metric(table: NDArray[np.float64], name: str) -> None:
    ways = (table[:, :, None] + table).min(axis=1)
    same = np.eye(len(table), dtype=bool)
    for wrong, rule in (
        (same & (table != 0), "0"),
        (~same & ~((table > 0) & (table <= 1)), "above 0 and at most 1"),
        (table != table.T, "equal in both directions"),
        (table > ways + TOLERANCE, "at most the way by another root (the triangle inequality)"),
    ):
        if wrong.any():
            row, column = np.argwhere(wrong)[0]
            pair = f"{[*Root][row]}-{[*Root][column]} is {table[row, column]:g}"
            raise DataError(f"{name}: {pair}, should be {rule}")
