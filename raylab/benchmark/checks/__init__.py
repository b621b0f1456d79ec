"""The diagnosis of a benchmark from the responses of models to its items."""
