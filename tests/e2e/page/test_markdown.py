"""Texts of models: Markdown, formulas, and hostile input."""

from __future__ import annotations

from typing import Any

import page_server
import pytest
from page_actions import ask

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
    "words": "**a " * 100_000, "mixed": "a*b_c" * 4_000, "quotes": "> " * 5_000,
    "lists": "- " * 5_000, "table": "|" * 9_000 + "\n" + "|-" * 4_000, "escapes": "\\" * 20_000,
    "formulas": "\\(" * 10_000, "dollars": "$a" * 10_000, "pairs": "$$" * 10_000,
    "blocks": "\\[\n" * 5_000,
    "environments": "\\begin{align}\n" * 2_000, "braces": "$" + "{" * 1_900 + "}" * 1_900 + "$",
    "macros": r"$$\def\a{\a\a\a}\a$$", "size": r"$$\rule{99999em}{99999em}\kern99999em x$$",
    "many": "$x_1$ " * 1_000, "half": "$$\n" + "x\n" * 9_000,
    "heading": "# a" + " " * 300_000 + "x", "hashes": "# " + "# " * 150_000 + "x",
    "tildes": "~" * 300_000 + "`", "info": "~~~" + " " * 300_000 + "`",
    "item": "- " + " " * 300_000 + "\u2028", "rule of a table": "|\n" + " " * 300_000 + "x",
    "blanks in a line": "a" + " " * 300_000 + "b", "breaks": "a \n" * 50_000,
    "comments": "```js\n" + "/*" * 29_000, "strings": "```js\n" + '"' + '\\"' * 29_000,
    "texts": "```python\n" + '"""\'' * 14_000, "templates": "```js\n`" + "\\`" * 29_000,
    "dots": "http://a" + "." * 300_000, "long formula": "\\[\n" + "x\n" * 100_000,
    "environments of many lines": "\\begin{align}\n\n" * 50_000,
    "breaks of HTML": "<br>" * 20_000, "half breaks": "<br " * 90_000, "references": "&#" * 90_000,
    "notes": "[^a" * 90_000, "notes of lines": "[^1]: a\n" * 9_000, "reactions": "\\ce{" * 30_000,
    "bars": "|" + "\\|" * 90_000 + "\n|-", "wide cell": "|" + "a" * 300_000 + "|\n|-|",
    "urls": "(((http://" * 2_000, "rules": "- - - x\n" * 3_000, "blanks": " " * 20_000 + "x",
}  # fmt: skip


@pytest.mark.long
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


def test_reactions_of_chemistry_are_drawn(open_page: Any, server: Any) -> None:
    """In a formula and without marks of one; a half one stays text."""
    text = r"Burn $\ce{2H2 + O2 -> 2H2O}$, or \ce{CO3^{2-}} alone. Half: \ce{H2"
    server.script.answer = lambda _: page_server.say(text, 3)
    page = open_page()
    body = ask(page, "show")
    page.wait_for_function("node => node.querySelectorAll('.katex').length === 2",
                           arg=body.element_handle())  # fmt: skip
    assert body.locator(".tex, .katex-error").count() == 0
    assert "\\ce" not in body.locator(".katex-html").first.inner_text()
    assert body.inner_text().endswith(r"Half: \ce{H2")


PIECES = {
    "one<br>two<BR />three": "one\ntwo\nthree",
    "a &lt;b&gt; &amp;amp; &nbsp;&mdash; &#8594; &#x2192; &unknown; &#0; &#x202e;x":
        "a <b> &amp; \xa0— → → &unknown; \ufffd \ufffdx",
    "`&lt;<br>` stays": "&lt;<br> stays",
    "&lt;img src=x onerror=pwned=1&gt;": "<img src=x onerror=pwned=1>",
    "<https://example.org/a> and [^a-z]": "https://example.org/a and [^a-z]",
}  # fmt: skip


def test_breaks_and_character_references(open_page: Any, server: Any) -> None:
    """Of HTML, those alone are read; what a reference spells is text."""
    server.script.answer = lambda body: page_server.say(body["messages"][-1]["content"], 3)
    page = open_page()
    for text, expected in PIECES.items():
        body = ask(page, text)
        assert body.inner_text() == expected
        check_harmless(body)


def test_footnotes(open_page: Any, server: Any) -> None:
    text = "A claim[^1] and more[^long].\n\n[^1]: The *first* source.\n[^long]: Another\nline."
    server.script.answer = lambda _: page_server.say(text, 3)
    body = ask(open_page(), "show")
    assert body.locator("p").first.locator("sup").all_inner_texts() == ["1", "long"]
    assert body.locator(".note-text").all_inner_texts() == [
        "1 The first source.",
        "long Another\nline.",
    ]


def test_tables_break_between_words_and_keep_escaped_bars(open_page: Any, server: Any) -> None:
    """A table that is too wide scrolls; a word of it stays in one piece."""
    words = ["Internationalisation", "Electroencephalogram", "Compartmentalisation"]
    row = "| " + " | ".join(words) + " | `a\\|b` |"
    server.script.answer = lambda _: page_server.say(f"{row}\n{'|--' * 4}|\n{row}\n")
    page = open_page(viewport={"width": 390, "height": 844})
    body = ask(page, "show")
    assert body.locator("td").all_inner_texts() == [*words, "a|b"]
    heights = body.locator("td").evaluate_all("all => all.map(one => one.clientHeight)")
    assert max(heights) < 45  # one line each
    assert body.locator(".table").evaluate("node => node.scrollWidth > node.clientWidth")
    assert page.evaluate("document.documentElement.scrollWidth") == 390


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
