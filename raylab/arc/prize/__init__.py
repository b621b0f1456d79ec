"""Scoring as ARC Prize does: two attempts at each test input, by votes over views of its task."""
