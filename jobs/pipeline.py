"""Train architectures, score them on generations of tasks, measure the benchmark, and report.

Leaves `report.html`, one self-contained page. Finished work is not repeated.

Examples:
    python jobs/pipeline.py scale=demo
    python jobs/pipeline.py scale=published data.path=re_arc.zip data.split=split.json
    python jobs/pipeline.py 'models=[champion,decoder_only]' name=two
    python jobs/pipeline.py 'models=[{architecture: champion, d_model: 128}]'
    python jobs/pipeline.py 'models=[champion,decoder_only]' name=two resume=true
    python jobs/pipeline.py 'take=[sweep]' 'prior={source: arc_agi_2, subset: evaluation}'
"""

from raylab.core.entrypoint import run_job
from raylab.together.config import PipelineConfig


def run(config: PipelineConfig) -> None:
    from raylab.arc.inputs import check_classes, read_sides

    check_classes(config.models, config.training)
    sides = read_sides(config, config.data)
    tuning_sides = read_sides(config, config.tuning[1]) if config.tuning else None
    from raylab.together.pipeline import run_pipeline

    run_pipeline(config, sides, tuning_sides)


if __name__ == "__main__":
    run_job(PipelineConfig, __doc__, run)
