"""Joins the logs of a tree into one table: who was evaluated on what, and which scores count."""

import os
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from raylab.benchmark.config import Layout
from raylab.benchmark.figures.record import SkippedFile
from raylab.benchmark.logs.accuracies import COLUMNS, Scores
from raylab.benchmark.logs.inspect_logs import INSPECT
from raylab.benchmark.logs.log import Choice, Column, Description, Files, Log, as_name
from raylab.benchmark.logs.rows import NAMED, Rows
from raylab.benchmark.logs.trees import ScoreTree
from raylab.benchmark.responses import Reading, Responses, ScorersUsed
from raylab.core.errors import DataError
from raylab.core.printable import join_names, pluralize, printable

DATE = re.compile(r"(19|20)\d\d[-_.]?\d\d[-_.]?\d\d.*")
ABOUT = ("format", "model", "task", "generation", "status", "scorer", "accuracy", "sampled")
"""What the table of logs has of each, with what it used."""
USED = ("tokens", "cost", "seconds")


@dataclass(frozen=True)
class TreeScores:
    """What was read of a tree.

    Attributes:
        tree: The tree, with the layout that its logs show.
        scores: What the four figures take.
        responses: The samples; if there are none, the error that says why.
        reading: How the files were read.
        left_out: Number of responses and files that do not count.
    """

    tree: ScoreTree
    scores: Scores
    responses: Responses | DataError
    reading: Reading
    left_out: int


def join_files(tree: ScoreTree, parts: Sequence[Files], choice: Choice) -> TreeScores:
    """Joins what was read of a tree; the order of the parts does not matter.

    Items are named by their ids, or by `task/id` if there are several tasks.
    """
    logs, table, items = _gather(parts)
    faults = [*tree.faults, *(fault for part in parts for fault in part.faults)]
    tree = replace(_settle(tree, logs), faults=tuple(faults))
    own = [log for log in logs if log.format == INSPECT and log.source.model]
    named = {(log.source.model, log.model) for log in own}
    if tree.models and len(named) == len({directory for directory, _ in named}):
        for log in own:
            log.model, log.generation = log.source.model, log.source.generation
    _name_by_settings(logs, "task", "arguments", lambda log: log.task)
    _name_by_settings(logs, "model", "condition", lambda log: (log.model, log.task))
    about: Column = pd.DataFrame(
        {
            "path": [str(log.source.place) for log in logs],
            **{name: [getattr(log, name) for log in logs] for name in (*ABOUT, *USED)},
            "scorers": [", ".join(log.others) for log in logs],
        }
    )
    rows = Rows(logs, about, table, items, choice, sorted(n for part in parts for n in part.notes))
    for source, fault in sorted(faults, key=lambda each: each[0].place.path):
        what = "files" if source.name.strip("/") == source.name != "" else "directories"
        kind = re.sub(r"line \d+", "a line", ":".join(fault.split(":")[:2]))
        reason = printable(f"{what} ({kind})", breaks=False)
        rows.leave_out(reason, 1, as_name(f"{source.place}: {fault}"))
    responses = rows.join()
    notes = (*rows.notes, *_notes_on_logs(about, responses))
    by_model = {model: dict(counts) for model, counts in sorted(rows.by_model.items())}
    reading = Reading(scorers=tuple(_scorers(logs)), notes=notes, left_out=by_model)
    if isinstance(responses, Responses):
        responses = replace(responses, reading=reading)
    scores = _scores_of(tree, logs, responses)
    if not tree.models:
        scores.skipped[""] += [
            SkippedFile(path=rows.examples[reason], reason=f"{count:,} {reason}")
            for reason, count in rows.left_out.items()
        ]
    return TreeScores(tree, scores, responses, reading, rows.left_out.total())


def _gather(parts: Sequence[Files]) -> tuple[list[Log], Column, list[Description]]:
    """Returns the logs, oldest first, their samples, and the descriptions of items."""
    logs, items, frames = list[Log](), list[Description](), list[Column]()
    for part in parts:
        for frame in part.tables:
            frames.append(
                frame.assign(log=frame["log"] + len(logs), about=frame["about"] + len(items))
            )
        logs += part.logs
        items += part.items
    keys = [(log.time, log.source.place.path, log.model, log.task) for log in logs]
    order = sorted(range(len(logs)), key=keys.__getitem__)
    names = [*frames[0]] if frames else []
    table: Column = pd.DataFrame({n: _concatenate([frame[n] for frame in frames]) for n in names})
    if frames:
        table["log"] = np.argsort(order)[table["log"]]
        if not table["log"].is_monotonic_increasing:
            table = table.sort_values("log", kind="stable", ignore_index=True)
    return [logs[place] for place in order], table, items


def _concatenate(columns: list[Column]) -> Column:
    if isinstance(columns[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(columns)
    return np.concatenate(columns)


def _settle(tree: ScoreTree, logs: Sequence[Log]) -> ScoreTree:
    """Returns the tree as one whose logs name their models, if its directories do not.

    Directories name the models of logs without samples, of logs that name none or all the same
    one, and of logs of a model each with a name like the directory's.
    """
    own = [log for log in logs if log.format == INSPECT and log.source.model]
    if not tree.models or tree.is_configured or not any(log.sampled for log in own):
        return tree
    models, tasks = defaultdict[str, set[str]](set), {_plain(log.task) for log in own}
    for log in own:
        models[log.source.model].add(log.model)
    every = set[str]().union(*models.values())
    single = all(len(names) == 1 for names in models.values())
    if single and len(every) == 1:
        wrong = [name for name in models if DATE.fullmatch(name) or _plain(name) in tasks]
        if not all(every) or not wrong:
            return tree
    elif single and len(every) == len(models) and all(every):
        pairs = [(_plain(name), _plain(*names)) for name, names in models.items()]
        if all(left in right or right in left for left, right in pairs):
            return tree
    return replace(
        tree,
        layout=Layout.NAMED,
        reason=f"the logs name other models than the directories {join_names(sorted(models), 3)}",
        models=(),
        sources=tuple(source._replace(model="", generation="") for source in tree.sources),
    )


def _plain(name: str) -> str:
    return re.sub(r"[^a-z0-9]", "", name.casefold())


def _name_by_settings(
    logs: Sequence[Log], name: str, settings: str, alike: Callable[[Log], Any]
) -> None:
    """Adds settings to the names of models, or of tasks, for logs alike that differ in them."""
    groups, differing = defaultdict[Any, list[Log]](list), defaultdict[str, set[str]](set)
    for log in logs:
        groups[alike(log)].append(log)
    for group in groups.values():
        for key in {key for log in group for key in getattr(log, settings)}:
            if len({getattr(log, settings).get(key, "") for log in group}) > 1:
                differing[getattr(group[0], name)].add(key)
    for log in logs:
        own = getattr(log, settings)
        keys = sorted(differing[getattr(log, name)] & {*own})
        if said := ["=".join(filter(None, (key, own[key]))) for key in keys]:
            setattr(log, name, as_name(f"{getattr(log, name)} ({', '.join(said)})"))


def _scorers(logs: Sequence[Log]) -> Iterator[ScorersUsed]:
    """Yields which scores were read, and which others there are."""
    used = defaultdict[tuple[str, str], list[Log]](list)
    for log in logs:
        if log.scorer or log.others:
            used[log.task, log.scorer].append(log)
    for (task, scorer), own in used.items():
        others = tuple(dict.fromkeys(name for log in own for name in log.others))
        yield ScorersUsed(task=task, used=scorer, others=others, logs=len(own))


def _scores_of(tree: ScoreTree, logs: Sequence[Log], responses: Responses | DataError) -> Scores:
    """Returns what the four figures take: logs by their own accuracy, or the samples as items."""
    skipped: dict[str, list[SkippedFile]] = {model: [] for model in tree.models or ("",)}
    faults = list(tree.faults if tree.models else ())
    rows = list[tuple[str, str, str, float, float]]()
    for log in logs:
        source, header = log.source, log.header
        if header is None or (log.sampled if not tree.models else not source.model):
            continue
        if isinstance(header, str):
            faults.append((source, header))
        elif tree.models:
            rows.append((source.model, source.generation, source.name, header, 1.0))
        else:
            item = log.task or os.path.splitext(source.name)[0]
            rows.append((log.model, log.generation, item, header, 1.0))
    for source, reason in faults:
        own = skipped.setdefault(source.model if tree.models else "", [])
        own.append(SkippedFile(path=source.place.path, reason=reason))
    table: Column = pd.DataFrame(rows, columns=list(COLUMNS))
    if not tree.models and isinstance(responses, Responses):
        samples = responses.table[[*table]]
        texts = samples.astype(dict.fromkeys(("model", "generation", "item"), object))
        table = pd.concat([texts, table]) if rows else samples
    return Scores(tree, table.astype({"score": float, "weight": float}), skipped)


def _notes_on_logs(about: Column, responses: Responses | DataError) -> Iterator[str]:
    """Yields sentences on logs that did not succeed or have no samples, and on lost models."""
    sampled = about["sampled"].astype(bool)
    failed = about[sampled & (about["status"] != "success")]
    if len(failed):
        counts = failed["status"].value_counts().items()
        kinds = join_names([f"{pluralize(n, 'log')} with status {name}" for name, n in counts])
        names = join_names(sorted({*failed["model"]}), NAMED)
        yield f"the finished samples of {kinds} were read: {names}"
    bare = about[~sampled]
    if len(bare):
        count = pluralize(len(bare), "log without samples is", "logs without samples are")
        yield f"{count} in the four figures only: {join_names([*bare['path']], NAMED)}"
    if isinstance(responses, Responses):
        left = responses.table["model"].cat.categories
        if lost := sorted({*about[sampled]["model"]} - {*left, ""}):
            yield f"no response counts of {join_names(lost, 10)}"
