"""Leases, drafts, waiting decisions and sessions of reviewers; outside the chain."""
