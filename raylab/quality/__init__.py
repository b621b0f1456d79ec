"""Benchmark quality: score trees, read and written, and the four metrics over them."""
