"""A limit on the memory of this process, for tests of inputs that would fill it."""

import resource
from collections.abc import Generator
from contextlib import contextmanager

import psutil

MIB = 1 << 20


@contextmanager
def memory(most: int = 256 * MIB) -> Generator[None]:
    """Lets the process reserve at most this many bytes more; beyond that it gets a MemoryError."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    used = psutil.Process().memory_info().vms
    resource.setrlimit(resource.RLIMIT_AS, (used + most, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)
