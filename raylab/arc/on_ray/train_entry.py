"""The function that Ray Train starts on every worker."""

from raylab.arc.on_ray.train_messages import WorkerSettings
from raylab.core.errors import RaylabError

SETTINGS = "settings"


def work(loop_config: dict[str, WorkerSettings]) -> RaylabError | None:
    """Trains as one worker; Ray's controller loads this module without torch or Lightning.

    Returns:
        The error that no retry would fix, or None.
    """
    from raylab.arc.on_ray.train_worker import train_worker

    return train_worker(loop_config[SETTINGS])
