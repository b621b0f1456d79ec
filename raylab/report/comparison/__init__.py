"""Runs of any kinds side by side."""
