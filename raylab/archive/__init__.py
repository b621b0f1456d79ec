"""The archive: one database of calls, cases and decisions that outlives models, runs and crashes.

`store.Archive` is the entry point. The cases, decisions and audits of a run form one hash chain,
which reveals records that were altered, removed or inserted from outside.
"""
