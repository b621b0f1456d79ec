"""A client for chat models behind OpenAI-compatible endpoints, its limits, an embedded model."""
