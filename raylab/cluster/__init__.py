"""The only package that imports ray: it places on a cluster what the others compute."""

import os

# Read once, when ray is imported: of lost nodes the session tells in one line, and that actors
# which only wait are more than the CPUs of their node is as it should be.
os.environ.setdefault(
    "RAY_DEDUP_LOGS_SKIP_REGEX",
    "has been marked dead because|PYTHON worker processes have been started",
)
