"""The Operational Premise Taxonomy as a codebook."""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources

from raylab.codebook import Categories, Criterion, PromptSet
from raylab.llm.prompts import PromptFile
from raylab.opt.code import LONG_NAMES, OptCode, Root, bare, parse, read_canonical
from raylab.opt.criteria import CRITERIA, EXECUTION
from raylab.opt.distance import Distance, load_distance
from raylab.opt.prompts import STYLES, prompt_catalogue, prompt_set

VERSION = "1.0"
"""Version of the set of roots."""
CASE_SETS = ("gold", "systems", "proposed", "injections")


@dataclass(frozen=True)
class OptCodebook:
    """The codebook of OPT-Codes; see `raylab.codebook.Codebook`.

    Attributes:
        distance: Distance between sets of roots.
    """

    distance: Distance
    name: str = "opt-code"
    version: str = VERSION
    label_name: str = "an OPT-Code"
    criteria: tuple[Criterion, ...] = CRITERIA
    execution_criterion: str = EXECUTION
    styles: tuple[str, ...] = STYLES

    @property
    def case_sets(self) -> Mapping[str, str]:
        """The packaged cases.

        `gold` holds single mechanisms with the codes from the taxonomy's texts, which the prompts
        name, and its notation examples; `systems` holds published systems that no prompt names,
        with codes that await a second person; `proposed` holds hybrids and traps that nobody else
        has reviewed; `injections` holds descriptions that give orders to the models that read
        them.
        """
        folder = resources.files("raylab.opt") / "data"
        return {name: str(folder / f"{name}.jsonl") for name in CASE_SETS}

    @property
    def categories(self) -> Mapping[str, str]:
        """The roots in their frozen order, with their long names."""
        return {str(root): name for root, name in LONG_NAMES.items()}

    @property
    def execution_bait(self) -> Categories:
        """The roots that parallel execution suggests."""
        return frozenset({Root.EVO, Root.SCH, Root.SWM})

    def prompts(self, style: str) -> PromptSet:
        """Returns the prompts of a style."""
        return prompt_set(style)

    def prompt_catalogue(self) -> Mapping[str, PromptFile]:
        """Returns every prompt by its hash."""
        return prompt_catalogue()

    def parse(self, text: str) -> OptCode:
        """Reads the code in a text; see `raylab.opt.code.parse`."""
        return parse(text)

    def read(self, line: str) -> OptCode:
        """Reads a canonical line."""
        return read_canonical(line)

    def parse_own(self, text: str) -> OptCode:
        """Reads a person's code, either `OPT=...` or an expression alone."""
        return parse(text, strict=True) if "=" in text else bare(text)


def opt_codebook(distance: str | None = None) -> OptCodebook:
    """Returns the codebook with the distances of a file; None takes the packaged opt-l1-v1.

    Raises:
        DataError: The file of distances cannot be used.
    """
    return OptCodebook(load_distance(distance))
