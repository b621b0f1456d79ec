"""The agreement of models: their worth together, and the answers that nearly all of them give."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import betaln, xlog1py, xlogy

from raylab.core.runs.records import Figure
from raylab.core.stats import Array

Codes = NDArray[np.int32]
COPY = 0.95
"""Least share of equal answers, among the items that either of two models fails, of a copy."""
GRID, STEPS = (np.arange(40) + 0.5) / 40, 300
"""Shares of models that may give an answer, and steps of their estimation."""
MIN_SURE, MAX_SURE, USUAL = 0.5, 0.9, 0.95
"""Bounds of the share of models that are nearly all, and the share of items that sets it."""
MIN_RATIO = 6.0
"""Least likelihood ratio statistic of such answers; by chance in 1 of 100 (Self, Liang 1987)."""


def count_effective(scores: Array) -> Figure:
    """Returns how many independent models (models, items) scores are worth (Kish 1965).

    M models whose scores on items correlate by r on average are worth M / (1 + (M - 1) r). Models
    with equal scores on all items have no correlation and are left out.
    """
    present = ~np.isnan(scores)
    counts = present.sum(axis=1, keepdims=True)
    centred = np.where(present, scores - np.nansum(scores, axis=1, keepdims=True) / counts, 0.0)
    scale = np.sqrt((centred**2).sum(axis=1, keepdims=True) / counts)
    varied = scale[:, 0] > 1e-12
    models = int(varied.sum())
    if models < 2:
        return Figure(count=models, reason="fewer than two models have different scores")
    # Each pair correlates over the items that both models have.
    standard, kept = centred[varied] / scale[varied], present[varied].astype(float)
    with np.errstate(invalid="ignore"):
        correlations = np.nan_to_num(standard @ standard.T / (kept @ kept.T))
    return Figure(value=models**2 / max(float(correlations.sum()), 1.0), count=models)


def find_copies(codes: Codes, keys: Codes) -> NDArray[np.bool_]:
    """Returns which models answer like an earlier one wherever either of them fails.

    Args:
        codes: (models, items) answers; -1 for none.
        keys: (items,) right answers.
    """
    copies = np.zeros(len(codes), bool)
    for model, own in enumerate(codes):
        others = codes[:model]
        failed = (others >= 0) & (own >= 0) & ((others != keys) | (own != keys))
        same = (failed & (others == own)).sum(axis=1)
        copies[model] = ((same > 0) & (same >= COPY * failed.sum(axis=1))).any()
    return copies


def judge_agreement(models: Codes, other: Codes, wrong: Codes, alike: Codes) -> Array:
    """Returns the (items,) chances that nearly all models agree on another answer.

    Hard items have a commonest wrong answer too, so many votes alone are no evidence. The share of
    models that votes for the commonest other answer is estimated over all items, whatever its
    distribution (nonparametric maximum likelihood by EM: Laird 1978; as a prior: Efron 2014, "Two
    modeling strategies for empirical Bayes estimation"). The chance is that an item's share
    exceeds what failing together explains: the root of the probability that two models which fail
    an item give the same answer. All are 0 if the votes are about as likely without such an item.

    Args:
        models: (items,) numbers of models that answer.
        other: Numbers of those that give the commonest other answer.
        wrong: Numbers of those that give any other answer.
        alike: Numbers of ordered pairs of models that give the same other answer.
    """
    shares = other / np.maximum(models, 1)
    usual = shares <= np.quantile(shares, USUAL)
    together = alike[usual].sum() / max((wrong * (wrong - 1))[usual].sum(), 1)
    agreed = np.clip(together**0.5, MIN_SURE, MAX_SURE) <= GRID
    kinds, places, sizes = np.unique(
        np.stack([other, models]), axis=1, return_inverse=True, return_counts=True
    )
    votes_for, size = kinds[0][:, None], kinds[1][:, None]
    # The binomial distribution of the votes.
    ways = -betaln(size - votes_for + 1, votes_for + 1) - np.log1p(size)
    likelihood = np.exp(ways + xlogy(votes_for, GRID) + xlog1py(size - votes_for, -GRID))
    chances, fit = _estimate(likelihood, sizes)
    _, without = _estimate(likelihood[:, ~agreed], sizes)
    # Without a clear gain, the shares above the bound may be chance, and no item is accused.
    if 2 * (fit - without) < MIN_RATIO:
        return np.zeros(len(models))
    return chances[:, agreed].sum(axis=1)[places.reshape(-1)]


def _estimate(likelihood: Array, sizes: NDArray[np.int64]) -> tuple[Array, float]:
    """Returns the chances of the shares by the kinds of items, and the log-likelihood."""
    prior = np.ones(likelihood.shape[1]) / likelihood.shape[1]
    for _ in range(STEPS):
        joint = likelihood * prior
        prior = sizes @ (joint / joint.sum(axis=1, keepdims=True)) / sizes.sum()
    joint = likelihood * prior
    total = joint.sum(axis=1, keepdims=True)
    return joint / total, float(sizes @ np.log(total[:, 0]))
