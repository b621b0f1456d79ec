"""The score tree of a run: the accuracy of each annotator on the roots of gold.

`<annotator>/<generation>/<root>.json` is the accuracy of one annotator on the cases of one
generation whose gold code begins with that root. Where candidates are judged, they stand in place
of the annotators, as `candidates`.
"""

import math
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from raylab.annotation.input.cases import generation_files, in_generation
from raylab.annotation.outcome import ANNOTATORS, CANDIDATE_SIDE, SIDES, Outcome, Side
from raylab.annotation.statistics.estimates import Estimate, proportion
from raylab.codebook import Codebook, Label, compare
from raylab.config.base import AS_PUBLISHED, Generation
from raylab.config.llm import ChatModel
from raylab.errors import ConfigError
from raylab.runs.eval_logs import EvalLog, is_estimated
from raylab.runs.records import Part

LEAST_CASES = 1
"""Fewest cases of a file; halves of the packaged cases have only one case of some roots."""
ACCURACY = "accuracy"
METRICS = (ACCURACY, "exact", "primary", "jaccard", "weighted")
HALVES = (
    "generations {names} are random halves of the published cases: they differ only in which cases "
    "were drawn, so their consistency measures subsampling alone"
)
FILES = (
    "generations {names} are case files of their own: consistency with them measures how accuracy "
    "changes between these sets of cases"
)
CANDIDATES: Mapping[Side, str] = {CANDIDATE_SIDE: "candidates"}
"""The name in the tree of the rows' candidates."""
UNSAFE_IN_NAMES = re.compile(r"[^A-Za-z0-9._+@-]")


class RootAccuracy(Part):
    """The accuracy of one annotator on a generation's cases whose gold begins with a root."""

    annotator: str
    generation: str
    root: str
    accuracy: Estimate


class ScoreTreeReport(Part):
    """The score tree of a run, in its report."""

    files: int
    left_out: tuple[str, ...]
    """Sentences on what the tree leaves out, and why."""
    notes: tuple[str, ...]
    """Sentences on what its generations are, and so what their consistency measures."""
    scores: tuple[RootAccuracy, ...]


@dataclass(frozen=True)
class ScoreFile:
    """A file of the tree.

    Attributes:
        path: Path below the tree's directory.
        generation: Generation of its cases.
        log: Its content.
    """

    path: str
    generation: str
    log: EvalLog

    @property
    def accuracy(self) -> RootAccuracy:
        """The accuracy of the file, with an interval."""
        right = round(self.log.metrics[ACCURACY] * self.log.samples)
        return RootAccuracy(
            annotator=self.log.model,
            generation=self.generation,
            root=self.log.task,
            accuracy=proportion(right, self.log.samples),
        )


@dataclass(frozen=True)
class ScoreFiles:
    """A score tree.

    Attributes:
        files: Files with the same roots for every annotator and generation; may be empty.
        left_out: Sentences on what the tree leaves out, and why.
        notes: Sentences on what its generations are.
    """

    files: tuple[ScoreFile, ...]
    left_out: tuple[str, ...]
    notes: tuple[str, ...]

    @property
    def summary(self) -> ScoreTreeReport:
        """The tree in the form of the report."""
        accuracies = tuple(file.accuracy for file in self.files)
        return ScoreTreeReport(
            files=len(self.files), left_out=self.left_out, notes=self.notes, scores=accuracies
        )


def annotator_names(models: Mapping[str, ChatModel]) -> dict[Side, str]:
    """Names the annotators in the tree by their models, with seed or else side if these are equal.

    Args:
        models: Models by role, as in `LlmConfig.roles`.
    """
    chats: dict[Side, ChatModel] = {side: models[role] for side, role in ANNOTATORS.items()}
    names: dict[Side, str] = {side: _file_name(chat.model) for side, chat in chats.items()}
    if _differ(name.casefold() for name in names.values()):
        return names
    if _differ(chat.seed for chat in chats.values()):
        return {side: f"{names[side]}@seed{chats[side].seed}" for side in SIDES}
    return {side: f"{names[side]}@{side}" for side in SIDES}


def _differ(values: Iterable[object]) -> bool:
    listed = list(values)
    return len(set(listed)) == len(listed)


def score_files(
    outcomes: Iterable[Outcome],
    generations: Sequence[Generation],
    names: Mapping[Side, str],
    codebook: Codebook,
    created: str,
    least: int = LEAST_CASES,
) -> ScoreFiles:
    """Returns the score tree of a run.

    Accuracy is the share of answers with the right set of roots; an answer without a readable code
    is wrong. A case is scored if all answered. A root is in the tree if every
    generation has at least `least` such cases of it, so that all annotators and generations are
    scored on the same tasks.

    Args:
        outcomes: Outcomes of the run; they are read once and not kept.
        generations: `published` stands for all cases except those of files; a seed for the half of
            these that `in_generation` draws, in a directory `seed-<n>`; a file for its own cases.
        names: Names by the sides that answer: `annotator_names`, or `CANDIDATES`.
        codebook: Codebook of the labels.
        created: Time in ISO 8601 with its zone.
        least: Fewest cases of a file, at least 1.

    Raises:
        ConfigError: Two generations have the same name.
    """
    counts = _Counts(generations, codebook, tuple(names))
    for outcome in outcomes:
        counts.add(outcome)
    kept = [
        root
        for root in codebook.categories
        if all(counts.cases(g, root) >= least for g in counts.names)
    ]
    files = [
        ScoreFile(
            f"{names[side]}/{generation}/{root}.json",
            generation,
            counts.log(side, generation, root, names[side], created),
        )
        for side in names
        for generation in counts.names
        for root in kept
    ]
    return ScoreFiles(tuple(files), tuple(counts.left_out(least)), tuple(counts.notes()))


@dataclass
class _Sums:
    cases: int = 0
    unparsable: int = 0
    values: tuple[float, ...] = (0.0,) * len(METRICS)

    def add(self, values: Sequence[float] | None) -> None:
        self.cases += 1
        if values is None:
            self.unparsable += 1
        else:
            self.values = tuple(a + b for a, b in zip(self.values, values, strict=True))

    def metrics(self) -> dict[str, float]:
        means = [min(1.0, value / self.cases) for value in self.values]
        found: dict[str, float] = {n: mean for n, mean in zip(METRICS, means, strict=True)}
        share = found[ACCURACY]
        if is_estimated(share, self.cases):
            found["stderr"] = math.sqrt(share * (1 - share) / (self.cases - 1))
        return found


class _Counts:
    def __init__(
        self, generations: Sequence[Generation], codebook: Codebook, sides: Sequence[Side]
    ) -> None:
        self._sides = sides
        self._files = generation_files(generations)
        self._seeds = {f"seed-{g}": g for g in generations if isinstance(g, int)}
        if twice := self._files.keys() & self._seeds.keys():
            name = min(twice)
            raise ConfigError(
                f"generations: {self._files[name]} has the name of the seed {self._seeds[name]}, "
                f"{name}: rename the file"
            )
        self._published = AS_PUBLISHED in generations
        self._codebook = codebook
        self._sums: dict[tuple[Side, str, str], _Sums] = {}
        self._without_gold = self._unanswered = 0
        published = [AS_PUBLISHED] if self._published else []
        self.names = [*published, *self._seeds, *self._files]

    def add(self, outcome: Outcome) -> None:
        if outcome.gold_label is None:
            self._without_gold += 1
            return
        if not all(side in outcome.answers for side in self._sides):
            self._unanswered += 1
            return
        root = outcome.gold_label.primary
        for side in self._sides:
            values = self._values(outcome.label_of(side), outcome.gold_label)
            for generation in self._generations(outcome):
                self._sums.setdefault((side, generation, root), _Sums()).add(values)

    def _generations(self, outcome: Outcome) -> Iterator[str]:
        if outcome.generation != AS_PUBLISHED:
            yield from [outcome.generation] if outcome.generation in self._files else []
            return
        if self._published:
            yield AS_PUBLISHED
        for name, seed in self._seeds.items():
            if in_generation(outcome.case, seed):
                yield name

    def _values(self, given: Label | None, gold: Label) -> tuple[float, ...] | None:
        if given is None:
            return None
        agreement = compare(given, gold, self._codebook.distance)
        return (
            float(given.categories == gold.categories),
            float(agreement.exact),
            float(given.primary == gold.primary),
            agreement.jaccard,
            agreement.weighted,
        )

    def cases(self, generation: str, root: str) -> int:
        sums = self._sums.get((self._sides[0], generation, root))
        return sums.cases if sums else 0

    def log(self, side: Side, generation: str, root: str, name: str, created: str) -> EvalLog:
        sums = self._sums[side, generation, root]
        return EvalLog(
            model=name,
            task=root,
            dataset=f"{self._codebook.name}/{generation}",
            samples=sums.cases,
            metrics=sums.metrics(),
            created=created,
            metadata={
                "annotator": side,
                "generation": generation,
                "generation_kind": self._kind(generation),
                "accuracy_of": "set of roots",
                "distance": self._codebook.distance.version,
                "unparsable": sums.unparsable,
            },
        )

    def _kind(self, generation: str) -> str:
        if generation in self._seeds:
            return "random half"
        return "case file" if generation in self._files else "all cases"

    def notes(self) -> Iterator[str]:
        for text, names in ((HALVES, self._seeds), (FILES, self._files)):
            if names:
                yield text.format(names=", ".join(names))

    def left_out(self, least: int) -> Iterator[str]:
        for root in self._codebook.categories:
            few = {g: n for g in self.names if (n := self.cases(g, root)) < least}
            if few:
                listed = ", ".join(f"{n} in {generation}" for generation, n in few.items())
                yield (
                    f"{root}: too few cases with this primary root in gold ({listed}; {least} are "
                    "needed in every generation)"
                )
        if self._without_gold:
            yield f"{self._without_gold} cases without held-out gold"
        if self._unanswered:
            yield f"{self._unanswered} cases with gold that lack an answer"


def _file_name(model: str) -> str:
    """Returns a model's name as a directory name."""
    return UNSAFE_IN_NAMES.sub("-", model).lstrip(".") or "-"
