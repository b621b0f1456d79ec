"""Model classes of users."""

import importlib
import inspect
import traceback
from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from raylab.arc.config.models import CustomConfig
from raylab.arc.data.batching import Batch, Draw, build_batch, demonstration_table
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD, Pair, Task, store_pairs
from raylab.arc.models.base import GridModel, Logits, ParallelModel
from raylab.core.errors import ConfigError


def build_custom(config: CustomConfig) -> GridModel:
    """Returns a model of the class that the configuration names, made with its options."""
    kind = model_class(config.target)
    try:
        return kind(**config.options)
    except TypeError as error:
        raise ConfigError(
            f"model.target={config.target} cannot be made with model.options="
            f"{dict(config.options)}: {error}"
        ) from error


def try_custom(config: CustomConfig) -> GridModel:
    """Returns a model of a custom class, after a small batch has gone through it.

    Raises:
        ConfigError: The class fails, returns something else than its base class says, or looks at
            the answer; the message names the line.
    """
    kind = model_class(config.target)
    # Two queries, of unlike sizes, from tasks of three demonstrations: an exchange of batch, cells
    # or sides gives another shape.
    tasks = [
        Task(name, tuple(Pair(*(np.full(side, c, np.uint8) for side in sides)) for c in (1, 5, 9)))
        for name, sides in (("a", ((2, 3), (3, 1))), ("b", ((1, 4), (2, 2))))
    ]
    store, queries = store_pairs(tasks), np.array([0, 3])
    shown = demonstration_table(store, queries, config.demonstrations, None)
    try:
        # A try must not change what a later training draws.
        with torch.random.fork_rng(devices=[]):
            model = build_custom(config)
            _try(model, build_batch(store, Draw(queries, shown)))
    except ConfigError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == inspect.getfile(kind)]
        line = [*frames, *own][-1]
        raise ConfigError(
            f"model.target={config.target} fails with a small batch at {line.filename}:"
            f"{line.lineno}: {type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
        ) from error
    return model


def _try(model: GridModel, batch: Batch) -> None:
    """Does with a batch what training and scoring do, and checks the form of the outputs."""
    torch.stack([logits.float().sum() for logits in _logits(model, batch)]).sum().backward()
    model.eval()
    with torch.no_grad():
        # The same sizes without their colours: a model that writes all cells may not notice.
        cells = torch.where(batch.target.cells == PAD, PAD, 0)
        hidden = batch._replace(target=batch.target._replace(cells=cells))
        pairs = zip(_logits(model, batch), _logits(model, hidden), strict=True)
        if isinstance(model, ParallelModel) and not all(torch.equal(*pair) for pair in pairs):
            raise _wrong(model, "paint", "logits that depend on batch.target", "the same for any")
        answers = model.answers(batch.without_outputs)
        queries, length = len(batch.pairs), int(answers.grids.sizes.prod(dim=1).max())
        for output, *shape in (
            (answers.grids.cells[:, :length], queries, length),
            (answers.grids.sizes, queries, 2),
            (answers.log_likelihoods, queries),
            (answers.by_rule, queries),
        ):
            _require(model, "answers", output, shape)


def _logits(model: GridModel, batch: Batch) -> list[Tensor]:
    """Returns all logits of a training step."""
    torch.manual_seed(0)
    queries, cells = batch.target.cells.shape
    method = "paint" if isinstance(model, ParallelModel) else "training_logits"
    if isinstance(model, ParallelModel):
        sizes, encoded = model.read(batch)
        _require(model, "read", sizes, [queries, 2, MAX_SIDE])
        blank = batch.target._replace(cells=torch.full_like(batch.target.cells, PAD))
        outputs: Any = model.paint(batch, blank, encoded)
        if isinstance(outputs, list | tuple):
            outputs = [Logits(output, sizes) for output in cast("list[Tensor]", outputs)]
    else:
        outputs = model.training_logits(batch)
    if not isinstance(outputs, list | tuple) or not outputs:
        raise _wrong(model, method, f"a {type(outputs).__name__}", "a list of at least one")
    for output in cast("list[Logits]", outputs):
        _require(model, method, output.cells, [queries, cells, COLOURS])
        _require(model, method, output.sizes, [queries, 2, MAX_SIDE])
    return [logits for output in cast("list[Logits]", outputs) for logits in output]


def _require(model: GridModel, method: str, output: Any, shape: list[int]) -> None:
    is_tensor = isinstance(output, Tensor)
    if not is_tensor or [*output.shape] != shape:
        form = f"a tensor of shape {[*output.shape]}" if is_tensor else f"a {type(output).__name__}"
        raise _wrong(model, method, form, f"a tensor of shape {shape}")


def _wrong(model: GridModel, method: str, output: str, due: str) -> ConfigError:
    kind = type(model)
    code = inspect.unwrap(getattr(kind, method)).__code__
    return ConfigError(
        f"model.target={kind.__module__}:{kind.__name__}: {method} ({code.co_filename}:"
        f"{code.co_firstlineno}) returns {output}, where {due} is due"
    )


def import_model_classes(targets: Iterable[str]) -> None:
    """Imports the model classes that a configuration names, so that checkpoints may use them."""
    for target in targets:
        model_class(target)


def model_class(target: str) -> type[GridModel]:
    """Imports a class of models, `package.module:Class`."""
    module, _, name = target.partition(":")
    try:
        kind = getattr(importlib.import_module(module), name, None)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"model.target={target} cannot be imported: {module} raises {type(error).__name__}: "
            f"{error}: install its package, or put its folder into PYTHONPATH"
        ) from error
    if not (isinstance(kind, type) and issubclass(kind, GridModel)):
        raise ConfigError(
            f"model.target={target} is no model class: {module} must have a class {name} that "
            "inherits raylab.arc.models.base.GridModel"
        )
    return kind
