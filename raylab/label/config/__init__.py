"""The configuration of labelling: jobs, the sections of their files, codebooks."""
