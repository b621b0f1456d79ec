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
_set = set[str]()


def waiting() -> dict[str, str]:
    """Returns the variable that lets torch's waiting threads sleep if others use this machine too.

    It counts if it is set before anything imports torch. Threads that spin are about 1.3 times as
    fast where nothing else runs, and five to ten times as slow beside other work.
    """
    is_shared = os.getloadavg()[0] > (os.cpu_count() or 1) / 2
    return {"OMP_WAIT_POLICY": "passive"} if is_shared else {}


@contextmanager
def set_variables(**values: str) -> Generator[None]:
    """Sets environment variables of this process that are not set, while in use."""
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
