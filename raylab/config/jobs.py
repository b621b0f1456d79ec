"""The configuration classes of the jobs."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from pydantic import (
    ConfigDict,
    Field,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    model_validator,
)

from raylab.config.annotation import CasesConfig, LlmConfig, ProtocolConfig
from raylab.config.arc import (
    DataConfig,
    ScoringConfig,
    Search,
    SearchSpace,
    Subset,
    TaskSource,
    TrainingConfig,
)
from raylab.config.base import (
    AS_PUBLISHED,
    ClusterConfig,
    Generation,
    JobConfig,
    LocalPath,
    Location,
    ModelName,
    RunName,
    Text,
)
from raylab.config.models import ALL_MODELS, ChampionConfig, ModelConfig, Models
from raylab.config.quality import Layout, QualityEvalConfig


class TrainConfig(JobConfig):
    """`jobs/train.py`."""

    job: ClassVar[str] = "train"

    model: ModelConfig = ChampionConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig()
    init_from: Location | None = None
    """Checkpoint file or run directory whose weights the model starts from."""


class TuneConfig(JobConfig):
    """`jobs/tune.py`."""

    job: ClassVar[str] = "tune"

    space: SearchSpace
    search: Search = Search.TPE
    """Tree-structured Parzen estimator, random search, or population-based training."""
    trials: PositiveInt = 20
    """Number of trials; with `population` its size."""
    concurrent: PositiveInt | None = None
    """Trials at a time; null takes as many as fit on the cluster."""
    stop_early: bool = True
    """Stop trials that fall behind at equal epochs (ASHA); population-based training does not."""
    grace_epochs: PositiveInt = 5
    """Epochs before a trial may be stopped."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """One in this many of the trials at a rung goes on to the next rung."""
    population_epochs: PositiveInt = 5
    """Epochs between copies of weights and settings from the best of a population to the worst."""
    seed: NonNegativeInt = 307
    """Seed of the search."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig(cpus_per_worker=1)
    """Workers and CPUs are those of one trial."""


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


class QualityConfig(JobConfig):
    """`jobs/quality.py`."""

    job: ClassVar[str] = "quality"

    quality_eval_cfg: QualityEvalConfig = QualityEvalConfig()
    run_id: Text | None = None
    """Directory within `{BASE_ARTIFACTS_DIR}/{scores_subdir}`, where `scores_root_dir` is null."""
    layout: Layout = Layout.AUTO
    """Meaning of directories below a model: generations, or not; `auto` decides and logs it."""
    on_missing_generation: Literal["error", "drop"] = "error"
    """Refuse generations that not every model has, or drop them."""
    strict: bool = False
    """Refuse a tree with an unusable file instead of listing the file."""
    bootstrap: NonNegativeInt = 1000
    """Bootstrap replicates of the tasks for the 95 % intervals; 0 computes none."""
    cache: bool = True
    """Cache the scores of each file, by path, size and time of change, for the next run."""
    cluster: ClusterConfig = ClusterConfig()


class PipelineConfig(JobConfig):
    """`jobs/pipeline.py`."""

    job: ClassVar[str] = "pipeline"

    models: Models = ALL_MODELS
    """Models to train in turn: an architecture or `{architecture: ..., key: value}` each."""
    take: tuple[ModelName, ...] = ()
    """Trained models to add, as in `jobs/evaluate.py`."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of `data` that every model is scored on."""
    prior: DataConfig | None = DataConfig(source=TaskSource.ARC_AGI_2, subset=Subset.EVALUATION)
    """The earlier benchmark that novelty compares with; null computes no novelty."""
    scoring: ScoringConfig = ScoringConfig()
    score_trees: tuple[Location, ...] = ()
    """Score trees of other jobs, to report their quality as well."""
    pictures: NonNegativeInt = 4
    """Tasks in the report whose predictions are drawn beside the target."""
    cluster: ClusterConfig = ClusterConfig()


class AnnotateConfig(JobConfig):
    """`jobs/annotate.py`."""

    job: ClassVar[str] = "annotate"
    moved: ClassVar[Mapping[str, str]] = {
        "drift": "python jobs/report.py drift=true (storage= and archive= as here)",
        "review": "python jobs/review.py name=RUN export=FILE (or import=FILE)",
        "review_file": "python jobs/review.py name=RUN export=FILE (or import=FILE)",
        "reviewer": "python jobs/review.py name=RUN import=FILE reviewer=NAME",
    }

    llm: LlmConfig
    cases: CasesConfig = CasesConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of the score tree: `published` (all gold cases), seeds of halves, case files."""
    fresh: bool = False
    """Repeat calls that other runs in the archive have answers to, to measure drift."""
    archive: Location | None = None
    """File, or SQLAlchemy URL without its password (PGPASSWORD); null is `<storage>/archive.db`."""
    actors: PositiveInt | None = None
    """Processes that send calls; null takes one per CPU."""
    export: Literal["parquet", "jsonl"] | None = None
    """Also write the archived cases of the run to `<run>/cases.parquet` or `.jsonl`."""
    cluster: ClusterConfig = ClusterConfig()


class ReportConfig(JobConfig):
    """`jobs/report.py`."""

    job: ClassVar[str] = "report"

    runs: tuple[Text, ...] = ()
    """Names under `storage`, directories or URIs of runs of any jobs."""
    drift: bool = False
    """Compare the annotation runs of an archive over time instead."""
    archive: Location | None = None
    """Of the annotation runs for `drift`, as `archive` of the annotation."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReportConfig":
        if bool(self.runs) == self.drift:
            raise ValueError("needs either runs=[...], to compare these, or drift=true")
        if self.archive is not None and not self.drift:
            raise ValueError("archive= goes with drift=true")
        return self


class ReviewConfig(JobConfig):
    """`jobs/review.py`."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    job: ClassVar[str] = "review"

    name: RunName | None = None
    """The annotation run whose open cases are reviewed."""
    export: LocalPath | None = None
    """Write the open cases to this JSONL file for people to fill in, instead of the page."""
    import_: LocalPath | None = Field(default=None, alias="import")
    """Archive the decisions in this JSONL file, each confirmed by the evaluator."""
    reviewer: Text | None = None
    """Name archived with imported decisions that carry none."""
    archive: Location | None = None
    """Location of its archive now, like `archive` of the annotation; null if unchanged."""
    host: Text = "127.0.0.1"
    """Address to listen at; all but loopback ones need RAYLAB_REVIEW_TOKEN."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """Port; 0 takes any free one, except on a cluster."""
    hosts: tuple[Text, ...] = ()
    """Further names under which browsers reach the page, as behind a proxy."""
    lease_minutes: Annotated[float, Field(ge=1, le=1440)] = 10.0
    """Time for which a case stays reserved for a reviewer whose tab is gone."""
    cluster: ClusterConfig = ClusterConfig()
    """With `address` or RAY_ADDRESS Ray Serve hosts the page, on the head of that cluster."""

    @model_validator(mode="after")
    def _names_a_run(self) -> "ReviewConfig":
        if self.name is None:
            raise ValueError("needs name=, the annotation run whose cases are reviewed")
        return self

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReviewConfig":
        if self.export is not None and self.import_ is not None:
            raise ValueError("takes export= or import=, not both")
        if self.reviewer is not None and self.import_ is None:
            raise ValueError("reviewer= goes with import=; the page asks for a name itself")
        return self


class BenchmarkConfig(JobConfig):
    """`jobs/benchmark.py`."""

    job: ClassVar[str] = "benchmark"

    part: Literal["train", "quality", "tune", "annotate", "scaling"] = "train"
    """The part to measure."""
    data: DataConfig = DataConfig()
    models: Models = ALL_MODELS
    """The architectures to measure, as in the pipeline."""
    batch_size: PositiveInt = 32
    """Samples per batch."""
    threads: PositiveInt = 2
    """CPU threads of torch."""
    rounds: PositiveInt = 3
    """Rounds of every measurement."""
    batches: PositiveInt = 16
    """Batches of raylab per round."""
    naive_batches: PositiveInt = 2
    """Batches of the baseline per round."""
    cases: PositiveInt = 2000
    """Cases annotated per round."""
    concurrency: PositiveInt = 128
    """Calls in flight of raylab and of the bare loop; per node for part=scaling."""
    latency: NonNegativeFloat = 0.05
    """Seconds that the local chat server takes to answer."""
    bare_loop: bool = True
    """Time the bare loop as well."""
