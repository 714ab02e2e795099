"""The model picker, on a real server of several models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from page_actions import ask
from running_server import RunningServer


@pytest.mark.long
def test_models_are_chosen_loaded_and_unloaded(
    open_page: Any, tiny_model: Path, tmp_path: Path
) -> None:
    catalog = tmp_path / "models.yaml"
    catalog.write_text(
        "models:\n  - {model: demo, preload: true}\n"
        f"  - {{model: {tiny_model}, name: other, options: {{max_model_len: 64}}}}\n"
    )
    options = {"models": str(catalog), "model_memory_bytes": 3 << 30, "port": 0}
    running = RunningServer(options, {}).wait_until_serving()
    try:
        use_picker(open_page(url=running.url))
    finally:
        running.stop()


def use_picker(page: Any) -> None:
    options, button = page.locator("#model option"), page.locator("#model-load")
    assert options.all_inner_texts() == ["demo – loaded", "other – unloaded"]
    assert button.inner_text() == "Unload"
    page.select_option("#model", "other")
    assert button.inner_text() == "Load"
    button.click()
    page.wait_for_selector("#model-load:text-is('Unload')", timeout=60_000)
    assert options.all_inner_texts() == ["demo – loaded", "other – loaded"]
    page.select_option("#model", "demo")
    assert "42" in ask(page, "What is 17 + 25?").inner_text()
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/picker.png")
    button.click()
    page.wait_for_selector("#model-load:text-is('Load')", timeout=60_000)
    assert options.all_inner_texts() == ["demo – unloaded", "other – loaded"]
    assert "42" in ask(page, "What is 17 + 25?").inner_text()  # the request loads it
    page.wait_for_selector("#model-load:text-is('Unload')")
