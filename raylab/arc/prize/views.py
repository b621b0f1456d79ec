"""Views of a task: its grids under another symmetry, in other colours, and in another order."""

import hashlib

import numpy as np

from raylab.arc.data.generations import IDENTITY, SYMMETRIES, Redrawing
from raylab.arc.data.tasks import COLOURS, Task
from raylab.config.arc import VotesConfig


def views_of(task: Task, count: int, votes: VotesConfig) -> list[Redrawing]:
    """Returns the first `count` views of a task; the first of all is the task as it is.

    They depend on the id of the task, the number of its demonstrations and `votes` alone, and those
    of a smaller count are the first of a larger. Symmetries come in blocks, each a random order of
    all eight; permutations of the colours and orders are independent and uniform.
    """
    id_hash = int.from_bytes(hashlib.sha256(task.id.encode()).digest())
    rng = np.random.default_rng([votes.seed, id_hash])
    views = [Redrawing(IDENTITY, 0)]
    shown = len(task.demonstrations)
    symmetries = 1 + rng.permutation(SYMMETRIES - 1)
    while len(views) < count:
        at = len(views) % SYMMETRIES
        if at == 0:
            symmetries = rng.permutation(SYMMETRIES)
        symmetry = int(symmetries[at - 1 if len(views) < SYMMETRIES else at])
        colours = rng.permutation(COLOURS).astype(np.uint8)
        order = tuple(map(int, rng.permutation(shown)))
        views.append(
            Redrawing(
                colours if votes.colours else IDENTITY,
                symmetry if votes.symmetries else 0,
                order if votes.orders else (),
            )
        )
    return views
