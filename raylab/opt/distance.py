"""Distances between roots, and between sets of roots."""

import functools
import math
from dataclasses import dataclass
from importlib import resources
from itertools import product

import numpy as np
from pydantic import ValidationError
from scipy.optimize import linear_sum_assignment

from raylab.codebook import Categories
from raylab.config.base import Strict
from raylab.config.schema import problems_of
from raylab.errors import DataError
from raylab.files import Place
from raylab.opt.code import Root

PACKAGED_DISTANCE = "data/distance_opt_l1_v1.json"
TOLERANCE = 1e-9

PLACES: dict[str, int] = {root: place for place, root in enumerate(Root)}


@dataclass(frozen=True)
class Distance:
    """Semantic distances between roots.

    Attributes:
        version: Name recorded with results.
        table: (7, 7) distances in [0, 1], in the order of `Root`; a metric.
    """

    version: str
    table: tuple[tuple[float, ...], ...]

    def between(self, a: Root, b: Root) -> float:
        """Returns the distance of two roots."""
        return self.table[PLACES[a]][PLACES[b]]

    def __call__(self, a: Categories, b: Categories) -> float:
        """Returns the distance of two sets of roots; see `wasserstein`."""
        return wasserstein(a, b, self)


class _DistanceFile(Strict):
    version: str
    description: str = ""
    roots: tuple[Root, ...]
    table: tuple[tuple[float, ...], ...]


def load_distance(location: str | None = None) -> Distance:
    """Reads a table of root distances.

    Args:
        location: Path or URI of a JSON file `{"version": ..., "roots": [...], "table": [[...],
            ...]}` with the seven roots in any order; None takes the packaged opt-l1-v1.

    Raises:
        DataError: The file cannot be read, or its table is no metric in [0, 1] on the seven roots.
    """
    if location is None:
        return _packaged_distance()
    file = Place.at(location)
    return _distance_of(str(file), file.read())


@functools.lru_cache(maxsize=1 << 15)
def wasserstein(a: Categories, b: Categories, distance: Distance) -> float:
    """Returns the 1-Wasserstein distance of uniform masses on two sets of roots, in [0, 1].

    Both sets are expanded to lcm(|a|, |b|) equal masses, for which an optimal transport is an
    assignment. The result is exact, and a metric if the distance of the roots is one.

    Raises:
        ValueError: A set is empty.
    """
    if not a or not b:
        raise ValueError("an empty set of roots has no distance to another")
    size = math.lcm(len(a), len(b))
    rows = np.repeat([PLACES[root] for root in sorted(a)], size // len(a))
    columns = np.repeat([PLACES[root] for root in sorted(b)], size // len(b))
    costs = np.array(distance.table)[np.ix_(rows, columns)]
    return float(costs[linear_sum_assignment(costs)].mean())


@functools.cache
def _packaged_distance() -> Distance:
    file = resources.files("raylab.opt") / PACKAGED_DISTANCE
    return _distance_of(str(file), file.read_bytes())


def _distance_of(name: str, content: bytes) -> Distance:
    try:
        file = _DistanceFile.model_validate_json(content, strict=True)
    except ValidationError as error:
        problem = _first_problem(error)
        raise DataError(f"distances {name}: {problem}") from error
    if sorted(file.roots) != sorted(Root):
        roots = ", ".join(file.roots)
        raise DataError(f"distances {name}: roots are {roots}, should be each of {', '.join(Root)}")
    if len(file.table) != len(Root) or any(len(row) != len(Root) for row in file.table):
        raise DataError(f"distances {name}: table should have {len(Root)} rows of {len(Root)}")
    order = [file.roots.index(root) for root in Root]
    table = tuple(tuple(file.table[row][column] for column in order) for row in order)
    if problem := _no_metric(Distance(file.version, table)):
        raise DataError(f"distances {name}: {problem}")
    return Distance(file.version, table)


def _first_problem(error: ValidationError) -> str:
    details = error.errors(include_url=False)
    if details[0]["type"] == "json_invalid":
        return f"no JSON: {details[0]['msg']}"
    return str(problems_of(_DistanceFile, details)[0])


def _no_metric(distance: Distance) -> str | None:
    """Returns the reason why a table is no metric in [0, 1]; None if it is one."""
    between = distance.between
    for a, b in product(Root, repeat=2):
        value = between(a, b)
        if a == b and value != 0:
            return f"{a}-{a} is {value:g}, should be 0"
        if a != b and not 0 < value <= 1:
            return f"{a}-{b} is {value:g}, should be above 0 and at most 1"
        if value != between(b, a):
            return f"{a}-{b} is {value:g} and {b}-{a} {between(b, a):g}, should be equal"
    for a, b, c in product(Root, repeat=3):
        way = between(a, b) + between(b, c)
        if between(a, c) > way + TOLERANCE:
            return (
                f"{a}-{c} is {between(a, c):g}, should be at most {way:g}, the way by {b}: the "
                "agreement of sets is a metric only under the triangle inequality"
            )
    return None
