"""The page in a real Chromium, on a scripted server (`page_server.py`).

Tests are skipped where Playwright or a Chromium is not installed.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import page_server
import pytest

_CHROMIUM = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
_DEFAULTS = {"viewport": {"width": 1400, "height": 900}, "reduced_motion": "reduce"}
"""Motion takes processor time, sixty pictures a second that nobody sees."""
FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip


@contextmanager
def chromium(flags: list[str]) -> Iterator[Any]:
    """A browser with these flags; skips the test without one."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, _CHROMIUM)), None)
    if path is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=path, args=flags)
        yield browser
        browser.close()


@pytest.fixture(scope="module")  # an open one keeps an event loop, which other tests cannot have
def browser() -> Iterator[Any]:
    with chromium(FLAGS) as browser:
        yield browser


@pytest.fixture
def server() -> Iterator[Any]:
    with page_server.ScriptedServer() as server:
        yield server


@pytest.fixture
def open_page(browser: Any, server: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; whatever it complains about on the console fails the test."""
    contexts, complaints = [], []

    def open_one(
        *, url: str = "", is_ready: bool = True, init_script: str = "", **options: Any
    ) -> Any:
        context = browser.new_context(**{**_DEFAULTS, **options})
        context.add_init_script(init_script)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda line: complaints.append(line.text) if line.type == "error" else None
        )
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(url or server.url)
        if is_ready:
            page.wait_for_selector('#state[data-state="ready"]')
        return page

    yield open_one
    for context in contexts:
        context.close()
    # Chromium itself reports refused requests as console errors; those are asked for.
    assert [c for c in complaints if not c.startswith("Failed to load resource")] == []
