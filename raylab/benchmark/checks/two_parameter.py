"""The two-parameter logistic model of items (2PL), by marginal maximum likelihood.

A model of ability t, which is standard normal over models, answers an item with discrimination a
and difficulty b rightly with probability 1 / (1 + exp(-a (t - b))).
"""

from dataclasses import dataclass

import numpy as np
import pandas as pd
from scipy.special import expit, logit, logsumexp
from scipy.stats import chi2

from raylab.benchmark.checks.differences import adjust
from raylab.benchmark.checks.items import FEWEST
from raylab.benchmark.checks.responses import Array, Matrix

FEWEST_MODELS = 50
"""Fewest models for a fit.

With 500 simulated items (log a of deviation 0.4, standard normal b) estimates correlate with the
truth by 0.85 (difficulty) and 0.47 (discrimination) at 20 models, 0.89 and 0.56 at 30, 0.92 and
0.65 at 50, 0.96 and 0.80 at 100, 0.97 and 0.89 at 200.
"""
FEWEST_ITEMS = 10
NODES = np.linspace(-5, 5, 161)
"""Abilities over which the likelihood is integrated: close and even, because with hundreds of items
a model's posterior is narrower than the gaps between Gauss-Hermite nodes."""
DESIGN = np.stack([NODES, np.ones_like(NODES)])
"""(2, nodes) factors of an item's slope and intercept."""
PRODUCTS = (DESIGN[:, None] * DESIGN).reshape(4, -1).T
LOG_DENSITY = -(NODES**2) / 2 - np.log(np.exp(-(NODES**2) / 2).sum())
SLOPE_PRIOR = (0.0, 0.5)
"""Mean and deviation of the normal prior of log a."""
INTERCEPT_PRIOR = 3.0
"""Deviation of the normal prior of -a b."""
ITERATIONS = 200
TOLERANCE = 1e-4
GROUPS = 10
"""Number of groups of models by ability in the test of fit."""


@dataclass(frozen=True)
class TwoParameter:
    """The fit of the model, or the reason why there is none.

    Attributes:
        items: A row for each item that models answer differently: `item`; `discrimination` > 0 and
            `difficulty`, in standard deviations of ability; `discrimination_error` and
            `difficulty_error`, their standard errors; `misfit`, Yen's Q1, and `misfit_p`, its
            p-value.
        reason: Why there is no fit; empty if there is one.
    """

    items: pd.DataFrame
    reason: str = ""

    @property
    def sentence(self) -> str:
        """The fit in words, for readers who do not know the model."""
        if self.reason:
            return f"Discrimination and difficulty are not estimated: {self.reason}."
        weak = int((self.items["discrimination"].to_numpy(float) < 0.5).sum())
        return (
            f"Of {len(self.items):,} items {weak:,} hardly separate strong from weak models "
            f"(discrimination below 0.5), and {self.misfits:,} do not follow the model (p < 0.05 "
            "after Holm's correction)."
        )

    @property
    def misfits(self) -> int:
        """The number of items that do not follow the model, Holm-corrected at 0.05."""
        return int((adjust(self.items["misfit_p"].dropna().to_numpy(float)) < 0.05).sum())


def fit_two_parameter(matrix: Matrix) -> TwoParameter:
    """Fits the model by expectation and maximisation (Bock and Aitkin, 1981, Psychometrika 46).

    The estimates are posterior modes under weak priors (`SLOPE_PRIOR`, `INTERCEPT_PRIOR`), because
    an item that all but one model get right has no finite maximum. Standard errors come from the
    observed information of each item (Louis, 1982, Journal of the Royal Statistical Society B 44),
    taking the other items and the distribution of abilities as exact. A fractional score counts as
    that share of a right answer and the rest of a wrong one. There is no fit below `FEWEST_MODELS`.
    """
    usable = (np.nanstd(matrix.scores, axis=0) > 0) & (
        (~np.isnan(matrix.scores)).sum(axis=0) >= FEWEST
    )
    models, items = len(matrix.models), int(usable.sum())
    if models < FEWEST_MODELS:
        why = f"there are {models} models, at least {FEWEST_MODELS} are needed"
        return TwoParameter(pd.DataFrame(), why)
    if items < FEWEST_ITEMS:
        why = f"at least {FEWEST_ITEMS} items that some models get right and some wrong are needed"
        return TwoParameter(pd.DataFrame(), why)
    scores = matrix.scores[:, usable]
    parameters, posterior = _maximise(scores)
    slopes, difficulties = parameters[:, 0], -parameters[:, 1] / parameters[:, 0]
    covariances = np.linalg.inv(_information(scores, parameters, posterior))
    # By the delta method.
    gradients = np.stack([difficulties, np.ones(items)], axis=1) / slopes[:, None]
    spread = np.einsum("ia,iab,ib->i", gradients, covariances, gradients)
    misfit, chance = _misfit(scores, parameters, posterior @ NODES)
    return TwoParameter(
        pd.DataFrame(
            {
                "item": np.array(matrix.items)[usable],
                "discrimination": slopes,
                "difficulty": difficulties,
                "discrimination_error": np.sqrt(np.maximum(covariances[:, 0, 0], 0)),
                "difficulty_error": np.sqrt(np.maximum(spread, 0)),
                "misfit": misfit,
                "misfit_p": chance,
            }
        )
    )


def _maximise(scores: Array) -> tuple[Array, Array]:
    """Returns (items, 2) discriminations a and intercepts -a b, and posterior abilities.

    Each step rescales abilities to mean 0 and variance 1, for speed (Liu, Rubin and Wu, 1998,
    Biometrika 85, 755-770).
    """
    levels = logit(np.clip(np.nanmean(scores, axis=0), 0.02, 0.98))
    parameters = np.stack([np.ones_like(levels), levels], axis=1)
    for _ in range(ITERATIONS):
        posterior, before = _expect(scores, parameters), parameters
        parameters = _improve(scores, parameters, posterior)
        center = float((posterior @ NODES).mean())
        deviation = np.sqrt(float((posterior @ NODES**2).mean()) - center**2)
        parameters = parameters @ np.array([[deviation, center], [0.0, 1.0]])
        if np.abs(parameters - before).max() < TOLERANCE:
            break
    return parameters, _expect(scores, parameters)


def _expect(scores: Array, parameters: Array) -> Array:
    """Returns (models, nodes) posterior probabilities of abilities."""
    chances, right = _chances(parameters), np.nan_to_num(scores)
    wrong = ~np.isnan(scores) - right
    joint = right @ np.log(chances) + wrong @ np.log1p(-chances) + LOG_DENSITY
    return np.exp(joint - np.asarray(logsumexp(joint, axis=1, keepdims=True)))


def _chances(parameters: Array) -> Array:
    """Returns (items, nodes) probabilities of a right answer."""
    return np.clip(expit(parameters @ DESIGN), 1e-9, 1 - 1e-9)


def _prior(parameters: Array) -> tuple[Array, Array]:
    """Returns (items, 2) slopes of the priors' log density, and curvatures above 0."""
    (mean, deviation), (slopes, intercepts) = SLOPE_PRIOR, parameters.T
    away = (np.log(slopes) - mean) / deviation**2
    curvature = np.maximum(1 / deviation**2 - away, 0.1) / slopes**2
    gradients = np.stack([-away / slopes, -intercepts / INTERCEPT_PRIOR**2], axis=1)
    flat = np.full_like(slopes, 1 / INTERCEPT_PRIOR**2)
    return gradients, np.stack([curvature, flat], axis=1)


def _weigh(weights: Array, parameters: Array) -> Array:
    """Returns the (items, 2, 2) information of (items, nodes) weights and the priors."""
    return (weights @ PRODUCTS).reshape(-1, 2, 2) + _prior(parameters)[1][:, :, None] * np.eye(2)


def _improve(scores: Array, parameters: Array, posterior: Array) -> Array:
    """Returns the parameters after steps of Newton's method, with the priors."""
    tried = (~np.isnan(scores)).T.astype(float) @ posterior
    right = np.nan_to_num(scores).T @ posterior
    for _ in range(3):
        chances = _chances(parameters)
        gradient = (right - tried * chances) @ DESIGN.T + _prior(parameters)[0]
        curvature = _weigh(tried * chances * (1 - chances), parameters)
        steps = np.linalg.solve(curvature, gradient[:, :, None])[:, :, 0]
        parameters = parameters + np.clip(steps, (-0.5, -1), (0.5, 1))
        parameters[:, 0] = np.clip(parameters[:, 0], 0.02, 10)
    return parameters


def _information(scores: Array, parameters: Array, posterior: Array) -> Array:
    """Returns (items, 2, 2) observed information, with the priors.

    It is the complete information minus the variance of the complete score over abilities.
    """
    chances = _chances(parameters)
    present, right = (~np.isnan(scores)).astype(float), np.nan_to_num(scores)
    tried, hits = present.T @ posterior, right.T @ posterior
    squares = (right**2).T @ posterior - 2 * hits * chances + tried * chances**2
    expected = np.stack(
        [
            right * (posterior @ factor)[:, None] - present * (posterior @ (chances * factor).T)
            for factor in DESIGN
        ]
    )
    complete = _weigh(tried * chances * (1 - chances) - squares, parameters)
    return complete + np.einsum("ami,bmi->iab", expected, expected)


def _misfit(scores: Array, parameters: Array, abilities: Array) -> tuple[Array, Array]:
    """Returns Yen's Q1 of each item and its p-value (1981, Applied Psychological Measurement 5).

    Models are grouped by ability, and the right answers of each group are compared with the
    expected number. The parameters of the item take two degrees of freedom.
    """
    ranks = abilities.argsort().argsort()
    groups = np.eye(GROUPS)[ranks * GROUPS // len(abilities)]
    present, right = (~np.isnan(scores)).astype(float), np.nan_to_num(scores)
    chances = present * expit(np.outer(abilities, parameters[:, 0]) + parameters[:, 1])
    expected, variance = groups.T @ chances, groups.T @ (chances * (present - chances))
    distance = (groups.T @ right - expected) ** 2 / np.maximum(variance, 1e-9)
    used = variance > 0.1
    total, freedom = np.where(used, distance, 0).sum(axis=0), used.sum(axis=0) - 2
    return total, np.where(freedom > 0, chi2.sf(total, np.maximum(freedom, 1)), np.nan)
