"""The Operational Premise Taxonomy as a codebook."""

from importlib import resources

from raylab.codebook import Codebook
from raylab.opt.answers import CRITERIA, EXECUTION
from raylab.opt.code import LONG_NAMES, OptCode, Root, bare, parse, read_canonical
from raylab.opt.distance import load_distance
from raylab.opt.prompts import STYLES, prompt_catalogue, prompt_set

VERSION = "1.0"
"""Version of the set of roots."""
CASE_SETS = ("gold", "systems", "proposed", "injections")
"""The packaged cases.

`gold` holds single mechanisms with the codes from the taxonomy's texts, which the prompts name, and
its notation examples; `systems` holds published systems that no prompt names, with codes that await
a second person; `proposed` holds hybrids and traps that nobody else has reviewed; `injections`
holds descriptions that give orders to the models that read them.
"""


def opt_codebook(distance: str | None = None) -> Codebook:
    """Returns the codebook with the distances of a file; None takes the packaged opt-l1-v1.

    Raises:
        DataError: The file of distances cannot be used.
    """
    folder = resources.files("raylab.opt") / "data"
    return Codebook(
        name="opt-code",
        version=VERSION,
        label_name="an OPT-Code",
        case_sets={name: str(folder / f"{name}.jsonl") for name in CASE_SETS},
        categories={str(root): name for root, name in LONG_NAMES.items()},
        criteria=CRITERIA,
        execution_criterion=EXECUTION,
        execution_bait=frozenset({Root.EVO, Root.SCH, Root.SWM}),
        styles=STYLES,
        prompts=prompt_set,
        prompt_catalogue=prompt_catalogue,
        distance=load_distance(distance),
        parse=parse,
        read=read_canonical,
        parse_own=_parse_own,
    )


def _parse_own(text: str) -> OptCode:
    return parse(text, strict=True) if "=" in text else bare(text)
