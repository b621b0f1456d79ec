"""Chat models behind any OpenAI-compatible endpoint: one client, its limits, the embedded model."""
