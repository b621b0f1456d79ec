"""The archive: one database of calls, cases and decisions that outlives models, runs and crashes.

`store.Archive` is its door. A run's cases and decisions form one hash chain, so that what was
altered, removed or put in from outside can be named.
"""
