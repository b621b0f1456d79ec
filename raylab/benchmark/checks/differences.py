"""Paired comparisons of all models: the differences that are real, and those that are small.

Two models are compared on their common items, by the difference of their scores on each (Miller,
arXiv 2411.00640).

- If all scores are right or wrong, on single items that weigh alike, the test is McNemar's exact
  test and the interval is that of Bonett and Price (J. Educ. Behav. Stat. 37, 2012). A t-test would
  overrate few differing items.
- Otherwise the standard error and the degrees of freedom of t are those of `sampling`, with fixed
  strata and clusters. No p-value is below 2^(1 - n), the smallest that n differing items can give.
  Below 20 clusters, whose sums may agree by chance, it takes the error of independent items if that
  is larger; the interval, which is for one pair, does not.

Holm's correction (Scand. J. Stat. 6, 1979) covers all pairs, or all models that are compared with a
baseline: with equal models, at most 5 % of benchmarks show any difference. Two models are
equivalent if both one-sided tests exclude the smallest difference of interest (Schuirmann, J.
Pharmacokinet. Biopharm. 15, 1987), which Holm's correction covers too.

The power of McNemar's test is summed over the numbers of differing items, that of the t-test is the
noncentral t's, both for the pair with the median share of differing items or standard error.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy import stats

from raylab.benchmark.checks.models import fit_items
from raylab.benchmark.checks.sampling import FEW_CLUSTERS, SamplingDesign, is_clustered
from raylab.benchmark.responses import Matrix
from raylab.core.errors import ConfigError
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array, holm

POWER = 0.8
MIN_DIFFERING = 6
"""Fewest differing items that can give a p-value of 5 %."""
SHOWN_MODELS = 30
"""Number of the best models whose pairs a record holds."""
CURVE = (0.125, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0)
"""Numbers of items on the curve of power, as multiples of the present one."""
GROWTH = 0.75
"""Share of items that models answer differently beyond that of equal models, over the squared
difference of their means: 0.7 to 0.85 where logits are normal and means between 0.5 and 0.75."""
MAX_ITEMS = 10**7
"""Number of items from which on more are no answer."""
CACHED = 100_000
"""Scores that a processor keeps at hand while it computes."""
TAIL = 1e-9
TINY = 1e-9
REASONS = DISJOINT, ONE_CLUSTER, ALIKE, FEW, CONSTANT = (
    "no item has a score of both models",
    "all common items are in one cluster, so chance cannot be estimated",
    "the models answer all common items alike",
    f"the models differ on fewer than {MIN_DIFFERING} items, which may be chance",
    "the difference is the same in every cluster, so chance cannot be estimated",
)


class Difference(Part):
    """The difference between two models on their common items."""

    first: str
    second: str
    difference: float | None
    """Weighted mean of the first model's scores minus the second's; None without common items."""
    error: float | None
    """Its standard error; None if it cannot be estimated."""
    unclustered: float | None
    """The standard error as if all items were independent; None if no cluster is declared."""
    clusters: int
    """Number of clusters of the common items; of the items if no cluster is declared."""
    interval: tuple[float, float] | None
    """Ends of the 95 % interval for this pair alone."""
    p: float
    """The pair's own p-value."""
    adjusted: float
    """Its p-value adjusted for the number of comparisons (Holm)."""
    apart: bool
    """True if the difference is real at the 5 % level of all comparisons together."""
    equivalent: bool | None
    """True if it is certainly below the smallest difference of interest, at the same level; None
    if none was named."""
    reason: str | None
    """The reason, other than chance, why the pair has no interval or cannot be told apart."""


class Rank(Part):
    """The rank of a model, 1 for the best."""

    model: str
    mean: float
    """Weighted mean of its scores, in [0, 1]."""
    adjusted: float
    """The same for all items: scores are fitted as model plus item, so that a model without the
    hard items gains nothing. It is `mean` where each model has each item."""
    rank: int
    """By `adjusted`; ties share the best rank."""
    low: int
    """One plus the number of models that are certainly better."""
    high: int
    """The number of models minus those that are certainly worse. For 95 % of benchmarks the ranges
    from `low` to `high` contain the true ranks of all models."""
    below_lower: bool
    """True if a model with a lower `mean` ranks above it, because they have other items."""


class PowerPoint(Part):
    """The difference that a number of items can detect."""

    items: int
    difference: float | None
    """Difference that is detected with a power of 80 %; None if even the largest is not."""


class Differences(Part):
    """The decisions about all pairs of models."""

    pairs: int
    """Number of pairs of models."""
    apart: int
    """Number of pairs whose difference is real."""
    share_apart: Figure
    clusters: int | None
    """Number of clusters of items; None if none is declared."""
    smallest: Figure
    """The difference that a typical pair must have to be detected with a power of 80 % at `level`.
    """
    level: float
    """0.05 over the number of pairs not told apart, where Holm's procedure stops."""
    curve: tuple[PowerPoint, ...]
    """`smallest` for other numbers of items; clusters grow in number, not in size."""
    detect: float | None
    """The difference that `needed` is for."""
    needed: Figure
    """Number of items that detect it with a power of 80 % at `level`."""
    ranks: tuple[Rank, ...]
    """Of all models, the best first."""
    shown: tuple[Difference, ...]
    """The pairs of the 30 best models; the first of a pair ranks above the second."""
    margin: float | None
    """The smallest difference of interest."""
    baseline: str | None
    against: tuple[Difference, ...]
    """Every other model minus the baseline, with Holm's correction for these comparisons alone."""


def compare_models(
    matrix: Matrix,
    baseline: str | None = None,
    margin: float | None = None,
    detect: float | None = None,
) -> Differences:
    """Decides which differences between models are real, by their scores on items.

    Args:
        matrix: Scores of models on items.
        baseline: Model that every other one is compared with too.
        margin: Smallest difference of interest, for equivalence.
        detect: Difference whose number of items is wanted.

    Raises:
        ConfigError: The baseline has no scores.
    """
    if baseline is not None and baseline not in matrix.models:
        raise ConfigError(
            f"baseline={baseline} is no model of these scores; it is one of "
            f"{', '.join(matrix.models)}"
        )
    skills, _ = fit_items(matrix)
    ranks = stats.rankdata(-np.round(skills, 12), method="min")
    order = np.argsort(ranks, kind="stable")
    models = tuple(matrix.models[model] for model in order)
    best_first = replace(matrix, scores=matrix.scores[order], models=models)
    table = compare_pairs(best_first, margin)
    pairs, apart = len(table), int(table["apart"].to_numpy(bool).sum())
    level = LEVEL / max(1, pairs - apart)
    power = _power(table, is_exact(matrix), level)
    size, curve = len(matrix.items), tuple[PowerPoint, ...]()
    smallest = Figure(reason=power) if isinstance(power, str) else _smallest(power)
    if not isinstance(power, str):
        sizes = sorted({max(2, round(times * size)) for times in CURVE})
        curve = tuple(
            PowerPoint(items=items, difference=_smallest(power, items / size).value)
            for items in sizes
        )
    return Differences(
        pairs=pairs,
        apart=apart,
        share_apart=Figure(
            value=apart / pairs,
            reason="it counts decisions; at most 5 % of benchmarks have a wrong one",
        )
        if pairs
        else Figure(reason="it needs two models"),
        clusters=len(np.unique(matrix.clusters)) if is_clustered(matrix) else None,
        smallest=smallest,
        level=level,
        curve=curve,
        detect=detect,
        needed=_needed(power, detect, size),
        ranks=tuple(_rank(best_first, table, ranks[order], skills[order])),
        shown=tuple(_differences(models, table.query("second < @SHOWN_MODELS"))),
        margin=margin,
        baseline=baseline,
        against=() if baseline is None else _against(models, table, models.index(baseline)),
    )


def compare_pairs(matrix: Matrix, margin: float | None = None) -> pd.DataFrame:
    """Returns a row for each pair of models, those of the first model first.

    Columns: `first` and `second` number the models; `difference`, `error`, `unclustered`, `low`,
    `high` (NaN if missing) are in [-1, 1]; `freedom` is the degrees of freedom of t, infinite for
    McNemar's test; `clusters`, `items` and `differing` count common clusters and items, and items
    with different scores; `p` is the pair's own p-value, `adjusted` Holm's; `apart` is the
    decision. With a margin, `within` is the p-value of a difference of that size or more, and
    `equivalent` the decision about it. `reason` says what prevents one, if it is not chance.
    """
    if len(matrix.models) < 2:
        # The columns of a pair, without a row.
        pair = replace(matrix, scores=matrix.scores[[0, 0]], models=matrix.models * 2)
        return compare_pairs(pair, margin).iloc[:0]
    first, second = pairs = np.triu_indices(len(matrix.models), 1)
    if is_exact(matrix):
        right, wrong = (np.asarray(matrix.scores == score, float) for score in (1, 0))
        above, both = right @ wrong.T, (right + wrong) @ (right + wrong).T
        table = _by_mcnemar(above[pairs], above.T[pairs], both[pairs])
    else:
        table = _by_student(list(_compare(matrix)))
    table = table.assign(first=first, second=second)
    if margin is not None:
        error, freedom = table["error"].to_numpy(), table["freedom"].to_numpy()
        steps = (margin - np.abs(table["centre"].to_numpy())) / error
        table["within"] = np.where(np.isnan(error), 1.0, stats.t.sf(steps, freedom))
    return _decide(table)


def _decide(table: pd.DataFrame) -> pd.DataFrame:
    """Returns rows of comparisons with the decisions about them together."""
    adjusted = holm(table["p"].to_numpy())
    table = table.assign(adjusted=adjusted, apart=adjusted <= LEVEL)
    if "within" in table:
        table["equivalent"] = holm(table["within"].to_numpy()) <= LEVEL
    return table


def is_exact(matrix: Matrix) -> bool:
    """Returns whether all scores are right or wrong, on single items that weigh alike."""
    scores, weights = matrix.scores, matrix.weights
    right_or_wrong = bool(((scores == 0) | (scores == 1) | np.isnan(scores)).all())
    return right_or_wrong and np.ptp(weights) <= TINY * weights.max() and not is_clustered(matrix)


def compare_values(
    designs: Sequence[SamplingDesign], values: Array, weights: Array, exact: bool
) -> pd.DataFrame:
    """Tests whether means of differences are 0; returns columns of `compare_pairs`.

    Args:
        designs: Their strata and clusters, and the same without clusters if some are declared.
        values: (rows, items), 0 where missing.
        weights: (rows or 1, items), 0 where missing.
        exact: Whether all values are -1, 0 or 1, on single items that weigh alike.
    """
    if not exact:
        return _by_student([_measure(designs, values, weights)])
    items = np.broadcast_to((weights > 0).sum(axis=1), len(values))
    return _by_mcnemar((values > 0).sum(axis=1), (values < 0).sum(axis=1), items)


def _measure(
    designs: Sequence[SamplingDesign], values: Array, weights: Array
) -> dict[str, NDArray[Any]]:
    """Returns the columns of `compare_values` that need the values."""
    means, *others = (design.estimate(values, weights) for design in designs)
    return {
        "difference": means.values,
        "error": means.errors,
        "unclustered": others[0].errors if others else np.full(len(values), np.nan),
        "freedom": means.freedom,
        "clusters": means.clusters,
        "items": np.broadcast_to((weights > 0).sum(axis=1), len(values)),
        "differing": (np.abs(values) > TINY).sum(axis=1),
    }


def _by_student(blocks: Sequence[dict[str, NDArray[Any]]]) -> pd.DataFrame:
    columns = {name: np.concatenate([block[name] for block in blocks]) for name in blocks[0]}
    difference, error, clusters = (columns[name] for name in ("difference", "error", "clusters"))
    differing = columns["differing"]
    alone, few, constant = np.isnan(error), differing < MIN_DIFFERING, error <= TINY
    # The sums of few clusters may agree by chance.
    tested = np.where(clusters < FEW_CLUSTERS, np.fmax(error, columns["unclustered"]), error)
    with np.errstate(invalid="ignore", divide="ignore"):
        p = 2 * stats.t.sf(np.abs(difference) / tested, np.fmax(columns["freedom"], TINY))
    least = 2.0 ** (1 - np.where(constant, np.minimum(clusters, differing), differing))
    columns |= {
        "centre": difference,
        "error": np.where(constant | few, np.nan, error),
        "p": np.where(alone, 1.0, np.minimum(np.fmax(p, least), 1.0)),
    }
    return _with_intervals(columns, [clusters == 0, alone, differing == 0, few, constant])


def _by_mcnemar(up: Array, down: Array, items: Array) -> pd.DataFrame:
    """Returns columns of `compare_values` from numbers of items that differ in each direction."""
    differing = up + down
    # One more item is added that differs in each direction.
    centre = (up - down) / (items + 2)
    with np.errstate(invalid="ignore", divide="ignore"):
        difference = (up - down) / items
    columns = {
        "difference": difference,
        "centre": centre,
        "error": np.sqrt(((differing + 2) / (items + 2) - centre**2) / (items + 2)),
        "unclustered": np.nan,
        "freedom": np.inf,
        "clusters": items,
        "items": items,
        "differing": differing,
        "p": np.minimum(1.0, 2 * stats.binom.cdf(np.minimum(up, down), differing, 0.5)),
    }
    never = np.zeros(len(difference), bool)
    return _with_intervals(
        columns, [items == 0, never, differing == 0, differing < MIN_DIFFERING, never]
    )


def _with_intervals(columns: dict[str, Any], reasons: list[NDArray[np.bool_]]) -> pd.DataFrame:
    table = pd.DataFrame(columns)
    table.loc[reasons[0], "error"] = np.nan
    centre, error, freedom = (table[name].to_numpy() for name in ("centre", "error", "freedom"))
    half = stats.t.ppf(1 - LEVEL / 2, freedom) * error
    codes = np.select(reasons, range(len(reasons)), -1)
    return table.assign(
        low=np.maximum(centre - half, -1.0),
        high=np.minimum(centre + half, 1.0),
        reason=pd.Categorical.from_codes(codes, list(REASONS)),
    )


def _compare(matrix: Matrix) -> Iterator[dict[str, NDArray[Any]]]:
    """Yields the pairs of each model with those after it, as many as fit the processor's cache."""
    present, scores = ~np.isnan(matrix.scores), np.nan_to_num(matrix.scores)
    kinds = (True, False) if is_clustered(matrix) else (False,)
    designs = [SamplingDesign.of_matrix(matrix, clustered) for clustered in kinds]
    weights, complete = matrix.weights[None], bool(present.all())
    at_once = max(1, CACHED // scores.shape[1])
    for first in range(len(scores) - 1):
        for start in range(first + 1, len(scores), at_once):
            others = slice(start, start + at_once)
            apart = scores[first] - scores[others]
            if complete:
                yield _measure(designs, apart, weights)
            else:
                common = present[first] & present[others]
                yield _measure(designs, apart * common, weights * common)


Power = Callable[[float, float], float]
"""Takes a multiple of the number of items and a difference > 0, returns the power."""


def _power(table: pd.DataFrame, exact: bool, level: float) -> Power | str:
    """Returns the power for a typical pair, or the reason why it is unknown."""
    usable: Any = table.dropna(subset=["error"])
    if usable.empty:
        return "no pair has a standard error" if len(table) else "it needs two models"
    columns = ["items", "differing", "error", "freedom"]
    if usable["clusters"].median() < FEW_CLUSTERS:
        usable = usable.assign(error=usable[["error", "unclustered"]].max(axis=1))
    items, differing, error, freedom = usable[columns].median().tolist()
    if exact:
        spread = usable["differing"] / usable["items"] - GROWTH * usable["difference"] ** 2
        share = max(float(spread.median()), TINY)
        return lambda times, gap: mcnemar_power(
            round(times * items), share + GROWTH * gap**2, gap, level
        )
    if differing < 1 - np.log2(level):
        return "the models differ on too few items"

    def student(times: float, gap: float) -> float:
        own = freedom * times
        return float(stats.nct.sf(stats.t.isf(level / 2, own), own, gap / error * times**0.5))

    return student


def mcnemar_power(items: int, differing: float, gap: float, level: float) -> float:
    """Returns the probability that McNemar's test detects a difference.

    Args:
        items: Their number.
        differing: Share of items that the models answer differently, at least `gap`.
        gap: The true difference, > 0.
        level: Level of the test.
    """
    differing = min(max(differing, gap), 1.0)
    ends = stats.binom.ppf((TAIL, 1 - TAIL), items, differing).astype(int)
    numbers = np.arange(ends[0], ends[1] + 1)
    critical = stats.binom.ppf(level / 2, numbers, 0.5)
    critical -= stats.binom.cdf(critical, numbers, 0.5) > level / 2 * (1 + TINY)
    detected = stats.binom.cdf(critical, numbers, (1 - gap / differing) / 2)
    return float(stats.binom.pmf(numbers, items, differing) @ detected)


def _smallest(power: Power, times: float = 1.0) -> Figure:
    """Returns the difference that is detected with a multiple of the items."""
    if power(times, 1.0) < POWER:
        return Figure(reason="these items cannot tell any two models apart")
    low, high = 0.0, 1.0
    for _ in range(20):
        middle = (low + high) / 2
        low, high = (low, middle) if power(times, middle) >= POWER else (middle, high)
    reason = "it is a property of the items and the number of models, not an estimate"
    return Figure(value=high, reason=reason)


def _needed(power: Power | str, detect: float | None, size: int) -> Figure:
    """Returns the number of items that detect a difference."""
    if detect is None or isinstance(power, str):
        return Figure(reason=power if isinstance(power, str) else "no difference was named")
    low, high = 1, 2
    while power(high / size, detect) < POWER:
        low, high = high, 2 * high
        if high > MAX_ITEMS:
            return Figure(reason=f"it needs more than {MAX_ITEMS:,} items")
    while high - low > max(1, low // 1000):
        middle = (low + high) // 2
        low, high = (low, middle) if power(middle / size, detect) >= POWER else (middle, high)
    return Figure(value=high, reason="it is for a typical pair of these models, not an estimate")


def _rank(matrix: Matrix, table: pd.DataFrame, ranks: Array, skills: Array) -> Iterator[Rank]:
    number, means = len(matrix.models), matrix.means
    wins = np.zeros((number, number))
    wins[table["first"], table["second"]] = np.sign(table["difference"]) * table["apart"]
    wins -= wins.T
    worse, better = (wins > 0).sum(axis=1), (wins < 0).sum(axis=1)
    for place, model in enumerate(matrix.models):
        rank = int(ranks[place])
        low, high = int(better[place]) + 1, number - int(worse[place])
        yield Rank(
            model=model,
            mean=float(means[place]),
            adjusted=float(skills[place]),
            rank=rank,
            low=min(low, rank),
            high=max(high, rank),
            below_lower=bool((means[ranks < rank] < means[place] - TINY).any()),
        )


def _against(models: tuple[str, ...], table: pd.DataFrame, baseline: int) -> tuple[Difference, ...]:
    """Returns the comparisons of the models with the baseline."""
    rows: Any = table[(table["first"] == baseline) | (table["second"] == baseline)]
    own = rows["first"] == baseline
    turned = rows.assign(
        first=rows["second"].where(own, rows["first"]),
        second=baseline,
        difference=rows["difference"].where(~own, -rows["difference"]),
        low=rows["low"].where(~own, -rows["high"]),
        high=rows["high"].where(~own, -rows["low"]),
    )
    return tuple(_differences(models, _decide(turned)))


def _differences(models: tuple[str, ...], table: pd.DataFrame) -> Iterator[Difference]:
    """Yields the comparisons in the rows of a table."""
    chosen: Any = table.astype(object).replace(np.nan, None)
    for row in chosen.itertuples():
        yield Difference(
            first=models[row.first],
            second=models[row.second],
            difference=row.difference,
            error=row.error,
            unclustered=row.unclustered,
            clusters=int(row.clusters),
            interval=None if row.low is None else (row.low, row.high),
            p=row.p,
            adjusted=row.adjusted,
            apart=row.apart,
            equivalent=getattr(row, "equivalent", None),
            reason=row.reason,
        )
