"""Annotation on Ray: its actors, and the driver that streams cases to them."""
