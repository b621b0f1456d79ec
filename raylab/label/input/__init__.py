"""Cases and their sources: files, and the sets that come with a codebook."""
