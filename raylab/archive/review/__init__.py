"""Leases, drafts, waiting decisions and sessions of reviewers."""
