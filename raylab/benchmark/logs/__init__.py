"""Readers of responses: from logs and tables of several formats, in any mixture."""
