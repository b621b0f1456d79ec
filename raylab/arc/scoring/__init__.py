"""The scoring of trained models: of a batch, of tasks in a score tree, of the test side."""
