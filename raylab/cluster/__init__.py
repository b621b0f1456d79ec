"""Placement on a Ray cluster; with raylab.benchmarks the only package that imports ray."""

import os

# Read once, when ray is imported. More idle actors than CPUs is expected.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "PYTHON worker processes have been started")
