"""Codebooks made from files: their labels, distances, answers and prompts."""
