"""raylab: ARC training, OPT-Code annotation and benchmark quality as jobs on Ray.

These are the names for notebooks and for code that extends raylab. Each is imported when it is
first used, so `import raylab` takes milliseconds.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from raylab.arc.data.batching import Batch
    from raylab.arc.metrics import compute_grid_metrics
    from raylab.arc.models.base import AutoregressiveModel, GridModel, ParallelModel
    from raylab.core.entrypoint import start
    from raylab.core.errors import ConfigError, RaylabError
    from raylab.core.runs.run import read_run
    from raylab.label.pages.conclusions import conclude
    from raylab.together import frames

__all__ = [
    "AutoregressiveModel",
    "Batch",
    "ConfigError",
    "GridModel",
    "ParallelModel",
    "RaylabError",
    "compute_grid_metrics",
    "conclude",
    "frames",
    "read_run",
    "start",
]

_MODULES = {
    "AutoregressiveModel": "raylab.arc.models.base",
    "Batch": "raylab.arc.data.batching",
    "ConfigError": "raylab.core.errors",
    "GridModel": "raylab.arc.models.base",
    "ParallelModel": "raylab.arc.models.base",
    "RaylabError": "raylab.core.errors",
    "compute_grid_metrics": "raylab.arc.metrics",
    "conclude": "raylab.label.pages.conclusions",
    "frames": "raylab.together.frames",
    "read_run": "raylab.core.runs.run",
    "start": "raylab.core.entrypoint",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'raylab' has no attribute {name!r}")
    module = importlib.import_module(_MODULES[name])
    return module if name == "frames" else getattr(module, name)


def __dir__() -> list[str]:
    return [*globals(), *__all__]
