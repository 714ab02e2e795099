"""The format of replies is found with the first chat, once."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from quire.errors import CapacityError, ConfigError, RequestError
from quire.parsers.detection import finder
from quire.parsers.registry import TOOL_FORMATS
from quire.server.args import ServerArgs
from quire.server.fleet.live_models import _OneModel
from quire.server.reply_formats import check_formats
from quire.server.served_model import ServedModel

from .conftest import MakeHarness


async def test_callers_at_once_share_one_search(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_harness(tool_call_parser="hermes").model
    render, num_rendered = model.chat.render, [0]

    async def counted(chat: Any) -> str:
        num_rendered[0] += 1
        return str(await render(chat))

    monkeypatch.setattr(model.chat, "render", counted)
    monkeypatch.setattr("quire.parsers.detection.finder._kept", {})
    found = await asyncio.gather(*(model.reply_format() for _ in range(5)))
    count = num_rendered[0]
    found.append(await model.reply_format())
    assert num_rendered[0] == count
    first, *others = found
    assert all(one is first for one in others)
    assert isinstance(first.tools, TOOL_FORMATS["hermes"])
    assert str(model.formats.found.tools) == "hermes (as requested)"
    assert 0 < num_rendered[0] < 20


def test_the_search_keeps_no_event_loop_busy(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, advance = make_harness().model, finder._advance
    threads: set[threading.Thread] = set()

    def noted(*args: Any) -> Any:
        threads.add(threading.current_thread())
        return advance(*args)

    monkeypatch.setattr(finder, "_advance", noted)
    monkeypatch.setattr(finder, "_kept", {})
    asyncio.run(model.reply_format())
    assert threads
    assert threading.main_thread() not in threads


async def test_a_search_that_finds_no_room_is_tried_again(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_harness().model
    render, is_full = model.chat.render, [True]

    async def full(chat: Any) -> str:
        if is_full[0]:
            raise CapacityError("too many chats wait")
        return str(await render(chat))

    monkeypatch.setattr(model.chat, "render", full)
    monkeypatch.setattr("quire.parsers.detection.finder._kept", {})
    with pytest.raises(CapacityError):
        await model.reply_format()
    is_full[0] = False
    await model.reply_format()


def test_a_template_that_takes_too_long_is_asked_no_more(
    make_harness: MakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = make_harness().model
    num_rendered = [0]

    async def stopped(chat: Any) -> str:
        del chat
        num_rendered[0] += 1
        raise RequestError("the chat template 'default' was stopped: it takes more than 5 s")

    monkeypatch.setattr(model.chat, "render", stopped)
    monkeypatch.setattr("quire.parsers.detection.finder._kept", {})
    asyncio.run(model.reply_format())
    assert num_rendered[0] == 1


def test_a_server_does_not_start_without_the_description_that_it_was_told_to_read(
    make_harness: MakeHarness,
) -> None:
    model = make_harness().model
    check_formats(model.args, model.config)
    model = make_harness(tool_call_parser="hf").model
    with pytest.raises(ConfigError, match="requires a response_template in the checkpoint's"):
        check_formats(model.args, model.config)


def test_no_format_of_replies_is_sought_for_a_pooling_model() -> None:
    kept: list[Any] = []
    for pooling in (object(), None):
        context: Any = SimpleNamespace(keep=kept.append)
        config: Any = SimpleNamespace(model=SimpleNamespace(pooling=pooling))
        served: Any = SimpleNamespace(chat=object())
        _OneModel(context, served, config, [], cast(Any, None)).after_start()
        assert len(kept) == (pooling is None)
    kept[0].close()


def test_a_pooling_model_has_no_format_of_replies() -> None:
    """`/v1/messages` asks for it before the request is refused; the search takes a second."""
    config: Any = SimpleNamespace(model=SimpleNamespace(pooling=object()))
    unused: Any = None
    model = ServedModel(("m",), ServerArgs(), unused, planned=config)
    found = asyncio.run(model.reply_format())
    assert (found.reasoning, found.tools, model.formats) == (None, None, None)
