"""Families of generated tasks."""
