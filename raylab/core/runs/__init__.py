"""Run directories, their records, and the score logs in them."""
