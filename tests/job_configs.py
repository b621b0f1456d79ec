"""The configuration classes of all jobs."""

from raylab.arc.config.jobs import EvaluateConfig, TrainConfig, TuneConfig
from raylab.benchmark.config import QualityConfig
from raylab.core.config.base import JobConfig
from raylab.label.config.jobs import AnnotateConfig, ConcludeConfig, ReviewConfig
from raylab.together.config import BenchmarkConfig, PipelineConfig, ReportConfig

JOB_CONFIGS: list[type[JobConfig]] = [
    TrainConfig,
    TuneConfig,
    EvaluateConfig,
    AnnotateConfig,
    ReviewConfig,
    ConcludeConfig,
    QualityConfig,
    PipelineConfig,
    ReportConfig,
    BenchmarkConfig,
]
