"""The configuration of every job: frozen pydantic models over what Hydra composes."""
