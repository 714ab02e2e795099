"""`is_call_so_far`: whether what a cut reply ends with is the begin of a call.

A limit or a stop string may end a reply before the name of a tool is complete. Then no call has
begun, and its marks are not content either.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from quire.structured.tags.starts import first_texts

if TYPE_CHECKING:
    from quire.parsers.format import ToolFormat


def is_call_so_far(tools: ToolFormat, text: str, offered: Mapping[str, Any], least: int) -> bool:
    """`text`: what was read from a marker on, up to the end of the reply. `offered`: the tools of
    the request.

    True for what no text without calls contains, and for a part of how a call of an offered tool
    begins, if that has `least` characters. So JSON in an answer, which a call may look like, stays
    content.
    """
    anywhere, at_begin = tools.call_patterns(offered), tools.opening_patterns(offered)
    if any(re.search(pattern, text) for pattern in anywhere):
        return True
    if any(re.match(pattern, text) for pattern in at_begin):
        return True
    begin = _squeezed(text)
    if len(begin) < least or begin[0].isalnum() or not tools.has_grammar:
        return False
    form = tools.grammar({name: {} for name in offered}, is_parallel=False)
    return any(_squeezed(one).startswith(begin) for one in first_texts(form))


def _squeezed(text: str) -> str:
    """Without white space, of which models write more or less."""
    return "".join(text.split())
