"""The style of every page: what is written on a colour can be read, in light and in dark."""

import re
from importlib import resources

import pytest

from raylab.report.charts import SERIES

CSS = (resources.files("raylab.report") / "templates" / "style.css").read_text(encoding="utf-8")
ROOTS = ("Lrn", "Evo", "Sym", "Prb", "Sch", "Ctl", "Swm")
LEAST_CONTRAST = 4.5
"""WCAG 2.2, AA, for text of any size."""


def colours(scheme: str) -> dict[str, str]:
    """The custom properties of a colour scheme; dark changes some of light."""
    light, dark = re.findall(r":root \{(.*?)\}", CSS, re.DOTALL)[:2]
    blocks = [light, dark] if scheme == "dark" else [light]
    return {
        name: value for text in blocks for name, value in re.findall(r"--([\w-]+): (#\w+)", text)
    }


def luminance(colour: str) -> float:
    """Relative luminance as WCAG defines it."""
    parts = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_read_on_what_lies_behind_it(scheme: str):
    shown = colours(scheme)
    chips = dict(re.findall(r"\.root-(\w+) \{ --root: var\(--([\w-]+)\)", CSS))
    assert tuple(chips) == ROOTS and len({shown[name] for name in chips.values()}) == len(ROOTS)
    pairs = [("ink", "page"), ("ink", "card"), ("muted", "page"), ("muted", "card")]
    pairs += [("good", "card"), ("good", "good-soft"), ("warn", "warn-soft"), ("bad", "card")]
    pairs += [("ink", "soft"), ("accent", "page"), ("accent", "card")]
    for text, behind in [*pairs, *((name, "card") for name in chips.values())]:
        assert contrast(shown[text], shown[behind]) >= LEAST_CONTRAST, (text, behind)
    charts = tuple(shown[f"series-{place}"] for place in range(len(SERIES)))
    assert scheme == "dark" or charts == SERIES
