"""Cases, their sources, and the part of them that a run has archived."""
