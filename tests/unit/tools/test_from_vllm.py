"""docs/vllm_names.md tells of the objects as they are."""

from __future__ import annotations

import fnmatch
from pathlib import Path

from tools.from_vllm import interface, metrics
from tools.from_vllm.page import PAGE, TABLES, updated

UNIT = Path(__file__).parents[1]


def test_the_page_is_up_to_date() -> None:
    text = PAGE.read_text()
    for name in TABLES:
        assert f"<!-- table: {name} -->" in text
    assert updated(text) == text, "write it again: python -m tools.from_vllm"


def test_a_row_has_one_name() -> None:
    for name, made in TABLES.items():
        cells = [row.split(" | ")[0] for row in made().splitlines()[3:] if row]
        assert cells, name
        assert all(cell.count("`") == 2 for cell in cells), name


def test_a_stale_table_is_replaced() -> None:
    stale = "before\n<!-- table: absent commands -->\n| old |\n<!-- end -->\nafter"
    fresh = updated(stale)
    assert "| old |" not in fresh
    assert "`vllm preload`" in fresh
    assert fresh.startswith("before\n")
    assert fresh.endswith("<!-- end -->\nafter")


def test_no_metric_is_called_absent_that_is_exposed() -> None:
    exposed = metrics.exposed()
    names = [row.split("`")[1].removesuffix("_total") for row in exposed.splitlines() if "`" in row]
    assert len(names) > 30
    for patterns in metrics.ABSENT.values():
        for pattern in patterns:
            assert not fnmatch.filter(names, pattern)


def test_no_command_is_called_absent_that_exists() -> None:
    shown = interface.commands()
    assert "`quire serve`" in shown
    for name in interface.ABSENT_COMMANDS:
        assert f"`quire {name}`" not in shown
