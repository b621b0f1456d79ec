"""ARC tasks: sources, splits, groups, batches and training steps."""
