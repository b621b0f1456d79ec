"""How far two OPT-Codes agree, and two annotators over many cases.

Of many cases only the counts of distinct pairs of answers are held, so memory depends on the
taxonomy and not on the cases. Proportions and chance-corrected agreement come as `Estimate`, which
goes into JSON as it is.
"""

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import resources
from itertools import product
from typing import Any, TypedDict, cast

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError
from rapidfuzz.distance import Levenshtein
from scipy import stats
from scipy.optimize import linear_sum_assignment

from raylab.config.base import Strict
from raylab.config.schema import problems_of
from raylab.errors import DataError
from raylab.files import Place
from raylab.opt.code import OptCode, Root

PACKAGED_DISTANCE = "data/distance_opt_l1_v1.json"
DRAWS = 1000
"""Replicates of the bootstrap."""
QUANTILES = (0.025, 0.975)
LEAST_DEFINED = 0.8
"""Share of the replicates that must have a value for an interval to be given."""
CHUNK = 1 << 20
"""Numbers of a bootstrap that are held at once."""
TOLERANCE = 1e-9

Array = NDArray[np.float64]
Roots = frozenset[Root]
PairCounts = Mapping[tuple[Roots, Roots], int]
"""Cases by the two sets of roots that were answered; an empty set is a missing answer."""
PrimaryCounts = Mapping[tuple[Root | None, Root | None], int]
"""Cases by the two primary roots that were answered; None is a missing answer."""
PLACES = {root: place for place, root in enumerate(Root)}


class Estimate(TypedDict):
    """A number measured on cases.

    Keys:
        value: None if it is undefined.
        interval: [low, high] at 95 %; None if there is none.
        count: Cases that it rests on.
        reason: Why the value or the interval is undefined; None if both are there.
    """

    value: float | None
    interval: list[float] | None
    count: int
    reason: str | None


class Difference(TypedDict):
    """Two proportions compared.

    Keys:
        value: First less second, in [-1, 1]; None if one has no trials.
        interval: [low, high] at 95 %; None if one has no trials.
        p_value: Of the two-sided test that both are equal; None if one has no trials.
    """

    value: float | None
    interval: list[float] | None
    p_value: float | None


@dataclass(frozen=True)
class Distance:
    """Semantic distances between roots.

    Attributes:
        version: Name that results carry.
        table: (7, 7) distances in [0, 1], in the order of `Root`; a metric.
    """

    version: str
    table: tuple[tuple[float, ...], ...]

    def between(self, a: Root, b: Root) -> float:
        """The distance of two roots."""
        return self.table[PLACES[a]][PLACES[b]]


class Agreement(Strict):
    """How far two codes agree, in the measures of the evaluation protocol.

    Attributes:
        exact: Whether the compositions are identical; fields do not count.
        jaccard: Of the root sets, in [0, 1].
        levenshtein: Edits between the canonical lines.
        levenshtein_normalised: The same by the longer line, in [0, 1]; 0 is equal.
        weighted: Weighted mechanism agreement `1 - wasserstein`, in [0, 1]; 1 only for equal sets.
        composition: 1 for the same tree, 0.5 for the same roots otherwise composed, else 0.
        distance: Version of the distances behind `weighted`.
    """

    exact: bool
    jaccard: float
    levenshtein: int
    levenshtein_normalised: float
    weighted: float
    composition: float
    distance: str


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


def compare(a: OptCode, b: OptCode, distance: Distance | None = None) -> Agreement:
    """Compares two codes; symmetric.

    Args:
        a: One code.
        b: The other.
        distance: Between roots; None takes the packaged opt-l1-v1.
    """
    distance = distance or load_distance()
    same_tree, same_roots = a.composition == b.composition, a.roots == b.roots
    return Agreement(
        exact=same_tree,
        jaccard=len(a.roots & b.roots) / len(a.roots | b.roots),
        levenshtein=Levenshtein.distance(str(a), str(b)),
        levenshtein_normalised=Levenshtein.normalized_distance(str(a), str(b)),
        weighted=1.0 - wasserstein(a.roots, b.roots, distance),
        composition=1.0 if same_tree else 0.5 if same_roots else 0.0,
        distance=distance.version,
    )


@functools.lru_cache(maxsize=1 << 15)
def wasserstein(a: Roots, b: Roots, distance: Distance) -> float:
    """The 1-Wasserstein distance of uniform masses on two sets of roots, in [0, 1].

    Both sets are expanded to lcm(|a|, |b|) equal masses, for which an optimal transport is an
    assignment; exact, and a metric where the distance of the roots is one.

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


def cohen_kappa(counts: PrimaryCounts, draws: int = DRAWS, seed: int = 307) -> Estimate:
    """Cohen's kappa (1960) of two annotators' primary roots, in [-1, 1]; 1 is full agreement.

    Undefined where chance alone makes them agree, that is where both always gave the same root.

    Args:
        counts: Cases by the two answers; those with a missing answer are left out.
        draws: Replicates of the percentile bootstrap; 0 leaves the interval out.
        seed: Of the bootstrap.
    """
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    pairs = sorted(answered)
    places = np.array([[PLACES[root] for root in pair] for pair in pairs], int)

    def kappa(cases: Array) -> Array:
        observed, a, b = _observed_and_margins(cases, places, 1.0 - np.eye(len(Root)))
        expected = 1.0 - (a * b).sum(-1) / a.sum(-1) ** 2
        return _one_less(observed, expected)

    return _estimate([answered[pair] for pair in pairs], kappa, draws, seed)


def krippendorff_alpha(
    counts: PairCounts, distance: Distance | None = None, draws: int = DRAWS, seed: int = 307
) -> Estimate:
    """Krippendorff's alpha of two annotators' root sets, at most 1; 1 is full agreement.

    The difference function is the squared Wasserstein distance of the sets. Formula: Krippendorff,
    Computing Krippendorff's Alpha-Reliability (2011), for two observers. Undefined where no
    disagreement is to be expected, that is where all answers are the same set.

    Args:
        counts: Cases by the two answers; those with a missing answer are left out, for they hold
            no pair of values.
        distance: Between roots; None takes the packaged opt-l1-v1.
        draws: Replicates of the percentile bootstrap; 0 leaves the interval out.
        seed: Of the bootstrap.
    """
    distance = distance or load_distance()
    answered = {(a, b): n for (a, b), n in counts.items() if a and b and n}
    pairs = sorted(answered, key=lambda pair: [sorted(roots) for roots in pair])
    values = sorted({roots for pair in pairs for roots in pair}, key=sorted)
    number = {roots: place for place, roots in enumerate(values)}
    places = np.array([[number[roots] for roots in pair] for pair in pairs], int)
    table = np.array([[wasserstein(a, b, distance) ** 2 for b in values] for a in values])

    def alpha(cases: Array) -> Array:
        observed, a, b = _observed_and_margins(cases, places, table)
        margin = a + b
        size = margin.sum(-1)
        expected = ((margin @ table) * margin).sum(-1) / (size * (size - 1))
        return _one_less(observed, expected)

    return _estimate([answered[pair] for pair in pairs], alpha, draws, seed)


def proportion(successes: int, trials: int) -> Estimate:
    """A proportion with its Wilson score interval (1927).

    Args:
        successes: 0 to `trials`.
        trials: Undefined where there are none.

    Raises:
        ValueError: More successes than trials, or fewer than none.
    """
    if not trials and not successes:
        return Estimate(value=None, interval=None, count=0, reason="no cases")
    interval = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    low, high = float(interval.low), float(interval.high)
    return Estimate(value=successes / trials, interval=[low, high], count=trials, reason=None)


def compare_proportions(first: tuple[int, int], second: tuple[int, int]) -> Difference:
    """Whether two proportions differ, such as pass rates of one canary set at two times.

    The p-value is of Fisher's exact test, which holds its level on sets of any size and is
    conservative on small ones. The interval is Newcombe's (1998), made of both Wilson intervals.

    Args:
        first: Successes and trials.
        second: Successes and trials.

    Raises:
        ValueError: More successes than trials, or fewer than none.
    """
    a, b = proportion(*first), proportion(*second)
    if not (a["interval"] and b["interval"]):
        return Difference(value=None, interval=None, p_value=None)
    p, q = first[0] / first[1], second[0] / second[1]
    (low_p, high_p), (low_q, high_q) = a["interval"], b["interval"]
    low = p - q - math.hypot(p - low_p, high_q - q)
    high = p - q + math.hypot(high_p - p, q - low_q)
    table = [[first[0], first[1] - first[0]], [second[0], second[1] - second[0]]]
    p_value = float(cast(Any, stats.fisher_exact(table)).pvalue)
    return Difference(value=p - q, interval=[low, high], p_value=p_value)


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
        given = ", ".join(file.roots)
        raise DataError(f"distances {name}: roots are {given}, should be each of {', '.join(Root)}")
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
    """What keeps a table from being a metric in [0, 1]; None if nothing does."""
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
                "triangle inequality keeps the agreement of sets a metric"
            )
    return None


def _observed_and_margins(
    cases: Array, places: NDArray[np.int_], table: Array
) -> tuple[Array, Array, Array]:
    """Mean observed difference, and how often each value was given by the first and the second.

    Args:
        cases: (..., pairs) numbers of cases.
        places: (pairs, 2) places of the two values of each pair.
        table: (values, values) differences.
    """
    given = np.eye(len(table))[places]
    observed = cases @ table[places[:, 0], places[:, 1]] / cases.sum(-1)
    return observed, cases @ given[:, 0], cases @ given[:, 1]


def _one_less(observed: Array, expected: Array) -> Array:
    """One less the ratio; NaN where nothing is expected, but for rounding."""
    defined = expected > TOLERANCE
    return np.where(defined, 1.0 - observed / np.where(defined, expected, 1.0), np.nan)


def _estimate(
    counts: list[int], statistic: Callable[[Array], Array], draws: int, seed: int
) -> Estimate:
    """The statistic of all cases with its percentile bootstrap interval.

    Cases with equal pairs are exchangeable, so that drawing the counts of the distinct pairs from
    a multinomial is drawing the cases with replacement. The pairs come in a fixed order, so that
    the interval does not depend on the order in which cases were counted.
    """
    cases = np.array(counts, float)
    total = sum(counts)
    if not total:
        return Estimate(value=None, interval=None, count=0, reason="no case with both answers")
    value = float(statistic(cases))
    if math.isnan(value):
        reason = "no disagreement is expected: all answers are the same"
        return Estimate(value=None, interval=None, count=total, reason=reason)
    interval, reason = _bootstrap(cases, statistic, draws, seed)
    return Estimate(value=value, interval=interval, count=total, reason=reason)


def _bootstrap(
    cases: Array, statistic: Callable[[Array], Array], draws: int, seed: int
) -> tuple[list[float] | None, str | None]:
    total = int(cases.sum())
    if not draws or total < 2:
        return None, "no replicates" if not draws else "one case has no spread"
    generator = np.random.default_rng(seed)
    at_once = max(1, CHUNK // len(cases))
    chunks = [min(at_once, draws - start) for start in range(0, draws, at_once)]
    drawn = (generator.multinomial(total, cases / total, size) for size in chunks)
    values = np.concatenate([statistic(sample.astype(float)) for sample in drawn])
    values = values[~np.isnan(values)]
    if len(values) < LEAST_DEFINED * draws:
        return None, f"only {len(values)} of {draws} replicates have a value: too few cases differ"
    return np.quantile(values, QUANTILES).tolist(), None
