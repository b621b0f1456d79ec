"""The probability that the key of an item is wrong, by which models are right on it.

With a wrong key, an item with k choices turns a probability p of the right answer into
(1 - p) / (k - 1): models choose the answer in the key only by mistake, weak models more often. The
other items are sound: the logit of p is linear in a model's ability. The share of wrong keys and
the distribution of items are estimated from the responses (empirical Bayes, by expectation and
maximization). The result is 1 minus the local false discovery rate (Efron 2010, "Large-scale
inference").

With few models, a wrong key looks like a hard item unless hard items are rare. In 40 simulated
benchmarks of 500 items with four choices, 20 of them with a wrong key, keys with a probability
above 0.4 had these mean precisions and recalls, next to those of Bayes' rule with known abilities,
guessing, share of wrong keys and distribution of items:

| models | models guess | Bayes' rule | no model guesses | Bayes' rule |
| --- | --- | --- | --- | --- |
| 6 | 0.71, 0.67 | 0.77, 0.79 | 0.47, 0.34 | 0.52, 0.50 |
| 12 | 0.90, 0.85 | 0.87, 0.89 | 0.73, 0.63 | 0.71, 0.73 |
| 50 | 0.95, 0.98 | 0.97, 0.99 | 0.93, 0.93 | 0.93, 0.96 |

Mean scores were 0.69 and 0.59. No method orders items better than Bayes' rule, so scores alone
cannot find wrong keys with a precision and recall above 0.8 at 6 models, or 0.9 at 12.
"""

import numpy as np
from scipy import stats
from scipy.special import expit, logit, logsumexp

from raylab.core.stats import Array

FEWEST_MODELS = 5
FEWEST_ITEMS = 20
"""Fewest items for abilities and the distribution of items."""
SLOPE = 1.25
"""Slope of the logit of p by ability, which is in logits of the mean score."""
LEVELS = np.linspace(-4.0, 4.0, 17)
"""Easiness of items: logits of p for the mean model."""
SLIP = 0.01
"""Least probability of either answer."""
LEAST_SPREAD = 0.3
"""Least standard deviation of the levels, limited by their grid."""
ITERATIONS = 30
PRIOR_SHARE, PRIOR_ITEMS = 0.02, 50
"""The prior share of wrong keys, and the number of items that the prior counts for."""
MOST = 0.2
"""Greatest share of wrong keys; beyond it, the sound side is unclear."""


def wrong_key_chances(scores: Array, choices: int = 4) -> Array:
    """Returns the (items,) probabilities that a key is wrong, from (models, items) scores.

    They are NaN for an item with fewer than 5 models, and if there are fewer than 20 items. All
    items are judged as if they had this number of choices. A wrong key of an item without choices
    looks like an item that is too hard: all models are wrong.
    """
    present = ~np.isnan(scores)
    chances = np.full(scores.shape[1], np.nan)
    judged = present.sum(axis=0) >= FEWEST_MODELS
    if judged.sum() >= FEWEST_ITEMS:
        abilities = estimate_abilities(scores[:, judged])[:, None]
        sound = np.clip(expit(SLOPE * abilities + LEVELS), SLIP, 1 - SLIP)
        wrong = np.maximum((1 - sound) / (choices - 1), SLIP / 2)
        chances[judged] = _separate(*(_likelihoods(scores[:, judged], p) for p in (sound, wrong)))
    return chances


def estimate_abilities(scores: Array) -> Array:
    """Returns the (models,) logits of the mean scores, centred and shrunk towards 0.

    A missing score counts as the item's mean. The shrinkage removes the variance from the sampling
    of items (Kelley), so equal models get nearly equal abilities.
    """
    present = ~np.isnan(scores)
    means = np.nansum(scores, axis=0) / present.sum(axis=0)
    counts = np.maximum(present.sum(axis=1), 1)
    rates = means.mean() + np.where(present, scores - means, 0.0).sum(axis=1) / counts
    rates = np.clip(rates, 0.5 / (counts + 1), 1 - 0.5 / (counts + 1))
    abilities = logit(rates) - logit(rates).mean()
    noise = np.mean(1 / (counts * rates * (1 - rates)))
    variance = abilities.var(ddof=1)
    return abilities * max(0.0, 1 - noise / variance) if variance > 0 else abilities


def _likelihoods(scores: Array, chances: Array) -> Array:
    """Returns the (items, levels) log likelihoods of (models, levels) chances."""
    filled = np.nan_to_num(scores)
    failed = np.where(np.isnan(scores), 0.0, 1 - filled)
    return filled.T @ np.log(chances) + failed.T @ np.log1p(-chances)


def _separate(sound: Array, wrong: Array) -> Array:
    """Returns the (items,) probabilities of a wrong key under the likeliest mixture.

    Both kinds of items share the distribution of the levels, which is normal.
    """
    items, share, chances = len(sound), PRIOR_SHARE, np.zeros(len(sound))
    weights = np.full(len(LEVELS), 1 / len(LEVELS))
    for _ in range(ITERATIONS):
        joint = np.stack([sound + np.log1p(-share), wrong + np.log(share)]) + np.log(weights)
        belief = np.exp(joint - logsumexp(joint, axis=(0, 2), keepdims=True))
        chances = belief[1].sum(axis=1)
        share = (chances.sum() + PRIOR_SHARE * PRIOR_ITEMS) / (items + PRIOR_ITEMS)
        share = min(share, MOST)
        levels = belief.sum(axis=(0, 1)) / items
        mean = levels @ LEVELS
        spread = max(np.sqrt(levels @ (LEVELS - mean) ** 2), LEAST_SPREAD)
        weights = np.maximum(stats.norm.pdf(LEVELS, mean, spread), np.finfo(float).tiny)
        weights /= weights.sum()
    return chances
