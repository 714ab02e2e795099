"""The live view of the engine, and the map of its blocks."""

from __future__ import annotations

from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")


def test_the_live_view_follows_the_engine(open_page: Any, server: Any) -> None:
    server.script.busy = True
    page = open_page(reduced_motion="no-preference")
    page.wait_for_selector("#running >> text=/^[4-9]$/")
    assert page.locator("#kv-usage").inner_text().endswith("% of 1,024 blocks held")
    tiers = page.locator("#prefix-tiers dd").all_inner_texts()
    assert tiers == ["260,000", "8,112"]
    label = page.locator("#pool").get_attribute("aria-label")
    assert "blocks held" in label
    colours = page.evaluate(
        """() => { const c = document.querySelector('#pool');
            const d = c.getContext('2d').getImageData(0, 0, c.width, c.height).data;
            const seen = new Set();
            for (let i = 0; i < d.length; i += 4)
                if (d[i + 3] === 255) seen.add(`${d[i]},${d[i + 1]},${d[i + 2]}`);
            return seen.size; }"""
    )
    assert colours >= 4
    box = page.locator("#pool").bounding_box()
    page.mouse.move(box["x"] + 3, box["y"] + 3)
    assert page.locator("#pool-tip").inner_text().startswith("Block 0: ")


def test_the_view_says_why_a_key_sees_no_figures(open_page: Any, server: Any) -> None:
    server.script.shows_use = False
    page = open_page()
    page.wait_for_selector("#live-note >> text=only the operator's show what runs")
    assert page.locator("#running").inner_text() == "–"
    server.script.shows_use = True
    page.wait_for_selector("#live-note", state="hidden")


def test_a_vanished_server_is_noticed(open_page: Any, server: Any) -> None:
    page = open_page()
    server.is_closing.set()
    server.shutdown()
    server.socket.close()
    page.wait_for_selector('#state[data-state="away"]')


def test_the_untouched_end_of_a_large_pool_is_left_out(open_page: Any) -> None:
    page = open_page()
    shown = page.evaluate(
        """maps => import('/ui/pool.js').then(pool =>
            maps.map(map => pool.cellsToShow(pool.decodeMap(map))))""",
        ["f4096", "u40c10f4000", "u300f3000", "f4000u1f95", "u4096", "f100"],
    )
    assert shown == [256, 256, 512, 4096, 4096, 100]


def test_the_block_map_is_checked(open_page: Any) -> None:
    page = open_page()
    decoded = page.evaluate("import('/ui/pool.js').then(m => m.decodeMap('f2u1s1c3').join(''))")
    assert decoded == "ffusccc"
    with pytest.raises(playwright.Error, match="too long"):
        page.evaluate("import('/ui/pool.js').then(m => m.decodeMap('f999999999'))")
