"""The draw of the cases that people label unseen, evenly or block by block."""

from collections import Counter
from collections.abc import Sequence

import numpy as np

from raylab.label.archive.run import RunArchive
from raylab.label.codebooks.codebook import Codebook
from raylab.label.conclusions.draw import (
    BLOCKS,
    MAX_RARE,
    PRIOR,
    RARE,
    AuditDraw,
    block_of,
    learn_errors,
    plan_block,
)
from raylab.label.conclusions.evidence import draws_of, read_evidence
from raylab.label.judgement import AUDIT
from raylab.label.protocol.outcome import Annotator
from raylab.label.statistics.accuracy import DECIDED


def draw_audit(run: RunArchive, share: float, seed: int) -> int:
    """Draws a share of the cases that the protocol decided; returns the number of new ones."""
    decided = (row.case.case for row in run.cases() if row.case.status in DECIDED)
    draw = AuditDraw(share, seed)
    return run.reviews().draw([case for case in decided if draw.takes(case, ())], draw.body)


def draw_actively(
    run: RunArchive, codebook: Codebook, annotators: Sequence[Annotator], number: int, seed: int
) -> int:
    """Draws cases of which the labels are probably wrong; returns the number of new ones.

    It draws the next block if people have labelled all of the blocks before, and in earlier blocks
    what a larger number or cases decided later add.

    Args:
        number: Cases to draw in all blocks together.
    """
    evidence = read_evidence(run, codebook, annotators)
    cases = [case for case in evidence.cases if not case.is_certain]
    made = [draw for draw in draws_of(run.decisions(AUDIT)) if draw.block is not None]
    if not cases:
        return 0
    rarest = Counter(str(case.label) for case in cases).most_common()[::-1][:MAX_RARE]
    rare = {label: n / len(cases) for label, n in rarest if n < RARE * len(cases)}
    new = 0
    for block in range(BLOCKS):
        earlier, errors, names = [draw for draw in made if draw.block == block], PRIOR, rare
        if earlier:
            errors, names = earlier[0].errors, earlier[0].rare
        elif evidence.waiting or new:
            break
        elif judged := [c for c in cases if c.people and block_of(c.id, seed) != block]:
            wrong = [np.mean([own != case.label for own in case.people]) for case in judged]
            features = np.array([case.features(rare) for case in judged])
            errors = learn_errors(features, np.array(wrong, float))
        every = [(case.id, case.features(names)) for case in cases]
        plan = plan_block(every, block, number, errors, names, seed)
        plan = max([plan, *earlier], key=lambda draw: draw.share)
        taken = [case for case, features in every if plan.takes(case, features)]
        new += run.reviews().draw(taken, plan.body)
    return new
