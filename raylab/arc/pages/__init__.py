"""The sections and pages of trainings, sweeps and scores."""
