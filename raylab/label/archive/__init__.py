"""The archive: one database of calls, cases and decisions that outlives models, runs and crashes.

`store.Archive` is the entry point. Records are only ever added; each carries the SHA-256 of its
content, which is checked when it is read.
"""
