"""Joins the logs of a tree into one table: who was evaluated on what, and which scores count."""

import os
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

from raylab.benchmark.config import Layout
from raylab.benchmark.figures.record import SkippedFile
from raylab.benchmark.logs.accuracies import Scores
from raylab.benchmark.logs.inspect_logs import INSPECT
from raylab.benchmark.logs.log import (
    Choice,
    Description,
    Files,
    Log,
    as_name,
)
from raylab.benchmark.logs.rows import NAMED, Rows, Table
from raylab.benchmark.logs.trees import ScoreTree, Source
from raylab.benchmark.responses import (
    Reading,
    Responses,
)
from raylab.core.errors import DataError
from raylab.core.printable import join_names, pluralize, printable

DATE = re.compile(r"(19|20)\d\d[-_.]?\d\d[-_.]?\d\d.*")


@dataclass(frozen=True)
class TreeScores:
    """What was read of a tree.

    Attributes:
        tree: The tree, with the layout that its logs show.
        scores: What the four figures take.
        responses: The samples; if there are none, the error that says why.
        reading: How the files were read.
    """

    tree: ScoreTree
    scores: Scores
    responses: Responses | DataError
    reading: Reading
    left_out: int
    """Number of responses and files that do not count."""


def join_files(tree: ScoreTree, parts: Sequence[Files], choice: Choice) -> TreeScores:
    """Joins what was read of a tree; the order of the parts does not matter.

    Items are named by their ids, or by `task/id` if there are several tasks.
    """
    logs, table, texts, notes = _gather(parts)
    left_out, examples = Counter[str](), dict[str, str]()
    faults = [*tree.faults, *(fault for part in parts for fault in part.faults)]
    for source, fault in sorted(faults, key=lambda each: each[0].place.path):
        what = "files" if source.name.strip("/") == source.name != "" else "directories"
        kind = re.sub(r"line \d+", "a line", ":".join(fault.split(":")[:2]))
        reason = printable(f"{what} ({kind})", breaks=False)
        left_out[reason] += 1
        examples.setdefault(reason, as_name(f"{source.place}: {fault}"))
    tree = replace(_settle(tree, logs), faults=tuple(faults))
    if tree.models:
        own = [log for log in logs if log.format == INSPECT and log.source.model]
        named = {(log.source.model, log.model) for log in own}
        if len(named) == len({directory for directory, _ in named}):
            for log in own:
                log.model, log.generation = log.source.model, log.source.generation
    _name_by_settings(logs)
    about = _tabulate(logs)
    rows = Rows(about, logs, table, texts, choice, left_out, examples)
    responses, scorers = rows.join(notes)
    notes += _notes_on_logs(about, responses)
    by_model = {model: dict(counts) for model, counts in sorted(rows.by_model.items())}
    reading = Reading(scorers=scorers, notes=tuple(notes), left_out=by_model)
    if isinstance(responses, Responses):
        responses = replace(responses, reading=reading)
    scores = _scores_of(tree, logs, responses)
    if not tree.models:
        scores.skipped[""] += [
            SkippedFile(path=examples[reason], reason=f"{count:,} {reason}")
            for reason, count in left_out.items()
        ]
    return TreeScores(tree, scores, responses, reading, sum(left_out.values()))


def _gather(
    parts: Sequence[Files],
) -> tuple[list[Log], Table, dict[tuple[str, str, int], Description], list[str]]:
    """Returns the logs, oldest first, their samples, the texts of items, and notes."""
    logs, texts, notes = list[Log](), dict[tuple[str, str, int], Description](), list[str]()
    frames = list[Table]()
    for part in parts:
        for frame in part.tables:
            frames.append(frame.assign(log=frame["log"] + np.int32(len(logs))))
        logs += part.logs
        texts = part.texts | texts
        notes += part.notes
    keys = [(log.time, log.source.place.path, log.model, log.task) for log in logs]
    order = sorted(range(len(logs)), key=keys.__getitem__)
    ages = np.empty(len(logs), np.int32)
    ages[order] = np.arange(len(logs))
    table = _concatenate(frames)
    if len(table):
        table["log"] = ages[table["log"].to_numpy()]
        if len(frames) > 1:
            table = table.iloc[np.argsort(table["log"].to_numpy(), kind="stable")]
    return [logs[place] for place in order], table.reset_index(drop=True), texts, sorted(notes)


def _concatenate(frames: list[Table]) -> Table:
    frames = [frame for frame in frames if len(frame)]
    if len(frames) < 2:
        return frames[0] if frames else pd.DataFrame()
    columns = dict[str, Any]()
    for name in frames[0]:
        parts = [frame[name] for frame in frames]
        if isinstance(parts[0].dtype, pd.CategoricalDtype):
            texts = [
                part.cat.rename_categories(part.cat.categories.astype(object)) for part in parts
            ]
            columns[name] = pd.api.types.union_categoricals(texts)
        else:
            columns[name] = np.concatenate([part.to_numpy() for part in parts])
    return pd.DataFrame(columns)


def _settle(tree: ScoreTree, logs: Iterable[Log]) -> ScoreTree:
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


def _name_by_settings(logs: Sequence[Log]) -> None:
    """Adds settings to the names of models that differ in them on a task, and to those of tasks."""
    for name, settings, groups in (
        ("task", "arguments", lambda log: log.task),
        ("model", "condition", lambda log: (log.model, log.task)),
    ):
        values = defaultdict[tuple[Any, str], set[str]](set)
        keys = defaultdict[Any, set[str]](set)
        for log in logs:
            keys[groups(log)] |= getattr(log, settings).keys()
        for log in logs:
            for key in keys[groups(log)]:
                values[groups(log), key].add(getattr(log, settings).get(key, ""))
        differing = defaultdict[str, set[str]](set)
        for (group, key), different in values.items():
            if len(different) > 1:
                differing[group if isinstance(group, str) else group[0]].add(key)
        for log in logs:
            own: Mapping[str, str] = getattr(log, settings)
            said = [f"{key}={own[key]}" for key in sorted(differing[getattr(log, name)] & {*own})]
            if said:
                setattr(log, name, as_name(f"{getattr(log, name)} ({', '.join(said)})"))


def _tabulate(logs: Sequence[Log]) -> Table:
    """Returns a row for each log, with the number of its run."""
    about: Table = pd.DataFrame(
        {
            "path": [str(log.source.place) for log in logs],
            **{
                name: [getattr(log, name) for log in logs]
                for name in ("format", "model", "task", "generation", "status", "scorer")
            },
            "scorers": [", ".join(log.others) for log in logs],
            "accuracy": np.array([log.accuracy for log in logs], float),
            "sampled": np.array([log.sampled for log in logs], bool),
            **{
                name: np.array([log.usage.get(name, np.nan) for log in logs], float)
                for name in ("tokens", "cost", "seconds")
            },
        }
    )
    return about


def _scores_of(tree: ScoreTree, logs: Sequence[Log], responses: Responses | DataError) -> Scores:
    """Returns what the four figures take: logs by their own accuracy, or the samples as items."""
    skipped: dict[str, list[SkippedFile]] = {model: [] for model in tree.models or ("",)}
    rows, own = list[tuple[str, str, str, float, float]](), list[tuple[Source, float | str]]()
    for log in logs:
        is_unit = log.header is not None and (log.source.model if tree.models else not log.sampled)
        if is_unit and log.header is not None:
            own.append((log.source, log.header))
            model, generation = (log.source.model, log.source.generation)
            if not tree.models:
                model, generation = log.model, log.generation
            if not isinstance(log.header, str):
                stem = os.path.splitext(log.source.name)[0]
                item = log.source.name if tree.models else log.task or stem
                rows.append((model, generation, item, log.header, 1.0))
    for source, result in (*own, *(tree.faults if tree.models else ())):
        if isinstance(result, str):
            path = f"{source.top.path}/{source.name}"
            skipped.setdefault(source.model if tree.models else "", []).append(
                SkippedFile(path=path, reason=result)
            )
    table: Table = pd.DataFrame(rows, columns=["model", "generation", "item", "score", "weight"])
    if not tree.models and isinstance(responses, Responses):
        samples = responses.table[[*table]]
        texts = samples.astype(dict.fromkeys(("model", "generation", "item"), object))
        table = pd.concat([texts, table]) if rows else samples
    return Scores(tree, table.astype({"score": float, "weight": float}), skipped)


def _notes_on_logs(about: Table, responses: Responses | DataError) -> Iterable[str]:
    """Yields sentences on logs that did not succeed or have no samples, and on lost models."""
    if not len(about):
        return
    failed = about[about["sampled"] & ~about["status"].isin(["success"])]
    if len(failed):
        kinds = [
            f"{pluralize(count, 'log')} with status {status}"
            for status, count in failed["status"].value_counts().items()
        ]
        names = join_names(sorted(set(failed["model"])), NAMED)
        yield f"the finished samples of {join_names(kinds)} were read: {names}"
    bare = about[~about["sampled"]]
    if len(bare):
        names = join_names([*bare["path"]], NAMED)
        count = pluralize(len(bare), "log without samples is", "logs without samples are")
        yield f"{count} in the four figures only: {names}"
    if isinstance(responses, Responses):
        left = set(responses.table["model"].cat.categories)
        lost = sorted(set(about.loc[about["sampled"], "model"]) - left - {""})
        if lost:
            yield f"no response counts of {join_names(lost, 10)}"
