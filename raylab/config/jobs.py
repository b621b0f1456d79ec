"""The configuration of each job."""

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
    prior: DataConfig | None = DataConfig(source=TaskSource.ARC_AGI_2, subset=Subset.EVALUATION)
    """The earlier benchmark that novelty is measured against; null leaves novelty out."""
    scoring: ScoringConfig = ScoringConfig()
    score_trees: tuple[Location, ...] = ()
    """Score trees of other jobs, whose quality is reported beside."""
    pictures: NonNegativeInt = 4
    """Tasks shown in the report with each model's prediction beside the target."""
    cluster: ClusterConfig = ClusterConfig()


class AnnotateConfig(JobConfig):
    """`jobs/annotate.py`."""

    job: ClassVar[str] = "annotate"
    moved: ClassVar[Mapping[str, str]] = {
        "review": "python jobs/review.py name=RUN export=FILE (or import=FILE)",
        "review_file": "python jobs/review.py name=RUN export=FILE (or import=FILE)",
        "reviewer": "python jobs/review.py name=RUN import=FILE reviewer=NAME",
    }

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

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    job: ClassVar[str] = "review"

    name: RunName | None = None
    """The annotation run whose open cases are settled."""
    export: LocalPath | None = None
    """Write the open cases to this JSONL file for people to fill in, instead of the page."""
    import_: LocalPath | None = Field(default=None, alias="import")
    """Archive the decisions in this JSONL file, each confirmed by the evaluator."""
    reviewer: Text | None = None
    """Name archived with imported decisions that carry none."""
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
