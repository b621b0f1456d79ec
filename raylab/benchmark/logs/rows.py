"""The samples of all logs on their way to responses: named, paired, scaled, counted."""

from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
import pandas as pd

from raylab.benchmark.config import QualityConfig
from raylab.benchmark.logs.inspect_logs import INSPECT
from raylab.benchmark.logs.log import Description, Files, Log
from raylab.benchmark.logs.values import (
    CODES,
    ERRORED,
    REASONS,
    UNNAMED,
    Codes,
    Column,
    as_names,
    combine,
    firsts,
)
from raylab.benchmark.responses import Responses, make_responses
from raylab.core.errors import DataError
from raylab.core.printable import pluralize

OTHER_TEXT = "responses to another text under the same id: match=text pairs items by their texts"
CONTINUED = "samples of logs that a later attempt or a copy replaces"
OUTSIDE = "scores outside [0, 1]"
ABOUT = ("format", "model", "task", "generation", "status", "scorer", "accuracy", "sampled")
SPENT = ("tokens", "cost", "seconds")
"""What the table of logs says of each."""
TOLERANCE = 5e-4
"""Largest difference between a mean of three digits or more and that of the samples."""
MAX_NAMED = 3
"""Most names in a sentence."""


@dataclass
class Rows:
    """The samples of all logs on their way to responses.

    Attributes:
        logs: The logs, oldest first.
        table: A row for each sample, by log; see `Files`.
        items: Descriptions of items.
        config: What is read.
        notes: Sentences on what a reader of the figures has to know.
        left_out: Numbers of what does not count, by reason.
        examples: The first place where each reason applies.
        by_model: Numbers of responses that do not count, by model and reason.
    """

    logs: Sequence[Log]
    table: Column
    items: Sequence[Description]
    config: QualityConfig
    notes: list[str]
    left_out: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])
    by_model: dict[str, Counter[str]] = field(default_factory=lambda: defaultdict(Counter))

    @classmethod
    def gather(cls, parts: Sequence[Files], config: QualityConfig) -> Self:
        """Gathers what was read in parts."""
        logs, items, frames = list[Log](), list[Description](), list[Column]()
        for part in parts:
            for frame in part.tables:
                moved = {"log": frame["log"] + len(logs), "about": frame["about"] + len(items)}
                frames.append(frame.assign(**moved))
            logs += part.logs
            items += part.items
        keys = [(log.time, log.source.place.path, log.model, log.task) for log in logs]
        order = sorted(range(len(logs)), key=keys.__getitem__)
        names = [*frames[0]] if frames else []
        table: Column = pd.DataFrame({n: _concatenate([each[n] for each in frames]) for n in names})
        if frames:
            table["log"] = np.argsort(order)[table["log"]]
            if not table["log"].is_monotonic_increasing:
                table = table.sort_values("log", kind="stable", ignore_index=True)
        notes = sorted(note for part in parts for note in part.notes)
        return cls([logs[place] for place in order], table, items, config, notes)

    def leave_out(self, reason: str, count: int, example: str) -> None:
        """Counts what does not count."""
        self.left_out[reason] += count
        self.examples.setdefault(reason, example)

    def join(self) -> Responses | DataError:
        """Returns the responses, or why there are none; the logs have their final names."""
        columns = {name: [getattr(log, name) for log in self.logs] for name in (*ABOUT, *SPENT)}
        paths = [str(log.source.place) for log in self.logs]
        others = [", ".join(log.others) for log in self.logs]
        self.about: Column = pd.DataFrame({"path": paths, **columns, "scorers": others})
        right = self._judge() if len(self.table) else np.zeros(0, np.int64)
        if not len(right):
            reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items()]
            why = ", ".join(reasons) or "the logs have no samples"
            return DataError(f"no response of a model can be used ({why})")
        rows: dict[str, Any] = {
            **{name: self._of_logs(name) for name in ("model", "task", "generation", "scorer")},
            **{name: self.table[name].array for name in ("group", "cluster", "weight", "answer")},
            "item": self.item,
            "run": self.about["run"].to_numpy()[self.log],
            "epoch": self.epoch,
            "score": self.score,
        }
        if len(right) < len(self.wrong):
            rows = {name: values[right] for name, values in rows.items()}
        for key in ("group", "cluster"):
            name = self.config.group if key == "group" else self.config.clusters
            if name is not None and not any(rows[key].categories[np.unique(rows[key].codes)]):
                self.notes.append(f"{key}={name}: no sample or row that counts has it")
        items, frame = self._describe(right), pd.DataFrame(rows, copy=False)
        return make_responses(frame, items, self.about, self.left_out, self.examples)

    def _judge(self) -> Codes:
        """Decides which samples count and as what; returns their places."""
        self.reasons, self.log = [*REASONS], self.table["log"].to_numpy()
        self.item: pd.Categorical = self.table["item"].array
        self.epoch, self.score = (self.table[each].to_numpy() for each in ("epoch", "score"))
        self.wrong = self.table["wrong"].to_numpy(np.int64)
        self._check_published()
        if self.config.errors == "wrong":
            failed = self.wrong == CODES[ERRORED]
            self.score = np.where(failed, 0.0, self.score)
            self.wrong = np.where(failed, -1, self.wrong)
        self._name_items()
        self._match_texts()
        self._number_runs()
        self._scale()
        self._number_epochs()
        self._mark((self.about["model"] == "").to_numpy()[self.log], UNNAMED)
        self._count()
        return np.flatnonzero(self.wrong < 0)

    def _of_logs(self, name: str) -> pd.Categorical:
        codes, names = pd.factorize(self.about[name])
        return pd.Categorical.from_codes(codes[self.log], names)

    def _mark(self, wrong: Column, reason: str) -> None:
        """Leaves out the samples that are still right and that are wrong for a reason."""
        chosen = wrong & (self.wrong < 0)
        if chosen.any():
            if reason not in self.reasons:
                self.reasons.append(reason)
            self.wrong = np.where(chosen, self.reasons.index(reason), self.wrong)

    def _count(self) -> None:
        """Counts the samples that are left out, by reason, model and log."""
        places = np.flatnonzero(self.wrong >= 0)
        for name, logs in {"samples": self.log, "left_out": self.log[places]}.items():
            self.about[name] = np.bincount(logs, minlength=len(self.logs))
        lost = pd.DataFrame({"reason": self.wrong[places], "log": self.log[places], "at": places})
        counts = lost.groupby(["reason", "log"])["at"].agg(["size", "first"])
        for (number, log), count, first in counts.itertuples(name=None):
            reason = self.reasons[number]
            self.leave_out(reason, count, f"{self.about['path'].iloc[log]}: {self.item[first]}")
            self.by_model[self.logs[log].model][reason] += count

    def _name_items(self) -> None:
        """Names items uniquely over tasks."""
        numbers, tasks = pd.factorize(self.about["task"].where(self.about["sampled"], ""))
        if sum(task != "" for task in tasks) < 2:
            return
        task = numbers[self.log]
        codes = combine(task, self.item.codes)
        first = firsts(codes)
        pairs = zip(tasks[task[first]], self.item[first], strict=True)
        names = [f"{task}/{item}" if task and item else item for task, item in pairs]
        self.item = as_names(pd.Series(names, dtype=object), str)[codes]

    def _match_texts(self) -> None:
        """Pairs items by their texts, or leaves out other texts than most models' under an id.

        Each format has hashes of its own, so they are compared within it.
        """
        content = np.array([each.content for each in self.items], np.int64)
        text, item = content[self.table["about"].to_numpy()], self.item.codes
        if not text.any():
            return
        if self.config.match == "text":
            named = np.where(text != 0, pd.Series(item).groupby(text).transform("first"), item)
            codes = combine(named, text)
            first = named[firsts(codes)]
            # An id may stand for several texts.
            counts = pd.Series(first).groupby(first).cumcount() + 1
            pairs = zip(self.item.categories[first], counts, strict=True)
            names = [f"{name} (text {count})" if count > 1 else name for name, count in pairs]
            self.item = as_names(pd.Series(names, dtype=object), str)[codes]
            return
        form, model = (pd.factorize(self.about[each])[0][self.log] for each in ("format", "model"))
        frame: Column = pd.DataFrame({"form": form, "item": item, "text": text, "model": model})
        models = frame[text != 0].drop_duplicates()
        counts = models.groupby(["form", "item", "text"], sort=False).size()
        usual = counts.sort_values(ascending=False, kind="stable").reset_index("text")
        usual = usual.groupby(["form", "item"])["text"].first()
        if len(usual) < len(counts):
            expected = usual.reindex(pd.MultiIndex.from_frame(frame[["form", "item"]])).to_numpy()
            self._mark((text != 0) & (text != expected), OTHER_TEXT)

    def _number_runs(self) -> None:
        """Numbers the runs of each model; leaves out what a later attempt or a copy replaces.

        Logs that share no item are one run.
        """
        runs, groups = np.ones(len(self.logs), np.int64), defaultdict[Any, list[int]](list)
        evaluation, rank = np.arange(len(self.logs)), np.zeros(len(self.logs), np.int64)
        starts = np.searchsorted(self.log, np.arange(len(self.logs) + 1))
        for number, log in enumerate(self.logs):
            if log.sampled:
                groups[log.model, log.task, log.generation].append(number)
        for numbers in groups.values():
            taken = list[set[int]]()
            for attempts in sorted(_attempts(self.logs, numbers), key=min):
                evaluation[attempts], rank[attempts] = attempts[0], range(len(attempts))
                if len(numbers) > 1:
                    places = (slice(starts[number], starts[number + 1]) for number in attempts)
                    own = {item for each in places for item in self.item.codes[each].tolist()}
                    free = (run for run, items in enumerate(taken) if items.isdisjoint(own))
                    run = next(free, len(taken))
                    taken[run:] = [own.union(*taken[run : run + 1]), *taken[run + 1 :]]
                    runs[attempts] = run + 1
        self.about["run"] = runs
        if rank.any():
            cell = combine(evaluation[self.log], self.item.codes, self.epoch)
            place = pd.Series(np.where(self.wrong < 0, rank[self.log], len(self.logs)))
            self._mark((place > place.groupby(cell).transform("min")).to_numpy(), CONTINUED)

    def _number_epochs(self) -> None:
        """Takes repetitions under one id and epoch of a log for further epochs."""
        cell = combine(self.log, self.item.codes)
        again = pd.Series(combine(cell, self.epoch)).duplicated().to_numpy() & (self.wrong < 0)
        if not again.any():
            return
        repeated = np.isin(cell, cell[again])
        self.epoch = self.epoch.copy()
        self.epoch[repeated] = pd.Series(cell[repeated]).groupby(cell[repeated]).cumcount() + 1
        place = int(np.flatnonzero(again)[0])
        self.notes.append(
            f"{pluralize(int(again.sum()), 'response')} repeat an item in one file and count as "
            f"further epochs, as {self.item[place]} in {self.about['path'].iloc[self.log[place]]}"
        )

    def _check_published(self) -> None:
        """Compares the means that logs publish with those of their samples."""
        published = self.about["accuracy"].to_numpy(float)
        if np.isnan(published).all():
            return
        item = self.table["item"].cat.codes
        frame: Column = pd.DataFrame({"log": self.log, "item": item, "score": self.score})
        cells = frame[self.wrong < 0].groupby(["log", "item"])["score"].mean()
        means = cells.groupby("log").mean().reindex(range(len(self.logs))).to_numpy()
        self.about["mean"] = means
        digits = [len(f"{value:.4g}".partition(".")[2]) for value in published]
        error = np.maximum(0.51 * 10.0 ** -np.array(digits), TOLERANCE)
        odd = np.flatnonzero(np.abs(means - published) > error)
        for place in odd[:MAX_NAMED]:
            self.notes.append(
                f"{self.logs[place].model}: the log publishes {published[place]:.4g} for "
                f"{self.logs[place].scorer}, its samples have {means[place]:.4g} "
                f"({self.about['path'].iloc[place]})"
            )
        if len(odd) > MAX_NAMED:
            rest = pluralize(len(odd) - MAX_NAMED, "more log publishes", "more logs publish")
            self.notes.append(f"{rest} another mean than that of the samples")

    def _scale(self) -> None:
        """Brings scores to [0, 1]; those of a scorer that leaves it are read whole or not."""
        used, scale = self.wrong < 0, self.config.scale
        outside = used & ((self.score < 0) | (self.score > 1))
        if not outside.any() and scale is None:
            return
        numbers = combine(*(pd.factorize(self.about[name])[0] for name in ("task", "scorer")))
        scorer = numbers[self.log]
        chosen = np.unique(scorer[outside if outside.any() else used])
        for number in chosen:
            own = used & (scorer == number)
            least, most = float(self.score[own].min()), float(self.score[own].max())
            first = self.logs[int(np.flatnonzero(numbers == number)[0])]
            name = f"{OUTSIDE} of {first.scorer or 'the table'}"
            if first.task and len(chosen) > 1:
                name += f" on {first.task}"
            name += f", from {least:g} to {most:g}: "
            if scale is None:
                ends = _ends(least, most)
                way = f"set scale=[{ends[0]:g},{ends[1]:g}], or the ends of its scale"
                self._mark(own, f"{name}{way}")
            elif least < scale[0] or most > scale[1]:
                self._mark(own, f"{name}scale= does not hold them")
            else:
                scaled = (self.score - scale[0]) / (scale[1] - scale[0])
                self.score = np.where(own, scaled, self.score)

    def _describe(self, right: Codes) -> pd.DataFrame | None:
        """Returns the items that count, without texts where most items of a task share one."""
        about = self.table["about"].to_numpy()[right]
        if not about.any():
            return None
        item, first = np.unique(self.item.codes[right], return_index=True)
        described = [self.items[number] for number in about[first]]
        frame = pd.DataFrame(described, self.item.categories[item]).drop(columns="content")
        tasks = self.about["task"].to_numpy()[self.log[right[first]]]
        for task, texts in frame["text"].groupby(tasks):
            counts = texts[texts != ""].value_counts()
            if counts.sum() > MAX_NAMED and counts.iloc[0] > counts.sum() / 2:
                frame.loc[texts.index, "text"] = ""
                name = task or "the benchmark"
                self.notes.append(
                    f"the logs do not hold the texts of the items of {name}: most share one"
                )
        return frame


def _concatenate(columns: list[Column]) -> Column:
    if isinstance(columns[0].dtype, pd.CategoricalDtype):
        return pd.api.types.union_categoricals(columns)
    return np.concatenate(columns)


def _attempts(logs: Sequence[Log], numbers: Sequence[int]) -> Iterator[list[int]]:
    """Yields the numbers of logs that are attempts at one evaluation, the best first.

    Attempts are logs of one task id of which at most one succeeded; logs of one evaluation id and
    time are copies. The one that succeeded counts first, then the newest.
    """
    by_task = defaultdict[Any, list[int]](list)
    for number in numbers:
        log = logs[number]
        by_task[log.identity[1] if log.format == INSPECT else number].append(number)
    for same in by_task.values():
        ended = dict[Any, list[int]]()
        for number in same:
            name, time = logs[number].identity[0], logs[number].time
            if logs[number].status == "success":
                ended.setdefault((name, time) if name else number, []).append(number)
        runs = [*ended.values()]
        for number in same:
            if runs and logs[number].status != "success":
                later = (run for run in runs if logs[run[0]].time >= logs[number].time)
                next(later, runs[-1]).append(number)
        for run in runs or [same]:
            yield sorted(run, key=lambda n: (logs[n].status != "success", -n))


def _ends(least: float, most: float) -> tuple[float, float]:
    """Returns the likely ends of a scale that holds these scores."""
    high = next((10.0**n for n in range(7) if most <= 10.0**n), most)
    return (0.0 if least >= 0 else -high if least >= -high else least), high
