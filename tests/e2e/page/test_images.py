"""Images are attached to a message, shown and sent."""

from __future__ import annotations

import os
import struct
import zlib
from pathlib import Path
from typing import Any

from page_actions import ask


def test_images_are_attached_shown_and_sent(open_page: Any, server: Any, tmp_path: Path) -> None:
    server.script.takes_images = True
    page = open_page()
    page.wait_for_selector("#attach:visible")
    files = [tmp_path / name for name in ("red.png", "blue.png", "notes.txt")]
    for file, color in zip(files, (b"\xff\x00\x00", b"\x00\x00\xff", b"\x00" * 3), strict=True):
        file.write_bytes(png_of(color))
    page.set_input_files("#image-input", files)
    page.wait_for_selector("#attachments li >> nth=1")
    assert page.locator("#attachments li").count() == 2
    page.click("[aria-label='Remove image 1']")
    assert page.locator("#attachments li").count() == 1
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/attached.png")
    ask(page, "what color?")
    if folder:
        page.screenshot(path=f"{folder}/sent.png")
    assert page.locator("#attachments li").count() == 0
    shown = page.locator(".message.user img")
    assert shown.count() == 1
    assert shown.evaluate("image => image.naturalWidth") == 2
    [message] = server.script.requests[-1]["messages"]
    image, text = message["content"]
    assert image["image_url"].startswith("data:image/png;base64,")
    assert text == {"type": "input_text", "text": "what color?"}
    page.reload()
    page.wait_for_selector(".message.user img")
    assert page.locator(".message.user p").all_inner_texts() == ["what color?"]


_GIVE = """([name, type, hex, text]) => {
    const bytes = Uint8Array.from(hex.match(/../g).map(pair => parseInt(pair, 16)));
    const data = new DataTransfer();
    data.items.add(new File([bytes], "file", {type}));
    if (text) data.setData("text/plain", text);
    const event = name === "paste"
        ? new ClipboardEvent("paste", {clipboardData: data, bubbles: true, cancelable: true})
        : new DragEvent(name, {dataTransfer: data, bubbles: true, cancelable: true});
    document.getElementById("prompt").dispatchEvent(event);
    return event.defaultPrevented;
}"""


def test_images_are_dropped_and_pasted(open_page: Any, server: Any) -> None:
    page = open_page()

    def give(event: str, kind: str = "image/png", text: str = "") -> bool:
        is_taken: bool = page.evaluate(_GIVE, [event, kind, png_of(b"\x00\xff\x00").hex(), text])
        return is_taken

    note, items = page.locator("#attach-note"), page.locator("#attachments li")
    assert give("dragover")
    assert give("drop")  # otherwise the browser would open the file in place of the page
    assert note.inner_text() == "This model takes no images."
    server.script.takes_images = True
    page.reload()
    page.wait_for_selector("#attach:visible")
    assert give("dragover")
    assert page.locator("body.dropping").count() == 1
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/dropping.png")
    assert give("drop")
    page.wait_for_selector("#attachments li")
    assert page.locator("body.dropping").count() == 0
    assert give("paste")
    page.wait_for_selector("#attachments li >> nth=1")
    assert not give("paste", text="cells of a table, which also come as a picture")
    assert give("drop", "text/plain")
    page.wait_for_selector("#attach-note:has-text('binary files cannot')")
    assert items.count() == 2
    if folder:
        page.screenshot(path=f"{folder}/dropped.png")
    page.click("#send")
    page.wait_for_selector(".message.assistant")
    [message] = server.script.requests[-1]["messages"]
    assert [part["type"] for part in message["content"]] == ["input_image"] * 2
    assert note.inner_text() == ""


def png_of(color: bytes) -> bytes:
    """A PNG file of 2 x 2 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\x00" + 2 * color) * 2)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
