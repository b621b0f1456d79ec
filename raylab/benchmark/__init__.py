"""Judges a benchmark by the scores and responses of models on it, ours or anyone's.

`logs` reads score trees, logs and tables; `figures` has the four figures of the quality script and
their intervals; `checks` diagnoses differences, noise, suspects and near-duplicates; `pages` shows
both. Begin with `run`, which goes from the configuration to the report.
"""
