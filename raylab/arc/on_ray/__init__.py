"""Training and sweeps on Ray: their drivers, workers and schedulers."""
