"""The configuration of `jobs/quality.py`."""

from enum import StrEnum
from math import inf
from typing import Any, ClassVar, Literal, Self

from pydantic import NonNegativeInt, model_validator

from raylab.core.config.base import (
    ClusterConfig,
    Fraction,
    JobConfig,
    Keys,
    Location,
    Strict,
    Text,
    Trackers,
)

OF_OTHER_TOOLS = frozenset(
    "defaults embedding_backend embedding_dimensions embedding_model entropy_k evaluation_cfg "
    "exp_cfg kl_k mdm_metric mdm_n_clusters mmd_degree mmd_kernel pad_classifier prompt_cfg "
    "umap_metric umap_min_dist umap_n_components umap_n_neighbors".split()
)
"""Sections of Vector's configuration files that concern no figure of raylab."""


class Layout(StrEnum):
    """Layout of a score tree."""

    AUTO = "auto"
    GENERATIONS = "generations"
    """A directory for each model, with one for each generation in it."""
    FLAT = "flat"
    """A directory for each model."""
    NAMED = "named"
    """Logs and tables that name their models themselves, in any directories."""


class QualityEvalConfig(Strict):
    """The locations of the scores, and what is read of them."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model, or a run with scores; null takes that of
    `target_data`, else BASE_ARTIFACTS_DIR and `run_id`."""
    scores_subdir: Text = "scores"
    """Directory of scores within BASE_ARTIFACTS_DIR, above `run_id`."""
    prior_datasets: tuple[Location, ...] = ()
    """Directories of earlier benchmarks, laid out alike, which novelty compares with."""


class TargetData(Strict):
    """The benchmark, in Vector's configuration file."""

    scores_root_dir: Location | None = None
    """Directory with one subdirectory per model."""
    capabilities_dir: str | None = None
    """Texts of the tasks, which are not read."""


class ReferenceDataset(Strict):
    """An earlier benchmark, in Vector's configuration file."""

    name: Text | None = None
    """Its name, and that of its directory in `target_data.scores_root_dir` without `scores_dir`."""
    scores_dir: Location | None = None
    """Directory with one subdirectory per model."""
    path: str | None = None
    """Texts of its tasks, which are not read."""
    dataloader: dict[str, Any] | None = None
    """Source of these texts, which is not read."""


class ColumnNames(Strict):
    """Names of the columns of tables, where they are not those of raylab."""

    model: Text | None = None
    item: Text | None = None
    score: Text | None = None
    task: Text | None = None
    group: Text | None = None
    """Stratum of the item within its task."""
    cluster: Text | None = None
    generation: Text | None = None
    run: Text | None = None
    epoch: Text | None = None
    weight: Text | None = None
    answer: Text | None = None
    text: Text | None = None
    target: Text | None = None


class QualityConfig(JobConfig):
    """`jobs/quality.py`."""

    job: ClassVar[str] = "quality"
    main: ClassVar[Keys] = ("example", "scores", "forms", "scorer", "scale", "baseline", "layout")
    foreign: ClassVar[frozenset[str]] = OF_OTHER_TOOLS

    scores: Location | None = None
    """File or directory of logs and tables, a directory per model, or a run with scores; null takes
    `quality_eval_cfg.scores_root_dir`."""
    forms: tuple[Location, Location] | None = None
    """Two forms of the benchmark in place of `scores`, such as the original and its translation:
    the first is diagnosed, the second compared with it by the names of models and items."""
    scorer: Text | None = None
    """Score to read by its name or scorer, or the filter of lm-evaluation-harness; null reads the
    first of each file."""
    metric: Text = "accuracy"
    """Metric to read of each log; also the key of scores with several values."""
    scale: tuple[float, float] | None = None
    """Least and greatest value of a scorer that leaves [0, 1], as `[0,10]`; null leaves its scores
    out."""
    errors: Literal["exclude", "wrong"] = "exclude"
    """Samples that ended in an error are left out, or count as wrong."""
    match: Literal["id", "text"] = "id"
    """Items are paired between logs by their ids, or by their texts."""
    group: Text | None = None
    """Key of the samples' metadata, or column, with the stratum of an item within its task."""
    clusters: Text | None = None
    """Key of the samples' metadata, or column, of items that vary together, such as questions on
    one passage; `cluster=KEY` sets it too."""
    columns: ColumnNames = ColumnNames()
    baseline: Text | None = None
    """Model that every other one is compared with too, with a correction for these comparisons
    alone."""
    smallest_difference: Fraction | None = None
    """Smallest difference of interest, in (0, 1); models that differ by less are called
    equivalent where that is certain."""
    detect: Fraction | None = None
    """Difference in (0, 1); the job says how many items detect it with a power of 80 %."""
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
    """Measure ten models on 600 items of MMLU in which people looked for errors, written to
    `{storage}/example-scores`."""
    cluster: ClusterConfig = ClusterConfig()
    tracking: Trackers = ()

    @model_validator(mode="after")
    def _check_together(self) -> Self:
        if self.scale is not None and not -inf < self.scale[0] < self.scale[1] < inf:
            raise ValueError("scale: needs the least and the greatest value, as [0,10]")
        if self.forms and not (self.diagnosis and self.scores == self.forms[0]):
            raise ValueError("forms: names the scores itself, and needs diagnosis=true")
        return self

    @classmethod
    def resolve(cls, values: dict[str, Any]) -> dict[str, Any]:
        """Returns composed values with the short forms of keys spelt out.

        A single reference dataset is a list of one. A name in place of the settings of the cluster
        of machines is that of `clusters`. The first of `forms` is `scores`.
        """
        datasets = values.get("reference_datasets")
        if isinstance(datasets, dict):
            values = {**values, "reference_datasets": [datasets]}
        if isinstance(cluster := values.get("cluster"), str):
            values = {**values, "clusters": cluster, "cluster": {}}
        forms = values.get("forms")
        if isinstance(forms, list) and forms and values.get("scores") is None:
            values = {**values, "scores": forms[0]}
        return values
