"""Texts and PDFs are attached to a message, counted, shown and sent; other files are refused."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from page_actions import ask


def pdf_of(*pages: str, num_pages: int | None = None) -> bytes:
    """A PDF with a line of text on each page; `num_pages`: what its tree says that it has."""
    kids = " ".join(f"{4 + 2 * i} 0 R" for i in range(len(pages)))
    count = len(pages) if num_pages is None else num_pages
    objects = [
        "<< /Type /Catalog /Pages 2 0 R >>",
        f"<< /Type /Pages /Kids [{kids}] /Count {count} >>",
        "<< /Type /Font /Subtype /Type1 /BaseFont /Helvetica >>",
    ]
    for i, text in enumerate(pages):
        shown = f"BT /F1 12 Tf 20 100 Td ({text}) Tj ET"
        objects.append(
            f"<< /Type /Page /Parent 2 0 R /MediaBox [0 0 300 200] /Contents {5 + 2 * i} 0 R "
            "/Resources << /Font << /F1 3 0 R >> >> >>"
        )
        objects.append(f"<< /Length {len(shown)} >>\nstream\n{shown}\nendstream")
    text, places = "%PDF-1.4\n", []
    for number, body in enumerate(objects, 1):
        places.append(len(text))
        text += f"{number} 0 obj\n{body}\nendobj\n"
    rows = "".join(f"{place:010} 00000 n \n" for place in places)
    size = len(objects) + 1
    tail = f"xref\n0 {size}\n0000000000 65535 f \n{rows}trailer\n<< /Size {size} /Root 1 0 R >>\n"
    return f"{text}{tail}startxref\n{len(text)}\n%%EOF\n".encode("latin-1")


def attach(page: Any, **files: bytes) -> None:
    """Chooses files; a name's last underscore is the dot before its ending."""
    page.set_input_files(
        "#image-input",
        [{"name": ".".join(name.rsplit("_", 1)), "mimeType": "", "buffer": data}
         for name, data in files.items()],
    )  # fmt: skip


def test_files_are_attached_counted_shown_and_sent(open_page: Any, server: Any) -> None:
    page = open_page()
    csv = "name;price\ncaf\xe9;3\n".encode("cp1252")
    attach(page, prices_csv=csv, code_py=b"x = '```'\n", report_pdf=pdf_of("Hello sea", "Page two"))
    page.wait_for_selector("#attachments li >> nth=2")
    names = page.locator("#attachments .file-name").all_inner_texts()
    assert names == ["prices.csv", "code.py", "report.pdf"]
    page.wait_for_selector("#attach-note:has-text('of the 4,096 tokens')")
    if folder := os.environ.get("QUIRE_TEST_PICTURES"):
        page.screenshot(path=f"{folder}/files.png")
    page.click("[aria-label='Remove prices.csv']")
    page.click("[aria-label='Remove code.py']")
    attach(page, prices_csv=csv, code_py=b"x = '```'\n")
    page.wait_for_selector("#attachments li >> nth=2")
    ask(page, "Sum up.")
    assert page.locator("#attachments li").count() == 0
    [message] = server.script.requests[-1]["messages"]
    assert message["content"] == (
        "File “report.pdf”:\n```\nHello sea\n\nPage two\n```\n\n"
        "File “prices.csv”:\n```\nname;price\ncafé;3\n\n```\n\n"
        "File “code.py”:\n````\nx = '```'\n\n````\n\nSum up."
    )
    page.reload()
    page.wait_for_selector(".message.user details >> nth=2")
    page.click(".message.user details >> nth=0")
    page.wait_for_selector(".message.user pre:has-text('Page two')")
    if folder:
        page.screenshot(path=f"{folder}/files_sent.png")


BAD = {
    "zip": (b"PK\x03\x04\x00\x00\x00", "binary files cannot be attached"),
    "txt": (b" \n", "is empty"),
    "pdf": (b"%PDF-1.7 nothing", "cannot be read as a PDF"),
    "scan_pdf": (pdf_of(""), "has no text"),
}


def test_files_that_cannot_be_attached_are_refused(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    for name, (data, message) in BAD.items():
        attach(page, **{f"a_{name}": data})
        page.wait_for_selector(f"#attach-note.error:has-text('{message}')")
    large = tmp_path / "large.csv"
    with large.open("wb") as file:
        file.truncate(50_000_000)
    page.set_input_files("#image-input", large)
    page.wait_for_selector("#attach-note.error:has-text('has 50.0 MB')")
    attach(page, long_txt=b"a\n" * 1_000_001)
    page.wait_for_selector("#attach-note.error:has-text('2,000,000 characters')")
    assert page.locator("#attachments li").count() == 0
    attach(page, words_txt=b"word " * 5_000)
    page.wait_for_selector("#attach-note.error:has-text('tokens, and the model takes 4,096')")


def test_a_pdf_that_lies_about_its_pages_and_a_hostile_name(open_page: Any) -> None:
    page = open_page()
    attach(page, **{"<img src=x onerror=pwned=1>\n\u202e_pdf": pdf_of("one", num_pages=10**9)})
    page.wait_for_selector("#attachments li, #attach-note.error")
    assert page.locator("#attachments img").count() == 0
    assert page.evaluate("window.pwned") is None
    assert page.is_enabled("#send")


def test_a_page_without_pdf_does_not_load_its_library(open_page: Any) -> None:
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    attach(page, a_txt=b"text")
    page.wait_for_selector("#attachments li")
    assert not [url for url in asked if "/pdf/" in url]
