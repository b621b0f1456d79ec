"""The five jobs as small work, each with what tells how far it is and what was done twice."""

import json
from abc import ABC, abstractmethod
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

import pytest

from raylab.core.runs.run import Run
from raylab.label.archive.store import Archive
from raylab.together.speed.quality import write_tree
from tests.arc.evaluation.models import train_small
from tests.jobs.test_annotate import Store, arguments, whole_answers, write_cases
from tests.jobs.test_train import TINY
from tests.jobs.test_tune import SPACE
from tests.llm.scripted_server import server_process

MODELS = ("one", "two")
TREE, PRIOR = "scores", "prior"


def write_inputs(directory: Path) -> None:
    """Trained models to evaluate and a tree of scores to measure."""
    for seed, model in enumerate(MODELS):
        train_small(Run.at(f"{directory}/{model}"), seed=seed)
    write_tree(directory / TREE, 100, 2_000)
    (directory / PRIOR).symlink_to(TREE)


def json_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.exists() else {}


class Work(ABC):
    """A job on a storage of its own."""

    job: ClassVar[str]
    process: ClassVar[str]
    """Title of the Ray processes that do its work; `parts` are these to a reader."""
    parts: ClassVar[str]
    files: ClassVar[str]
    """Pattern, below the storage, of the files that hold what is done."""
    whole: ClassVar[int] = 0
    """Number of its tasks of Ray, which are `units` to a reader."""
    units: ClassVar[str] = ""

    def __init__(self, storage: Path, inputs: Path) -> None:
        """Lays the job out in a directory of its own; `write_inputs` wrote the inputs."""
        self.inputs = inputs
        self.storage = storage
        self.run = storage / "runs" / "run"

    @property
    def where(self) -> list[str]:
        return [f"storage={self.run.parent}", f"name={self.run.name}"]

    @contextmanager
    def ready(self) -> Generator[None]:
        """What the job needs while it runs."""
        yield

    @property
    @abstractmethod
    def order(self) -> list[str]:
        """The job's arguments."""

    def is_under_way(self) -> bool:
        """Whether some of the work is stored, so that a fault comes in the middle."""
        return bool(self.stored())

    def outcome(self) -> Any:
        """What the finished job leaves, which no fault may change."""
        return json_of(self.run / "metrics.json")

    def ends_as(self, outcome: Any) -> bool:
        """Whether the finished job left what an undisturbed one did, to the last digit."""
        return self.outcome() == outcome

    def stored(self) -> dict[Path, int]:
        """The files that hold what is done, with their times of change in ns."""
        return {path: path.stat().st_mtime_ns for path in self.storage.glob(self.files)}

    def remember(self) -> None:
        """Note what is stored, right before the fault."""
        self._before = self.stored()

    def stored_again(self) -> set[Path]:
        """What was stored before the fault, and once more after it."""
        now = self.stored()
        return {path for path, time in self._before.items() if now[path] != time}

    def done_again(self, tasks: int) -> str:
        """What was done twice, to a reader; fails if it was more than what was in flight.

        `tasks` of Ray were started again, or were running when the job died.
        """
        assert not self.stored_again()
        assert 0 < tasks < self.whole
        return f"{tasks} of {self.whole} {self.units}"


class Train(Work):
    job, process, parts = "train", "ray::RayTrainWorker", "training workers"
    files, each = "runs/**/epoch-*/checkpoint.ckpt", ""
    epochs, workers = 24, "2"

    @property
    def order(self) -> list[str]:
        training = [f"training.epochs={self.epochs}", f"training.keep_checkpoints={self.epochs}"]
        return [*self.where, *TINY, *training, f"cluster.workers={self.workers}"]

    @property
    def runs(self) -> list[Path]:
        return [self.run]

    def told(self, run: Path) -> int:
        return len(json_of(run / "metrics.json").get("history", ()))

    def is_under_way(self) -> bool:
        return all(self.told(run) >= 3 for run in self.runs)

    def remember(self) -> None:
        self._told = {run: self.told(run) for run in self.runs}
        super().remember()

    def outcome(self) -> Any:
        return sorted(self._history(run) for run in self.runs)

    def _history(self, run: Path) -> list[tuple[int, float, float]]:
        rows = json_of(run / "metrics.json")["history"]
        assert [row["epoch"] for row in rows] == list(range(1, self.epochs + 1))
        return [
            (row["epoch"], row["train_loss"], row["validation"]["cell_accuracy"]) for row in rows
        ]

    def done_again(self, tasks: int) -> str:
        repeated = self.stored_again()
        for path in repeated:
            run, epoch = path.parents[2], int(path.parent.name.removeprefix("epoch-"))
            # Of one epoch at most was the checkpoint stored but not told yet.
            assert epoch == self._told[run] + 1
        before = f" and {len(repeated)} stored but not yet told" if repeated else ""
        return f"the epoch in flight{before}, of {self.epochs}{self.each}"


class Elastic(Train):
    # Ray Train looks for nodes that have joined once a minute.
    epochs, workers, most = 400, "[1,3]", 3

    @property
    def order(self) -> list[str]:
        # Each worker draws its own dropout. Small steps keep differences of rounding small.
        return [*super().order, "model.dropout=0", "model.embedding_dropout=0", "training.lr=2e-5"]

    def ends_as(self, outcome: Any) -> bool:
        """Whether the losses are those of an undisturbed run, but for the order of sums."""
        ours, theirs = (
            [loss for _, loss, _ in history] for (history,) in (self.outcome(), outcome)
        )
        return ours == pytest.approx(theirs, rel=1e-3)


class Tune(Train):
    job, process, parts = "tune", "ray::ImplicitFunc", "trials"
    each = " in each trial"
    epochs, trials = 48, 2

    @property
    def order(self) -> list[str]:
        return [
            *self.where,
            f"trials={self.trials}",
            # Drawn without regard to what came of the others, so that no fault changes the draws.
            "search=random",
            "stop_early=false",
            "data.every=40",
            "training.patience=null",
            f"training.epochs={self.epochs}",
            f"training.keep_checkpoints={self.epochs}",
            *SPACE,
        ]

    @property
    def runs(self) -> list[Path]:
        return [path.parent for path in self.run.glob("trials/*/record.json")]

    def is_under_way(self) -> bool:
        return len(self.runs) == self.trials and super().is_under_way()

    def outcome(self) -> Any:
        assert len(json_of(self.run / "metrics.json")["trials"]) == self.trials
        return super().outcome()


class Evaluate(Work):
    job, process, parts = "evaluate", "ray::score_generation", "scoring tasks"
    files = "runs/run/scores/*/*/*.json"
    generations = ("published", 1, 2, 3)
    whole, units = len(MODELS) * len(generations), "pairs of model and generation"

    @property
    def order(self) -> list[str]:
        generations = ",".join(map(str, self.generations))
        models = ",".join(str(self.inputs / model) for model in MODELS)
        scored = ["data.every=4", "scoring.include_seen=true"]
        return [*self.where, f"models=[{models}]", f"generations=[{generations}]", *scored]


class Quality(Work):
    job, process, parts = "quality", "ray::read_files", "reading tasks"
    files = "runs/*/quality.json"
    # Four for each of three CPUs.
    whole, units = 12, "groups of directories"

    @property
    def order(self) -> list[str]:
        tree, prior = self.inputs / TREE, self.inputs / PRIOR
        keys = (f"scores_root_dir={tree}", f"prior_datasets=[{prior}]")
        # Replicates take the time that so few files do not.
        return [*self.where, *(f"quality_eval_cfg.{key}" for key in keys), "bootstrap=30000"]

    def is_under_way(self) -> bool:
        # Nothing is stored before the end; that tasks read is enough.
        return True

    def outcome(self) -> Any:
        return json_of(self.run / "quality.json")


class Annotate(Work):
    job, process, parts = "annotate", "ray::Annotator", "actors"
    files = "archive.db"
    cases, in_flight = 400, 64
    """The calls in flight are those that the configuration allows."""

    def __init__(self, storage: Path, inputs: Path) -> None:
        super().__init__(storage, inputs)
        self._input = write_cases(storage, self.cases)
        self._store = Store(str(storage / "archive.db"), None)
        self._log = storage / "calls.jsonl"

    @contextmanager
    def ready(self) -> Generator[None]:
        with server_process("--latency-ms", "200", "--log", str(self._log)) as self._chat:
            yield

    @property
    def order(self) -> list[str]:
        return arguments(self.storage, self._chat, self._store, self._input)

    def is_under_way(self) -> bool:
        if not Path(self._store.location).exists():
            return False
        with Archive.open(self._store.location) as archive:
            counts = archive.run("run").counts() if archive.runs() else {}
        return sum(counts.values()) >= 50

    def outcome(self) -> Any:
        with Archive.open(self._store.location) as archive:
            cases = [current.case for current in archive.run("run").cases()]
            rows = [(case.case, case.status, case.body["label"]) for case in cases]
        assert len(rows) == self.cases
        return sorted(rows)

    def done_again(self, tasks: int) -> str:
        answers = whole_answers(self._log)
        twice = sum(count - 1 for count in answers.values())
        assert twice <= self.in_flight
        return f"{twice} of {len(answers)} calls"


JOBS: tuple[type[Work], ...] = (Train, Tune, Evaluate, Quality, Annotate)
