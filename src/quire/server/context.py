"""`ServerContext`: the state that all routes share: the options, the engine once it is loaded, and
the server's state. Made by `serve` (or a test), read by routes; owned by the event loop.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from quire.config import EngineConfig
from quire.errors import EngineDeadError, RequestError
from quire.server.args import ServerArgs
from quire.server.http.ignored_fields import IgnoredFields
from quire.server.http.problems import HttpError, not_found, unavailable
from quire.server.http.sessions import Sessions
from quire.server.requests.request_work import WorkLimits
from quire.server.work_pool import WorkPool
from quire.version import __version__

if TYPE_CHECKING:
    from quire.chat.async_renderer import AsyncChatRenderer
    from quire.frontend.online.async_llm import AsyncLLM
    from quire.parsers.detection.finder import FormatFinder
    from quire.parsers.format import ReplyFormat
    from quire.server.stored_responses.store import ResponseStore
    from quire.tokenizer import Tokenizer

ServerState = Literal["loading", "ready", "paused", "draining", "stalled", "dead"]


@dataclass(slots=True)
class ServerContext:
    """The shared state of all routes."""

    args: ServerArgs
    names: tuple[str, ...]
    """Served model names, known before the model is loaded; the first is the model's own."""
    has_profiler: bool = False
    """Whether the engine can record its steps, for whoever may call."""
    has_kv_store: bool = False
    """Whether the engine keeps K/V beyond the KV cache."""
    engine: AsyncLLM | None = None
    chat: AsyncChatRenderer | None = None
    """None without a tokenizer."""
    responses: ResponseStore | None = None
    """Made with the first request for one; see `stored_responses`."""
    formats: FormatFinder | None = None
    """Made with the first chat."""
    reply_format: ReplyFormat | None = None
    """How the model writes reasoning and tool calls; None until a chat asks (`reply_format_of`)."""
    takes_late_system: dict[bool, bool] = field(default_factory=dict)
    """Whether the chat template takes instructions between turns, without and with tools; filled by
    the first request that has such."""
    kept_token_ids: dict[bool, list[int]] = field(default_factory=dict)
    """Special tokens that replies are read by, without and with calls (`kept_tokens_of`)."""
    disabled_thinking_effort: str | None = None
    """The reasoning effort for thinking that is disabled; None until a request asks."""
    is_draining: bool = False
    is_stopping: bool = False
    """Draining is over: endless streams (the live view) end now."""
    num_generating: int = 0
    """HTTP requests for generation in flight."""
    generating_tokens: dict[tuple[str | None, str], set[Callable[[], None]]] = field(
        default_factory=dict
    )
    """Requests for tokens in flight, by the salt of the tenant and the id of the reply: what
    aborts them."""
    started_at: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    ignored_fields: IgnoredFields = field(default_factory=IgnoredFields)
    """Tells callers of fields without effect."""
    sessions: Sessions = field(default_factory=Sessions.from_environment)
    """Of SageMaker."""
    pool: WorkPool = field(init=False)
    """Runs work that grows with the size of a request."""

    def __post_init__(self) -> None:
        self.pool = WorkPool(self.args.max_large_requests, self.args.max_large_requests_waiting)

    def state(self) -> tuple[ServerState, str]:
        """The server's state, and the reason if it cannot serve."""
        if self.engine is None:
            return "loading", "the model is being loaded"
        health = self.engine.health()
        if health.state == "dead":
            return "dead", health.reason
        if self.is_draining:
            return "draining", "the server is shutting down"
        if health.state == "stalled":
            return "stalled", health.reason
        if self.engine.pause_mode is not None:
            return "paused", "generation is paused"
        return "ready", ""

    def live_engine(self) -> AsyncLLM:
        """The engine, for a new request. Raises HttpError 503 if it is not ready for one."""
        if self.engine is None:
            raise HttpError(unavailable("The model is still being loaded.", 1))
        if self.is_draining:
            raise HttpError(unavailable("The server is shutting down.", 5))
        if self.engine.errored:
            raise EngineDeadError(str(self.engine.dead_error))
        return self.engine

    def loaded_engine(self) -> AsyncLLM:
        """The engine, for a query. Raises HttpError 503 while it is being loaded."""
        if self.engine is None:
            raise HttpError(unavailable("The model is still being loaded.", 1))
        return self.engine

    @property
    def config(self) -> EngineConfig:
        """The engine's configuration; only once it is loaded."""
        return self.loaded_engine().config

    @property
    def limits(self) -> WorkLimits:
        """The limits of one request's work; only once the engine is loaded."""
        return WorkLimits.of(self.args, self.config.model)

    def tokenizer(self) -> Tokenizer:
        """The tokenizer. Raises RequestError if the server runs without one."""
        tokenizer = self.loaded_engine().tokenizer
        if tokenizer is None:
            raise RequestError("this server runs without a tokenizer (skip_tokenizer_init)")
        return tokenizer

    def chat_renderer(self) -> AsyncChatRenderer:
        """The chat templates. Raises RequestError if the server runs without a tokenizer."""
        self.tokenizer()
        if self.chat is None:
            raise RequestError("this server has no chat templates")
        return self.chat

    def served_name(self, asked: str | None) -> str:
        """The name to answer with. Raises HttpError 404 for a model that is not served."""
        if asked is None or asked == "":
            return self.names[0]
        if asked not in self.names:
            raise not_found(asked[:200], self.names)
        return asked

    @property
    def fingerprint(self) -> str | None:
        """OpenAI's `system_fingerprint`: equal while version and model are, or as was asked."""
        if self.args.fingerprint_mode in ("custom", "none"):
            return self.args.fingerprint_value if self.args.fingerprint_mode == "custom" else None
        digest = hashlib.sha256("\0".join(self.names).encode()).hexdigest()
        return f"quire-{__version__}-{digest[:8]}"

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task and holds a reference until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
