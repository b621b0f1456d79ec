"""The Operational Premise Taxonomy: its codes, prompts, cases, distance and codebook."""

from raylab.label.opt.code import parse
from raylab.label.opt.codebook import compare

__all__ = ["compare", "parse"]
