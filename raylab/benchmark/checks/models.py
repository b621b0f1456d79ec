"""Each model's mean, over all items and by task and topic, with its 95 % interval; and its cost.

The interval is Wilson's score interval (J. Am. Stat. Assoc. 22, 1927), for as many items as would
give the standard error of `sampling` if they were independent and right or wrong: it is never
outside [0, 1] and holds near its ends. There, few items show how much clusters and strata matter,
so the ratio of the two variances is drawn a little towards 1, or towards `PRIOR_CORRELATION` in
clusters. The quantile is Student's unless single items are right or wrong.
"""

from collections import Counter
from collections.abc import Iterator
from typing import Any, TypeVar

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.special import stdtrit

from raylab.benchmark.checks.sampling import TINY, Means, SamplingDesign, present_weights
from raylab.benchmark.responses import Matrix, Responses
from raylab.core.runs.records import Figure, Part
from raylab.core.stats import LEVEL, Array

PRIOR_CORRELATION = 0.1
"""Correlation within clusters where too few items differ to show it."""
SHOWN_MODELS = 30
"""Number of the best models whose means by task and topic a record holds."""
MIN_CLUSTERS = 3
"""Fewest clusters, or items that are none, for an interval."""
SPENT = ("cost", "tokens", "seconds")
"""What logs may say that a model took, the most telling first."""

Kind = TypeVar("Kind", bound=Part)


class ModelMean(Part):
    """The mean score of a model."""

    model: str
    mean: Figure
    """Weighted mean of its scores, in [0, 1]."""
    error: float | None
    """Its standard error; None if it cannot be estimated."""
    unclustered: float | None
    """The standard error as if all items were independent; None if no cluster is declared."""
    items: int
    """Number of items with a score."""
    adjusted: float
    """The mean that a fit of scores as model plus item expects for all items."""


class Slice(Part):
    """The results on the items of one task, or of one topic of a task."""

    task: str
    topic: str
    """Empty for the whole task."""
    items: int
    means: dict[str, Figure]
    """The means of the 30 best models."""


class Usage(Part):
    """A model's tokens, cost and time per response that counts; None if a log of it lacks them."""

    model: str
    mean: float
    """Its mean score, in [0, 1]."""
    cost: float | None
    """In the currency of the logs; US dollars in Inspect's."""
    tokens: float | None
    """Of prompts and replies."""
    seconds: float | None
    """From the start of a log to its end, over its responses: the more calls run at once, the less.
    """
    unbeaten: bool
    """True if no model scores higher for as little, or as high for less: by cost, or by tokens or
    seconds where costs are unknown."""


def make_parts(kind: type[Kind], table: Any) -> tuple[Kind, ...]:
    """Returns a part for each row of a table, with None for NaN and without the other columns."""
    own = table[[name for name in table if name in kind.model_fields]].astype(object)
    rows = own.where(own.notna(), None).to_dict("records")
    return tuple(map(kind.model_validate, rows))


def measure_models(responses: Responses) -> tuple[tuple[ModelMean, ...], tuple[Slice, ...]]:
    """Returns the means of all models, the best first, and those by task and topic."""
    matrix = responses.matrix
    skills, _ = fit_items(matrix)
    order = np.argsort(-np.round(skills, 12), kind="stable")
    figures, means = estimate_means(matrix)
    table = pd.DataFrame(
        {
            "model": matrix.models,
            "mean": figures,
            "error": means.errors,
            "unclustered": means.unclustered,
            "items": (~np.isnan(matrix.scores)).sum(axis=1),
            "adjusted": skills,
        }
    )
    models = make_parts(ModelMean, table.iloc[order])
    return models, tuple(_slices(responses, order[:SHOWN_MODELS]))


def fit_items(matrix: Matrix) -> tuple[Array, Array]:
    """Fits scores as model plus item, by least squares.

    Returns:
        The (models,) means that the fit expects for all items, which are the models' own where each
        has each item, and the (items,) ease of the items, with mean 0. Models that share no item,
        not even through others, compare only by chance.
    """
    weights, scores = present_weights(matrix), np.nan_to_num(matrix.scores)
    skills = matrix.means
    share = np.broadcast_to(weights, scores.shape)
    share = share / np.maximum(share.sum(axis=0), TINY)
    if len(weights) > 1:
        left = np.diag(weights.sum(axis=1)) - share @ weights.T
        right = (weights * (scores - (share * scores).sum(axis=0))).sum(axis=1)
        skills = np.linalg.lstsq(left, right, rcond=1e-10)[0]
    ease = (share * (scores - skills[:, None])).sum(axis=0)
    level = np.average(ease, weights=matrix.weights)
    return skills + level, ease - level


def estimate_means(matrix: Matrix) -> tuple[list[Figure], Means]:
    """Returns the means of models with their intervals, and with their standard errors."""
    weights, present = present_weights(matrix), ~np.isnan(matrix.scores)
    scores = np.nan_to_num(matrix.scores)
    means = SamplingDesign(matrix).estimate(scores, weights)
    value = np.clip(means.values, 0.0, 1.0)
    # Kish's number of items, which weighs them.
    size = weights.sum(axis=1) ** 2 / (weights**2).sum(axis=1)
    highest, lowest = scores.max(axis=1), np.where(present, scores, np.inf).min(axis=1)
    spread = np.where(highest > lowest, highest - lowest, 1.0) ** 2
    single = ((scores == 0) | (scores == 1)).all(axis=1) & (means.clusters == present.sum(axis=1))
    within = present.sum(axis=1) / np.maximum(means.clusters, 1)
    prior = spread * (1 + PRIOR_CORRELATION * (within - 1))
    seen = size**2 * means.errors**2
    ratio = (seen + prior) / (size * value * (1 - value) + spread)
    # The more of it is prior, the less it varies.
    freedom = means.freedom * (1 + prior / np.fmax(seen, TINY))
    freedom = np.where(single, np.inf, np.fmax(freedom, TINY))
    squared = stdtrit(freedom, 1 - LEVEL / 2) ** 2
    count = size / np.maximum(ratio, TINY)
    centre = (count * value + squared / 2) / (count + squared)
    half = np.sqrt(squared * (count * value * (1 - value) + squared / 4)) / (count + squared)
    low = np.where(value > 0, centre - half, 0.0)
    high = np.where(value < 1, centre + half, 1.0)
    few = f"there are fewer than {MIN_CLUSTERS} items or clusters"
    figures = [
        Figure(value=float(value[n]), reason=few)
        if means.clusters[n] < MIN_CLUSTERS or np.isnan(low[n])
        else Figure(value=float(value[n]), interval=(float(low[n]), float(high[n])))
        for n in range(len(value))
    ]
    return figures, means


def _slices(responses: Responses, models: NDArray[np.int64]) -> Iterator[Slice]:
    """Yields the results by task if there are several, and by topic if a task has several."""
    matrix, table = responses.matrix, responses.table.drop_duplicates("item")
    names = table.set_index("item").loc[list(matrix.items)].reset_index()
    tasks = names.groupby("task", observed=True).indices
    topics = names.groupby(["task", "group"], observed=True).indices
    several = Counter(task for task, _ in topics)
    slices = [((task, ""), items) for task, items in tasks.items() if len(tasks) > 1]
    slices += [(topic, items) for topic, items in topics.items() if several[topic[0]] > 1]
    for (task, topic), items in sorted(slices, key=lambda named: named[0]):
        shown = models[~np.isnan(matrix.scores[models][:, items]).all(axis=1)]
        own = matrix.select(shown, items)
        means = dict(zip(own.models, estimate_means(own)[0], strict=True))
        yield Slice(task=task, topic=topic, items=len(items), means=means)


def measure_usage(responses: Responses) -> tuple[Usage, ...]:
    """Returns what each model took, the best score first; nothing where no log says so."""
    logs: Any = responses.logs
    matrix = responses.matrix
    if logs.empty:
        return ()
    counts = responses.table["model"].value_counts()
    sums = logs[logs["sampled"]].groupby("model")[[*SPENT]].agg(lambda own: own.to_numpy().sum())
    spent = sums.div(counts, axis=0).reindex(list(matrix.models))
    price = next((spent[name].to_numpy() for name in SPENT if spent[name].notna().any()), None)
    if price is None:
        return ()
    means = matrix.means
    # Each model beside all others.
    as_good, as_cheap = means >= means[:, None], price <= price[:, None]
    better = (means > means[:, None]) | (price < price[:, None])
    unbeaten = ~np.isnan(price) & ~(as_good & as_cheap & better).any(axis=1)
    table = spent.assign(model=matrix.models, mean=means, unbeaten=unbeaten)
    return make_parts(Usage, table.iloc[np.argsort(-means, kind="stable")])
