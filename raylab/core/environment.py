"""Environment variables of this process that are set for a while."""

import os
from collections.abc import Generator
from contextlib import contextmanager

READ_BY_RAY_ON_IMPORT = {
    # A local Ray then stays on loopback, as on Windows and macOS. Else Ray replaces a loopback
    # address by one of the network.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
    # More idle actors than CPUs are expected, and Ray reports an error of each training because Ray
    # Train's preemption watcher is not restarted.
    "RAY_DEDUP_LOGS_SKIP_REGEX": (
        "PYTHON worker processes have been started|class name: 'PreemptionWatcher'"
    ),
}
"""Variables for the process of a job, before anything in it imports Ray."""
PASSIVE_WAITING = {"OMP_WAIT_POLICY": "passive"}
"""Lets torch's waiting threads sleep if it is set before anything imports torch. Else they spin,
which on a machine that others use too makes training five to ten times as slow."""
_set = set[str]()


@contextmanager
def set_variables(**values: str) -> Generator[None]:
    """Sets environment variables of this process that are not set, while in use."""
    # The user's own settings win, and are still there afterwards.
    new = values.keys() - os.environ.keys()
    os.environ.update({name: values[name] for name in new})
    _set.update(new)
    try:
        yield
    finally:
        _set.difference_update(new)
        for name in new:
            del os.environ[name]


def is_inherited(name: str) -> bool:
    """Returns True if a variable is set, and not by `set_variables`."""
    return name in os.environ and name not in _set
