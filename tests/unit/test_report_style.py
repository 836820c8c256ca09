"""The page's colours: text stands out enough in light, in dark and on paper."""

import re
from importlib import resources

import pytest

STYLE = resources.files("glasshouse.report").joinpath("templates/style.css").read_text(encoding="utf-8")
PALETTES = [
    dict(re.findall(r"--([\w-]+): (#\w+)", block))
    for block in re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL)
]
TEXT = ("ink", "soft", "leak", "quiet", "open", "mute", "c0", "c1", "c2", "c3", "c4", "c5")


def luminance(colour):
    """Relative luminance, WCAG 2.2."""
    digits = colour[1:] if len(colour) == 7 else "".join(c * 2 for c in colour[1:])
    levels = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [v / 12.92 if v <= 0.04045 else ((v + 0.055) / 1.055) ** 2.4 for v in levels]
    return sum(w * v for w, v in zip((0.2126, 0.7152, 0.0722), linear, strict=True))


def contrast(a, b):
    dark, light = sorted((luminance(a), luminance(b)))
    return (light + 0.05) / (dark + 0.05)


def test_there_are_three_palettes():
    assert len(PALETTES) == 3
    assert contrast("#000", "#ffffff") == pytest.approx(21)


@pytest.mark.parametrize("palette", PALETTES, ids=["light", "dark", "print"])
@pytest.mark.parametrize("ground", ["paper", "sheet"])
def test_text_can_be_read(palette, ground):
    ratios = {name: contrast(palette[name], palette[ground]) for name in TEXT}
    assert {name: r for name, r in ratios.items() if r < 4.5} == {}
    assert contrast(palette["null"], palette[ground]) >= 3.0


def test_every_colour_that_is_used_is_defined():
    assert set(re.findall(r"var\(--([\w-]+)", STYLE)) <= set(PALETTES[0]) | {
        "serif",
        "sans",
        "mono",
        "tone",
        "hue",
    }
