"""Model classes of users."""

import importlib
import inspect
import traceback
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from raylab.arc.config.models import CustomConfig
from raylab.arc.data.batching import Batch, Draw, build_batch, demonstration_table
from raylab.arc.data.store import store_pairs
from raylab.arc.data.tasks import COLOURS, MAX_SIDE, PAD, Pair, Task
from raylab.arc.models.base import Answers, GridModel, Logits, ParallelModel
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
    kind, batch = model_class(config.target), _small_batch(config.demonstrations)
    hidden = batch.target._replace(cells=torch.where(batch.target.cells == PAD, PAD, 0))

    def logits(batch: Batch) -> list[Tensor]:
        torch.manual_seed(0)
        outputs = _logits(model, batch)
        return [tensor for output in outputs for tensor in output]

    try:
        with torch.random.fork_rng(devices=[]):
            model = build_custom(config)
            torch.stack([tensor.float().sum() for tensor in logits(batch)]).sum().backward()
            model.eval()
            with torch.no_grad():
                seen, unseen = logits(batch), logits(batch._replace(target=hidden))
                if isinstance(model, ParallelModel) and not all(map(torch.equal, seen, unseen)):
                    raise _FormError(
                        "paint", "other logits where batch.target has other cells", "the same"
                    )
                _require_answers(model.answers(batch.without_outputs), batch)
    except _FormError as error:
        method, found, due = error.args
        code = inspect.unwrap(getattr(kind, method)).__code__
        raise ConfigError(
            f"model.target={config.target}: {method} ({code.co_filename}:{code.co_firstlineno}) "
            f"returns {found}, where {due} is due"
        ) from None
    except (Exception, SystemExit) as error:
        if isinstance(error, ConfigError):
            raise
        file = inspect.getfile(kind)
        frames = traceback.extract_tb(error.__traceback__)
        own = [frame for frame in frames if frame.filename == file] or [frames[-1]]
        reason = f"{error}".strip().partition("\n")[0]
        raise ConfigError(
            f"model.target={config.target} fails with a small batch at {own[-1].filename}:"
            f"{own[-1].lineno}: {type(error).__name__}: {reason}"
        ) from error
    return model


class _FormError(Exception):
    """An output of another form: the method, what it returns, and what is due."""


def _small_batch(demonstrations: int) -> Batch:
    """Returns two queries, of unlike sizes, from tasks of three demonstrations."""
    sides = ((2, 3), (3, 1)), ((1, 4), (2, 2))
    tasks = [
        Task(
            f"{index}",
            tuple(Pair(*(np.full(side, c, np.uint8) for side in own)) for c in (1, 5, 9)),
        )
        for index, own in enumerate(sides)
    ]
    store, queries = store_pairs(tasks), np.array([0, 3])
    shown = demonstration_table(store, queries, demonstrations, None)
    return build_batch(store, Draw(queries, shown))


def _logits(model: GridModel, batch: Batch) -> list[Logits]:
    """Returns the logits of a training step; checks their form."""
    queries, cells = batch.target.cells.shape
    shapes = Logits([queries, cells, COLOURS], [queries, 2, MAX_SIDE])
    if isinstance(model, ParallelModel):
        sizes, encoded = model.read(batch)
        _require("read", sizes, shapes.sizes)
        blank = batch.target._replace(cells=torch.full_like(batch.target.cells, PAD))
        outputs = _require_list("paint", model.paint(batch, blank, encoded))
        for output in outputs:
            _require("paint", output, shapes.cells)
        return [Logits(output, sizes) for output in outputs]
    outputs = _require_list("training_logits", model.training_logits(batch))
    for output in [*outputs, model(batch)]:
        _require("forward", output.cells, shapes.cells)
        _require("forward", output.sizes, shapes.sizes)
    return outputs


def _require_answers(answers: Answers, batch: Batch) -> None:
    queries = len(batch.pairs)
    length = int(answers.grids.sizes.prod(dim=1).max())
    _require("answers", answers.grids.cells[:, :length], [queries, length])
    _require("answers", answers.grids.sizes, [queries, 2])
    _require("answers", answers.log_likelihoods, [queries])
    _require("answers", answers.by_rule, [queries])


def _require(method: str, found: Any, shape: list[int]) -> None:
    is_tensor = isinstance(found, Tensor)
    if not is_tensor or [*found.shape] != shape:
        form = f"a tensor of shape {[*found.shape]}" if is_tensor else f"a {type(found).__name__}"
        raise _FormError(method, form, f"a tensor of shape {shape}")


def _require_list(method: str, found: Any) -> list[Any]:
    if not isinstance(found, list | tuple) or not found:
        raise _FormError(method, f"a {type(found).__name__}", "a list of at least one")
    return [*found]


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
