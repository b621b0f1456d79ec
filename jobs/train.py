"""Train one architecture on ARC tasks: in this process, or on many with Ray Train.

Each validation reports `val_dense_grid_objective` and saves a checkpoint in the run directory.

Examples:
    python jobs/train.py
    python jobs/train.py model=decoder_only training.lr=0.001 cluster.workers=2
    python jobs/train.py data=re_arc data.path=re_arc.zip data.split=split.json
    ray job submit --working-dir . -- python jobs/train.py storage=/shared/runs
"""

from raylab.arc.config.jobs import TrainConfig
from raylab.core.entrypoint import run_job


def run(config: TrainConfig) -> None:
    from raylab.arc.inputs import read_inputs

    inputs = read_inputs(config)
    if config.cluster.is_this_process:
        from raylab.arc.training.local import train
    else:
        from raylab.arc.on_ray.train import train
    train(inputs)


if __name__ == "__main__":
    run_job(TrainConfig, __doc__, run)
