"""Every hostile template ends in text or in an error, and the event loop turns meanwhile."""

from __future__ import annotations

import asyncio
import time

import hostile_templates
import pytest
from rendered_here import HELLO

from quire.chat.async_renderer import AsyncChatRenderer, RenderBounds
from quire.chat.job import ChatInput
from quire.chat.templates import ChatTemplates
from quire.errors import RequestError

EVERY = hostile_templates.every()
_MAX_SECONDS = 0.5
_LONGEST_TURN_S = 4.0
"""Far above any turn of a loop on a busy machine, and far below any hanging template."""


@pytest.mark.sweep(1)
@pytest.mark.parametrize("part", range(8))
def test_hostile_templates_end(part: int) -> None:
    sources = [EVERY[name] for name in sorted(EVERY)[part::8]]

    async def main() -> float:
        bounds = RenderBounds(max_seconds=_MAX_SECONDS)
        renderer = AsyncChatRenderer(ChatTemplates({"default": "fine"}, {}), bounds)
        longest_s, last = 0.0, time.monotonic()

        async def watch() -> None:
            nonlocal longest_s, last
            while True:
                await asyncio.sleep(0.01)
                longest_s, last = max(longest_s, time.monotonic() - last), time.monotonic()

        watching = asyncio.create_task(watch())
        chats = [ChatInput(HELLO, chat_template=source) for source in sources]
        found = await asyncio.gather(*map(renderer.render, chats), return_exceptions=True)
        assert await renderer.render(ChatInput(HELLO)) == "fine"
        watching.cancel()
        renderer.close()
        for one in found:
            # A deep template overflows the stack of some versions of Python, of its process alone.
            is_dead = "was ended by signal" in str(one)
            assert isinstance(one, (str, RequestError)) or is_dead, one
        return longest_s

    assert asyncio.run(main()) < _LONGEST_TURN_S
