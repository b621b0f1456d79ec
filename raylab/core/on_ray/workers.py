"""Workers that make each call as a Ray task, in the current session."""

import sys
from collections.abc import Callable, Generator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

import ray

from raylab.core.config.base import ClusterConfig
from raylab.core.on_ray.session import (
    count_places,
    cpus_per_worker,
    owns_connection,
    placement_options,
    result_of,
    uses_gpu,
)
from raylab.core.workers import Key, R, Workers


class RayWorkers(Workers):
    """Tasks of a Ray session.

    Attributes:
        share: The CPUs of a task, one by default, and whether it has a GPU.
        places: The tasks that the cluster has room for, `cluster.workers` at most.
    """

    def __init__(self, cluster: ClusterConfig) -> None:
        """Takes the share of a task of the cluster."""
        alone = {"workers": 1, "cpus_per_worker": cluster.cpus_per_worker or 1}
        share = cluster.model_copy(update=alone)
        super().__init__(share.model_copy(update={"use_gpu": uses_gpu(share)}))
        self._at_once = cluster.most_workers if cluster.most_workers > 1 else None
        self.places = max(1, min(count_places(self.share), self._at_once or sys.maxsize))

    def put(self, value: Any) -> Any:
        """Stores a value once, for all nodes."""
        return ray.put(value)

    def run(
        self, function: Callable[..., R], calls: Mapping[Key, Sequence[Any]]
    ) -> Generator[tuple[Key, R]]:
        """Makes the calls at once as far as the cluster has room, `cluster.workers` at most."""
        task = cast("Any", ray.remote(function)).options(
            num_cpus=cpus_per_worker(self.share),
            num_gpus=int(bool(self.share.use_gpu)),
            **placement_options(self.share),
            # Storage may fail for a moment; any other error would come again.
            max_retries=self.share.max_failures,
            retry_exceptions=[OSError],
        )
        waiting = iter(calls.items())
        pending: dict[ray.ObjectRef[Any], Key] = {}
        try:
            while True:
                room = None if self._at_once is None else self._at_once - len(pending)
                for key, arguments in islice(waiting, room):
                    pending[task.remote(*arguments)] = key
                if not pending:
                    return
                (ready,), _ = ray.wait(list(pending), num_returns=1)
                result = result_of(ready, f"{function.__name__} of {pending[ready]}")
                yield pending.pop(ready), result
        finally:
            # Ray 2.60 aborts this process if a task ends while it is cancelled, as tasks do at
            # Ctrl-C in a terminal. The end of the session ends them too, unless it is another's.
            for reference in () if owns_connection() else pending:
                ray.cancel(reference, force=True)


def session_workers(cluster: ClusterConfig) -> Workers:
    """Returns the workers of a Ray session; this process if the configuration asks for no more."""
    return Workers(cluster) if cluster.is_this_process else RayWorkers(cluster)
