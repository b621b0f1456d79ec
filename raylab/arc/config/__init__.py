"""The configuration of training and evaluation: jobs, sections, models, search spaces."""
