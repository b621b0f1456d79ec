"""ARC in plain PyTorch: tasks, batches, metrics, the three models and their training."""
