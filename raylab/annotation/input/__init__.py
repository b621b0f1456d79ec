"""What is annotated: cases, their sources, and what of them a run has archived."""
