"""The configuration classes of the jobs."""

import importlib.util
import sys
from pathlib import PurePath
from typing import Annotated, Any, ClassVar, Literal, cast

from pydantic import (
    ConfigDict,
    Field,
    IPvAnyNetwork,
    NonNegativeFloat,
    NonNegativeInt,
    PositiveInt,
    field_validator,
    model_validator,
)

from raylab.config.annotation import (
    CasesConfig,
    LlmConfig,
    PeopleConfig,
    ProtocolConfig,
    idle_roles,
)
from raylab.config.arc import (
    DataConfig,
    ScoringConfig,
    TrainingConfig,
)
from raylab.config.base import (
    AS_PUBLISHED,
    ClusterConfig,
    Generation,
    JobConfig,
    Keys,
    LocalPath,
    Location,
    ModelName,
    RunName,
    Seed,
    Text,
    Trackers,
)
from raylab.config.codebook import EXAMPLES, CodebookConfig, read_codebook
from raylab.config.llm import EmbeddingModel
from raylab.config.models import ALL_MODELS, ChampionConfig, ModelConfig, Models
from raylab.config.quality import (
    OF_OTHER_TOOLS,
    Layout,
    QualityEvalConfig,
    ReferenceDataset,
    TargetData,
)
from raylab.config.search import Search, SearchSpace


class TrainConfig(JobConfig):
    """`jobs/train.py`."""

    job: ClassVar[str] = "train"
    main: ClassVar[Keys] = (
        "training.epochs",
        "training.max_minutes",
        "training.batch_size",
        "training.lr",
        "data.path",
        "init_from",
        "cluster.workers",
    )

    model: ModelConfig = ChampionConfig()
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ("tensorboard",)
    init_from: ModelName | None = None
    """Trained model whose weights and sizes the model starts from: a checkpoint file, or a run by
    its name under `storage` or its directory."""


DEFAULT_TRIALS = 20


class TuneConfig(JobConfig):
    """`jobs/tune.py`."""

    job: ClassVar[str] = "tune"
    main: ClassVar[Keys] = (
        "trials",
        "search",
        "stop_early",
        "concurrent",
        "training.epochs",
        "cluster.workers",
    )

    space: SearchSpace
    search: Search = Search.TPE
    """Tree-structured Parzen estimator, random search, or all combinations; no configuration is
    drawn twice."""
    trials: PositiveInt | None = None
    """Most trials, fewer if the space has fewer configurations; null is 20, for `grid` all."""
    concurrent: PositiveInt | None = None
    """Trials at a time; null takes as many as fit on the cluster."""
    stop_early: bool = True
    """Stop trials that fall behind at equal epochs (ASHA); none with `training.max_minutes`, which
    ends trials at different epochs."""
    grace_epochs: PositiveInt = 5
    """Fewest epochs before a trial may be stopped, extended to the next end of all cosines."""
    reduction_factor: Annotated[int, Field(ge=2)] = 3
    """Of this many trials, one continues from a rung to the next."""
    seed: Seed = 307
    """Seed of the search."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    cluster: ClusterConfig = ClusterConfig(cpus_per_worker=1)
    """Workers and CPUs of one trial."""
    tracking: Trackers = ("tensorboard",)

    @property
    def trial_count(self) -> int:
        """The number of trials."""
        size = self.space.size
        by_default = size if size and self.search is Search.GRID else DEFAULT_TRIALS
        return min(self.trials or by_default, size or sys.maxsize)

    @model_validator(mode="after")
    def _grid_is_finite(self) -> "TuneConfig":
        endless = self.space.endless
        if self.search is Search.GRID and endless:
            raise ValueError(
                f"search=grid trains all combinations, and {', '.join(endless)} have no end of "
                f"values: list some with choice, delete each ('~{endless[0]}'), or draw with "
                "search=random"
            )
        return self

    @model_validator(mode="after")
    def _rungs_compare_one_schedule(self) -> "TuneConfig":
        drawn = self.space.training.get("schedule")
        if self.stop_early and drawn is not None and len(drawn.extremes) > 1:
            raise ValueError(
                "the space draws training.schedule, and trials are compared at equal epochs, where "
                "one has a low learning rate and another a high one: set stop_early=false, or "
                "sweep each schedule by itself"
            )
        return self


class EvaluateConfig(JobConfig):
    """`jobs/evaluate.py`."""

    job: ClassVar[str] = "evaluate"
    main: ClassVar[Keys] = (
        "models",
        "submission",
        "generations",
        "data.path",
        "scoring.metric",
        "cluster.workers",
    )

    models: tuple[ModelName, ...] = ()
    """Checkpoint files, run names under `storage`, run directories, or sweeps (all trials)."""
    submission: Location | None = None
    """Anyone's `submission.json`, to score instead of models."""
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Seeds of redrawings, `published`, or paths of archives in the format of `data.source`; with
    `scoring=arc` `published` alone by default."""
    data: DataConfig = DataConfig()
    scoring: ScoringConfig = ScoringConfig()
    cluster: ClusterConfig = ClusterConfig()

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values with the one generation that ARC Prize's scoring is about."""
        scoring = values.get("scoring")
        if isinstance(scoring, dict) and cast("dict[str, Any]", scoring).get("protocol") == "arc":
            return {"generations": [AS_PUBLISHED], **values}
        return values

    @model_validator(mode="after")
    def _models_or_submission(self) -> "EvaluateConfig":
        if bool(self.models) == (self.submission is not None):
            raise ValueError("give models=[...] to score, or submission=FILE: one of the two")
        if self.submission is not None and self.scoring.protocol != "arc":
            raise ValueError("a submission is scored as ARC Prize does: add scoring=arc")
        return self


class QualityConfig(JobConfig):
    """`jobs/quality.py`."""

    job: ClassVar[str] = "quality"
    main: ClassVar[Keys] = (
        "example",
        "quality_eval_cfg.scores_root_dir",
        "layout",
        "strict",
        "bootstrap",
        "diagnosis",
    )
    foreign: ClassVar[frozenset[str]] = OF_OTHER_TOOLS

    quality_eval_cfg: QualityEvalConfig = QualityEvalConfig()
    target_data: TargetData = TargetData()
    reference_datasets: tuple[ReferenceDataset, ...] = ()
    """Earlier benchmarks after those of `quality_eval_cfg`, as Vector's file names them; with any,
    a model's accuracy on an earlier benchmark is the mean over all files, as in Vector's script."""
    metrics_to_compute: tuple[Text, ...] = ()
    """Figures to compute; empty computes all. Those that raylab lacks are named as not computed."""
    run_id: Text | None = None
    """Directory in `{BASE_ARTIFACTS_DIR}/{scores_subdir}`; used if `scores_root_dir` is null."""
    layout: Layout = Layout.AUTO
    """Directories are those of models, with generations in them or not, or logs and tables name
    their models themselves; `auto` decides and logs the reason."""
    on_missing_generation: Literal["error", "drop"] = "error"
    """`error` refuses generations that some model lacks; `drop` leaves them out."""
    strict: bool = False
    """Refuse a tree with unusable files instead of listing them."""
    bootstrap: NonNegativeInt = 1000
    """Bootstrap replicates of the tasks for the 95 % intervals; 0 computes none."""
    diagnosis: bool = True
    """Diagnose the benchmark by the samples of its logs; `false` reads no samples."""
    example: bool = False
    """Measure simulated scores with planted faults, written to `{storage}/example-scores`."""
    embeddings: EmbeddingModel | None = None
    """Embedding model of the items' texts, to measure how varied they are and how far from those of
    earlier benchmarks; needs `pip install 'raylab[embeddings]'`."""
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ()

    @field_validator("embeddings", mode="after")
    @classmethod
    def _packages_are_there(cls, embeddings: EmbeddingModel | None) -> EmbeddingModel | None:
        if embeddings and not all(map(importlib.util.find_spec, ("sklearn", "kmedoids"))):
            raise ValueError("needs its packages: pip install 'raylab[embeddings]'")
        return embeddings

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values with a single reference dataset as a list of one."""
        datasets = values.get("reference_datasets")
        return (
            {**values, "reference_datasets": [datasets]} if isinstance(datasets, dict) else values
        )


class PipelineConfig(JobConfig):
    """`jobs/pipeline.py`."""

    job: ClassVar[str] = "pipeline"
    main: ClassVar[Keys] = (
        "models",
        "take",
        "training.epochs",
        "training.max_minutes",
        "data.path",
        "generations",
        "pictures",
    )

    models: Models = ALL_MODELS
    """Models to train in turn: an architecture or `{architecture: ..., key: value}` each."""
    take: tuple[ModelName, ...] = ()
    """Trained models to add, as in `jobs/evaluate.py`."""
    data: DataConfig = DataConfig()
    training: TrainingConfig = TrainingConfig()
    generations: Annotated[tuple[Generation, ...], Field(min_length=1)] = (AS_PUBLISHED, 1, 2)
    """Generations of `data` that every model is scored on."""
    prior: DataConfig | None = None
    """An earlier benchmark that all models are scored on too, for novelty to compare with."""
    scoring: ScoringConfig = ScoringConfig()
    pictures: NonNegativeInt = 4
    """Number of tasks in the report with predictions drawn beside the target."""
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ("tensorboard",)

    @model_validator(mode="after")
    def _scores_pairs(self) -> "PipelineConfig":
        if self.scoring.protocol != "pairs":
            raise ValueError(
                f"scoring.protocol={self.scoring.protocol} is of jobs/evaluate.py: score the run "
                "of the pipeline with it"
            )
        return self


class AnnotateConfig(JobConfig):
    """`jobs/annotate.py`."""

    job: ClassVar[str] = "annotate"
    main: ClassVar[Keys] = (
        "codebook",
        "cases.path",
        "cases.take",
        "dry_run",
        "llm.budget.money",
        "archive",
        "export",
    )

    llm: LlmConfig
    codebook: Text | CodebookConfig = "opt"
    """What the texts are classified by: opt, sentiment, topics, entities, or a YAML file."""
    cases: CasesConfig = CasesConfig()
    protocol: ProtocolConfig = ProtocolConfig()
    review: PeopleConfig = PeopleConfig()
    generations: tuple[Location, ...] = ()
    """Case files that are further generations of the score tree, such as other wordings."""
    fresh: bool = False
    """Repeat calls that other runs in the archive have answered, to measure drift."""
    archive: Location | None = None
    """File, or SQLAlchemy URL without password (PGPASSWORD); null is `<storage>/archive.db`."""
    actors: PositiveInt | None = None
    """Processes that send calls; null takes one per CPU."""
    dry_run: bool = False
    """Print the number and cost of the calls and tokens that the run would need, and stop: nothing
    is sent, and no run is made."""
    export: Literal["parquet", "csv", "label-studio", "inspect"] | None = None
    """Also write the archived cases of the run to `<run>/cases.parquet`, `cases.csv`,
    `label-studio.json` (tasks with predictions and annotations) or `inspect/` (logs with samples).
    """
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ()

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Reads the codebook's file, and leaves out the models of roles that nobody asks."""
        name = values.get("codebook")
        if isinstance(name, str) and (name in EXAMPLES or PurePath(name).suffix):
            values = {**values, "codebook": read_codebook(EXAMPLES.get(name, name))}
        match values:
            case {"llm": dict(llm), "protocol": dict(protocol)}:
                roles = cast("dict[str, Any]", llm)
                rules = cast("dict[str, Any]", protocol)
                idle = idle_roles(rules.get("stages"), rules.get("adjudicator"))
                return {**values, "llm": {k: v for k, v in roles.items() if k not in idle}}
            case _:
                return values

    @model_validator(mode="after")
    def _has_a_model_for_each_role(self) -> "AnnotateConfig":
        rules = self.protocol
        idle = idle_roles(rules.stages, rules.adjudicator)
        roles = ("annotators", "adjudicator")
        missing = [f"llm.{key}" for key in roles if key not in idle and not getattr(self.llm, key)]
        if missing:
            raise ValueError(
                f"protocol.stages={rules.stages} needs {', '.join(missing)}: configure the model "
                "of each, or judge candidates by the evaluator alone with protocol.stages=evaluate"
            )
        return self


class ReportConfig(JobConfig):
    """`jobs/report.py`."""

    job: ClassVar[str] = "report"
    main: ClassVar[Keys] = ("runs", "drift", "archive")

    runs: tuple[Text, ...] = ()
    """Runs of any jobs: names under `storage`, directories or URIs."""
    drift: bool = False
    """Compare the annotation runs of an archive over time instead."""
    archive: Location | None = None
    """Archive for `drift`, given like `archive` of the annotation."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReportConfig":
        if bool(self.runs) == self.drift:
            raise ValueError("needs either runs=[...], the runs to compare, or drift=true")
        if self.archive is not None and not self.drift:
            raise ValueError("archive= goes with drift=true")
        return self


class ReviewConfig(JobConfig):
    """`jobs/review.py`."""

    model_config = ConfigDict(validate_by_name=True, serialize_by_alias=True)
    job: ClassVar[str] = "review"
    main: ClassVar[Keys] = ("export", "import", "audit", "reviewer", "archive", "host", "port")

    name: RunName | None = None
    """The annotation run whose open cases are reviewed."""
    export: LocalPath | None = None
    """Write the open cases to this file as tasks of Label Studio, instead of serving the page."""
    import_: LocalPath | None = Field(default=None, alias="import")
    """Archive the annotations in this file, a JSON export of Label Studio."""
    audit: Annotated[float, Field(gt=0, le=1)] | None = None
    """Draw a random sample of this share of the cases that the protocol decided, for people to
    classify unseen on the page; export= writes it instead of the open cases."""
    reviewer: Text | None = None
    """Name archived with imported decisions that carry none."""
    archive: Location | None = None
    """Present location of the archive, like `archive` of the annotation; null if unchanged."""
    host: Text = "127.0.0.1"
    """Address to listen at; any but a loopback address needs RAYLAB_REVIEW_TOKEN."""
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    """Port; 0 takes any free one, except on a cluster."""
    hosts: tuple[Text, ...] = ()
    """Further host names under which browsers reach the page, such as that of a proxy."""
    proxies: tuple[IPvAnyNetwork, ...] = ()
    """Addresses, or networks such as 10.0.0.0/8, of TLS proxies before the page, whose
    X-Forwarded-Proto and X-Forwarded-For are believed."""
    lease_minutes: Annotated[float, Field(ge=1, le=1440)] = 10.0
    """Minutes for which a case stays reserved after a reviewer's tab is gone."""
    cluster: ClusterConfig = ClusterConfig()
    """With `address` or RAY_ADDRESS, Ray Serve hosts the page on the head of that cluster."""

    @model_validator(mode="after")
    def _does_one_thing(self) -> "ReviewConfig":
        if self.name is None:
            raise ValueError("needs name=, the annotation run whose cases are reviewed")
        if self.export is not None and self.import_ is not None:
            raise ValueError("takes export= or import=, not both")
        if self.reviewer is not None and self.import_ is None:
            raise ValueError("reviewer= goes with import=; the page asks for a name itself")
        return self


class BenchmarkConfig(JobConfig):
    """`jobs/benchmark.py`."""

    job: ClassVar[str] = "benchmark"
    main: ClassVar[Keys] = (
        "part",
        "models",
        "batch_size",
        "threads",
        "rounds",
        "cases",
        "concurrency",
    )

    part: Literal["train", "annotate", "quality"] = "train"
    """The part to measure."""
    data: DataConfig = DataConfig()
    models: Models = ALL_MODELS
    """The architectures to measure, as in the pipeline."""
    batch_size: PositiveInt = 32
    """Samples of a training step."""
    threads: PositiveInt = 2
    """CPU threads of torch."""
    rounds: PositiveInt = 3
    """Rounds of every measurement."""
    batches: PositiveInt = 4
    """Steps that raylab, and then its baseline, train per round."""
    cases: PositiveInt = 2000
    """Cases annotated per round."""
    concurrency: PositiveInt = 128
    """Calls in flight, of raylab and of the bare loop."""
    latency: NonNegativeFloat = 0.05
    """Seconds that the local chat server takes to answer."""
