"""The configuration of every job: pydantic models over what Hydra composes from `configs/`.

The models are frozen and refuse unknown keys, so a configuration that validates is the one
that runs. This module alone knows Hydra and OmegaConf, and imports nothing heavier, so that
`--help` and a mistake answer before torch or ray are loaded.
"""

import itertools
import json
import os
import re
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, TypeVar, cast
from urllib.parse import urlsplit

from hydra import compose, initialize_config_dir
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveFloat,
    PositiveInt,
    ValidationError,
    model_validator,
)
from yaml import YAMLError

import raylab
from raylab.errors import ConfigError
from raylab.schema import Problem, problems_of

CONFIGS = Path(raylab.__file__).parents[1] / "configs"


class Strict(BaseModel):
    """A frozen model that refuses unknown keys, NaN and infinity."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", allow_inf_nan=False, use_attribute_docstrings=True
    )


def _integer_as_text(value: object) -> object:
    return str(value) if isinstance(value, int) and not isinstance(value, bool) else value


URI = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*://")
SECRETS = re.compile(
    r"""://[^@]*:[^@]*@                                  # a password, which may hold slashes
    | ^s3://[^/]*@                                       # an access key
    | [?&][^=&]*(secret|password|token|_key)[^=&]*=      # a parameter that is a secret
    | [?&]endpoint_override=[^&]*(@|%40)                 # an address with one in it
    """,
    re.IGNORECASE | re.VERBOSE,
)


def _path_as_text(value: object) -> object:
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _without_secret(location: str) -> str:
    if URI.match(location) and SECRETS.search(location):
        raise ValueError(
            "a URI must carry no password or key, for it is written into the run record: give it "
            "in the environment or the credentials file of the service"
        )
    return location


def absolute_location(location: str) -> str:
    """A URI as it is, or a path made absolute against the current directory.

    Raises:
        ValueError: A URI carries a secret, which the message does not repeat, or a fragment.
    """
    if not URI.match(location):
        return os.path.abspath(os.path.expanduser(location))
    if "#" in location:
        raise ValueError("a # in a URI is written %23, for what follows it is dropped otherwise")
    return _without_secret(location)


def _no_uri(value: object) -> object:
    if isinstance(value, str) and URI.match(value):
        raise ValueError("should be the path of a local file, which people can edit, not a URI")
    return value


def _absolute_path(path: Path) -> Path:
    return Path(absolute_location(str(path)))


Probability = Annotated[float, Field(ge=0.0, lt=1.0)]
Fraction = Annotated[float, Field(gt=0.0, lt=1.0)]
Text = Annotated[str, BeforeValidator(_integer_as_text)]
"""Text that YAML and Hydra may read as an integer, such as the task id 45737921."""
RunName = Annotated[Text, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")]
Location = Annotated[
    str,
    BeforeValidator(_path_as_text),
    AfterValidator(absolute_location),
    Field(json_schema_extra={"format": "path or URI"}),
]
"""A URI, or a path made absolute, for Ray's workers run in other directories."""
LocalPath = Annotated[Path, BeforeValidator(_no_uri), AfterValidator(_absolute_path)]
"""A path made absolute like `Location`, where no URI will do."""
ModelName = Annotated[Text, AfterValidator(_without_secret)]
"""A run name, a path or a URI of trained models."""


class Source(StrEnum):
    """Where tasks come from."""

    ARC_AGI_1 = "arc_agi_1"
    ARC_AGI_2 = "arc_agi_2"
    ARC_JSON = "arc_json"
    RE_ARC = "re_arc"


class Subset(StrEnum):
    """The published halves of a packaged task set."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    ALL = "all"


class DataConfig(Strict):
    """Which tasks, how they are split and grouped."""

    source: Source = Source.ARC_AGI_1
    path: Location | None = None
    """Directory, JSON file or zip; needed by `arc_json` and `re_arc`."""
    subset: Subset = Subset.TRAINING
    """Used by the packaged sources `arc_agi_1` and `arc_agi_2`."""
    tasks: tuple[Text, ...] | None = None
    """Keep only these task ids."""
    every: PositiveInt = 1
    """Keep every n-th task, in the order of their ids."""
    pairs_per_task: PositiveInt | None = None
    """Keep at most this many pairs of each task, demonstrations first."""
    generation: NonNegativeInt | None = None
    """Seed of a re-drawing of the tasks (colours and symmetries); null keeps them as published."""
    split: Location | None = None
    """JSON file `{"train": [ids], "val": [ids]}`; null draws the split by `split_seed`."""
    val_fraction: Fraction = 0.23
    """Share of the tasks that a drawn split validates on."""
    split_seed: NonNegativeInt = 307
    """Seed of a drawn split."""
    taxonomy: Location | None = None
    """JSON file `{task id: group}`; without one groups are computed from the grids."""

    @model_validator(mode="after")
    def _path_matches_source(self) -> "DataConfig":
        packaged = self.source in (Source.ARC_AGI_1, Source.ARC_AGI_2)
        if packaged and self.path is not None:
            raise ValueError(
                f"source {self.source} is packaged and takes no path: remove data.path"
            )
        if not packaged and self.path is None:
            raise ValueError(f"source {self.source} needs data.path=FILE_OR_DIRECTORY")
        return self


class Architecture(StrEnum):
    """The three architectures."""

    CHAMPION = "champion"
    ENCODER_DECODER = "encoder_decoder"
    DECODER_ONLY = "decoder_only"


Width = Annotated[PositiveInt, Field(description="Width of the tokens.")]
FeedForwardWidth = Annotated[PositiveInt, Field(description="Width inside the feed-forwards.")]
Heads = Annotated[PositiveInt, Field(description="Attention heads; a divisor of d_model.")]
EncoderLayers = Annotated[PositiveInt, Field(description="Layers over the input grid.")]
DecoderLayers = Annotated[PositiveInt, Field(description="Layers over the output grid.")]
Dropout = Annotated[Probability, Field(description="Share of activations dropped in training.")]
ColourRelabelling = Annotated[
    bool,
    Field(
        description="In training, relabel the colours of context, source and target by one random "
        "permutation."
    ),
]


class TransformerConfig(Strict):
    """What all three architectures share."""

    d_model: Width
    d_ff: FeedForwardWidth
    heads: Heads
    colour_relabelling: ColourRelabelling

    @model_validator(mode="after")
    def _heads_divide_width(self) -> "TransformerConfig":
        if self.d_model % 2 or self.d_model % self.heads:
            raise ValueError(
                f"d_model={self.d_model} must be even and a multiple of heads={self.heads}"
            )
        return self


class ChampionConfig(TransformerConfig):
    """Encoder-decoder with 2-D positions, shared colour table and a demonstration context."""

    architecture: Literal["champion"] = "champion"
    d_model: Width = 160
    d_ff: FeedForwardWidth = 640
    heads: Heads = 4
    encoder_layers: EncoderLayers = 1
    decoder_layers: DecoderLayers = 3
    encoder_dropout: Dropout = 0.1
    decoder_dropout: Dropout = 0.015
    demonstrations: PositiveInt = 2
    """Demonstration pairs in the context."""
    d_context: PositiveInt = 32
    """Width of the context encoder."""
    context_heads: PositiveInt = 8
    """Attention heads of the context encoder; a divisor of d_context."""
    context_d_ff: PositiveInt = 128
    """Width inside the feed-forward of the context encoder."""
    pair_d_ff: PositiveInt = 512
    """Width inside the feed-forward after the attention between output and input of a pair."""
    colour_relabelling: ColourRelabelling = True

    @model_validator(mode="after")
    def _context_heads_divide_width(self) -> "ChampionConfig":
        if self.d_model % 4 or self.d_context % 4 or self.d_context % self.context_heads:
            raise ValueError(
                f"d_model={self.d_model} and d_context={self.d_context} must be multiples of 4, "
                f"and d_context of context_heads={self.context_heads}"
            )
        return self


class EncoderDecoderConfig(TransformerConfig):
    """Encoder-decoder with 1-D sinusoidal positions and no context."""

    architecture: Literal["encoder_decoder"] = "encoder_decoder"
    d_model: Width = 168
    d_ff: FeedForwardWidth = 672
    heads: Heads = 4
    encoder_layers: EncoderLayers = 1
    decoder_layers: DecoderLayers = 3
    dropout: Dropout = 0.167
    colour_relabelling: ColourRelabelling = False


class DecoderOnlyConfig(TransformerConfig):
    """Causal decoder with rotary positions.

    The published parameter count includes a cross-attention that sees the answer. Without it the
    feed-forward is widened from 656 to 960, so that the three stay matched.
    """

    architecture: Literal["decoder_only"] = "decoder_only"
    d_model: Width = 164
    d_ff: FeedForwardWidth = 960
    heads: Heads = 4
    layers: PositiveInt = 4
    """Layers over the whole sequence."""
    dropout: Dropout = 0.167
    rope_theta: PositiveFloat = 10_000.0
    """Base of the rotary frequencies."""
    demonstrations: NonNegativeInt = 0
    """Demonstration pairs prefixed to the source; 0 is the published form."""
    colour_relabelling: ColourRelabelling = False


ModelConfig = Annotated[
    ChampionConfig | EncoderDecoderConfig | DecoderOnlyConfig, Field(discriminator="architecture")
]


class Precision(StrEnum):
    """Arithmetic of the training step; `auto` takes bfloat16 where the hardware computes in it."""

    AUTO = "auto"
    FLOAT32 = "32-true"
    BFLOAT16 = "bf16-mixed"
    FLOAT16 = "16-mixed"


class ObjectiveConfig(Strict):
    """Weights of the dense grid objective."""

    w_cell: NonNegativeFloat = 0.0
    """Weight of cell_accuracy."""
    w_tol: NonNegativeFloat = 0.8
    """Weight of grid_tol_0p95, the share of grids with at least 95 % of their cells right."""
    w_exact: NonNegativeFloat = 0.2
    """Weight of grid_accuracy."""


class Monitor(StrEnum):
    """Validation metrics for which more is better."""

    DENSE_GRID_OBJECTIVE = "val_dense_grid_objective"
    GRID_ACCURACY = "val_grid_accuracy"
    SOLVE_RATE = "val_solve_rate"
    SHAPE_ACCURACY = "val_shape_accuracy"
    CELL_ACCURACY = "val_cell_accuracy"
    GRID_TOL_90 = "val_grid_tol_0p90"
    GRID_TOL_95 = "val_grid_tol_0p95"
    GRID_TOL_99 = "val_grid_tol_0p99"
    ROW_ALL_CORRECT_RATE = "val_row_all_correct_rate"
    COL_ALL_CORRECT_RATE = "val_col_all_correct_rate"
    CHANGE_RECALL = "val_change_recall"
    CHANGE_PRECISION = "val_change_precision"
    TRANSFORMATION_F1 = "val_transformation_f1"


class TrainingConfig(Strict):
    """The optimiser, its schedule and when to stop; the defaults are the published recipe."""

    epochs: PositiveInt = 100
    """Passes over the training pairs at most."""
    batch_size: PositiveInt = 32
    """Mean samples a batch and worker; batches hold like lengths under the equal token budget."""
    lr: PositiveFloat = 0.00185
    """Learning rate at the start and after each restart."""
    betas: tuple[Fraction, Fraction] = (0.95, 0.999)
    """Decay rates of Adam's moment estimates."""
    weight_decay: NonNegativeFloat = 0.0
    """Weight decay of Adam."""
    restart_epochs: PositiveInt = 6
    """Epochs between warm restarts of the cosine schedule."""
    lr_min: NonNegativeFloat = 1.68e-6
    """Learning rate at the end of each cosine."""
    gradient_clip: PositiveFloat = 1.0
    """Largest norm of the gradient."""
    shape_loss_weight: NonNegativeFloat = 0.1
    """Weight of the loss of the output's height and width beside that of its cells."""
    precision: Precision = Precision.AUTO
    seed: NonNegativeInt = 307
    """Seed of initialisation, order and dropout."""
    objective: ObjectiveConfig = ObjectiveConfig()
    monitor: Monitor = Monitor.DENSE_GRID_OBJECTIVE
    """Metric (mode max) that selects checkpoints and stops early."""
    patience: PositiveInt | None = 7
    """Validations without improvement before stopping; null never stops early."""
    keep_checkpoints: PositiveInt = 2
    """Best checkpoints that are kept; the latest is kept as well."""


class ClusterConfig(Strict):
    """Where the work is placed."""

    address: str | None = None
    """Ray address; null joins the cluster of RAY_ADDRESS, without which a local one is started."""
    workers: PositiveInt = 1
    """Processes that train one model together."""
    cpus_per_worker: PositiveInt | None = None
    """CPUs that Ray reserves for each; null shares those of the cluster out evenly."""
    use_gpu: bool | None = None
    """One GPU a worker; null uses GPUs when the cluster has enough of them."""
    max_failures: NonNegativeInt = 3
    """Worker deaths to recover from before the run fails."""

    @property
    def joined(self) -> str | None:
        """Address of the running cluster that is joined; None starts a local one."""
        return self.address or os.environ.get("RAY_ADDRESS") or None


class JobConfig(Strict):
    """What every job takes."""

    job: ClassVar[str]

    storage: Location = Field(default="./runs", validate_default=True)
    """Directory, or any URI that pyarrow's filesystems open."""
    name: RunName | None = None
    """Run name; null derives it from the configuration."""
    resume: bool = False
    """Go on with the run of this name; a run that does not exist is started."""
    log: Literal["text", "json"] = "text"
    """What the job prints: text for people, or one JSON object a line."""


C = TypeVar("C", bound=JobConfig)


class TrainConfig(JobConfig):
    """`jobs/train.py`."""

    job: ClassVar[str] = "train"

    model: ModelConfig = ChampionConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig()
    init_from: Location | None = None
    """Checkpoint file or run directory whose weights the model starts from."""


Scalar = bool | int | float | str | None


class Domain(Strict):
    """The values that a search draws one key from: exactly one of these."""

    choice: Annotated[tuple[Scalar, ...], Field(min_length=1)] | None = None
    """One of these."""
    uniform: tuple[float, float] | None = None
    """Any number between the two."""
    log_uniform: tuple[PositiveFloat, PositiveFloat] | None = None
    """Any number between the two, evenly in the logarithm."""
    integer: tuple[int, int] | None = None
    """Any whole number from the first to the last."""

    @model_validator(mode="after")
    def _one_of_them(self) -> "Domain":
        given = [key for key, value in self if value is not None]
        if len(given) != 1:
            raise ValueError(
                f"needs exactly one of {', '.join(Domain.model_fields)}, has "
                f"{', '.join(given) or 'none'}: set the others to null"
            )
        if self.choice is None and self.bounds[0] >= self.bounds[1]:
            low, high = self.bounds
            raise ValueError(f"{given[0]}: {low} should be less than {high}")
        return self

    @property
    def bounds(self) -> tuple[float, float]:
        """Least and greatest number of a domain that is no choice."""
        found = self.uniform or self.log_uniform or self.integer
        assert found is not None
        return found

    @property
    def extremes(self) -> tuple[Scalar, ...]:
        """Every choice, or the least and the greatest number."""
        return self.bounds if self.choice is None else self.choice


Domains = dict[str, Domain]


class SearchSpace(Strict):
    """What a sweep searches."""

    model: Annotated[dict[Architecture, Domains], Field(min_length=1)]
    """The architectures, each with the domains of its own keys."""
    training: Domains = {}
    """Domains of `training` keys, for all architectures."""

    @model_validator(mode="after")
    def _keys_and_values_fit(self) -> "SearchSpace":
        for architecture, domains in self.model.items():
            _check_domains(MODEL_CONFIGS[architecture], domains, f"model.{architecture}")
        _check_domains(TrainingConfig, self.training, "training")
        return self


MODEL_CONFIGS: dict[Architecture, type[TransformerConfig]] = {
    Architecture.CHAMPION: ChampionConfig,
    Architecture.ENCODER_DECODER: EncoderDecoderConfig,
    Architecture.DECODER_ONLY: DecoderOnlyConfig,
}
CHECKED_COMBINATIONS = 4096


def _check_domains(kind: type[BaseModel], domains: Domains, where: str) -> None:
    unknown = [key for key in domains if key not in kind.model_fields or key == "architecture"]
    if unknown:
        known = ", ".join(key for key in kind.model_fields if key != "architecture")
        raise ValueError(f"{where} has no key {', '.join(unknown)}; its keys: {known}")
    combinations = itertools.product(*(domain.extremes for domain in domains.values()))
    for values in itertools.islice(combinations, CHECKED_COMBINATIONS):
        drawn = dict(zip(domains, values, strict=True))
        try:
            kind.model_validate_json(json.dumps(drawn), strict=True)
        except ValidationError as error:
            problem = problems_of(kind, error.errors(include_url=False))[0]
            raise ValueError(f"{where} allows {json.dumps(drawn)}, but {problem}") from error


class Search(StrEnum):
    """How a sweep draws its trials."""

    TPE = "tpe"
    RANDOM = "random"
    POPULATION = "population"


class TuneConfig(JobConfig):
    """`jobs/tune.py`."""

    job: ClassVar[str] = "tune"

    space: SearchSpace
    search: Search = Search.TPE
    """Tree-structured Parzen estimator, at random, or population-based training."""
    trials: PositiveInt = 20
    """Trials drawn; with `population` its size."""
    concurrent: PositiveInt | None = None
    """Trials at a time; null takes as many as the cluster holds."""
    stop_early: bool = True
    """Stop trials that fall behind at equal epochs (ASHA); population-based training does not."""
    grace_epochs: PositiveInt = 5
    """Epochs before a trial may be stopped."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """Of the trials that reach a rung, one in so many goes on to the next."""
    population_epochs: PositiveInt = 5
    """Epochs after which the last of a population take over weights and settings of the first."""
    seed: NonNegativeInt = 307
    """Seed of the search."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig(cpus_per_worker=1)
    """Workers and CPUs are those of one trial."""


def _architecture_as_model(value: object) -> object:
    return {"architecture": value} if isinstance(value, str) else value


Models = Annotated[
    tuple[Annotated[ModelConfig, BeforeValidator(_architecture_as_model)], ...],
    Field(min_length=1),
]
ALL_MODELS = (ChampionConfig(), EncoderDecoderConfig(), DecoderOnlyConfig())


class Metric(StrEnum):
    """Metrics of an evaluation for which more is better."""

    CELL_ACCURACY = "cell_accuracy"
    GRID_ACCURACY = "grid_accuracy"
    SOLVE_RATE = "solve_rate"
    SHAPE_ACCURACY = "shape_accuracy"
    DENSE_GRID_OBJECTIVE = "dense_grid_objective"
    GRID_TOL_90 = "grid_tol_0p90"
    GRID_TOL_95 = "grid_tol_0p95"
    GRID_TOL_99 = "grid_tol_0p99"
    ROW_ALL_CORRECT_RATE = "row_all_correct_rate"
    COL_ALL_CORRECT_RATE = "col_all_correct_rate"
    CHANGE_RECALL = "change_recall"
    CHANGE_PRECISION = "change_precision"
    TRANSFORMATION_F1 = "transformation_f1"


AS_PUBLISHED = "published"


def _seed_or_archive(value: int | str) -> int | str:
    if isinstance(value, int) or value == AS_PUBLISHED:
        return value
    return absolute_location(value)


Generation = Annotated[NonNegativeInt | str, AfterValidator(_seed_or_archive)]
"""A seed of a re-drawing, `published` for the tasks as they are, or path or URI of an archive."""


class ScoringConfig(Strict):
    """How a model is scored on a generation of tasks."""

    metric: Metric = Metric.CELL_ACCURACY
    """The metric that the score tree calls accuracy; the others ride along under their names."""
    unit: Literal["task", "group"] = "task"
    """What one file of the score tree is about."""
    include_seen: bool = False
    """Score also tasks that one of the models was trained on; by default these are left out."""
    batch_size: PositiveInt = 32
    """Mean grids a batch."""


class EvaluateConfig(JobConfig):
    """`jobs/evaluate.py`."""

    job: ClassVar[str] = "evaluate"

    models: Annotated[tuple[ModelName, ...], Field(min_length=1)]
    """Checkpoint files, run names under `storage`, run directories, or sweeps (all trials)."""
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Seeds of re-drawings, `published`, or paths of archives in the format of `data.source`."""
    data: DataConfig = DataConfig()
    scoring: ScoringConfig = ScoringConfig()
    cluster: ClusterConfig = ClusterConfig()


class Layout(StrEnum):
    """How a score tree is laid out below a model."""

    AUTO = "auto"
    GENERATIONS = "generations"
    FLAT = "flat"


class QualityEvalConfig(Strict):
    """Where the scores are."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory a model; null takes BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of the same structure, for earlier benchmarks; novelty is against them."""


class QualityConfig(JobConfig):
    """`jobs/quality.py`."""

    job: ClassVar[str] = "quality"

    quality_eval_cfg: QualityEvalConfig = QualityEvalConfig()
    run_id: Text | None = None
    """Directory within `{BASE_ARTIFACTS_DIR}/{scores_subdir}`, where `scores_root_dir` is null."""
    layout: Layout = Layout.AUTO
    """Whether the directories below a model are generations; `auto` tells and logs which."""
    on_missing_generation: Literal["error", "drop"] = "error"
    """What to do with generations that not every model has: refuse, or use the common ones."""
    strict: bool = False
    """Refuse a tree with a file that cannot be used, instead of listing it."""
    bootstrap: NonNegativeInt = 1000
    """Replicates of the tasks for the 95 % intervals; 0 leaves the intervals out."""
    cache: bool = True
    """Keep what was read of each file, by path, size and time of change, for the next run."""
    cluster: ClusterConfig = ClusterConfig()


class PipelineConfig(JobConfig):
    """`jobs/pipeline.py`."""

    job: ClassVar[str] = "pipeline"

    models: Models = ALL_MODELS
    """Trained one after another; each is an architecture or `{architecture: ..., key: value}`."""
    take: tuple[ModelName, ...] = ()
    """Models taken as they are, as in `jobs/evaluate.py`, beside those trained."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of `data` that every model is scored on."""
    prior: DataConfig | None = DataConfig(source=Source.ARC_AGI_2, subset=Subset.EVALUATION)
    """The earlier benchmark that novelty is measured against; null leaves novelty out."""
    scoring: ScoringConfig = ScoringConfig()
    score_trees: tuple[Location, ...] = ()
    """Score trees of other jobs, whose quality is reported beside."""
    pictures: NonNegativeInt = 4
    """Tasks shown in the report with each model's prediction beside the target."""
    cluster: ClusterConfig = ClusterConfig()


class Price(Strict):
    """What a model's tokens cost, in one currency for all."""

    input: NonNegativeFloat
    """A million tokens of the request."""
    output: NonNegativeFloat
    """A million tokens of the reply."""


class Limits(Strict):
    """What an endpoint is asked for at most, by the whole run together."""

    concurrency: PositiveInt = 32
    """Calls in flight."""
    requests_per_minute: PositiveInt | None = None
    tokens_per_minute: PositiveInt | None = None
    """Tokens of requests and replies; a reply counts with `max_tokens` until it has come."""
    timeout: PositiveFloat = 120.0
    """Seconds for one attempt."""
    retries: NonNegativeInt = 6
    """Attempts after the first, each later than the one before; a Retry-After is honoured."""


class ReplyFormat(StrEnum):
    """How an endpoint is made to answer in the form asked for."""

    JSON_SCHEMA = "json_schema"
    JSON_OBJECT = "json_object"
    TEXT = "text"


class Endpoint(Strict):
    """A server of chat models."""

    base_url: str | None = None
    """Address of an OpenAI-compatible API, such as https://host/v1; null is the embedded model."""
    api_key_env: str | None = None
    """Environment variable that holds its key; null sends none."""
    reply_format: ReplyFormat = ReplyFormat.JSON_SCHEMA
    """What the server can enforce; with `text` the form is only asked for."""
    limits: Limits = Limits()

    @model_validator(mode="after")
    def _address_is_plain(self) -> "Endpoint":
        if self.base_url is None:
            return self
        parts = urlsplit(self.base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError(f"base_url {self.base_url} should start with http:// or https://")
        if parts.username is not None or parts.query:
            raise ValueError("base_url must carry no key, for it is archived: use api_key_env")
        return self


class ChatModel(Strict):
    """A model and how it is sampled."""

    model: Text
    """Name that the endpoint knows it by."""
    endpoint: Text = "default"
    """One of `llm.endpoints`."""
    temperature: NonNegativeFloat | None = 0.0
    """null leaves it to the server."""
    max_tokens: PositiveInt | None = 1024
    """Tokens of a reply at most; null sends none, for models that take another key in `extra`."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = 1
    """null sends none."""
    extra: dict[str, Scalar] = {}
    """Further fields of the request, such as reasoning_effort."""


class Budget(Strict):
    """What a run may spend; then it stops, and goes on with a larger one and resume=true."""

    tokens: PositiveInt | None = None
    money: PositiveFloat | None = None
    """In the currency of `prices`."""


class Prompt(StrEnum):
    """The classifier's prompt."""

    MINIMAL = "minimal"
    MAXIMAL = "maximal"
    WORD = "word"
    """One plain word from a list, for models too small for codes."""


class LlmConfig(Strict):
    """The models of the protocol and where they are served."""

    endpoints: Annotated[dict[Text, Endpoint], Field(min_length=1)] = {"default": Endpoint()}
    annotator_a: ChatModel
    annotator_b: ChatModel
    """Another model than A, or the same with another seed."""
    evaluator: ChatModel
    adjudicator: ChatModel
    prompt: Prompt = Prompt.MAXIMAL
    """What the annotators are told; `word` asks all roles for less."""
    prices: dict[Text, Price] = {}
    """By the name of the model."""
    budget: Budget = Budget()

    @property
    def roles(self) -> dict[str, ChatModel]:
        """The four models by their role."""
        return {
            "annotator_a": self.annotator_a,
            "annotator_b": self.annotator_b,
            "evaluator": self.evaluator,
            "adjudicator": self.adjudicator,
        }

    @model_validator(mode="after")
    def _roles_fit(self) -> "LlmConfig":
        for role, chat in self.roles.items():
            if chat.endpoint not in self.endpoints:
                known = ", ".join(self.endpoints)
                raise ValueError(f"{role}.endpoint {chat.endpoint} is none of endpoints: {known}")
            if self.budget.money is not None and chat.model not in self.prices:
                raise ValueError(f"budget.money needs a price of {role}'s {chat.model} in prices")
        if self.annotator_a == self.annotator_b:
            raise ValueError(
                "annotator_a and annotator_b are the same call: give them two models or two seeds"
            )
        return self


class CasesConfig(Strict):
    """Which system descriptions are classified: at most one of the first three, else gold."""

    path: Location | None = None
    """JSONL or Parquet file with id, description and, where known, gold and meta."""
    packaged: Literal["gold", "proposed", "injections"] | None = None
    """Packaged cases: with published codes, our unreviewed proposals with traps, or descriptions
    that give orders to the models."""
    python: tuple[Text, ...] = ()
    """Installed objects whose source is the description, such as scipy.optimize.linprog."""
    every: PositiveInt = 1
    """Keep every n-th case."""
    take: PositiveInt | None = None
    """Keep at most this many."""

    @model_validator(mode="after")
    def _one_source(self) -> "CasesConfig":
        given = [key for key in ("path", "packaged", "python") if getattr(self, key)]
        if len(given) > 1:
            raise ValueError(f"takes one source, has {', '.join(given)}: set the others to null")
        return self


class ProtocolConfig(Strict):
    """How a case is decided."""

    policy: Literal["strict", "lenient"] = "strict"
    """With one acceptable answer of two: a person decides, or the adjudicator tries first."""
    accept_operator_differences: bool = False
    """Take A where the two name the same roots and only `+` and `/` differ."""
    threshold: Annotated[int, Field(ge=0, le=100)] = 70
    """Least score of an acceptable answer."""
    distance: Location | None = None
    """JSON file of root distances; null takes the packaged opt-l1-v1."""
    seed: NonNegativeInt = 307
    """Seed of the order in which the adjudicator sees A and B, and of the intervals."""


class AnnotateConfig(JobConfig):
    """`jobs/annotate.py`."""

    job: ClassVar[str] = "annotate"

    llm: LlmConfig
    cases: CasesConfig = CasesConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Of the score tree: `published` for all gold cases, seeds of halves of them, case files."""
    fresh: bool = False
    """Send also calls that another run of the archive was answered, as a look at drift needs."""
    archive: Location | None = None
    """File, or SQLAlchemy URL without its password (PGPASSWORD); null is `<storage>/archive.db`."""
    actors: PositiveInt | None = None
    """Processes that send calls; null takes one a CPU."""
    export: Literal["parquet", "jsonl"] | None = None
    """Write the archived cases of the run to `<run>/cases.parquet` or `.jsonl` as well."""
    review: Literal["export", "import"] | None = None
    """Write the cases that wait for a person to `review_file`, or take the decisions back."""
    review_file: LocalPath | None = None
    """JSONL; null is `<run>/review.jsonl`."""
    reviewer: Text | None = None
    """Name archived with decisions that carry none."""
    drift: bool = False
    """Compare the runs of the archive over time instead of annotating."""
    cluster: ClusterConfig = ClusterConfig()


class ReportConfig(JobConfig):
    """`jobs/report.py`."""

    job: ClassVar[str] = "report"

    runs: Annotated[tuple[Text, ...], Field(min_length=1)]
    """Names under `storage`, directories or URIs of runs of any jobs."""


class ReviewConfig(JobConfig):
    """`jobs/review.py`."""

    job: ClassVar[str] = "review"

    name: RunName | None = None
    """The annotation run whose open cases are settled."""
    archive: Location | None = None
    """Where its archive is now, as `archive` of the annotation; null is where it was."""
    host: Text = "127.0.0.1"
    """Address to listen at; any but loopback demands RAYLAB_REVIEW_TOKEN."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """Port; 0 is any free one, not on a cluster."""
    hosts: tuple[Text, ...] = ()
    """Names by which browsers reach the page beside `host`, as behind a proxy."""
    lease_minutes: Annotated[float, Field(ge=1, le=1440)] = 10.0
    """How long a case is kept for a reviewer whose tab is gone."""
    cluster: ClusterConfig = ClusterConfig()
    """With `address` or RAY_ADDRESS Ray Serve hosts the page, on the head of that cluster."""

    @model_validator(mode="after")
    def _names_a_run(self) -> "ReviewConfig":
        if self.name is None:
            raise ValueError("needs name=, the annotation run whose cases are reviewed")
        return self


class BenchmarkConfig(JobConfig):
    """`jobs/benchmark.py`."""

    job: ClassVar[str] = "benchmark"

    part: Literal["train", "quality", "tune", "annotate", "scaling"] = "train"
    """What is measured."""
    data: DataConfig = DataConfig()
    models: Models = ALL_MODELS
    """The architectures measured, as in the pipeline."""
    batch_size: PositiveInt = 32
    """Samples a batch."""
    threads: PositiveInt = 2
    """CPU threads of torch."""
    rounds: PositiveInt = 3
    """Rounds over the architectures."""
    batches: PositiveInt = 16
    """Batches of raylab timed a round."""
    naive_batches: PositiveInt = 2
    """Batches of the baseline timed a round."""
    cases: PositiveInt = 2000
    """Cases annotated a round."""
    concurrency: PositiveInt = 128
    """Calls in flight, of raylab and of the bare loop; of each node for part=scaling."""
    latency: NonNegativeFloat = 0.05
    """Seconds that the local chat server waits before it answers."""
    bare_loop: bool = True
    """Time the bare loop as well."""


class _Invalid(Exception):
    """Problems on the way to a configuration; never leaves this module."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__()
        self.problems = list(problems)


def load_config(kind: type[C], overrides: Sequence[str] = (), file: Path | None = None) -> C:
    """Composes `configs/<job>.yaml`, a file and Hydra overrides, and validates the result.

    Args:
        kind: Configuration of the job.
        file: YAML whose sections replace those of the job's own, such as a sweep's `best.yaml`. A
            group chosen on the command line replaces the file's section.
        overrides: Hydra's override grammar. A plain `key=value` reaches every key of `kind`, also
            one that no YAML file names.

    Raises:
        ConfigError: Naming every problem found, each with its key and what is expected.
    """
    groups = config_groups(kind)
    usable, problems = _read_overrides(groups, overrides)
    unchosen = {problem.path for problem in problems} & groups.keys()
    chosen = {text.partition("=")[0] for text in usable} & groups.keys()
    values = {} if file is None else _read_yaml(file)
    kept = {key: value for key, value in values.items() if key not in chosen}
    try:
        config = _validate(kind, _compose(kind, usable, kept))
    except _Invalid as invalid:
        problems += [p for p in invalid.problems if p.path.split(".")[0] not in unchosen]
    else:
        if not problems:
            return config
    raise ConfigError(_report(kind, problems))


def composed_values(kind: type[JobConfig]) -> dict[str, Any]:
    """What `configs/<job>.yaml` and the groups it selects set, before validation.

    Raises:
        ConfigError: A file is absent or cannot be composed.
    """
    config_groups(kind)
    try:
        return _compose(kind, ())
    except _Invalid as invalid:
        raise ConfigError(_report(kind, invalid.problems)) from invalid


def config_groups(kind: type[JobConfig]) -> dict[str, tuple[str, ...]]:
    """The config groups that the job's YAML names, each with its options.

    Raises:
        ConfigError: The YAML file is absent or broken.
    """
    path = CONFIGS / f"{kind.job}.yaml"
    if not path.is_file():
        raise ConfigError(
            f"{path} is missing: run the job from a checkout of raylab, where configs/ lies beside "
            "the package (with Ray, give the checkout as --working-dir)"
        )
    document = _read_yaml(path)
    defaults = cast(list[str | dict[str, Any]], document.get("defaults", []))
    names = [next(iter(entry)).split()[-1] for entry in defaults if isinstance(entry, dict)]
    return {name: tuple(sorted(p.stem for p in (CONFIGS / name).glob("*.yaml"))) for name in names}


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        document = OmegaConf.to_container(OmegaConf.load(path))
    except (OSError, YAMLError, OmegaConfBaseException) as error:
        raise ConfigError(f"{path} cannot be read as YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError(f"{path} holds no mapping of keys to values")
    return cast(dict[str, Any], document)


def as_yaml(config: JobConfig, exclude: set[str] | None = None) -> str:
    """The configuration, less `exclude`, as YAML that loads back to the same configuration."""
    return OmegaConf.to_yaml(OmegaConf.create(config.model_dump(mode="json", exclude=exclude)))


def _read_overrides(
    groups: dict[str, tuple[str, ...]], overrides: Sequence[str]
) -> tuple[list[str], list[Problem]]:
    """The overrides in the form Hydra is given, and what is wrong with the others."""
    parser = OverridesParser.create()
    usable: list[str] = []
    problems: list[Problem] = []
    for text in overrides:
        try:
            override = parser.parse_override(text)
        except HydraException as error:
            problems.append(Problem(text, _syntax_problem(text, error)))
            continue
        if problem := _override_problem(groups, override):
            problems.append(problem)
        else:
            usable.append(_forced(groups, override))
    return usable, problems


def _syntax_problem(text: str, error: HydraException) -> str:
    if "=" not in text:
        return "is not of the form key=value"
    reason = str(error).partition("\n")[0]
    return f"{reason}; a value with special characters is quoted twice: \"key='value'\""


def _override_problem(groups: dict[str, tuple[str, ...]], override: Override) -> Problem | None:
    key = override.key_or_group
    if key.split(".")[0] == "hydra":
        return Problem(key, "Hydra's own settings have no effect here: it only composes")
    if override.is_delete():
        return None
    if override.is_sweep_override():
        return Problem(key, "a job takes one value, not a sweep; a list is written key=[a,b]")
    choice = override.value()
    if isinstance(choice, dict):
        return None
    if key in groups and choice not in groups[key]:
        return Problem(key, f"no option {choice}; options: {', '.join(groups[key])}")
    if key not in groups and (CONFIGS / key).is_dir():
        return Problem(key, f"no config group of this job; its groups: {', '.join(groups)}")
    return None


def _forced(groups: dict[str, tuple[str, ...]], override: Override) -> str:
    """The override as typed, with `++` where Hydra would ask whether a YAML file has the key.

    The YAML files are sparse; whether a key exists is the model's to say.
    """
    text = str(override.input_line)
    plain = not (override.is_add() or override.is_force_add() or override.is_delete())
    chooses = override.key_or_group in groups and not isinstance(override.value(), dict)
    return f"++{text}" if plain and not chooses else text


def _compose(
    kind: type[JobConfig], overrides: Sequence[str], sections: dict[str, Any] | None = None
) -> dict[str, Any]:
    """The job's YAML with `sections` in place of its own, then the overrides."""
    try:
        with initialize_config_dir(str(CONFIGS), version_base="1.3"):
            parsed = OverridesParser.create().parse_overrides(list(overrides))
            settings = [override for override in parsed if override.is_force_add()]
            others = [override for override in parsed if not override.is_force_add()]
            composed = compose(kind.job, [str(override.input_line) for override in others])
            for section, content in (sections or {}).items():
                OmegaConf.update(composed, section, content, merge=False, force_add=True)
            for override in settings:
                key, value = override.key_or_group, override.value()
                OmegaConf.update(composed, key, value, merge=True, force_add=True)
        values = OmegaConf.to_container(composed, resolve=True, throw_on_missing=True)
    except (HydraException, OmegaConfBaseException, YAMLError, ValueError) as error:
        raise _Invalid([Problem("", str(error).strip().replace("\n", "\n    "))]) from error
    return cast(dict[str, Any], values)


def _validate(kind: type[C], values: dict[str, Any]) -> C:
    """Validates as JSON and strictly: YAML is typed, so `true` is no number and "3" neither."""
    try:
        return kind.model_validate_json(json.dumps(values), strict=True)
    except ValidationError as error:
        raise _Invalid(problems_of(kind, error.errors(include_url=False))) from error


def _report(kind: type[JobConfig], problems: Sequence[Problem]) -> str:
    lines = "".join(f"\n  {problem}" for problem in problems)
    return (
        f"the configuration of {kind.job} cannot be used:{lines}\n"
        f"python jobs/{kind.job}.py --help lists every key"
    )
