"""A client for OpenAI-compatible chat endpoints, with rate limits and an embedded model."""
