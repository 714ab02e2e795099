"""`ServedModel`: a model that the server offers: its engine, its chat templates, and the format of
its replies. `ServerContext` holds the served models.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from quire.config import EngineConfig
from quire.errors import EngineDeadError, RequestError
from quire.server.args import ServerArgs
from quire.server.http.problems import HttpError, unavailable
from quire.server.reply_formats import format_finder
from quire.server.reply_plugins import ReplyPlugins, reply_plugins
from quire.server.requests.limits import WorkLimits
from quire.server.served_adapters import ServedAdapters
from quire.server.work_pool import WorkPool
from quire.version import __version__

if TYPE_CHECKING:
    from quire.chat.async_renderer import AsyncChatRenderer
    from quire.frontend.inputs.images.prompts import ImagePrompts
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.parsers.detection.finder import FormatFinder
    from quire.parsers.format import ReplyFormat
    from quire.tokenizer import Tokenizer
    from quire.transcription.transcriber import Transcriber


@dataclass(frozen=True, slots=True)
class LoadedParts:
    """Parts that must be closed when a model is unloaded."""

    engine: AsyncLLM | None
    chat: AsyncChatRenderer | None


@dataclass(slots=True)
class ServedModel:
    """A model and its state. Owned by the event loop."""

    names: tuple[str, ...]
    """Names by which requests ask for the model; replies use the first one by default."""
    args: ServerArgs
    shared_pool: WorkPool
    """The server's pool, which runs work that grows with the size of a request."""
    is_draining: Callable[[], bool] = lambda: False
    """Whether the server refuses new requests because it is shutting down."""
    is_stopping: Callable[[], bool] = lambda: False
    """Whether it also refuses those that it has admitted."""
    adapters: ServedAdapters = field(default_factory=ServedAdapters)
    """Adapters of this model. A request names an adapter instead of the model."""
    engine: AsyncLLM | None = None
    """None while the model is not loaded."""
    planned: EngineConfig | None = None
    """Configuration that the engine will have; None: only a loaded model has one."""
    chat: AsyncChatRenderer | None = None
    """None without a tokenizer."""
    formats: FormatFinder | None = None
    """Created by the first call of `reply_format`."""
    found_format: ReplyFormat | None = None
    """The result of `reply_format`; None before the first call."""
    transcriber: Transcriber | None = None
    """The transcriber of a model of Whisper's kind; None for other models."""
    num_generating: int = 0
    """HTTP requests for generation in flight."""
    num_preparing: int = 0
    """Admitted HTTP requests that the engine does not have yet."""
    num_users: int = 0
    """HTTP requests that need the model loaded, in a server that unloads models."""
    takes_late_system: dict[bool, bool] = field(default_factory=dict)
    """Whether the chat template accepts system messages between turns, without and with tools.
    Filled by the first request that needs it."""
    num_parameters: int | None = None
    """Filled by the first request that asks for it."""
    reply_abilities: tuple[bool, bool] | None = None
    """Whether replies have reasoning and calls of tools. Filled by the first request that asks."""
    abilities_lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    """Held while they are found."""
    kept_token_ids: dict[bool, list[int]] = field(default_factory=dict)
    """Results of `kept_tokens`, without and with tools."""
    image_prompts: ImagePrompts | None = None
    """Made at the first request with images."""
    disabled_thinking_effort: str | None = None
    """Reasoning effort that stands for disabled thinking; None before the first such request."""

    own_pool: WorkPool | None = None
    """Made at the first request of a model whose tokenizer may be slow."""
    plugins: ReplyPlugins | None = field(init=False)
    """None if no option names a plug-in file."""

    def __post_init__(self) -> None:
        self.plugins = reply_plugins(self.args)

    @property
    def pool(self) -> WorkPool:
        """Runs work that grows with the size of a request: on threads of this model's own if the
        checkpoint may make even a short text take long, so that other models' requests do not
        wait."""
        tokenizer = None if self.engine is None else self.engine.tokenizer
        if tokenizer is None or tokenizer.is_quick:
            return self.shared_pool
        if self.own_pool is None:
            self.own_pool = self.shared_pool.apart()
        return self.own_pool

    @contextmanager
    def admitting(self) -> Iterator[AsyncLLM]:
        """The engine, for a new request that is prepared and handed over in the block: a server
        that shuts down waits for it. Raises HttpError 503 if it is not ready for one."""
        if self.is_draining():
            raise HttpError(unavailable("The server is shutting down.", 5))
        engine = self.live_engine()
        self.num_preparing += 1
        try:
            yield engine
        finally:
            self.num_preparing -= 1

    def live_engine(self) -> AsyncLLM:
        """The engine, for a request that was admitted. Raises HttpError 503 if it does not work."""
        engine = self.loaded_engine()
        if self.is_stopping():
            raise HttpError(unavailable("The server is shutting down.", 5))
        if engine.requests.are_lost:
            raise EngineDeadError(str(engine.dead_error))
        return engine

    def loaded_engine(self) -> AsyncLLM:
        """The engine, for a query. Raises HttpError 503 while it is being loaded."""
        if self.engine is None:
            raise HttpError(unavailable(
                f"The model `{self.names[0]}` is not loaded." if self.planned is not None
                else "The model is still being loaded.", 1,
            ))  # fmt: skip
        return self.engine

    @property
    def config(self) -> EngineConfig:
        """The engine's configuration. Raises HttpError 503 if it is not known before the model is
        loaded."""
        if self.engine is None and self.planned is not None:
            return self.planned
        return self.loaded_engine().config

    @property
    def limits(self) -> WorkLimits:
        """The limits of one request's work. Raises HttpError 503 while it is being loaded."""
        return WorkLimits.of(self.args, self.config.model)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises RequestError if the server runs without one."""
        tokenizer = self.loaded_engine().tokenizer
        if tokenizer is None:
            raise RequestError("this server runs without a tokenizer (skip_tokenizer_init)")
        return tokenizer

    def images(self) -> ImagePrompts:
        """Decodes and places the images of prompts."""
        if self.image_prompts is None:
            from quire.frontend.inputs.images.prompts import ImagePrompts

            self.image_prompts = ImagePrompts(self.config.model)
        return self.image_prompts

    def chat_renderer(self) -> AsyncChatRenderer:
        """Renders chat templates. Raises RequestError if the server runs without a tokenizer."""
        self.tokenizer()
        if self.chat is None:
            raise RequestError("this server has no chat templates")
        return self.chat

    @property
    def chat_template(self) -> str | None:
        """The chat template without a name; None: there is none, or the model is not loaded."""
        return None if self.chat is None else self.chat.templates.templates.get("default")

    @property
    def fingerprint(self) -> str | None:
        """OpenAI's `system_fingerprint`: depends on the version and the model's name, unless
        --fingerprint-mode says otherwise."""
        if self.args.fingerprint_mode in ("custom", "none"):
            return self.args.fingerprint_value if self.args.fingerprint_mode == "custom" else None
        digest = hashlib.sha256(self.names[0].encode()).hexdigest()
        return f"quire-{__version__}-{digest[:8]}"

    async def reply_format(self) -> ReplyFormat:
        """Format in which the model writes reasoning and tool calls: the one of the options, or the
        one found in the checkpoint (`parsers.detection`).

        The first call renders some conversations in the renderer's processes; later calls return
        at once, as all do for a model that gives vectors, because it writes no replies. Raises
        CapacityError while the chat templates are too busy, RequestError without a
        tokenizer.
        """
        if self.found_format is None and self.config.model.pooling is not None:
            from quire.parsers.format import ReplyFormat

            self.found_format = ReplyFormat()
        if self.found_format is None:
            if self.formats is None:
                args = self.args, self.config, self.chat_renderer()
                made = await asyncio.to_thread(format_finder, *args)  # it imports every format
                self.formats = self.formats or made
            self.found_format = (await self.formats.find()).reply
        return self.found_format

    async def describes_tools_in_words(self) -> bool:
        """Whether a system message has to describe the tools: the chat template ignores them, and
        no option or checkpoint says how the model calls them."""
        format = await self.reply_format()
        found = None if self.formats is None else self.formats.found
        is_off = self.args.tool_call_parser == "none"
        return format.tools is None and found is not None and not found.shows_tools and not is_off

    def kept_tokens(self, format: ReplyFormat, *, has_tools: bool) -> list[int]:
        """Special tokens that must stay in the text of a reply, because its parser reads them."""
        if has_tools not in self.kept_token_ids:
            from quire.parsers.kept_tokens import kept_token_ids

            tokenizer = self.tokenizer()
            self.kept_token_ids[has_tools] = kept_token_ids(format, tokenizer, has_tools=has_tools)
        return self.kept_token_ids[has_tools]

    def detach(self) -> LoadedParts:
        """Takes the engine and all that depends on it from the model, which is not loaded then."""
        parts = LoadedParts(self.engine, self.chat)
        self.engine = self.chat = self.formats = self.found_format = self.transcriber = None
        self.disabled_thinking_effort = None
        self.takes_late_system.clear()
        self.kept_token_ids.clear()
        return parts
