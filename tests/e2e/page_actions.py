"""What tests do on the page."""

from __future__ import annotations

from typing import Any


def ask(page: Any, text: str) -> Any:
    """Sends a message and waits for the end of the answer; returns its body."""
    before = page.locator(".message.assistant").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector(f".message.assistant >> nth={before}")
    page.wait_for_selector("#send:not([hidden])")
    return page.locator(".message.assistant .body").nth(before)
