"""Models scored and benchmarks measured, from their inputs to their tables, wherever they run."""
