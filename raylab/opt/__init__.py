"""The Operational Premise Taxonomy: its codes, prompts, cases, distance and codebook."""
