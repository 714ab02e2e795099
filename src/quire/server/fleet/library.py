"""`Library`: pulls, copies and deletes models while the server runs; `Pull` is one download, in a
process of its own."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from quire import env
from quire.config.engine_args import EngineArgs
from quire.config.model_lookup.aliases import (
    read_aliases,
    remove_alias,
    set_alias,
    settings_of,
    target_of,
)
from quire.config.model_lookup.disk.use import jinja_template
from quire.config.model_lookup.hub import hub_name
from quire.config.model_lookup.library import LibraryModel, cached_model, remove_model
from quire.config.model_lookup.settings import AliasSettings
from quire.errors import ConfigError, ModelNotFoundError, QuireError, RequestError
from quire.log import get_logger
from quire.server.context import ServerContext
from quire.server.fleet.catalog import catalog_of_words, own_settings
from quire.server.fleet.fleet import Fleet
from quire.server.fleet.member import Member, make_member
from quire.server.http.problems import HttpError, Problem, unavailable
from quire.server.served_model import ServedModel

_MAX_LINE_BYTES = 1 << 16


class Pull:
    """Runs `quire pull --json`. Owned by the event loop. `close` must be called in the end."""

    def __init__(
        self, name: str, offer: Callable[[], Awaitable[None]], on_close: Callable[[Pull], None]
    ) -> None:
        """`offer` is called once the model is here."""
        self._name = name
        self._offer = offer
        self._on_close = on_close
        self._process: asyncio.subprocess.Process | None = None
        self._is_closed = False

    async def lines(self) -> AsyncIterator[bytes]:
        """The lines of progress; the last one has `success` or an error. They end early after
        `close`. Raises HttpError, and what `offer` raises."""
        process = self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", "quire", "pull", "--json", "--", self._name,
            stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.DEVNULL, limit=_MAX_LINE_BYTES,
        )  # fmt: skip
        assert process.stdout is not None
        if self._is_closed:
            self._kill()
        line = b""
        async for line in process.stdout:
            if not line.startswith(b'{"status": "success"'):
                yield line
        code = await process.wait()
        if self._is_closed:
            return
        if code == 0:
            await self._offer()
            yield line
        elif b'"error"' not in line:
            raise HttpError(Problem(500, f"The process that pulls ended with code {code}."))

    def close(self) -> None:
        """Ends the download, if it has not ended; finished files stay. Idempotent."""
        self._is_closed = True
        self._on_close(self)
        self._kill()

    def _kill(self) -> None:
        if self._process is not None and self._process.returncode is None:
            with suppress(ProcessLookupError):
                self._process.kill()


logger = get_logger(__name__)
_MAX_PULLS = 2
"""Most models that are being pulled at the same time."""
_MAX_ADDED = 64
"""Most models that are offered besides those of the start."""


class Library:
    """Changes which models a server has. Owned by the event loop.

    Models that were named when the server started are never deleted.
    """

    def __init__(self, context: ServerContext, fleet: Fleet, engine: EngineArgs) -> None:
        """`engine`: options of the models that are added."""
        self._context = context
        self._fleet = fleet
        self._engine = replace(engine, served_model_name=None)
        self._added = set[str]()
        """First names of the models that were pulled or made."""
        self._made = set[str]()
        """Those that were made."""
        self._pulls = set[Pull]()

    def pull(self, name: str) -> Pull:
        """Begins to fetch a model, which is offered in the end. Raises HttpError, RequestError."""
        try:
            hub_name(target_of(name) or name, env.hub_cache_dir())
        except ModelNotFoundError as error:
            raise RequestError(f"model: {error}", parameter="model", value=name) from None
        if name not in self._context.names:
            self._check_room()
        if len(self._pulls) >= _MAX_PULLS:
            raise HttpError(
                unavailable(f"{_MAX_PULLS} models are being pulled, which is the limit.", 30)
            )
        pull = Pull(name, partial(self._offer, name), self._pulls.discard)
        self._pulls.add(pull)
        return pull

    def copy(self, source: str, destination: str) -> None:
        """Gives a model another name, here and as an alias of the command line. Raises HttpError
        404, RequestError."""
        context = self._context
        model, place, own = self._place_of(source)
        if context.knows(destination) and context.target(destination).model is not model:
            raise RequestError(
                f"destination must not be the name of another model, got {destination!r}",
                parameter="destination",
            )
        try:
            set_alias(destination, place, own)
        except ConfigError as error:
            raise RequestError(f"destination: {error}", parameter="destination") from None
        if model is not None and destination not in model.names:
            model.names = (*model.names, destination)

    async def create(self, name: str, base: str, settings: AliasSettings) -> None:
        """Makes an alias of a model, with these settings besides those of `base`, and offers it. It
        replaces one that was made before. Raises HttpError: 404 if there is no `base`, 409 if the
        earlier one has requests; RequestError."""
        context = self._context
        _, place, own = self._place_of(base)
        if settings.chat_template:
            try:
                text = await asyncio.to_thread(jinja_template, settings.chat_template, place)
            except QuireError as error:
                raise RequestError(f"template: {error}", parameter="template") from None
            settings = replace(settings, chat_template=text)
        if context.knows(name) and name not in self._made:
            raise RequestError(
                f"model must not be the name of another model, got {name!r}", parameter="model"
            )
        if name not in context.names:
            self._check_room()
        try:
            earlier, earlier_own = read_aliases().get(name), settings_of(name)
            set_alias(name, place, AliasSettings(
                system_prompt=settings.system_prompt or own.system_prompt,
                chat_template=settings.chat_template or own.chat_template,
                sampling={**own.sampling, **settings.sampling},
                max_model_len=settings.max_model_len or own.max_model_len,
                messages=settings.messages or own.messages,
            ))  # fmt: skip
        except ConfigError as error:
            raise RequestError(f"model: {error}", parameter="model") from None
        try:
            member = await asyncio.to_thread(self._member, name, context.new_model((name,)))
            while name in self._made:
                await self._remove(context.target(name).model)
        except (QuireError, HttpError) as error:
            if earlier is None:
                remove_alias(name)
            else:
                set_alias(name, earlier, earlier_own)
            if isinstance(error, HttpError):
                raise
            message = f"the model cannot be served with these settings: {error}"
            raise RequestError(message, parameter="parameters") from None
        self._add(member)
        self._made.add(name)

    async def delete(self, name: str) -> None:
        """Deletes a copied or made name, or a model with its files. Raises HttpError: 404 if there
        is none, 403 for a model of the start, 409 if it has requests."""
        served = self._context.target(name).model if self._context.knows(name) else None
        if served is not None and name in self._made:
            await self._remove(served)
            if name in read_aliases():
                remove_alias(name)
            return
        if name in read_aliases() and (served is None or name != served.names[0]):
            remove_alias(name)
            if served is not None:
                served.names = tuple(one for one in served.names if one != name)
            return
        if served is not None and served.names[0] not in self._added:
            raise HttpError(Problem(
                403, f"The model `{name}` was named when the server started, so it cannot be "
                "deleted while the server runs.", param="model",
            ))  # fmt: skip
        cached = self._cached(name)
        for model in self._users_of(cached):
            if model.names[0] not in self._added:
                raise HttpError(Problem(
                    403, f"The model `{name}` is served as `{model.names[0]}`, so it cannot be "
                    "deleted while the server runs.", param="model",
                ))  # fmt: skip
            await self._remove(model)
        await asyncio.to_thread(remove_model, cached, env.hub_cache_dir())
        logger.info("deleted %s", cached.name)

    # --- parts

    def _place_of(self, name: str) -> tuple[ServedModel | None, str, AliasSettings]:
        """The served model of a name, if any; what loads it; and its settings. Raises HttpError
        404, and ConfigError for damaged aliases."""
        read_aliases()
        if self._context.knows(name):
            model = self._context.target(name).model
            place = model.config.model.model
            path = Path(place)
            own = own_settings(self._fleet.member_of(model).entry, self._engine, self._context.args)
            return model, str(path.absolute()) if path.exists() else place, own
        place = name if target_of(name) else self._cached(name).name
        return None, place, settings_of(place)

    async def _remove(self, model: ServedModel) -> None:
        await self._fleet.remove(model)
        self._context.models.remove(model)
        for names in (self._added, self._made):
            names.discard(model.names[0])

    def _check_room(self) -> None:
        if len(self._added) >= _MAX_ADDED:
            raise HttpError(
                unavailable(f"{_MAX_ADDED} added models are offered, which is the limit.", 60)
            )

    async def _offer(self, name: str) -> None:
        """Lets requests use a model of the cache. Raises QuireError if it cannot be served."""
        if name in self._context.names:
            return
        model = self._context.new_model((name,))
        member = await asyncio.to_thread(self._member, name, model)
        if name in self._context.names:
            return  # another pull of it was faster
        self._add(member)

    def _add(self, member: Member) -> None:
        self._fleet.add(member)
        self._context.models.append(member.model)
        self._added.add(member.name)

    def _member(self, name: str, model: ServedModel) -> Member:
        [entry] = catalog_of_words([name], self._engine, self._context.args)
        budget = self._fleet.budget_bytes
        share = budget // (len(self._fleet.members) + 1)
        member = make_member(replace(entry, is_preloaded=False), model, share, budget)
        if member.config is None:
            raise ConfigError(f"{name} does not fit: {member.failure}")
        model.planned, model.args = member.config, entry.server
        return member

    def _cached(self, name: str) -> LibraryModel:
        try:
            return cached_model(name)
        except ModelNotFoundError:
            raise HttpError(
                Problem(404, f"The model `{name[:200]}` is neither served nor in the hub's cache.")
            ) from None

    def _users_of(self, cached: LibraryModel) -> Sequence[ServedModel]:
        found = []
        for member in self._fleet.members:
            with suppress(QuireError):
                if cached_model(member.entry.engine.model or "").name == cached.name:
                    found.append(member.model)
        return found
