"""The four figures of a benchmark, and their intervals."""
