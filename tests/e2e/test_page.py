"""The page in a real Chromium: chatting, stopping, keys, history, and hostile answers.

Runs against a scripted server (`page_server.py`). Skipped where Playwright or a Chromium
is not installed.
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import struct
import sys
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

playwright = pytest.importorskip("playwright.sync_api")
CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
if CHROMIUM is None:
    pytest.skip("no Chromium on this machine", allow_module_level=True)

_spec = importlib.util.spec_from_file_location(
    "page_server", Path(__file__).parent / "page_server.py"
)
assert _spec is not None
assert _spec.loader is not None
page_server = importlib.util.module_from_spec(_spec)
sys.modules["page_server"] = page_server
_spec.loader.exec_module(page_server)

FLAGS = [
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
PHONE = {
    "viewport": {"width": 390, "height": 844},
    "is_mobile": True, "has_touch": True, "device_scale_factor": 2,
}  # fmt: skip


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        yield browser
        browser.close()


@pytest.fixture
def server() -> Iterator[Any]:
    with page_server.ScriptedServer() as server:
        yield server


@pytest.fixture
def open_page(browser: Any, server: Any) -> Iterator[Callable[..., Any]]:
    """Opens the page; whatever it complains about on the console fails the test."""
    contexts, complaints = [], []

    def note(line: Any) -> None:
        if line.type == "error":
            complaints.append(line.text)

    def open_one(*, is_ready: bool = True, **options: Any) -> Any:
        context = browser.new_context(**{"viewport": {"width": 1400, "height": 900}, **options})
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on(
            "console", lambda line: complaints.append(line.text) if line.type == "error" else None
        )
        page.on("dialog", lambda dialog: dialog.accept())
        page.goto(server.url)
        if is_ready:
            page.wait_for_selector('#state[data-state="ready"]')
        return page

    yield open_one
    for context in contexts:
        context.close()
    # Chromium itself reports refused requests as console errors; those are asked for.
    assert [c for c in complaints if not c.startswith("Failed to load resource")] == []


def ask(page: Any, text: str) -> Any:
    """Sends a message and waits for the end of the answer; returns its body."""
    before = page.locator(".message.assistant").count()
    page.fill("#prompt", text)
    page.press("#prompt", "Enter")
    page.wait_for_selector(f".message.assistant >> nth={before}")
    page.wait_for_selector("#send:not([hidden])")
    return page.locator(".message.assistant .body").nth(before)


def test_an_answer_streams_in_and_tells_its_speed(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("The answer is **42**.")
    server.script.delay_s = 0.1
    page = open_page()
    body = ask(page, "What is 17 + 25?")
    assert body.inner_text() == "The answer is 42."
    assert body.locator("strong").inner_text() == "42"
    stats = page.locator(".message.assistant .stats").inner_text()
    assert "tokens/s" in stats
    assert "6 tokens" in stats
    assert "32 of 48 read from cache" in stats
    sent = server.script.requests[0]
    assert sent["messages"] == [{"role": "user", "content": "What is 17 + 25?"}]
    assert sent["stream_options"] == {"include_usage": True}


def test_tokens_without_text_are_counted_and_not_shown(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say_haltingly("The answer is **42**.")
    server.script.delay_s = 0.02
    page = open_page()
    assert ask(page, "What is 17 + 25?").inner_text() == "The answer is 42."
    assert "12 tokens" in page.locator(".message.assistant .stats").inner_text()


def test_the_whole_conversation_is_sent_and_survives_a_reload(open_page: Any, server: Any) -> None:
    server.script.answer = lambda body: page_server.say(f"answer {len(body['messages'])}")
    page = open_page()
    ask(page, "first")
    ask(page, "second")
    assert [m["content"] for m in server.script.requests[1]["messages"]] == [
        "first", "answer 1", "second",
    ]  # fmt: skip
    page.reload()
    assert page.locator(".message.assistant .body").all_inner_texts() == ["answer 1", "answer 3"]
    page.hover(".conversations li")
    page.click(".remove")
    assert page.locator(".conversations li").count() == 0
    page.reload()
    page.wait_for_selector("#greeting")
    assert page.locator(".conversations li").count() == 0


def test_stop_ends_the_request_and_keeps_what_came(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word " * 4000, 5)
    server.script.delay_s = 0.01
    page = open_page()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=word word word")
    page.keyboard.press("Escape")
    page.wait_for_selector("#send:not([hidden])")
    assert "stopped" in page.locator(".assistant .stats").inner_text()
    assert server.script.closed_early.wait(5)
    assert page.locator(".assistant .body").inner_text().startswith("word word")


HOSTILE = [
    '<img src=x onerror="window.pwned=1"><script>window.pwned=1</script>',
    "[click](javascript:window.pwned=1) and [x](data:text/html,<script>window.pwned=1</script>)",
    "![pixel](https://example.org/track.png?said=secret)",
    "<svg/onload=window.pwned=1> **<iframe srcdoc='<script>parent.pwned=1</script>'>**",
    "```html\n<script>window.pwned=1</script>\n```\n`<b onmouseover=pwned=1>`",
    "| a | b |\n|---|---|\n| <img src=x onerror=pwned=1> | [l](vbscript:x) |",
    '[a](https://example.org/"onmouseover="window.pwned=1)',
    "<style>body{display:none}</style><base href=https://example.org/><form action=x>",
]


def test_nothing_that_a_model_writes_becomes_html(open_page: Any, server: Any) -> None:
    server.script.answer = lambda body: page_server.say(body["messages"][-1]["content"], 7)
    outside: list[str] = []
    page = open_page()
    page.on("request", lambda r: None if r.url.startswith(server.url) else outside.append(r.url))
    for text in HOSTILE:
        check_harmless(ask(page, text))
    page.wait_for_timeout(200)
    assert page.evaluate("window.pwned") is None
    assert outside == []


def check_harmless(body: Any) -> None:
    found = body.evaluate("node => [...node.querySelectorAll('*')].map(n => n.tagName)")
    assert not set(found) & {"IMG", "SCRIPT", "SVG", "IFRAME", "STYLE", "FORM", "BASE", "LINK"}
    for href in body.locator("a").evaluate_all("links => links.map(a => a.href)"):
        assert href.startswith("https://example.org/")
    attributes = body.evaluate(
        "node => [...node.querySelectorAll('*')].flatMap(n => [...n.attributes].map(a => a.name))"
    )
    assert not [name for name in attributes if name.startswith("on")]


MALICE = {
    "stars": "*" * 20_000, "brackets": "[" * 20_000, "ticks": "`" * 19_999,
    "words": "*a " * 6_000, "mixed": "a*b_c" * 4_000, "quotes": "> " * 5_000,
    "lists": "- " * 5_000, "table": "|" * 9_000 + "\n" + "|-" * 4_000, "escapes": "\\" * 20_000,
    "formulas": "\\(" * 10_000, "dollars": "$a" * 10_000, "pairs": "$$" * 10_000,
    "blocks": "\\[\n" * 5_000,
    "environments": "\\begin{align}\n" * 2_000, "braces": "$" + "{" * 1_900 + "}" * 1_900 + "$",
    "macros": r"$$\def\a{\a\a\a}\a$$", "size": r"$$\rule{99999em}{99999em}\kern99999em x$$",
    "many": "$x_1$ " * 1_000, "half": "$$\n" + "x\n" * 9_000,
    "urls": "(((http://" * 2_000, "rules": "- - - x\n" * 3_000, "blanks": " " * 20_000 + "x",
}  # fmt: skip


def test_malicious_markdown_cannot_hang_the_page(open_page: Any, server: Any) -> None:
    page = open_page()
    server.script.answer = lambda _: page_server.say("$x$")
    ask(page, "load the library for formulas")
    page.wait_for_selector(".katex")
    for name, text in MALICE.items():
        took = page.evaluate(
            """async text => {
                const { MarkdownView } = await import('/ui/markdown.js');
                const begin = performance.now();
                new MarkdownView().show(text, true);
                return performance.now() - begin;
            }""",
            text,
        )
        assert took < 20_000, name  # it hung for minutes
    assert page.evaluate("document.documentElement.scrollWidth") <= 1400


def test_markdown(open_page: Any, server: Any) -> None:
    text = (
        "# Title\n\nOne **bold** and *soft* and `code` word.\nNext line.\n\n"
        "1. one\n   - inner\n2. two\n\n"
        "| a | b |\n|--:|---|\n| 1 | 2 |\n\n> quoted\n\n```python\nx = 1  # note\n```\n\n"
        "See https://example.org/a_b_c. Not_an_emphasis and 2 * 3 * 4."
    )
    server.script.answer = lambda _: page_server.say(text, 3)
    body = ask(open_page(), "show")
    assert body.locator("h3").inner_text() == "Title"
    assert body.locator("p").first.inner_text() == "One bold and soft and code word.\nNext line."
    assert body.locator("ol > li").count() == 2
    assert body.locator("ol > li ul > li").inner_text() == "inner"
    assert body.locator("td").all_inner_texts() == ["1", "2"]
    assert body.locator("blockquote").inner_text() == "quoted"
    assert body.locator("pre").inner_text() == "x = 1  # note"
    assert body.locator("pre .c").inner_text() == "# note"
    assert body.locator("a").get_attribute("href") == "https://example.org/a_b_c"
    assert body.locator("p").last.inner_text().endswith("Not_an_emphasis and 2 * 3 * 4.")


FORMULAS = {
    r"For \(a_1\), \(b_2\), $c^2$, \[x *y* z\] and $$w$$.": ["a_1", "b_2", "c^2", "x *y* z", "w"],
    "Text:\n\\[\nx = 1\n- 2\n\\]\nafter": ["\nx = 1\n- 2\n"],
    "1. one\n   $$\n   a\n   + b\n   $$\n2. two": ["\na\n+ b\n"],
    "\\begin{align*}\na &= b\n\\end{align*}": ["\\begin{align*}\na &= b\n\\end{align*}"],
    "It costs $5, or $6 for two, or US$ 7 and a$b$c.": [],
    r"Code: `\(x\)`, and half: \(a *b* c": [],
    r"A *soft* \(\frac{1\)": [],
}  # fmt: skip


def test_formulas_are_drawn(open_page: Any, server: Any) -> None:
    server.script.answer = lambda body: page_server.say(body["messages"][-1]["content"], 3)
    page = open_page()
    for text, expected in FORMULAS.items():
        body = ask(page, text)
        page.wait_for_function("node => !node.querySelector('.formula:not(.tex, :has(.katex))')",
                               arg=body.element_handle())  # fmt: skip
        drawn = body.locator("annotation").all_text_contents()
        assert [one.strip() for one in drawn] == [one.strip() for one in expected], text
    texts = page.locator(".message.assistant .body").all_inner_texts()
    assert texts[-3:] == [
        "It costs $5, or $6 for two, or US$ 7 and a$b$c.",
        r"Code: \(x\), and half: \(a *b* c",
        r"A soft \(\frac{1\)",
    ]


def test_a_page_without_formulas_does_not_load_katex(open_page: Any, server: Any) -> None:
    page = open_page()
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    ask(page, "hi")
    assert not [url for url in asked if "katex" in url]
    server.script.answer = lambda _: page_server.say("$x$")
    ask(page, "formula")
    page.wait_for_selector(".katex")
    assert [url for url in asked if url.endswith("Math-Italic.woff2")]


GROWING = (
    "# Title\n\nOne **bold** text.\nNext line.\n\n1. one\n\n   more of one\n2. two\n\n"
    "| a | b |\n|--:|---|\n| 1 | $x$ |\n\n```py\nx = 1\n\n# y\n```\n> quoted\n\n"
    "\\[\na\n+ b\n\\]\nEnd with \\(c\\).\n\n- [x] done\n- [ ] open\n  - inner\n\nlast"
)


def test_a_growing_text_keeps_its_elements_and_ends_as_the_whole(open_page: Any) -> None:
    moved = open_page().evaluate(
        """async text => {
            const { MarkdownView } = await import('/ui/markdown.js');
            const html = view => [...view.root.childNodes].map(n => n.outerHTML);
            const whole = new MarkdownView(), growing = new MarkdownView(), wrong = [];
            for (let end = 1; end <= text.length; end++) {
                const before = [...growing.root.childNodes].slice(0, -2);
                growing.show(text.slice(0, end), false);
                if (before.some((node, i) => node !== growing.root.childNodes[i])) wrong.push(end);
            }
            whole.show(text, true);
            for (let i = 0; i < 200 && whole.root.querySelectorAll('.katex').length < 3; i++) {
                await new Promise(done => setTimeout(done, 50));  // the formulas are drawn
                growing.show(text, false);
                whole.show(text, true);
            }
            const kept = growing.root.childNodes[0];
            const isEqual = html(growing).join() === html(whole).join();
            growing.show(text, true);
            if (kept !== growing.root.childNodes[0]) wrong.push('first');
            return [wrong, isEqual, whole.root.querySelectorAll('.katex').length];
        }""",
        GROWING,
    )
    assert moved == [[], True, 3]


def test_task_lists(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("- [x] read **it**\n- [ ] check\n- [link]")
    body = ask(open_page(), "tasks")
    assert body.locator("input").evaluate_all("all => all.map(one => one.checked)") == [True, False]
    assert body.locator("li").all_inner_texts() == ["read it", "check", "[link]"]


def test_the_failure_of_a_tall_message_is_in_view(open_page: Any, server: Any) -> None:
    page = open_page()
    ask(page, "one")
    server.script.refusal = (503, "The queue is full.")
    page.fill("#prompt", "a tall message\n" * 80)
    page.press("#prompt", "Enter")
    error = page.wait_for_selector(".error")
    page.wait_for_timeout(100)
    box, log = error.bounding_box(), page.locator("#log").bounding_box()
    assert log["y"] < box["y"] < box["y"] + box["height"] <= log["y"] + log["height"]


def test_scrolling_up_stays_there_while_an_answer_grows(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word\n\n" * 300, 60)
    server.script.delay_s = 0.03
    page = open_page()
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_function("() => document.querySelector('#log').scrollTop > 300")
    page.mouse.move(600, 400)
    page.mouse.wheel(0, -250)
    page.wait_for_selector("#to-end:not([hidden])")
    before = page.evaluate("document.querySelector('#log').scrollTop")
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('#log').scrollTop") == before
    page.click("#to-end")
    page.wait_for_selector("#send:not([hidden])")
    assert page.is_hidden("#to-end")


def test_a_conversation_is_listed_at_once_and_has_an_address(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("word " * 4000, 5)
    server.script.delay_s = 0.01
    page = open_page()
    empty = page.url
    page.fill("#prompt", "go on")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=word word word")
    assert page.locator(".conversation").all_inner_texts() == ["go on"]
    assert "#/c/" in page.url
    page.reload()  # in the middle of the answer
    page.wait_for_selector('#state[data-state="ready"]')
    assert page.locator(".message.assistant .body").inner_text().startswith("word word")
    assert "stopped" in page.locator(".assistant .stats").inner_text()
    assert page.title() == "go on – Quire"
    page.click("#new-chat")
    assert page.url == empty
    server.script.answer = lambda _: page_server.say("Hello.")
    ask(page, "another")
    assert page.locator(".conversation").all_inner_texts() == ["another", "go on"]
    page.click(".conversation >> text=go on")
    page.go_back()
    page.wait_for_selector(".message.user >> text=another")
    assert page.locator(".conversation[aria-current=true]").inner_text() == "another"


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
    assert image["image_url"]["url"].startswith("data:image/png;base64,")
    assert text == {"type": "text", "text": "what color?"}
    page.reload()
    assert page.locator(".message.user").inner_text().startswith("what color?")
    assert page.locator(".message.user img").count() == 0


def png_of(color: bytes) -> bytes:
    """A PNG file of 2 x 2 pixels."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        checksum = zlib.crc32(kind + data)
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)

    head = struct.pack(">IIBBBBB", 2, 2, 8, 2, 0, 0, 0)
    rows = zlib.compress((b"\x00" + 2 * color) * 2)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def test_versions_of_answers_and_messages_are_kept(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say(f"answer {len(server.script.requests)}")
    page = open_page()
    texts = lambda: page.locator(".message .body").all_inner_texts()  # noqa: E731
    ask(page, "first")
    ask(page, "second")
    first_answer = page.locator(".message.assistant").first
    first_answer.locator("text=Again").click()
    page.wait_for_selector("text=answer 3")
    assert texts() == ["first", "answer 3"]
    assert first_answer.locator(".versions").inner_text() == "‹2 of 2›"
    first_answer.locator("[aria-label='Earlier version']").click()
    assert texts() == ["first", "answer 1", "second", "answer 2"]
    page.locator(".message.user").last.locator("text=Edit").click()
    assert page.input_value("#prompt") == "second"
    page.keyboard.press("Escape")
    assert page.input_value("#prompt") == ""
    page.locator(".message.user").last.locator("text=Edit").click()
    page.fill("#prompt", "other")
    page.press("#prompt", "Enter")
    page.wait_for_selector("text=answer 4")
    assert [m["content"] for m in server.script.requests[-1]["messages"]] == [
        "first", "answer 1", "other",
    ]  # fmt: skip
    page.reload()
    assert texts() == ["first", "answer 1", "other", "answer 4"]
    page.locator(".message.user").last.locator("[aria-label='Earlier version']").click()
    assert texts() == ["first", "answer 1", "second", "answer 2"]
    page.locator(".message.assistant").first.locator("[aria-label='Later version']").click()
    assert texts() == ["first", "answer 3"]


def test_another_tab_does_not_lose_conversations(open_page: Any, server: Any) -> None:
    page = open_page()
    ask(page, "here")
    other = page.context.new_page()
    other.goto(server.url)
    other.wait_for_selector('#state[data-state="ready"]')
    ask(other, "there")
    page.wait_for_selector(".conversation >> text=there")
    ask(page, "here again")
    other.reload()
    assert other.locator(".conversation").all_inner_texts() == ["here", "there"]


def test_suggestions_are_for_the_demo_model(open_page: Any, server: Any) -> None:
    assert open_page().locator(".chip").count() == 4
    server.script.is_demo = False
    assert open_page().locator(".chip").count() == 0


def test_sampling_defaults_are_shown_sent_and_changed(open_page: Any, server: Any) -> None:
    chat = {"temperature": 0.7, "top_p": 0.95, "min_p": 0.05}
    server.script.sampling = {"model": {"repetition_penalty": 1.1}, "chat": chat}
    page = open_page()
    ask(page, "hi")
    assert {name: server.script.requests[0][name] for name in chat} == chat
    page.click("#open-settings")
    shown = [page.get_attribute(f"[name={name}]", "placeholder") for name in (*chat, "top_k")]
    assert shown == ["0.7", "0.95", "0.05", "all"]
    page.fill("[name=temperature]", "1")
    page.click("text=Done")
    ask(page, "hi")
    assert server.script.requests[1]["temperature"] == 1
    server.script.sampling = {"model": {"temperature": 0.2}, "chat": {}}
    page = open_page()
    ask(page, "hi")
    assert "temperature" not in server.script.requests[2]
    page.click("#open-settings")
    assert page.get_attribute("[name=temperature]", "placeholder") == "0.2, the model's"


def test_thinking_is_folded_away_and_not_sent_back(open_page: Any, server: Any) -> None:
    server.script.answer = lambda _: page_server.say("<think>17 + 25</think>It is 42.")
    page = open_page()
    body = ask(page, "sum?")
    assert body.locator("details").get_attribute("open") is None
    assert body.locator("> .text > p").inner_text() == "It is 42."
    ask(page, "sure?")
    assert server.script.requests[1]["messages"][1]["content"] == "It is 42."


def test_settings_reach_the_request(open_page: Any, server: Any) -> None:
    page = open_page()
    page.click("#open-settings")
    page.fill("[name=system]", "Answer in Latin.")
    page.fill("[name=temperature]", "0")
    page.fill("[name=max_tokens]", "7")
    page.fill("[name=stop]", "END|STOP")
    page.select_option("[name=reasoning]", "on")
    page.click("text=Done")
    ask(page, "hi")
    sent = server.script.requests[0]
    assert sent["messages"][0] == {"role": "system", "content": "Answer in Latin."}
    assert (sent["temperature"], sent["max_tokens"], sent["stop"]) == (0, 7, ["END", "STOP"])
    assert sent["chat_template_kwargs"]["enable_thinking"] is True
    assert "top_p" not in sent
    page.click("#open-settings")
    page.check("[value=completion]")
    page.click("text=Done")
    page.click("#new-chat")
    ask(page, "Once upon a time")
    assert server.script.requests[1]["path"] == "/v1/completions"
    assert server.script.requests[1]["prompt"] == "Once upon a time"


def test_a_guarded_server_is_asked_with_the_key(open_page: Any, server: Any) -> None:
    server.script.api_key = "sesame"
    page = open_page(is_ready=False)
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "wrong")
    page.press("#key", "Enter")
    page.wait_for_selector("#key-dialog[open]")
    page.fill("#key", "sesame")
    page.press("#key", "Enter")
    page.wait_for_selector('#state[data-state="ready"]')
    assert ask(page, "hi").inner_text() == "Hello."
    assert page.evaluate("localStorage.getItem('quire.api-key')") is None


def test_a_busy_server_is_explained_and_asking_again_works(open_page: Any, server: Any) -> None:
    page = open_page()
    server.script.refusal = (503, "The queue is full.")
    body = ask(page, "hi")
    assert body.inner_text() == "The server is busy. The queue is full. Try again in 3 s."
    server.script.refusal = None
    page.click("button >> text=Again")
    page.wait_for_selector(".assistant .body >> text=Hello.")
    assert page.locator(".message.assistant").count() == 1


def test_the_live_view_follows_the_engine(open_page: Any, server: Any) -> None:
    server.script.busy = True
    page = open_page()
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


def test_a_vanished_server_is_noticed(open_page: Any, server: Any) -> None:
    page = open_page()
    server.is_closing.set()
    server.shutdown()
    server.socket.close()
    page.wait_for_selector('#state[data-state="away"]', timeout=8000)


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
    time.sleep(0.3)
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


TOOL = {
    "name": "get_weather", "description": "The weather",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}},
}  # fmt: skip


def call_weather(body: dict[str, Any]) -> Any:
    """A model that calls the tool, and then tells its result."""
    if body["messages"][-1]["role"] == "tool":
        yield from page_server.say(f"It is {body['messages'][-1]['content']}.")
        return
    yield {"reasoning": "I need the weather."}
    function = {"name": "get_weather", "arguments": ""}
    yield {"tool_calls": [{"index": 0, "id": "c1", "type": "function", "function": function}]}
    for piece in ('{"city": ', '"Paris"}'):
        yield {"tool_calls": [{"index": 0, "function": {"arguments": piece}}]}


def test_a_tool_is_added_called_and_answered(open_page: Any, server: Any) -> None:
    server.script.answer = call_weather
    page = open_page()
    page.click("#open-settings")
    page.fill("#new-tool", "{ no JSON")
    page.click("#add-tool")
    assert "not JSON" in page.inner_text("#tool-error")
    page.fill("#new-tool", page_server.json.dumps(TOOL))
    page.click("#add-tool")
    assert page.inner_text("#tool-list code") == "get_weather"
    page.click("text=Done")
    body = ask(page, "Weather in Paris?")
    [tool] = server.script.requests[0]["tools"]
    assert tool == {"type": "function", "function": TOOL}
    call = body.locator("details.call")
    assert call.locator("summary").inner_text() == 'Calls get_weather(city: "Paris")'
    assert body.locator("details.thinking").get_attribute("open") is None
    call.locator("textarea").fill("sunny")
    call.locator("text=Give result").click()
    page.wait_for_selector("text=It is sunny.")
    first, called, result = server.script.requests[1]["messages"]
    assert first["role"] == "user"
    assert called["tool_calls"] == [
        {"id": "c1", "type": "function",
         "function": {"name": "get_weather", "arguments": '{"city": "Paris"}'}}
    ]  # fmt: skip
    assert result == {"role": "tool", "tool_call_id": "c1", "content": "sunny"}
    assert page.locator(".message.tool summary").inner_text() == "Result of get_weather"
    assert not call.locator("textarea").is_visible()
    page.click("#open-settings")
    page.click("[aria-label='Remove get_weather']")
    page.click("text=Done")
    page.click("#new-chat")
    ask(page, "hi")
    assert "tools" not in server.script.requests[2]


def test_the_form_of_the_answer_and_the_raw_request(open_page: Any, server: Any) -> None:
    page = open_page()
    page.click("#open-settings")
    page.fill("[name=schema]", '{"type": "obj')
    page.click("text=Done")
    assert page.is_visible("#settings")  # the schema is no JSON
    page.fill("[name=schema]", '{"type": "object"}')
    page.click("text=Done")
    ask(page, "hi")
    sent = server.script.requests[0]
    schema = {"name": "answer", "schema": {"type": "object"}}
    assert sent["response_format"] == {"type": "json_schema", "json_schema": schema}
    page.hover(".message.assistant")
    page.click("text=Request")
    assert page.inner_text("#request-path") == "POST /v1/chat/completions"
    shown = page_server.json.loads(page.inner_text("#request-body"))
    assert shown["messages"] == sent["messages"]
    assert shown["response_format"] == sent["response_format"]


def test_a_model_that_ranks_shows_the_nearest_texts(open_page: Any, server: Any) -> None:
    """Instead of the chat; a text is shown as text, and a refusal in the server's words."""
    server.script.scoring = "bi-encoder"
    page = open_page()
    page.wait_for_selector("#nearest", state="visible")
    assert not page.locator("#composer").is_visible()
    page.fill("#texts", "the sea is wide\n\n<b>a red sky</b>\nnothing")
    page.fill("#query", "red sky")
    page.press("#query", "Enter")
    page.wait_for_selector("#ranks li")
    assert page.locator("#ranks li").all_inner_texts() == [
        "1.0000<b>a red sky</b>", "0.0000the sea is wide", "0.0000nothing",
    ]  # fmt: skip
    sent = server.script.requests[0]
    assert sent["path"] == "/v1/rerank"
    assert len(sent["documents"]) == 3
    server.script.refusal = (400, "the texts are too long")
    page.click("#rank")
    page.wait_for_function("() => document.getElementById('nearest-error').textContent")
    assert "the texts are too long" in page.locator("#nearest-error").inner_text()
