"""Every error that raylab raises on purpose.

RaylabError
├── ConfigError          a configuration that cannot be used
├── DataError            an input file, task or pair that cannot be used
├── RunError             a run directory that is used, missing or of another configuration
├── CheckpointError      a checkpoint that is corrupt, truncated or of another model
└── TrainingError        a training run that cannot go on
    └── NonFiniteLossError   the loss became NaN or infinite

Each message names the file and the value at fault and the ways out. Jobs print it without a
traceback and exit with status 1 (2 for `ConfigError`).
"""


class RaylabError(Exception):
    """Base of all errors a user can act on."""


class ConfigError(RaylabError):
    """A configuration that cannot be used."""


class DataError(RaylabError):
    """An input file, task or pair that cannot be used."""


class RunError(RaylabError):
    """A run directory that is used, missing or of another configuration."""


class CheckpointError(RaylabError):
    """A checkpoint that is corrupt, truncated or of another model."""


class TrainingError(RaylabError):
    """A training run that cannot go on."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""
