"""The Operational Premise Taxonomy: its codes, prompts, cases, distance and codebook."""

from raylab.label.opt.agreement import compare
from raylab.label.opt.code import parse

__all__ = ["compare", "parse"]
