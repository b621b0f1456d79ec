"""Speed benchmarks, each beside its plain baseline; imported by jobs/benchmark.py alone."""
