"""Keys that may be wrong or ambiguous, by what models answer instead."""

import re
from math import inf
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from raylab.benchmark.checks.agreement import Codes, count_effective, find_copies, judge_agreement
from raylab.benchmark.responses import AnswerTable, Matrix
from raylab.core.stats import Array

SOURCE = (
    "Shares with a fault are those that people found in MMLU-Redux (arXiv 2406.04127), and for "
    "free answers in GSM8K-Platinum (arXiv 2502.03461), by the answers of ten models; other "
    "benchmarks and models may have others."
)
Topics = NDArray[np.int64]
SHARES = {0.95: 0.4, 0.55: 0.18, 0.2: 0.11, -0.5: 0.07, -inf: 0.03}
"""Stated share of items with a fault, by the least lead."""
FREE_SHARES = {0.95: 0.9, 0.2: 0.6, -0.5: 0.15, -inf: 0.05}
"""The same for free answers, which rarely agree by chance."""
MIN_SHARE, MIN_AGREEMENT = 0.18, 0.4
"""A suspect's least share, and its least chance that models agree as they do on right answers."""
MIN_MODELS, MIN_EFFECTIVE = 5, 1.25
"""Fewest models that answer a suspect, and that all are worth: runs of one model repeat errors."""
MIN_WORTH = 0.1
"""Least kappa of a model that counts; below, it is broken or guesses."""
MAX_OPTIONS = 11
"""Options of a free answer, or more."""
TOPIC_ITEMS, BLOCK = 20, 50
"""Items that shrink a topic's mean lead, and items in a row where there are no topics."""
CONTESTED, UNANIMOUS = 0.55, 0.95
"""Leads of a contested and of a unanimous item."""
MIN_UNANIMOUS, MIN_RATE, MIN_RATIO = 4, 0.1, 4.0
"""Fewest unanimous items of a bad topic, their least share, and its ratio to that of all others."""
BAD_TOPIC = 0.9
"""Stated share of contested items in a bad topic."""


def judge_keys(matrix: Matrix, answers: AnswerTable, choices: Array) -> pd.DataFrame:
    """Returns what models say about the key of each item, by the item's name.

    - `lead`: share of models on the commonest other answer, less the share on the key.
    - `other`: that answer; empty if there is none.
    - `evidence`: the greater, the likelier a fault: the lead, and what the leads of its topic
      exceed the mean by, shrunk, because faults come in topics. Where an item lacks the answers of
      five models, the share of wrong models less that of right ones.
    - `share`: share of items like this in which people found a fault; NaN without a lead, for two
      options, and if all models are worth fewer than 1.25.
    - `named`: whether it is a suspect: the share is 0.18 or more, and nearly all models agree, as
      they do on right answers and not on hard items (`judge_agreement`).

    A model counts by its Cohen's kappa with the keys: a broken one does not, nor one that always
    names the same option, nor a copy of another. A topic is a stratum; where there is only one,
    fifty items in the order of their names stand for it.

    Models fail together, and two wrong ones mostly give the same wrong answer, so no formula says
    how often a great lead means a fault. The shares are what people found in half of MMLU-Redux
    (arXiv 2406.04127, github.com/aryopg/mmlu-redux at 4563cfa): 2,792 items with four options in 28
    subjects, and the answers of ten models of HELM; two of them are copies. They are rounded
    towards what is left without virology, which has a fourth of all faults:

    | lead | items | faults | without virology | faults | stated |
    | --- | --- | --- | --- | --- | --- |
    | from 0.95 | 68 | 60 % | 43 | 40 % | 40 % |
    | from 0.55 | 113 | 31 % | 100 | 23 % | 18 % |
    | from 0.20 | 157 | 15 % | 153 | 13 % | 11 % |
    | from -0.50 | 354 | 10 % | 349 | 10 % | 7 % |
    | below | 2,100 | 4 % | 2,047 | 3 % | 3 % |

    Free answers have those of GSM8K's 1,319 items; GSM8K-Platinum (arXiv 2502.03461) took 120 of
    them for faulty. The answers are of ten models of GSM-Plus (github.com/qtli/GSM-Plus), and of
    the ten best of ZeroEval (github.com/WildEval/ZeroEval at 8c1485ed), which err less:

    | lead | items | faults | ZeroEval | faults | stated |
    | --- | --- | --- | --- | --- | --- |
    | from 0.95 | 0 | | 11 | 100 % | 90 % |
    | from 0.20 | 57 | 54 % | 21 | 81 % | 60 % |
    | from -0.50 | 329 | 14 % | 25 | 48 % | 15 % |
    | below | 933 | 5 % | 1,262 | 6 % | 5 % |

    `choices` are the (items,) numbers of options, NaN where unknown.
    """
    lead, evidence, other, votes = _poll(matrix.scores, answers)
    topics = matrix.strata
    if len(np.unique(topics)) < 2:
        padded = [re.sub(r"\d+", lambda digits: digits[0].zfill(12), name) for name in matrix.items]
        # Items in a row often come from one source, as those of a topic do.
        topics = np.argsort(np.argsort(padded)) // BLOCK
    # What the evidence of the other items of a topic exceeds the mean by.
    excess = np.nan_to_num(evidence - np.nansum(evidence) / max((~np.isnan(evidence)).sum(), 1))
    sums, sizes = np.bincount(topics, excess)[topics], np.bincount(topics)[topics]
    shrunk = (sums - excess) / (sizes - 1 + TOPIC_ITEMS)
    options = np.where(np.isnan(choices), _count_options(answers, topics), choices)
    unclear = (options <= 2) | ((count_effective(matrix.scores).value or 0) < MIN_EFFECTIVE)
    share = np.where(unclear, np.nan, _state_shares(lead, topics, options))
    named = (share >= MIN_SHARE) & (judge_agreement(*votes) >= MIN_AGREEMENT)
    return pd.DataFrame(
        {
            "lead": lead,
            "other": np.array([*answers.names, ""], object)[other],
            "evidence": evidence + shrunk,
            "share": share,
            "named": named,
        },
        index=pd.Index(matrix.items, name="item"),
    )


def _poll(scores: Array, answers: AnswerTable) -> tuple[Array, Array, Codes, list[Codes]]:
    """Returns each item's lead, evidence and other answer, by the models that count, and the votes.

    The votes are those of `judge_agreement`, 0 where fewer than five models answer.
    """
    present, keys = ~np.isnan(scores), answers.keys
    scores, codes = np.nan_to_num(scores), np.where(present, answers.codes, -1)
    means = scores.sum(axis=1) / np.maximum(present.sum(axis=1), 1)
    named = np.bincount(keys[keys >= 0], minlength=codes.max(initial=0) + 1) / max(len(keys), 1)
    hits = np.where(codes >= 0, named[codes], 0.0).sum(axis=1)
    chance = hits / np.maximum((codes >= 0).sum(axis=1), 1)
    if named.max(initial=0.0) > 0.5 and (codes >= 0).any():
        # Where the key is always the first option, which models see elsewhere, kappa is always 0.
        chance = np.full(len(codes), 1 / min(len(np.unique(codes[codes >= 0])), MAX_OPTIONS))
    # A model is worth its kappa with the keys.
    kappas = (means - chance) / (1 - np.minimum(chance, 0.99))
    worth = np.where(find_copies(codes, keys) | (kappas < MIN_WORTH), 0.0, kappas)
    counts = (codes >= 0) & (worth[:, None] > 0)
    models = counts.sum(axis=0)
    answered = models >= MIN_MODELS
    # A model without an answer says nothing about a key that others answer.
    weights = np.where(present & ~(answered & (codes < 0)), worth[:, None], 0.0)
    with np.errstate(invalid="ignore"):
        weights = weights / weights.sum(axis=0)
    right = (weights * scores).sum(axis=0)
    # The heaviest other answer of each item, and the pairs of models that agree on one.
    wrong = weights * (1 - scores)
    voters, items = np.nonzero((codes >= 0) & (codes != keys) & (wrong > 0))
    table = pd.DataFrame(
        {"item": items, "code": codes[voters, items], "weight": wrong[voters, items]}
    )
    groups: Any = table.groupby(["item", "code"])["weight"].agg(weight="sum", size="size")
    groups = groups.reset_index().sort_values("weight", kind="stable")
    groups["alike"] = groups["size"] * (groups["size"] - 1)
    counts_by_item = groups.groupby("item").agg(wrong=("size", "sum"), alike=("alike", "sum"))
    first = groups.drop(columns="alike").groupby("item").last().join(counts_by_item)
    others = first.reindex(range(codes.shape[1])).fillna({"code": -1}).fillna(0)
    others = others.astype({"code": int, "size": int, "wrong": int, "alike": int})
    lead = np.where(answered, others["weight"] - right, np.nan)
    size, wrong, alike = (others[name].to_numpy() for name in ("size", "wrong", "alike"))
    votes = [np.where(answered, number, 0) for number in (models, size, wrong, alike)]
    return (
        lead,
        np.where(answered, lead, 1 - 2 * right),
        np.where(answered, others["code"], -1),
        votes,
    )


def _count_options(answers: AnswerTable, topics: Topics) -> Array:
    """Returns the (items,) numbers of different keys, or else answers, in the topic of each item.

    A small topic may lack some, so its items have those of all topics.
    """
    rows = answers.keys[None] if (answers.keys >= 0).any() else answers.codes
    table: Any = pd.DataFrame({"topic": np.tile(topics, len(rows)), "code": rows.ravel()})
    table = table[table["code"] >= 0]
    options = table.groupby("topic")["code"].nunique().reindex(topics).fillna(0).to_numpy(float)
    small = np.bincount(topics)[topics] < TOPIC_ITEMS
    return np.minimum(np.where(small, table["code"].nunique(), options), MAX_OPTIONS)


def _state_shares(lead: Array, topics: Topics, options: Array) -> Array:
    """Returns the stated shares by lead; a bad topic has many more unanimous items than others.

    In the only one of MMLU-Redux, virology, 36 of 38 contested items have a fault.
    """
    sizes, sums = np.bincount(topics), np.bincount(topics, lead >= UNANIMOUS)
    rates = sums / np.maximum(sizes, 1)
    others = (sums.sum() - sums) / np.maximum(sizes.sum() - sizes, 1)
    bad = (sums >= MIN_UNANIMOUS) & (rates >= MIN_RATE) & (rates >= MIN_RATIO * others)
    # A single topic has no others to compare with.
    bad &= sizes < sizes.sum()
    chosen, free = (
        np.select([lead >= least for least in shares], [*shares.values()], np.nan)
        for shares in (SHARES, FREE_SHARES)
    )
    shares = np.where(options < MAX_OPTIONS, chosen, free)
    return np.where(bad[topics] & (lead >= CONTESTED), BAD_TOPIC, shares)
