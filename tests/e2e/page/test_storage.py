"""What the browser keeps: conversations, also many, in two tabs, in files, and without storage."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from page_actions import ask

STARTED = "[data-is-started]"


def conversation(number: int, **fields: Any) -> dict[str, Any]:
    """A conversation of one question and its answer."""
    messages = [
        {"id": f"q{number}", "role": "user", "content": f"question {number}"},
        {"id": f"a{number}", "role": "assistant", "content": f"answer {number}"},
    ]
    return {
        "id": f"c{number}", "title": f"title {number}", "messages": messages, "forks": [],
        "updated": number + 1, **fields,
    }  # fmt: skip


def bring_in(page: Any, folder: Path, value: object) -> str:
    """Imports a file of this JSON value, or text; returns what the page says."""
    file = folder / "import.json"
    file.write_text(value if isinstance(value, str) else json.dumps(value))
    page.eval_on_selector("#toast", "toast => { toast.hidden = true; }")  # about the last file
    page.set_input_files("#import-file", str(file))
    page.wait_for_selector("#toast:not([hidden])", timeout=60_000)
    return str(page.inner_text("#toast"))


def save(page: Any, click: str, folder: Path) -> str:
    """The text of the file that the browser saves after a click."""
    with page.expect_download() as saved:
        page.click(click)
    saved.value.save_as(folder / "saved")
    return (folder / "saved").read_text()


def test_what_an_earlier_version_stored_is_taken_over(open_page: Any) -> None:
    page = open_page()
    old = [
        {"id": "b", "title": "newer", "messages": [{"role": "user", "content": "newer"}]},
        {"id": "a", "title": "older", "messages": [{"role": "user", "content": "older"}]},
        {"id": "x", "messages": [{"role": "user", "content": 7}]},
    ]
    page.evaluate("old => localStorage.setItem('quire.conversations', JSON.stringify(old))", old)
    page.reload()
    page.wait_for_selector(".conversation >> nth=1")
    assert page.locator(".conversation").all_inner_texts() == ["newer", "older"]
    assert page.evaluate("localStorage.getItem('quire.conversations')") is None
    unread = page.evaluate("JSON.parse(localStorage.getItem('quire.conversations.unread'))")
    assert unread == old[2:]  # nothing is dropped silently
    page.click("text=older")
    page.wait_for_selector(".message.user >> text=older")


@pytest.mark.long
def test_two_thousand_conversations_are_listed_found_and_opened(
    open_page: Any, tmp_path: Path
) -> None:
    page = open_page()
    many = [conversation(number) for number in range(2000)]
    assert "Imported 2000 conversations." in bring_in(page, tmp_path, {"conversations": many})
    page.reload()
    page.wait_for_selector(".conversation >> text=title 1999")
    assert page.locator(".conversation").count() == 100
    page.evaluate("document.querySelector('#conversations').scrollTo(0, 1e6)")
    page.wait_for_selector(".conversation >> nth=150")
    page.fill("#search", "answer 1234")
    page.wait_for_selector("#search-note >> text=/^1 conversation$/")
    page.click(".conversation >> text=title 1234")
    page.wait_for_selector(".message.assistant >> text=answer 1234")
    ask(page, "go on")
    page.fill("#search", "")
    page.wait_for_selector(".conversation >> nth=99")
    assert page.locator(".conversation").first.inner_text() == "title 1234"


def test_a_deleted_conversation_comes_back(open_page: Any) -> None:
    page = open_page()
    ask(page, "keep me")
    page.hover(".conversations li")
    page.click(".remove")
    page.wait_for_selector("#toast >> text=Deleted “keep me”.")
    assert page.locator(".conversation").count() == 0
    assert page.is_visible("#greeting")
    page.click("#toast >> text=Undo")
    page.wait_for_selector(".conversation >> text=keep me")
    page.wait_for_selector(".message.user >> text=keep me")
    page.click("#forget")
    page.wait_for_selector("#toast >> text=Deleted 1 conversations.")
    page.click("#toast >> text=Undo")
    page.wait_for_selector(".conversation >> text=keep me")


def test_a_conversation_gets_a_name(open_page: Any) -> None:
    page = open_page()
    ask(page, "first words")
    page.hover(".conversations li")
    page.click(".more")
    page.click("[role=menuitem] >> text=Rename")
    page.fill(".conversations input", "A <b>name</b>")
    page.press(".conversations input", "Enter")
    page.wait_for_selector(".conversation >> text=A <b>name</b>")
    ask(page, "more words")
    page.reload()
    page.wait_for_selector(".conversation >> text=A <b>name</b>")
    assert page.title() == "A <b>name</b> – Quire"


def test_conversations_go_out_and_come_in(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    ask(page, "the ```question```")
    page.hover(".conversations li")
    page.click(".more")
    text = save(page, "[role=menuitem] >> text=Export as Markdown", tmp_path)
    assert text == (
        "# the ```question```\n\n## You\n\nthe ```question```\n\n"
        "## Answer of quire-demo\n\nHello.\n"
    )
    saved = save(page, "#export-all", tmp_path)
    [one] = json.loads(saved)["conversations"]
    assert [message["content"] for message in one["messages"]] == ["the ```question```", "Hello."]
    assert "1 are here already" in bring_in(page, tmp_path, saved)
    assert page.locator(".conversation").count() == 1
    other = open_page()
    assert "Imported 1 conversations." in bring_in(other, tmp_path, saved)
    other.click(".conversation")
    assert other.locator(".assistant .body").inner_text() == "Hello."
    one["messages"][1]["content"] = "Something else."
    assert "Imported 1 conversations." in bring_in(other, tmp_path, {"conversations": [one]})
    other.wait_for_selector(".conversation >> nth=1")  # both stay


HOSTILE = "<img src=x onerror=\"document.title='broken into'\">"


def test_a_hostile_file_stays_text(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    call = {"id": HOSTILE, "name": HOSTILE, "arguments": HOSTILE}
    messages = [
        {"role": "user", "content": HOSTILE, "images": ["javascript:alert(1)", "https://a/b.png",
         "data:image/svg+xml;base64,AAAA", 7], "attachments": [{"name": HOSTILE}, None]},
        {"role": "assistant", "content": HOSTILE, "model": HOSTILE, "error": HOSTILE,
         "calls": [call, {"name": 1}], "stats": {"rate": HOSTILE, "completion": 3},
         "running": True, "__proto__": {"polluted": 1}},
        {"role": "tool", "content": HOSTILE, "callId": HOSTILE, "name": HOSTILE},
    ]  # fmt: skip
    hostile = {"id": "../../" + HOSTILE, "title": HOSTILE, "messages": messages, "forks": [
        {"at": 1, "chosen": 5, "versions": []}, {"at": -1}, None,
    ]}  # fmt: skip
    assert "Imported 1 conversations." in bring_in(page, tmp_path, {"conversations": [hostile]})
    page.click(".conversation")
    page.wait_for_selector(".message.tool")
    assert page.locator(".desk img").count() == 0
    assert page.locator(".message.user .body").inner_text() == HOSTILE
    assert "broken into" not in page.title().split(HOSTILE)
    assert page.evaluate("({}).polluted") is None
    assert "3 tokens" in page.locator(".assistant .stats").inner_text()
    page.reload()
    page.wait_for_selector(".message.tool")


def test_broken_files_are_refused(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    ask(page, "stays")
    for text, said in [
        ("{", "The file is not JSON"),
        ("7", "The file has no conversations"),
        ("", "The file is not JSON"),
        ('{"conversations": {}}', "The file has no conversations"),
        ("[" * 100_000, "The file is not JSON"),
        ("null", "The file has no conversations"),
        ('{"conversations": [null, 7, {"id": "a"}, {"id": "b", "messages": [1]}]}', "4 cannot be"),
    ]:
        assert said in bring_in(page, tmp_path, text)
    assert page.locator(".conversation").all_inner_texts() == ["stays"]


def test_deep_versions_do_no_harm(open_page: Any, tmp_path: Path) -> None:
    page = open_page()
    inner: dict[str, Any] = {"messages": [{"role": "user", "content": "deep"}], "forks": []}
    for _ in range(150):
        inner = {"messages": inner["messages"], "forks": [
            {"at": 0, "chosen": 0, "versions": [None, inner]}]}  # fmt: skip
    said = bring_in(page, tmp_path, {"conversations": [{"id": "deep", **inner}]})
    assert "Imported 1" in said or "1 cannot be read" in said
    ask(page, "works")


_WITHOUT = {
    "no IndexedDB": "Object.defineProperty(window, 'indexedDB', {value: undefined})",
    "IndexedDB throws": """IDBFactory.prototype.open = () => {
        throw new DOMException('no', 'SecurityError') }""",
    "cookies blocked": """for (const name of ['localStorage', 'sessionStorage', 'indexedDB'])
        Object.defineProperty(window, name, {
            get() { throw new DOMException('no', 'SecurityError') } })""",
    "full": """IDBObjectStore.prototype.put = () => {
        throw new DOMException('full', 'QuotaExceededError') }""",
}


@pytest.mark.parametrize("script", _WITHOUT.values(), ids=_WITHOUT)
def test_without_storage_the_page_works_and_says_so(
    open_page: Any, server: Any, tmp_path: Path, script: str
) -> None:
    page = open_page(init_script=script)
    ask(page, "first")
    page.wait_for_selector("#notice >> text=This browser does not store conversations now")
    page.click("#new-chat")
    ask(page, "second")
    ask(page, "third")
    assert len(server.script.requests[-1]["messages"]) == 3
    assert page.locator(".conversation").all_inner_texts() == ["second", "first"]
    page.click(".conversation >> text=first")
    page.wait_for_selector(".message.user >> text=first")
    page.hover(".conversations li")
    page.click(".remove >> nth=0")
    page.click("#toast >> text=Undo")
    page.wait_for_selector(".conversation >> nth=1")
    assert len(json.loads(save(page, "#export-all", tmp_path))["conversations"]) == 2


def test_storage_that_has_room_again_keeps_what_was_held(open_page: Any) -> None:
    page = open_page()
    page.evaluate(
        """() => { window.put = IDBObjectStore.prototype.put;
            IDBObjectStore.prototype.put = () => {
                throw new DOMException('', 'QuotaExceededError') } }"""
    )
    ask(page, "first")
    page.wait_for_selector("#notice:not([hidden])")
    page.evaluate("() => { IDBObjectStore.prototype.put = window.put }")
    ask(page, "second")
    page.wait_for_selector("#notice", state="hidden")
    page.reload()
    page.wait_for_selector(".message.user >> text=second")
    assert page.locator(".message").count() == 4


def test_storage_that_is_cleared_is_opened_again(open_page: Any) -> None:
    page = open_page()
    ask(page, "first")
    page.evaluate(
        """() => new Promise(end => {
            const deletion = indexedDB.deleteDatabase('quire');
            deletion.onsuccess = deletion.onerror = end; })"""
    )
    ask(page, "second")
    assert page.is_hidden("#notice")
    page.reload()
    page.wait_for_selector(".message.user >> text=second")
    assert page.locator(".message").count() == 4  # what was shown is stored again


def test_a_nearly_full_storage_is_announced(open_page: Any) -> None:
    page = open_page(
        init_script="StorageManager.prototype.estimate = async () => ({usage: 95e6, quota: 1e8})"
    )
    page.wait_for_selector("#notice >> text=storage is nearly full: 91 MiB of 95 MiB.")
    assert page.locator("text=Export conversations").count() == 1


def test_two_tabs_do_not_overwrite_each_other(open_page: Any) -> None:
    page = open_page()
    ask(page, "start")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".message.user >> text=start")
    # The second tab hears nothing of the first, as one that the browser has frozen.
    page.evaluate("BroadcastChannel.prototype.postMessage = () => {}")
    ask(page, "from the first tab")
    ask(other, "from the second tab")
    other.wait_for_selector(".versions >> text=2 of 2")
    other.click("[aria-label='Earlier version']")
    other.wait_for_selector(".message.user >> text=from the first tab")
    assert other.locator(".message").count() == 4


def test_a_name_given_in_one_tab_is_seen_in_the_other(open_page: Any) -> None:
    page = open_page()
    ask(page, "start")
    other = page.context.new_page()
    other.goto(page.url)
    other.wait_for_selector(".conversation >> text=start")
    ask(page, "news")
    other.wait_for_selector(".message.user >> text=news")
    other.hover(".conversations li")
    other.click(".remove")
    page.wait_for_selector(".conversations li", state="detached")


def test_models_are_remembered_and_named(open_page: Any, server: Any) -> None:
    file = "/models/SmolLM2-135M-Instruct.Q4_1.gguf"
    server.script.adapters = [file, "sql"]
    page = open_page()
    assert page.locator("#model option").all_inner_texts() == [
        "quire-demo", "SmolLM2-135M-Instruct.Q4_1", "sql, adapter of quire-demo",
    ]  # fmt: skip
    page.select_option("#model", file)
    ask(page, "one")
    assert "SmolLM2-135M-Instruct.Q4_1 ·" in page.locator(".stats").last.inner_text()
    page.reload()
    page.wait_for_selector('#state[data-state="ready"]')
    assert page.input_value("#model") == file
    page.click("#new-chat")
    page.select_option("#model", "sql")
    ask(page, "two")
    page.click(".conversation >> text=one")
    page.wait_for_selector(".message.user >> text=one")
    assert page.input_value("#model") == file
    server.script.adapters = ["sql"]
    page.reload()
    page.wait_for_selector("#model-note >> text=SmolLM2-135M-Instruct.Q4_1 is not served here.")
    ask(page, "three")
    assert server.script.requests[-1]["model"] in ("quire-demo", "sql")


def test_short_names_of_models(open_page: Any) -> None:
    names = [
        "Qwen/Qwen3-0.6B", "a/b.GGUF", "/x/y/", "C:\\m\\k-00001-of-00003.gguf", "./m", ".gguf", "m",
        "org/repo-GGUF",
    ]  # fmt: skip
    shown = open_page().evaluate(
        "names => import('/ui/models.js').then(models => names.map(models.shortName))", names
    )
    assert shown == ["Qwen/Qwen3-0.6B", "b", "y", "k", "m", ".gguf", "m", "org/repo-GGUF"]
