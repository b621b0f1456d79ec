"""Trains, searches and scores transformers on ARC grid tasks.

`data` reads, splits and batches tasks; `models` has the architectures, `metrics` and `scoring` the
exact figures, `prize` ARC Prize's protocol; `training` runs one training, `evaluation` scores
trained models, `pages` reports, and `on_ray` places the work. All but `on_ray` run without Ray.
Begin with `inputs`, then `training.local`.
"""
