"""The model picker, on a real server of several models."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from page_actions import ask
from running_server import RunningServer


def test_an_adapter_is_chosen(open_page: Any, server: Any) -> None:
    server.script.adapters = ["sql"]
    page = open_page()
    options = page.locator("#model option").all_inner_texts()
    assert options == ["quire-demo", "sql, adapter of quire-demo"]
    page.select_option("#model", "sql")
    page.wait_for_selector("#greeting-model:has-text('sql, up to 4,096 tokens')")
    ask(page, "Which rows?")
    assert server.script.requests[-1]["model"] == "sql"
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/adapter.png")


def test_a_phone_shows_the_choice_of_the_model(open_page: Any, server: Any) -> None:
    server.script.adapters = ["an-adapter-with-a-name-that-is-longer-than-a-phone-is-wide"]
    page = open_page(viewport={"width": 390, "height": 700})
    page.select_option("#model", server.script.adapters[0])
    box = page.locator("#model").bounding_box()
    assert box["width"] > 200
    assert box["x"] + box["width"] <= 390
    assert box["y"] >= sum(page.locator("#menu").bounding_box()[side] for side in ("y", "height"))
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/phone-picker.png")


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
    page.wait_for_selector("#running:text-is('–')")  # no figures of a model that is not loaded
    assert "42" in ask(page, "What is 17 + 25?").inner_text()  # the request loads it
    page.wait_for_selector("#model-load:text-is('Unload')")
