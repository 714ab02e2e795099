"""`ServerContext`: the state that all routes share: the options, the served models, and the
server's own state. Created by `serve` (or a test), read by routes; owned by the event loop.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from quire.adapters import AnyAdapterRequest
from quire.adapters.resolvers import registered_resolvers
from quire.server.args import ServerArgs
from quire.server.bodies.uploads import UploadSpace
from quire.server.http.middleware import IgnoredFields
from quire.server.http.problems import not_found
from quire.server.served_adapters import ServedAdapters
from quire.server.served_model import ServedModel
from quire.server.work_pool import WorkPool

if TYPE_CHECKING:
    from quire.server.fleet.fleet import Fleet

_LATEST = ":latest"
"""Ollama's clients add it to a name without a tag."""
FORMS_ON_DISK = 4
"""The files of all forms together have so many times the bytes of the largest form."""


@dataclass(frozen=True, slots=True)
class Target:
    """The meaning of a name in a request: a model, or an adapter of a model."""

    name: str
    """The name that the reply repeats."""
    model: ServedModel
    adapter: AnyAdapterRequest | None = None
    """None: the model itself."""


@dataclass(slots=True)
class ServerContext:
    """The shared state of all routes."""

    args: ServerArgs
    has_profiler: bool = False
    """Whether callers can record the engine's steps."""
    has_kv_store: bool = False
    """Whether an engine keeps K/V outside its KV cache."""
    has_adapters: bool = False
    """Whether callers can load and unload adapters."""
    models: list[ServedModel] = field(default_factory=list)
    """The first one answers requests that name no model, and the routes without a model's name."""
    fleet: Fleet | None = None
    """Loads and unloads the models; None: the server has one model, which is always loaded."""
    is_started: bool = False
    """Whether the models that are loaded at the start are loaded."""
    is_draining: bool = False
    is_stopping: bool = False
    """Draining is over: endless streams (the live view) end now."""
    generating_tokens: dict[tuple[str | None, str], set[Callable[[], None]]] = field(
        default_factory=dict
    )
    """Functions that abort requests of `/inference/v1/generate` in flight, by the tenant's salt and
    the reply's id."""
    started_at: float = field(default_factory=time.monotonic)
    created: int = field(default_factory=lambda: int(time.time()))
    tasks: set[asyncio.Task[Any]] = field(default_factory=set)
    ignored_fields: IgnoredFields = field(default_factory=IgnoredFields)
    """Reports fields without effect to callers."""
    heard: dict[tuple[str | None, bytes], str] = field(default_factory=dict)
    """Words of the last sounds in chats, by the salt and the sound's digest: the next message of a
    conversation brings the same sounds."""
    pool: WorkPool = field(init=False)
    """Runs work that grows with the size of a request."""
    uploads: UploadSpace = field(init=False)
    """Large files of forms."""

    def __post_init__(self) -> None:
        self.uploads = UploadSpace(FORMS_ON_DISK * self.args.max_form_bytes)
        self.pool = WorkPool(self.args.max_large_requests, self.args.max_large_requests_waiting)

    def add_model(self, names: tuple[str, ...], args: ServerArgs | None = None) -> ServedModel:
        """Adds a model, whose engine is set once it is loaded. `args`: options of its own."""
        self.models.append(self.new_model(names, args))
        return self.models[-1]

    def new_model(self, names: tuple[str, ...], args: ServerArgs | None = None) -> ServedModel:
        """A model that requests cannot name yet."""
        adapters = ServedAdapters(self.args.lora_folders)
        if self.has_adapters:
            adapters.resolvers = registered_resolvers()
        return ServedModel(
            names,
            args or self.args,
            self.pool,
            is_draining=lambda: self.is_draining,
            is_stopping=lambda: self.is_stopping,
            adapters=adapters,
        )

    @property
    def model(self) -> ServedModel:
        """The model for requests that name none."""
        return self.models[0]

    @property
    def max_model_len(self) -> int:
        """The longest context of the models, for limits that apply before a request is read."""
        known = [one for one in self.models if one.engine or one.planned] or self.models
        return max(one.config.model.max_model_len for one in known)

    @property
    def num_generating(self) -> int:
        """HTTP requests for generation in flight."""
        return sum(model.num_generating for model in self.models)

    @property
    def num_preparing(self) -> int:
        """Admitted HTTP requests that no engine has yet."""
        return sum(model.num_preparing for model in self.models)

    @property
    def names(self) -> list[str]:
        """All names that requests may use: those of models and adapters."""
        return [name for model in self.models for name in (*model.names, *model.adapters)]

    def knows(self, name: str | None) -> bool:
        """Whether a name in a request means a model or an adapter. None means the first model."""
        return not name or self._found(name) is not None

    def target(self, name: str | None) -> Target:
        """The model and adapter that a request's `model` names, with or without `:latest`; without
        a name, the first model. Raises HttpError 404 for an unknown name."""
        if not name:
            return Target(self.model.names[0], self.model)
        found = self._found(name)
        if found is None:
            raise not_found(name[:200], self.names)
        return found

    def _found(self, name: str) -> Target | None:
        untagged = name.removesuffix(_LATEST)
        forms = (name, untagged, f"{untagged}{_LATEST}")
        return next((found for form in forms if (found := self._exactly(form))), None)

    def _exactly(self, name: str) -> Target | None:
        for model in self.models:
            if name in model.names:
                return Target(name, model)
        for model in self.models:
            if name in model.adapters:
                return Target(name, model, adapter=model.adapters[name])
        return None

    async def resolve(self, name: Any) -> None:
        """Loads the adapter that a request's `model` names, if it is not known and resolvers find
        it. Raises HttpError."""
        adapters = self.models[0].adapters
        if not adapters.resolvers or not isinstance(name, str) or not name or name in self.names:
            return
        engine = self.models[0].engine
        if engine is not None:
            await adapters.resolve(engine, name)

    def keep(self, coroutine: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        """Starts a task and holds a reference until it ends."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self.tasks.add(task)
        task.add_done_callback(self.tasks.discard)
        return task
