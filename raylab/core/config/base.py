"""The parts of every configuration: strict models, names, locations, and the cluster."""

import importlib.util
import os
import re
import shlex
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, cast

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeInt,
    PositiveInt,
)
from pydantic_core import CoreSchema, core_schema

from raylab.core.errors import ConfigError
from raylab.core.printable import secret_in


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _integer_as_text(value: object) -> object:
    if isinstance(value, float):
        raise ValueError(
            f"is read as the number {value}: put the text in quotes, on the command line as in "
            "\"name='1e5'\""
        )
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
HALF_URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")
PLAIN = re.compile(r"[A-Za-z0-9_/:@.-]+")
"""A value that an override takes without quotes."""


def _without_secret(location: str) -> str:
    if URI.match(location) and secret_in(location):
        raise ValueError(
            "a URI must carry no password or key, because the run record shows it: give it "
            "in the environment or the credentials file of the service"
        )
    return location


def absolute_location(location: str) -> str:
    """Returns a URI as it is, or a path made absolute against the current directory.

    A URI with a secret, a fragment or one slash is a `ValueError`, which repeats no secret.
    """
    if not location.strip():
        raise ValueError("is empty: name a path or a URI")
    if not URI.match(location):
        if HALF_URI.match(location):
            raise ValueError("a URI has two slashes after its scheme, as in s3://bucket/runs")
        return os.path.abspath(os.path.expanduser(location))
    if "#" in location:
        raise ValueError("a # in a URI is written %23, because all after a plain # is dropped")
    return _without_secret(location)


def _no_uri(value: object) -> object:
    if isinstance(value, str) and URI.match(value):
        raise ValueError("should be the path of a local file, which people can edit, not a URI")
    return value


@dataclass(frozen=True)
class OneOf:
    """A restriction of text to the names of a registry, like `Literal` for fixed names."""

    names: tuple[str, ...]

    def __get_pydantic_core_schema__(self, source: Any, handler: Any) -> CoreSchema:
        """Returns pydantic's schema of a literal."""
        return core_schema.literal_schema(list(self.names))


Seed = Annotated[NonNegativeInt, Field(lt=2**32)]
"""A seed that every generator of random numbers takes."""
Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Text = Annotated[str, BeforeValidator(_integer_as_text)]
"""Text that YAML and Hydra may read as an integer, such as the task id 45737921."""
RunName = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Location = Annotated[
    str,
    BeforeValidator(lambda value: os.fspath(value) if isinstance(value, os.PathLike) else value),
    BeforeValidator(_integer_as_text),
    AfterValidator(absolute_location),
    Field(json_schema_extra={"format": "path or URI"}),
]
"""A URI, or a path made absolute because Ray's workers run in other directories."""
LocalPath = Annotated[
    Path,
    BeforeValidator(_no_uri),
    AfterValidator(lambda path: Path(absolute_location(str(path)))),
]
"""An absolute path like `Location`, where URIs are refused."""
Label = Annotated[Text, Field(pattern=r"^[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?$")]
"""The value of a label of a node."""
ModelName = Annotated[Text, AfterValidator(_without_secret)]
"""A run name, a path or a URI of trained models."""


def _fewest_and_most(value: object) -> object:
    pair: Sequence[Any] = value if isinstance(value, list | tuple) else (value, value)
    numbers = [n for n in pair if isinstance(n, int) and not isinstance(n, bool) and n > 0]
    if not len(pair) == len(numbers) == 2 or numbers[0] > numbers[1]:
        raise ValueError("should be a number above 0, or the fewest and the most, as in [2,8]")
    return numbers[0] if numbers[0] == numbers[1] else tuple(numbers)


WorkerCount = Annotated[
    PositiveInt | tuple[PositiveInt, PositiveInt], BeforeValidator(_fewest_and_most)
]
"""A number of workers, or the fewest and the most."""


class ClusterConfig(Strict):
    """The cluster to run on, and the share of it that a training gets."""

    address: str | None = None
    """Ray address; null joins the cluster of RAY_ADDRESS, or starts a local one without it."""
    workers: WorkerCount = 1
    """Processes that train one model together, and concurrent tasks of `evaluate` and `quality`.
    With 1 the job's own process does the work or, on a cluster, as many tasks as there is room
    for. Two numbers, such as [2,8], are the fewest and the most: a training starts with as many as
    there is room for, and continues with fewer or more as nodes leave and join."""
    cpus_per_worker: PositiveInt | None = None
    """CPUs that Ray reserves for each worker; null divides those of the cluster evenly."""
    use_gpu: bool | None = None
    """One GPU per worker; null uses GPUs if the cluster has enough."""
    accelerator_type: Annotated[str, Field(pattern=r"^[A-Za-z0-9._-]+$")] | None = None
    """Accelerator that the nodes of all workers and tasks have, by Ray's name, such as A100."""
    label_selector: dict[str, Label] = {}
    """Labels, by their keys, that the nodes of all workers and tasks have."""
    max_failures: NonNegativeInt = 3
    """Worker deaths to recover from before the run fails."""

    @property
    def fewest_workers(self) -> int:
        """The workers without which a training does not start."""
        return self.workers if isinstance(self.workers, int) else self.workers[0]

    @property
    def most_workers(self) -> int:
        """The workers that a training takes if there is room."""
        return self.workers if isinstance(self.workers, int) else self.workers[1]

    @property
    def address_to_join(self) -> str | None:
        """Address of the running cluster that is joined; None starts a local one."""
        return self.address or os.environ.get("RAY_ADDRESS") or None

    @property
    def without_gpu(self) -> Self:
        """The same for work that has no use for a GPU."""
        return self.model_copy(update={"use_gpu": False})

    @property
    def is_this_process(self) -> bool:
        """True if one worker on this machine does the work, which needs no Ray."""
        return self.most_workers == 1 and self.address_to_join is None


STORAGE = "./runs"
"""The storage of every job by default, from the directory in which it runs."""
COMMAND = "raylab"
"""The command that runs any job of the checkout in which it is installed."""


def command_of(job: str) -> list[str]:
    """Returns the words that start a job, in the form in which this process was started."""
    started = Path(sys.argv[0])
    if started.name == COMMAND:
        return [COMMAND, job]
    # The script lies beside that which runs, wherever it was started from, or in the checkout.
    beside = started.parent / f"{job}.py"
    return ["python", str(beside if beside.is_file() else Path("jobs", f"{job}.py"))]


Keys = tuple[str, ...]
"""Dotted paths of keys."""
Tracking = Literal["tensorboard", "mlflow", "wandb"]
Scalar = bool | int | float | str | None
AS_PUBLISHED = "published"


class JobConfig(Strict):
    """The keys of every job."""

    job: ClassVar[str]
    """Name of the job: of its script, its YAML file and, by default, its runs."""
    main: ClassVar[Keys]
    """The keys of its own that matter most, at most seven, for `--help`."""
    foreign: ClassVar[frozenset[str]] = frozenset()
    """Sections of a file that are of other tools, and ignored."""

    storage: Location = Field(default=STORAGE, validate_default=True)
    """Directory, or any URI that pyarrow's filesystems open."""
    name: RunName | None = None
    """Run name; null derives it from the configuration."""
    resume: bool = False
    """Continue the run of this name; start it if it does not exist."""
    log: Literal["auto", "text", "json", "debug"] = "auto"
    """Output: text, with a live bar on a terminal; text alone; one JSON object per line; or text
    with what Ray's processes say."""

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values, before validation, with the values that follow from others."""
        return values

    def grown(self, before: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns the configuration of a run, with what this one adds to its work."""
        return before

    def command(self, job: str, run: str, **more: object) -> str:
        """Returns the command of a job on a run of this storage and archive, with more keys."""
        keys: dict[str, object] = {"name": run}
        if self.storage != absolute_location(STORAGE):
            keys["storage"] = self.storage
        if archive := getattr(self, "archive", None):
            keys["archive"] = archive
        words = command_of(job)
        for key, value in (keys | more).items():
            text = str(value)
            if not PLAIN.fullmatch(text):
                # Workers import this module, and have no use for Hydra.
                from hydra.core.override_parser.types import Quote, QuotedString

                text = QuotedString(text, Quote.double).with_quotes()
            words.append(f"{key}={text}")
        return shlex.join(words)

    @classmethod
    def of_record(cls, recorded: Mapping[str, Any], **changed: object) -> Self:
        """Returns the configuration in a run's record, validated, with some values `changed`."""
        return cls.model_validate({**recorded, **changed})


def _as_names(value: object) -> object:
    if isinstance(value, list):
        return tuple(cast("list[object]", value))
    return (value,) if isinstance(value, str | int) else value


Names = Annotated[tuple[Text, ...], BeforeValidator(_as_names)]
"""Names, such as those of columns; one needs no list."""


def require_trackers(names: Iterable[Tracking]) -> None:
    """Refuses trackers whose package is not installed, by a `ConfigError`."""
    for name in names:
        if name != "tensorboard" and importlib.util.find_spec(name) is None:
            raise ConfigError(
                f"tracking={name} needs its package: pip install 'raylab[{name}]', or leave it out"
            )


Trackers = Annotated[
    tuple[Tracking, ...],
    BeforeValidator(_as_names),
    Field(
        description="Where figures are followed besides the run's own files: any of tensorboard, "
        "mlflow and wandb, one or a list."
    ),
]


def _seed_or_archive(value: int | str) -> int | str:
    if isinstance(value, int) or value == AS_PUBLISHED:
        return value
    return absolute_location(value)


Generation = Annotated[Seed | str, AfterValidator(_seed_or_archive)]
"""A seed of a re-drawing, `published` for the tasks as they are, or path or URI of an archive."""
