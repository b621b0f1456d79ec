"""The function that Ray Train starts on every worker."""

from raylab.cluster.train_messages import WorkerSettings
from raylab.errors import RaylabError

SETTINGS = "settings"


def work(loop_config: dict[str, WorkerSettings]) -> RaylabError | None:
    """Trains as one worker; Ray's controller loads this module without torch or Lightning.

    Returns:
        The error that no retry would fix, or None.
    """
    from raylab.cluster.train_worker import train_worker

    return train_worker(loop_config[SETTINGS])
