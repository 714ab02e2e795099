"""The page on phones, its names for screen readers, and its contrast."""

from __future__ import annotations

from typing import Any

import page_server
import pytest
from page_actions import ask

PHONE = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True, "has_touch": True, "device_scale_factor": 2,
}  # fmt: skip


@pytest.mark.sweep(1)
@pytest.mark.parametrize(("width", "scheme"), [(320, "dark"), (390, "light")])
def test_it_fits_a_phone(open_page: Any, server: Any, width: int, scheme: str) -> None:
    wide = "```\n" + "x" * 300 + "\n```\n" + "y" * 300 + "\n$$" + "a+" * 150 + "a$$"
    server.script.answer = lambda _: page_server.say(wide, 50)
    options = {**PHONE, "viewport": {"width": width, "height": 700}}
    page = open_page(**options, color_scheme=scheme)
    assert fits(page, "#greeting", "header", "#composer")
    ask(page, "z" * 200)
    page.wait_for_selector(".katex")
    page.click("text=Again")
    page.wait_for_selector("text=2 of 2")
    assert fits(page, "header", "#composer", ".message", ".foot")
    page.click("#open-settings")
    assert fits(page, "#settings", "#settings form > *")
    page.click("text=Done")
    for view in ("engine", "chat"):
        page.click(f".tabs [data-view={view}]")
        assert fits(page, "header")
    page.click("#menu")
    page.wait_for_selector(".conversation >> visible=true")
    assert page.locator("#shelf").bounding_box()["x"] == 0


def fits(page: Any, *selectors: str) -> bool:
    """Whether these elements, and the page, are inside the width of the window."""
    inside = page.evaluate(
        """selectors => [document.documentElement, ...document.querySelectorAll(selectors)]
            .every(node => node.scrollWidth <= innerWidth
                && node.getBoundingClientRect().right <= innerWidth + 0.5)""",
        ", ".join(selectors),
    )
    return bool(inside)


PAIRS = (
    ("ink", "paper"), ("ink-soft", "paper"), ("ink-soft", "sheet"), ("accent", "paper"),
    ("accent-ink", "accent"), ("bad", "paper"),
)  # fmt: skip


def test_everything_has_a_name_and_enough_contrast(open_page: Any) -> None:
    for scheme in ("light", "dark"):
        page = open_page(color_scheme=scheme)
        nameless = page.evaluate(
            """() => [...document.querySelectorAll('button, input, select, textarea')]
                .filter(n => !(n.ariaLabel || n.textContent.trim() || n.labels?.length))
                .map(n => n.id)"""
        )
        assert nameless == []
        for text, ground in PAIRS:
            colours = page.evaluate(
                "names => import('/ui/dom.js').then(m => names.map(n => m.cssColor('--' + n)))",
                [text, ground],
            )
            assert contrast(*colours) >= 4.5, (scheme, text, ground)


def contrast(first: str, second: str) -> float:
    """Source: WCAG 2.2, contrast ratio of two `rgb(r, g, b)` colours."""

    def luminance(colour: str) -> float:
        parts = [float(part) / 255 for part in colour[4:-1].split(",")]
        linear = [p / 12.92 if p <= 0.04045 else ((p + 0.055) / 1.055) ** 2.4 for p in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    low, high = sorted((luminance(first), luminance(second)))
    return (high + 0.05) / (low + 0.05)
