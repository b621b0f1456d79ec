"""Conclusions from labels: shares, differences and regressions, corrected by labels of people."""
