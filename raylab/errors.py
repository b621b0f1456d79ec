"""Every error that raylab raises on purpose.

RaylabError
├── ConfigError          a configuration that cannot be used
├── DataError            an input file, task or pair that cannot be used
├── RunError             a run that is used, missing, not to be written or of another configuration
├── CheckpointError      a checkpoint that is corrupt, truncated or of another model
├── TrainingError        a training run that cannot go on
│   ├── NonFiniteLossError   the loss became NaN or infinite
│   └── WorkersLostError     its workers died, or found no place, too often
├── LabelError           a text that holds no label of the taxonomy
│   └── OptCodeError         a text that holds no OPT-Code
├── LlmError             a call to a language model without an answer
│   ├── CallError            this call failed, after its retries
│   ├── EndpointError        the endpoint refuses or answers nothing: every call would fail
│   ├── BudgetError          the budget is used up
│   └── StoppedError         the run is stopping
└── ArchiveError         an archive that cannot be reached, read or trusted
    └── LeaseError           a case that another reviewer works on by now

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
    """A run that is used, missing, not to be written or of another configuration."""


class CheckpointError(RaylabError):
    """A checkpoint that is corrupt, truncated or of another model."""


class TrainingError(RaylabError):
    """A training run that cannot go on."""


class NonFiniteLossError(TrainingError):
    """The loss became NaN or infinite."""


class WorkersLostError(TrainingError):
    """The workers of a training died, or found no place, more often than is tried."""


class LabelError(RaylabError):
    """A text that holds no label of the taxonomy."""


class OptCodeError(LabelError):
    """A text that holds no OPT-Code."""


class LlmError(RaylabError):
    """A call to a language model without an answer."""


class CallError(LlmError):
    """A call that failed, after its retries."""


class EndpointError(LlmError):
    """An endpoint that refuses or answers nothing, so that every call would fail."""


class BudgetError(LlmError):
    """The budget is used up; nothing was sent."""


class StoppedError(LlmError):
    """The run is stopping; nothing was sent."""


class ArchiveError(RaylabError):
    """An archive that cannot be reached, read or trusted."""


class LeaseError(ArchiveError):
    """A case that another reviewer works on by now."""
