"""ARC in plain PyTorch: tasks, batches, metrics, the models and their training."""
