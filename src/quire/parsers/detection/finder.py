"""Runs `detect` with a renderer of chat templates, on an event loop or blocking.

Results are cached in this process, keyed by the choice and the facts they depend on.
"""

from __future__ import annotations

import asyncio
import hashlib

import msgspec

from quire.chat.async_renderer import AsyncChatRenderer
from quire.chat.job import ChatInput
from quire.chat.renderer import ChatRenderer
from quire.chat.templates import ChatTemplates
from quire.config.checkpoint.model_files import read_optional_json_object
from quire.config.records import ModelConfig
from quire.errors import CapacityError, QuireError, RequestError
from quire.log import get_logger
from quire.parsers.detection.detect import CheckpointFacts, detect
from quire.parsers.detection.found import FoundFormat
from quire.parsers.detection.names import FormatChoice
from quire.parsers.detection.rendering import Probing
from quire.parsers.detection.response_template import check_declared, read_response_template

logger = get_logger(__name__)

_TOKENIZER_CONFIG = "tokenizer_config.json"
_MAX_KEPT = 32
_kept: dict[bytes, FoundFormat] = {}


class FormatFinder:
    """Finds the format of one model's replies on first use.

    Owned by one event loop.
    """

    def __init__(
        self, choice: FormatChoice, model: ModelConfig, renderer: AsyncChatRenderer
    ) -> None:
        self._choice = choice
        self._model = model
        self._renderer = renderer
        self._search: asyncio.Task[FoundFormat] | None = None
        self.found: FoundFormat | None = None
        """The format; None until it is found."""

    async def find(self) -> FoundFormat:
        """Find the format. Concurrent callers wait for the same search.

        Raises CapacityError if the chat renderer is busy; the next call tries again.
        """
        if self._search is None:
            self._search = asyncio.get_running_loop().create_task(self._find())
            self._search.add_done_callback(self._on_end)
        return await asyncio.shield(self._search)

    def _on_end(self, search: asyncio.Task[FoundFormat]) -> None:
        if search.cancelled() or search.exception() is not None:
            self._search = None
        else:
            self.found = search.result()

    async def _find(self) -> FoundFormat:
        facts = await asyncio.to_thread(_facts, self._model, self._renderer.templates)
        key = _key(self._choice, facts)
        if key in _kept:
            return _kept[key]
        probing = detect(self._choice, facts)
        text: str | None = None
        is_stopped = False
        while True:
            step = await asyncio.to_thread(_advance, probing, text)
            if isinstance(step, FoundFormat):
                return _keep(key, step)
            try:
                text = None if is_stopped else await self._renderer.render(step)
            except CapacityError:
                raise
            except QuireError as error:
                text, is_stopped = None, _takes_long(error)


def find_blocking(choice: FormatChoice, model: ModelConfig, renderer: ChatRenderer) -> FoundFormat:
    """The blocking variant of `FormatFinder.find`."""
    facts = _facts(model, renderer.templates)
    key = _key(choice, facts)
    if key in _kept:
        return _kept[key]
    probing = detect(choice, facts)
    text: str | None = None
    is_stopped = False
    while True:
        step = _advance(probing, text)
        if isinstance(step, FoundFormat):
            return _keep(key, step)
        try:
            text = None if is_stopped else renderer.render(step)
        except QuireError as error:
            text, is_stopped = None, _takes_long(error)


def _advance(probing: Probing[FoundFormat], text: str | None) -> ChatInput | FoundFormat:
    """The next chat to render, or the result. May take tens of milliseconds."""
    try:
        return probing.send(text)
    except StopIteration as end:
        found: FoundFormat = end.value
        return found


def check_choice(choice: FormatChoice, model: ModelConfig) -> None:
    """Raises ConfigError if a requested declaration is missing in the checkpoint."""
    check_declared(choice, read_response_template(_response_template(model)))


def _takes_long(error: QuireError) -> bool:
    """Whether the template hit a limit or ended its process; then rendering stops."""
    return not isinstance(error, RequestError) or " was stopped: " in str(error)


def _facts(model: ModelConfig, templates: ChatTemplates) -> CheckpointFacts:
    return CheckpointFacts(model.hf_config, templates.templates, _response_template(model))


def _response_template(model: ModelConfig) -> object:
    path = model.tokenizer_path
    config = {} if path is None else read_optional_json_object(path / _TOKENIZER_CONFIG)
    return config.get("response_template")


def _key(choice: FormatChoice, facts: CheckpointFacts) -> bytes:
    kind = facts.hf_config.get("model_type")
    return hashlib.sha256(
        msgspec.json.encode(
            [
                choice.tools,
                choice.reasoning,
                str(kind),
                sorted(facts.templates.items()),
                facts.response_template,
            ]
        )
    ).digest()


def _keep(key: bytes, found: FoundFormat) -> FoundFormat:
    while len(_kept) >= _MAX_KEPT:
        _kept.pop(next(iter(_kept)), None)
    _kept[key] = found
    logger.info(
        "Replies: reasoning %s, calls of tools %s", found.reasoning or "none", found.tools or "none"
    )
    return found
