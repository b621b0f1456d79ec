"""Search architectures and hyperparameters with Ray Tune; every trial is a training run.

Leaves `report.html` with the trials by rank, and `best.yaml` for jobs/train.py.

Examples:
    python jobs/tune.py name=sweep trials=50 cluster.workers=2
    python jobs/tune.py name=sweep trials=50 cluster.workers=2 resume=true
    python jobs/tune.py search=random 'space.training.lr.log_uniform=[1e-4,1e-2]'
    python jobs/train.py --config runs/sweep/best.yaml training.epochs=100
"""

from raylab.arc.config.jobs import TuneConfig
from raylab.core.entrypoint import run_job


def run(config: TuneConfig) -> None:
    from raylab.arc.inputs import check_classes, read_sides

    check_classes(config.space.classes, config.training)
    sides = read_sides(config, config.data)
    from raylab.arc.on_ray.tune import tune

    tune(config, sides)


if __name__ == "__main__":
    run_job(TuneConfig, __doc__, run)
