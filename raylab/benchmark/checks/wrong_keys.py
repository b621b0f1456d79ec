"""Keys that may be wrong or ambiguous, by what models answer instead."""

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from scipy.stats import binom

from raylab.benchmark.responses import AnswerTable, Matrix
from raylab.core.runs.records import Figure
from raylab.core.stats import Array

SOURCE = (
    "Shares with a fault are those that people found in MMLU-Redux (arXiv 2406.04127) by the "
    "answers of ten models; other benchmarks and models may have others."
)
Bools = NDArray[np.bool_]
Codes = NDArray[np.int32]
SHARES = {0.95: 0.33, 0.55: 0.2, 0.2: 0.12, -0.5: 0.07, -1.0: 0.03}
"""Stated share of items with a fault, by the least lead."""
MIN_SHARE, MAX_CHANCE = 0.2, 0.0125
"""A suspect's least share, and its greatest chance if wrong models chose at random."""
MIN_MODELS, MIN_EFFECTIVE = 5, 1.25
"""Fewest models that answer a suspect, and that all models are worth: copies of one model repeat
its errors."""
MIN_WORTH = 0.1
"""Least kappa of a model that counts; below, it is broken or guesses."""
MAX_OPTIONS = 10
"""Options of a free answer."""
TOPIC_WEIGHT, TOPIC_ITEMS = 0.5, 20
"""Weight of a topic's mean lead, and the number of items that shrink it."""
CONTESTED, MIN_CONTESTED, MIN_RATIO = 0.55, 0.2, 4.0
"""Lead of a contested item; their least share in a bad topic, and its least ratio to that of all
others."""
BAD_TOPIC = 0.85
"""Stated share of contested items in a bad topic."""


def judge_keys(matrix: Matrix, answers: AnswerTable, choices: Array) -> pd.DataFrame:
    """Returns what models say about the key of each item, by the item's name.

    - `lead`: share of models on the commonest other answer, less the share on the key.
    - `other`: that answer; empty if there is none.
    - `evidence`: the greater, the likelier a fault: the lead, and half of what the leads of
      its topic (stratum) exceed the mean by, shrunk, because faults come in topics. Where an item
      lacks the answers of five models, the share of wrong models less that of right ones.
    - `share`: share of items like this in which people found a fault; NaN without a lead, for two
      options, and if all models are worth fewer than 1.25.
    - `named`: whether it is a suspect: the share is 0.2 or more, and so many wrong models would
      agree with a probability of 0.0125 at most if they chose at random.

    A model counts by its Cohen's kappa with the keys: a broken one does not, nor one that always
    names the same option. Models fail together (`count_effective`), and two wrong ones mostly give
    the same wrong answer, so no formula says how often a great lead means a fault. The shares are
    what people found in half of MMLU-Redux (arXiv 2406.04127, github.com/aryopg/mmlu-redux at
    4563cfa): 2,792 items with four options in 28 subjects, and the answers of ten models of HELM.
    They are stated low, because virology alone has a fourth of all faults:

    | lead | items | faults | without virology | faults | stated |
    | --- | --- | --- | --- | --- | --- |
    | from 0.95 | 67 | 60 % | 42 | 38 % | 33 % |
    | from 0.55 | 106 | 33 % | 92 | 24 % | 20 % |
    | from 0.20 | 156 | 15 % | 153 | 14 % | 12 % |
    | from -0.50 | 385 | 9 % | 379 | 8 % | 7 % |
    | below | 2,078 | 4 % | 2,026 | 3 % | 3 % |

    In its bad topic, virology, 37 of 39 contested items have a fault (85 % are stated). On these
    items the area under the curve for faults of the key is 0.85, and people found a fault in 82 %
    of the first 50 suspects; without virology, in 0.80 and 36 %. Between halves of the subjects
    without it, the upper two shares are off by 9 and 6 points on average.

    Simulated, with no wrong key and 5 to 50 models that are equal, weak, broken or answer items of
    two difficulties, at most 4 of 500 items are named. If models that fail share half of their
    wrong answers, as real ones do, it is up to 28. Of 20 wrong keys among 500 items with four
    options, 8 models name 9, and all of them have an evidence above that of most sound items.

    Args:
        matrix: The scores.
        answers: The models' answers to the same items.
        choices: (items,) numbers of options; NaN where unknown.
    """
    present, topics = ~np.isnan(matrix.scores), matrix.strata
    scores, codes = np.nan_to_num(matrix.scores), np.where(present, answers.codes, -1)
    worth = np.where(present, _worth(present, scores, codes, answers.keys)[:, None], 0.0)
    counts = (codes >= 0) & (worth > 0)
    answered = counts.sum(axis=0) >= MIN_MODELS
    weights = np.where(answered & (codes < 0), 0.0, worth)
    with np.errstate(invalid="ignore"):
        weights = weights / weights.sum(axis=0)
    right = (weights * scores).sum(axis=0)
    against, other, votes = _commonest_other(weights * (1 - scores), codes, answers.keys)
    lead = np.where(answered, against - right, np.nan)
    evidence = np.where(answered, lead, 1 - 2 * right)
    excess = np.nan_to_num(evidence - np.nansum(evidence) / max((~np.isnan(evidence)).sum(), 1))
    sums, sizes = (np.bincount(topics, values)[topics] for values in (excess, np.ones(len(lead))))
    options = np.where(np.isnan(choices), _count_options(codes, answers.keys, topics), choices)
    wrong = (counts & (scores < 0.5)).sum(axis=0)
    chance = (options - 1) * binom.sf(votes - 1, wrong, 1 / np.maximum(options - 1, 1))
    share = np.select([lead >= least for least in SHARES], [*SHARES.values()], np.nan)
    contested = lead >= CONTESTED
    share[contested & _is_bad(contested, topics)] = BAD_TOPIC
    unclear = (options <= 2) | ((count_effective(matrix.scores).value or 0) < MIN_EFFECTIVE)
    return pd.DataFrame(
        {
            "lead": lead,
            "other": np.array([*answers.names, ""], object)[np.where(answered, other, -1)],
            "evidence": evidence + TOPIC_WEIGHT * (sums - excess) / (sizes - 1 + TOPIC_ITEMS),
            "share": np.where(unclear, np.nan, share),
            "named": (share >= MIN_SHARE) & (chance <= MAX_CHANCE) & ~unclear,
        },
        index=pd.Index(matrix.items, name="item"),
    )


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
    models, items = int(varied.sum()), scores.shape[1]
    if models < 2:
        return Figure(count=models, reason="fewer than two models have different scores")
    standard, kept = centred[varied] / scale[varied], present[varied].astype(float)
    with np.errstate(invalid="ignore"):
        correlations = np.nan_to_num(standard @ standard.T / (kept @ kept.T))
    total = max(float(correlations.sum()), 1.0)
    # The influence of each item on the sum of the correlations.
    influence = standard.sum(axis=0) ** 2 - correlations.sum(axis=1) @ standard**2
    error = 1.96 * float(np.sqrt((influence**2).sum())) / items
    low, high = models**2 / (total + error), models**2 / max(total - error, 1.0)
    return Figure(value=models**2 / total, interval=(low, high), count=models)


def _worth(present: Bools, scores: Array, codes: Codes, keys: Codes) -> Array:
    """Returns the (models,) kappas of the models with the keys; 0 for those that do not count."""
    means = scores.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
    named = np.bincount(keys[keys >= 0], minlength=codes.max(initial=0) + 1) / max(len(keys), 1)
    hits = np.where(codes >= 0, named[codes], 0.0).sum(axis=1)
    chance = hits / np.maximum((codes >= 0).sum(axis=1), 1)
    if named.max(initial=0.0) > 0.5 and (codes >= 0).any():
        # Where the key is always the first option, which models see elsewhere, kappa is always 0.
        chance = np.full(len(codes), 1 / min(len(np.unique(codes[codes >= 0])), MAX_OPTIONS))
    kappas = (means - chance) / (1 - np.minimum(chance, 0.99))
    return np.where(kappas < MIN_WORTH, 0.0, kappas)


def _commonest_other(weights: Array, codes: Codes, keys: Codes) -> tuple[Array, Codes, Codes]:
    """Returns the weight, the code and the number of models of the items' heaviest other answer."""
    models, items = np.nonzero((codes >= 0) & (codes != keys) & (weights > 0))
    table = pd.DataFrame(
        {"item": items, "code": codes[models, items], "weight": weights[models, items]}
    )
    sums: Any = table.groupby(["item", "code"])["weight"].agg(["sum", "size"]).reset_index()
    first = sums.sort_values("sum", kind="stable").drop_duplicates("item", keep="last")
    leading = first.set_index("item").reindex(range(codes.shape[1]))
    return (
        leading["sum"].fillna(0.0).to_numpy(),
        leading["code"].fillna(-1).to_numpy(np.int32),
        leading["size"].fillna(0).to_numpy(np.int32),
    )


def _count_options(codes: Codes, keys: Codes, topics: NDArray[np.int64]) -> Array:
    """Returns the (items,) numbers of different keys, or else answers, in the topic of each item.

    A small topic may lack some, so its items have those of all topics.
    """
    rows = keys[None] if (keys >= 0).any() else codes
    table: Any = pd.DataFrame({"topic": np.tile(topics, len(rows)), "code": rows.ravel()})
    table = table[table["code"] >= 0]
    options = table.groupby("topic")["code"].nunique().reindex(topics).fillna(0).to_numpy(float)
    small = np.bincount(topics)[topics] < TOPIC_ITEMS
    return np.minimum(np.where(small, table["code"].nunique(), options), MAX_OPTIONS)


def _is_bad(contested: Bools, topics: NDArray[np.int64]) -> Bools:
    """Returns whether items are of a topic with many more contested items than all others."""
    sizes, sums = np.bincount(topics), np.bincount(topics, contested)
    rates = sums / np.maximum(sizes, 1)
    others = (sums.sum() - sums) / np.maximum(sizes.sum() - sizes, 1)
    bad = (sizes >= TOPIC_ITEMS) & (sizes < sizes.sum()) & (rates >= MIN_CONTESTED)
    return (bad & (rates >= MIN_RATIO * others))[topics]
