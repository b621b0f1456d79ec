"""The errors that raylab raises on purpose.

Each message names the file and value at fault, and the ways out. Jobs print it without a traceback
and exit with status 1 (2 for `ConfigError`).
"""


class RaylabError(Exception):
    """Base of all errors that a user can act on."""


class ConfigError(RaylabError):
    """A configuration that cannot be used."""


class DataError(RaylabError):
    """An input file, task or pair that cannot be used."""


class RunError(RaylabError):
    """A run that exists, is missing, is not writable or has another configuration."""


class CheckpointError(RaylabError):
    """A checkpoint that is corrupt, truncated or of another model."""


class TrainingError(RaylabError):
    """A training run that cannot go on."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""


class WorkersLostError(TrainingError):
    """The workers of a training died or were not placed more often than it may retry."""


class LabelError(RaylabError):
    """A text without a label of the taxonomy."""


class LlmError(RaylabError):
    """A language model that gives no answer."""


class CallError(LlmError):
    """A call that failed and would fail again."""


class TextError(CallError):
    """A call whose text the endpoint does not take: it is too long, or a filter stopped it."""


class DeadlineError(LlmError):
    """A call that got no answer in time, but may later."""


class EndpointError(LlmError):
    """An endpoint where every call would fail."""


class BudgetError(LlmError):
    """The budget is used up; nothing was sent."""


class StoppedError(LlmError):
    """The run is stopping; nothing was sent."""


class ArchiveError(RaylabError):
    """An archive that cannot be reached, read or trusted."""


class LeaseError(ArchiveError):
    """A case that another reviewer has taken over."""


class OwnerError(ArchiveError):
    """A run that another process works on, or has taken over."""
