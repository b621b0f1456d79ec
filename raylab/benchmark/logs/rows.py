"""The samples of all logs on their way to responses: named, paired, scaled, counted."""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from raylab.benchmark.logs.inspect_logs import INSPECT
from raylab.benchmark.logs.log import CODES, ERRORED, REASONS, UNNAMED, Choice, Description, Log
from raylab.benchmark.responses import Responses, ScorersUsed, make_responses, no_items
from raylab.core.errors import DataError
from raylab.core.printable import pluralize

OTHER_TEXT = "responses to another text under the same id: match=text pairs items by their texts"
CONTINUED = "samples of logs that a later attempt or a copy replaces"
OUTSIDE = "scores outside [0, 1]"
TOLERANCE = 5e-4
"""Largest difference between a mean of three digits or more and that of the samples."""
NAMED = 3
"""Most names in a sentence."""

Table = Any
"""A DataFrame or a column of it, whose types pandas declares too widely."""


@dataclass
class Rows:
    """The samples of all logs on their way to responses."""

    about: Table
    logs: Sequence[Log]
    table: Table
    texts: Mapping[tuple[str, str, int], Description]
    choice: Choice
    left_out: Counter[str]
    examples: dict[str, str]

    def __post_init__(self) -> None:
        self.by_model = defaultdict[str, Counter[str]](Counter)

    def join(self, notes: list[str]) -> tuple[Responses | DataError, tuple[ScorersUsed, ...]]:
        """Returns the responses, or why there are none, and the scores that were read."""
        scorers = self._scorers()
        if not len(self.table):
            return self._error(), scorers
        self.log = self.table["log"].to_numpy()
        self.wrong = self.table["wrong"].to_numpy().astype(np.int64)
        self.reasons = [*REASONS]
        self.score = self.table["score"].to_numpy(float)
        self._check_published(notes)
        if self.choice.errors_are_wrong:
            failed = self.wrong == CODES[ERRORED]
            self.score, self.wrong = (
                np.where(failed, 0.0, self.score),
                np.where(failed, -1, self.wrong),
            )
        self._name_items()
        self._match_texts()
        run = self._number_runs()
        self._scale()
        epoch = self._number_epochs(run, notes)
        self._mark(~self.named[self.log], UNNAMED)
        self._count()
        right = np.flatnonzero(self.wrong < 0)
        if not len(right):
            return self._error(), scorers
        rows: dict[str, Any] = {
            "model": self._of_logs("model"),
            "task": self._of_logs("task"),
            "item": self.item,
            "group": self.table["group"].array,
            "cluster": self.table["cluster"].array,
            "generation": self._of_logs("generation"),
            "run": run,
            "epoch": epoch,
            "scorer": self._of_logs("scorer"),
            "score": self.score,
            "weight": self.table["weight"].to_numpy(),
            "answer": self.table["answer"].array,
        }
        if len(right) < len(run):
            rows = {name: values[right] for name, values in rows.items()}
        self.about["samples"] = np.bincount(self.log, minlength=len(self.logs))
        for key in ("group", "cluster"):
            name = getattr(self.choice, key)
            if name is not None and not any(rows[key].categories):
                notes.append(f"{key}={name}: no sample or row that counts has it")
        items = self._describe(right, notes)
        frame = pd.DataFrame(rows, copy=False)
        read = make_responses(frame, items, self.about, self.left_out, self.examples)
        return read, scorers

    @property
    def named(self) -> Table:
        return (self.about["model"] != "").to_numpy()

    def _error(self) -> DataError:
        reasons = [f"{count:,} {reason}" for reason, count in self.left_out.items()]
        why = ", ".join(reasons) or "the logs have no samples"
        return DataError(f"no response of a model can be used ({why})")

    def _of_logs(self, name: str) -> pd.Categorical:
        column = self.about[name].astype("category")
        return pd.Categorical.from_codes(
            column.cat.codes.to_numpy()[self.log], column.cat.categories
        )

    def _mark(self, wrong: Table, reason: str) -> None:
        """Leaves out the samples that are still right and that are wrong for a reason."""
        chosen = wrong & (self.wrong < 0)
        if chosen.any():
            if reason not in self.reasons:
                self.reasons.append(reason)
            self.wrong = np.where(chosen, self.reasons.index(reason), self.wrong)

    def _count(self) -> None:
        """Counts the samples that are left out, by reason and by model."""
        for number in np.unique(self.wrong[self.wrong >= 0]):
            places, reason = np.flatnonzero(self.wrong == number), self.reasons[number]
            self.left_out[reason] += len(places)
            where = self.about["path"].iloc[self.log[places[0]]]
            self.examples.setdefault(reason, f"{where}: {self.item[places[0]]}")
            for log, count in zip(*np.unique(self.log[places], return_counts=True), strict=True):
                self.by_model[self.logs[log].model][reason] += int(count)

    def _name_items(self) -> None:
        """Names items uniquely over tasks."""
        self.item: pd.Categorical = self.table["item"].array
        own = pd.factorize(self.about["task"].where(self.about["sampled"], ""))
        task, names = own[0][self.log], [str(name) for name in own[1]]
        if sum(name != "" for name in names) < 2:
            return
        size = len(self.item.categories) + 1
        pairs, places = np.unique(task * size + self.item.codes + 1, return_inverse=True)
        items = ["", *self.item.categories.tolist()]
        full = [
            f"{names[pair // size]}/{items[pair % size]}"
            if names[pair // size]
            else items[pair % size]
            for pair in pairs
        ]
        codes, different = pd.factorize(np.array(full, object))
        codes = np.where(self.item.codes < 0, -1, codes[places.reshape(-1)])
        self.item = pd.Categorical.from_codes(codes, list(different))

    def _match_texts(self) -> None:
        """Pairs items by their texts, or leaves out other texts than most models' under an id.

        Each format has hashes of its own, so they are compared within it.
        """
        text = self.table["text"].to_numpy()
        if not text.any():
            return
        frame: Table = pd.DataFrame({"item": self.item.codes, "text": text, "log": self.log})
        frame["form"] = pd.factorize(self.about["format"])[0][self.log]
        hashed: Table = frame[text != 0].drop_duplicates()
        hashed["model"] = pd.factorize(self.about["model"])[0][hashed["log"]]
        models = hashed.drop_duplicates(["form", "item", "text", "model"])
        counts = models.groupby(["form", "item", "text"], sort=False).size()
        usual = counts.sort_values(ascending=False, kind="stable").reset_index("text")
        usual = usual.groupby(["form", "item"])["text"].first()
        if self.choice.by_text:
            first = hashed.groupby("text")["item"].first()
            codes = np.where(text != 0, first.reindex(text).fillna(-1).to_numpy(), self.item.codes)
            # An id that stands for several texts names its usual one.
            pairs, places = np.unique(np.stack([codes, text]), axis=1, return_inverse=True)
            seen, names = Counter[int](), list[str]()
            for code in pairs[0].astype(int):
                seen[code] += 1
                same = f" (text {seen[code]})" if seen[code] > 1 else ""
                names.append(f"{self.item.categories[code]}{same}")
            self.item = pd.Categorical.from_codes(places.reshape(-1), names)
        elif len(usual) < len(counts):
            expected = usual.reindex(pd.MultiIndex.from_frame(frame[["form", "item"]])).to_numpy()
            self._mark((text != 0) & (text != expected), OTHER_TEXT)

    def _number_runs(self) -> Table:
        """Returns the run of each sample; leaves out what a later attempt or a copy replaces.

        Attempts are logs of one task id of which at most one succeeded; logs of one evaluation id
        and time are copies. Of attempts, the one that succeeded counts first, then the newest.
        Logs that share no item are one run.
        """
        runs = np.ones(len(self.logs), np.int64)
        groups = defaultdict[tuple[str, str, str], list[int]](list)
        for number, log in enumerate(self.logs):
            if log.sampled:
                groups[log.model, log.task, log.generation].append(number)
        shared = [numbers for numbers in groups.values() if len(numbers) > 1]
        if not shared:
            return runs[self.log]
        starts = np.searchsorted(self.log, np.arange(len(self.logs) + 1))
        codes = self.item.codes.astype(np.int64) * 1_000 + np.minimum(self.table["epoch"], 999)
        for numbers in shared:
            taken = list[set[int]]()
            for attempts in _attempts([self.logs[n] for n in numbers], numbers):
                own = set[int]()
                for number in attempts:
                    place = slice(starts[number], starts[number + 1])
                    cells, right = codes[place], self.wrong[place] < 0
                    if len(attempts) > 1:
                        later = np.isin(cells, [*own]) if own else np.zeros(len(cells), bool)
                        replaced = np.zeros(len(self.log), bool)
                        replaced[place] = later
                        self._mark(replaced, CONTINUED)
                        own |= {*cells[right & ~later].tolist()}
                    else:
                        own = {*cells.tolist()}
                items = {cell // 1_000 for cell in own}
                run = next((r for r, there in enumerate(taken) if not there & items), len(taken))
                taken[run:] = [taken[run] | items] if run < len(taken) else [items]
                runs[attempts] = run + 1
        self.about["run"] = runs
        return runs[self.log]

    def _number_epochs(self, run: Table, notes: list[str]) -> Table:
        """Returns the epochs; repetitions under one id and epoch are further epochs."""
        epoch = self.table["epoch"].to_numpy()
        key = self.log.astype(np.int64) * (len(self.item.categories) + 1) + self.item.codes + 1
        if int(epoch.max()) > 1:
            numbers, different = pd.factorize(epoch)
            cell = key * len(different) + numbers
        else:
            cell = key
        again = pd.Series(cell).duplicated().to_numpy() & (self.wrong < 0)
        if not again.any():
            return epoch
        repeated = np.isin(key, np.unique(key[again]))
        order = pd.Series(key[repeated]).groupby(key[repeated]).cumcount().to_numpy() + 1
        count, place = int(again.sum()), int(np.flatnonzero(again)[0])
        notes.append(
            f"{pluralize(count, 'response')} repeat an item in one file and count as further "
            f"epochs, as {self.item[place]} in {self.about['path'].iloc[self.log[place]]}"
        )
        epoch = epoch.copy()
        epoch[repeated] = order
        return epoch

    def _check_published(self, notes: list[str]) -> None:
        """Compares the means that logs publish with those of their samples."""
        published = self.about["accuracy"].to_numpy(float)
        if np.isnan(published).all():
            return
        used = (self.wrong < 0) & ~np.isnan(self.score)
        item = self.table["item"].cat.codes
        frame: Table = pd.DataFrame({"log": self.log, "item": item, "score": self.score})
        frame = frame[used]
        cells = frame.groupby(["log", "item"])["score"].mean()
        means = cells.groupby("log").mean().reindex(range(len(self.logs))).to_numpy()
        self.about["mean"] = means
        digits = [len(f"{value:.4g}".partition(".")[2]) for value in published]
        error = np.maximum(0.51 * 10.0 ** -np.array(digits), TOLERANCE)
        with np.errstate(invalid="ignore"):
            odd = np.flatnonzero(np.abs(means - published) > error)
        for place in odd[:NAMED]:
            notes.append(
                f"{self.logs[place].model}: the log publishes {published[place]:.4g} for "
                f"{self.logs[place].scorer}, its samples have {means[place]:.4g} "
                f"({self.about['path'].iloc[place]})"
            )
        if len(odd) > NAMED:
            rest = pluralize(len(odd) - NAMED, "more log publishes", "more logs publish")
            notes.append(f"{rest} another mean than that of the samples")

    def _scale(self) -> None:
        """Brings scores to [0, 1]; those of a scorer that leaves it are read whole or not."""
        used = self.wrong < 0
        with np.errstate(invalid="ignore"):
            outside = used & ((self.score < 0) | (self.score > 1))
        scale = self.choice.scale
        if not outside.any() and scale is None:
            return
        keys = self.about["task"].astype(str) + "\0" + self.about["scorer"].astype(str)
        numbers = pd.factorize(keys)[0]
        scorer = numbers[self.log]
        chosen = np.unique(scorer[outside]) if outside.any() else np.unique(scorer[used])
        for number in chosen:
            own = used & (scorer == number)
            least, most = float(self.score[own].min()), float(self.score[own].max())
            first = self.logs[int(np.flatnonzero(numbers == number)[0])]
            name = f"{OUTSIDE} of {first.scorer or 'the table'}" + (
                f" on {first.task}" if first.task and len(chosen) > 1 else ""
            )
            if scale is None:
                ends = _ends(least, most)
                self._mark(
                    own,
                    f"{name}, from {least:g} to {most:g}: set scale=[{ends[0]:g},{ends[1]:g}], or "
                    "the ends of its scale",
                )
            elif least < scale[0] or most > scale[1]:
                self._mark(own, f"{name}, from {least:g} to {most:g}: scale= does not hold them")
            else:
                scaled = (self.score - scale[0]) / (scale[1] - scale[0])
                self.score = np.where(own, scaled, self.score)

    def _describe(self, right: Table, notes: list[str]) -> pd.DataFrame:
        """Returns the items that count, without texts where most items of a task share one."""
        if not self.texts:
            return no_items()
        item, text, codes = self.table["item"].array, self.table["text"].to_numpy(), self.item.codes
        firsts = right[np.unique(codes[right], return_index=True)[1]]
        described = [
            self.texts.get(
                (
                    self.logs[self.log[place]].bare_task,
                    item.categories[item.codes[place]],
                    int(text[place]),
                ),
                Description(),
            )
            for place in firsts
        ]
        names = [self.item.categories[codes[place]] for place in firsts]
        frame: Table = pd.DataFrame(described, index=pd.Index(names, name="item"))
        frame["task"] = pd.factorize(self.about["task"])[0][self.log[firsts]]
        shared = (
            frame[frame["text"] != ""]
            .groupby("task")["text"]
            .agg(lambda own: own.value_counts().iloc[0] / len(own) if len(own) > NAMED else 0.0)
        )
        for number, share in shared.items():
            if share > 0.5:
                frame.loc[frame["task"] == number, "text"] = ""
                name = str(self.about["task"].unique()[number]) or "the benchmark"
                notes.append(
                    f"the logs do not hold the texts of the items of {name}: most share one"
                )
        return frame.drop(columns="task")

    def _scorers(self) -> tuple[ScorersUsed, ...]:
        """Returns which scores were read, and which others there are."""
        used: dict[tuple[str, str], list[Log]] = {}
        for log in self.logs:
            if log.scorer or log.others:
                used.setdefault((log.task, log.scorer), []).append(log)
        return tuple(
            ScorersUsed(
                task=task,
                used=scorer,
                others=tuple(dict.fromkeys(name for log in own for name in log.others)),
                logs=len(own),
            )
            for (task, scorer), own in used.items()
        )


def _attempts(logs: Sequence[Log], numbers: Sequence[int]) -> Iterable[list[int]]:
    """Yields the numbers of logs that are attempts at one evaluation, the best first."""
    by_id = defaultdict[tuple[str, str], list[int]](list)
    for log, number in zip(logs, numbers, strict=True):
        by_id[log.format, log.identity[1]].append(number)
    about = dict(zip(numbers, logs, strict=True))
    runs = list[list[int]]()
    for (form, _), same in by_id.items():
        if form != INSPECT:
            runs += [[number] for number in same]
            continue
        copies = dict[tuple[str, float], list[int]]()
        for number in same:
            if about[number].status == "success":
                key = about[number].identity[0], about[number].time
                copies.setdefault(key if key[0] else (str(number), 0.0), []).append(number)
        ended = [*copies.values()]
        for number in same:
            if about[number].status != "success":
                later = [run for run in ended if about[run[0]].time >= about[number].time]
                if ended:
                    (later or ended[-1:])[0].append(number)
        if not ended:
            ended = [same[::-1]]
        runs += [sorted(run, key=lambda n: (about[n].status != "success", -n)) for run in ended]
    return sorted(runs, key=min)


def _ends(least: float, most: float) -> tuple[float, float]:
    """Returns the likely ends of a scale that holds these scores."""
    high = next((10.0**n for n in range(7) if most <= 10.0**n), most)
    return (0.0 if least >= 0 else -high if least >= -high else least), high
