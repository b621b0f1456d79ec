"""A codebook of three words, which shares nothing with OPT-Codes."""

from raylab.label.codebooks.yaml import make_codebook
from raylab.label.config.codebook import CodebookConfig

NAMES = {"berry": "a fruit without a stone", "stone": "a fruit with one", "nut": "a dry fruit"}
FRUITS = make_codebook(
    CodebookConfig.model_validate(
        {
            "name": "fruits",
            "noun": "a fruit",
            "task": "Which fruit is it?",
            "labels": {name: {"definition": meaning} for name, meaning in NAMES.items()},
            "rules": {"size": {"text": "The size is right.", "cap": 50}},
        }
    )
)
