"""Hostile templates end in an error of ours, quickly and without using up memory."""

from __future__ import annotations

import resource
import time

import pytest
from rendered_here import rendered_here

from quire.chat import template_limits as sizes
from quire.errors import RequestError

ENDLESS = "{% for i in range(99999) %}{% for j in range(99999) %}"

BOMBS = {
    "silent loops": ENDLESS + "{% endfor %}{% endfor %}",
    "printing loops": ENDLESS + "{{ i }}{% endfor %}{% endfor %}",
    "fixed text in loops": ENDLESS + "x" * 1000 + "{% endfor %}{% endfor %}",
    "macro recursion": "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}"
    "{{ f(40) }}",
    "deep recursion": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
    "doubling by +": "{% set ns = namespace(s='xxxxxxxx') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s + ns.s %}{% endfor %}",
    "doubling by ~": "{% set ns = namespace(s='xxxxxxxx') %}"
    "{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}",
    "doubling by blocks": "{% set ns = namespace(s='xxxxxxxx') %}"
    "{% for i in range(60) %}{% set b %}{{ ns.s }}{{ ns.s }}{% endset %}{% set ns.s = b %}"
    "{% endfor %}",
    "doubling by macros": "{% macro d(x) %}{{ x }}{{ x }}{% endmacro %}"
    + "{{ " + "d(" * 60 + "'xxxx'" + ")" * 60 + " }}",
    "doubling lists": "{% set ns = namespace(l=[1]) %}"
    "{% for i in range(60) %}{% set ns.l = ns.l + ns.l %}{% endfor %}",
    "repeated string": "{{ 'x' * 10000000000 }}",
    "repeated list": "{{ ([1] * 10000000000)|length }}",
    "power": "{{ 10 ** 10 ** 10 }}",
    "growing number": "{% set ns = namespace(n=7) %}"
    "{% for i in range(60) %}{% set ns.n = ns.n * ns.n %}{% endfor %}",
    "ljust": "{{ 'x'.ljust(10000000000) }}",
    "center": "{{ 'x'|center(10000000000) }}",
    "indent": "{{ ('x\n'*1000)|indent(10000000) }}",
    "percent": "{{ '%10000000000d' % 1 }}",
    "percent star": "{{ '%*d' % (10000000000, 1) }}",
    "format": "{{ '{:10000000000}'.format(1) }}",
    "nested format": "{{ '{:{w}}'.format(1, w=10000000000) }}",
    "filter format": "{{ '%10000000000d'|format(1) }}",
    "replace": "{{ ('x' * 1000000).replace('x', 'y' * 1000000) }}",
    "filter replace": "{{ ('x' * 1000000)|replace('x', 'y' * 1000000) }}",
    "join": "{{ (['x' * 1000000] * 100000)|join('') }}",
    "method join": "{{ ''.join(['x' * 1000000] * 100000) }}",
    "tojson indent": "{{ {'a': 1}|tojson(indent=10000000000) }}",
    "tojson growth": "{% set ns = namespace(s='\"') %}"
    "{% for i in range(99) %}{% set ns.s = ns.s|tojson %}{% endfor %}",
    "batch": "{{ [1]|batch(10000000000, 0)|list }}",
    "lipsum": "{{ lipsum(n=100000) }}",
    "wide range": "{{ range(10000000000)|list }}",
}  # fmt: skip

ESCAPES = {
    "class": "{{ ''.__class__.__mro__[1].__subclasses__() }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "format string": "{{ '{0.__class__.__mro__}'.format('') }}",
    "attr filter": "{{ ''|attr('__class__') }}x{{ (''|attr('__class__')).__mro__ }}",
    "map attribute": "{{ [messages]|map(attribute='__class__')|list|first|attr('mro') }}"
    "{{ raise_exception.__code__.co_code }}",
    "private namespace": "{% set ns = namespace() %}{% set ns.__x = 1 %}",
    "append": "{{ messages.append(1) }}",
    "include": "{% include '/etc/passwd' %}",
    "import": "{% import 'os' as os %}",
    "cycler": "{{ cycler.__init__.__globals__.os }}",
    "self": "{{ self.__init__.__globals__ }}",
}


@pytest.mark.parametrize("bomb", sorted(BOMBS))
def test_bombs_are_defused(bomb: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sizes, "MAX_STEPS", 100_000)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    begin = time.monotonic()
    with pytest.raises(RequestError, match=r"template|recursion|lipsum|range"):
        rendered_here(BOMBS[bomb])
    assert time.monotonic() - begin < 8
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300 * 1024  # KiB


def test_a_slow_template_is_stopped_by_the_clock() -> None:
    source = (
        "{% set s = 'x' * 1000000 %}" + ENDLESS + "{% set t = s|upper %}{% endfor %}{% endfor %}"
    )
    begin = time.monotonic()
    with pytest.raises(RequestError, match=r"more than 0\.2 s of processor time"):
        rendered_here(source, max_seconds=0.2)
    assert time.monotonic() - begin < 5


@pytest.mark.parametrize("escape", sorted(ESCAPES))
def test_nothing_of_python_is_reached(escape: str) -> None:
    try:
        rendered = rendered_here(ESCAPES[escape])
    except RequestError:
        return
    assert rendered == ""  # what the sandbox hides prints as nothing


@pytest.mark.parametrize(
    "source",
    ["{% if %}", "{{ 'a", "{% for x in y %}", "{{ nope() }}", "{{ 1 / 0 }}", "{{ 'a' + 1 }}",
     "{{ messages[0].a.b }}", "{{ [] | first }}{{ [].x.y }}", "(" * 5000, "{{" + "(" * 5000,
     "{{ 'a'|nope }}", "{{ strftime_now(5) }}"],
)  # fmt: skip
def test_broken_templates_give_our_error_or_text(source: str) -> None:
    try:
        rendered = rendered_here(source)
    except RequestError:
        return
    assert rendered == source


def test_an_error_leaves_the_next_rendering_alone() -> None:
    with pytest.raises(RequestError):
        rendered_here(BOMBS["ljust"])
    assert rendered_here("{{ messages[0].content }}") == "hi"


def test_a_template_that_is_too_long_is_refused() -> None:
    with pytest.raises(RequestError, match="longer than"):
        rendered_here({}, chat_template="x" * (1 << 21))


def test_ordinary_expressions_are_not_in_the_way() -> None:
    source = (
        "{{ '%s-%d' % ('a', 3) }}|{{ '{}:{:>5}'.format('b', 7) }}|{{ 'x' * 3 }}|{{ 2 ** 10 }}|"
        "{{ [1, 2] + [3] }}|{{ 'a,b'.split(',')|join('+') }}|{{ 'aXa'.replace('X', 'YY') }}|"
        "{{ 'ab'|indent(2, true) }}|{{ 'q' ~ 1 ~ none }}|{{ {'k': 1}|tojson }}|{{ nothing }}|"
        "{{ dict(a=1).items()|list }}|{{ '1'|int + 2.5 }}|"
        "{{ messages|selectattr('role')|list|length }}"
    )
    assert rendered_here(source) == (
        "a-3|b:    7|xxx|1024|[1, 2, 3]|a+b|aYYa|  ab|q1None|{\"k\": 1}||[('a', 1)]|3.5|1"
    )
