"""`ServedAdapters`: the adapters of a served model by name, and how callers add and remove them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal
from weakref import WeakValueDictionary

from quire.adapters import (
    AdapterModule,
    AnyAdapterRequest,
    LoRARequest,
    PromptAdapterRequest,
    parse_modules,
    parse_prompt_adapters,
)
from quire.adapters.modules import NAMES, is_name
from quire.adapters.resolvers import LoRAResolver
from quire.config.checkpoint.adapter_tasks import has_adapter
from quire.config.checkpoint.model_files import has_file
from quire.config.records import EngineConfig
from quire.errors import CheckpointError, ConfigError, quoted, reason
from quire.log import get_logger
from quire.server.args import ServerArgs
from quire.server.http.problems import HttpError, Problem

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM

logger = get_logger(__name__)

MAX_ADDED = 1000
"""Most adapters that callers add to those of the options."""
_MOST_RESOLVING = 4
"""Names that resolvers are asked for at a time: each may read a disk or ask a network."""


class ServedAdapters:
    """Names of adapters with what the engine needs to find them. Owned by the event loop."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """`folders`: those that callers may load adapters from; empty: all."""
        self._folders = [Path(folder).resolve() for folder in folders]
        self._by_name: dict[str, AnyAdapterRequest] = {}
        self.resolvers: list[LoRAResolver] = []
        """Asked for names that are not known."""
        self._added: dict[str, bool] = {}
        """Adapters that callers added, oldest first; whether a resolver found them."""
        self._num_loading = 0
        """Names that are being added."""
        self._num_ids = 0
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By name. Held while an adapter is loaded or removed, so that a name means one thing at a
        time."""
        self._resolving = asyncio.Semaphore(_MOST_RESOLVING)

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter([*self._by_name])

    def __getitem__(self, name: str) -> AnyAdapterRequest:
        return self._by_name[name]

    def add(self, module: AdapterModule) -> AnyAdapterRequest:
        """Offers an adapter, which is loaded with the first request that names it. Raises
        ConfigError for a prompt adapter whose configuration cannot be read."""
        request: AnyAdapterRequest
        if module.is_prompt:
            known = self._by_name.get(module.name)
            number = self._next_id() if known is None else known.adapter_id
            from quire.weights.adapters import num_virtual_tokens

            try:
                count = num_virtual_tokens(Path(module.path))
            except CheckpointError as error:
                raise ConfigError(f"--prompt-adapters: {error}") from None
            request = PromptAdapterRequest(module.name, number, module.path, count)
        else:
            request = self._request(module, load_inplace=False)
        self._by_name[module.name] = request
        return request

    async def load_all(self, engine: AsyncLLM, modules: Iterable[AdapterModule]) -> None:
        """Loads the adapters of the options. Raises ConfigError for one that cannot be loaded."""
        for module in modules:
            await _load(engine, self.add(module))

    async def load_offered(self, engine: AsyncLLM, names: Iterable[str]) -> None:
        """Loads adapters that are offered, so that no request waits for them. One that cannot be
        loaded is named in the log, and requests for it alone are refused."""
        for name in names:
            if (request := self._by_name.get(name)) is not None:
                with suppress(ConfigError):
                    await _load(engine, request)

    async def load(
        self, engine: AsyncLLM, module: AdapterModule, taken: Iterable[str], *, in_place: bool
    ) -> None:
        """Loads an adapter for a caller. `taken`: names of models. Raises HttpError."""
        if not module.name or not module.path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if not is_name(module.name):
            raise _invalid(f"lora_name must have {NAMES}, got {quoted(module.name)}", "lora_name")
        if module.name in taken:
            raise _invalid(
                f"The lora adapter '{module.name}' conflicts with a served base model.", "lora_name"
            )
        self._check_folder(module.path)
        async with self._lock_of(module.name):
            before = self._by_name.get(module.name)
            if isinstance(before, PromptAdapterRequest):
                raise _invalid(
                    f"lora_name must be free: '{module.name}' is a prompt adapter", "lora_name"
                )
            if before is not None and not in_place:
                raise _invalid(
                    f"The lora adapter '{module.name}' has already been loaded. If you want to "
                    "load the adapter in place, set 'load_inplace' to True.",
                    "lora_name",
                )
            request = self._request(module, load_inplace=in_place)
            try:
                if not _is_adapter(Path(module.path)):
                    raise HttpError(
                        Problem(404, f"No adapter found for {quoted(module.path)}", "lora_path")
                    )
                async with self._room_for(engine, module.name):
                    await engine.add_lora(request)
            except (CheckpointError, ConfigError) as error:
                raise _invalid(str(error), "lora_path") from None
            if before is None or module.name in self._added:
                self._added[module.name] = False
            self._by_name[module.name] = request

    async def resolve(self, engine: AsyncLLM, name: str) -> None:
        """Asks the resolvers for an adapter that is not known, and loads it. Raises HttpError 404
        if none knows it, and 400 if it cannot be loaded."""
        if not is_name(name):
            raise _unknown(name)
        async with self._resolving, self._lock_of(name):
            if name in self._by_name:
                return
            is_found = False
            for resolver in self.resolvers:
                found = await _asked(resolver, engine.config.model.model, name)
                if found is None:
                    continue
                is_found = True
                module = AdapterModule(name, found.lora_path, found.base_model_name)
                request = self._request(module, load_inplace=False)
                try:
                    async with self._room_for(engine, name):
                        await engine.add_lora(request)
                except ConfigError as error:
                    logger.warning("%s", error)
                    continue
                self._added[name] = True
                self._by_name[name] = request
                return
        if not is_found:
            raise _unknown(name)
        message = f"LoRA adapter '{name}' was found but could not be loaded."
        raise HttpError(Problem(400, message, "model", type="BadRequestError"))

    async def unload(self, engine: AsyncLLM, name: str) -> None:
        """Removes an adapter; requests that use it go on. Raises HttpError for an unknown name."""
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        async with self._lock_of(name):
            request = self._by_name.get(name)
            if not isinstance(request, LoRARequest):
                raise HttpError(
                    Problem(404, f"The lora adapter '{name[:200]}' cannot be found.", "lora_name")
                )
            del self._by_name[name]
            self._added.pop(name, None)
            await engine.remove_lora(request.lora_int_id)

    @asynccontextmanager
    async def _room_for(self, engine: AsyncLLM, name: str) -> AsyncIterator[None]:
        """Counts a name while it is added. An older one that a resolver found makes room, because
        the resolver finds it again. Raises HttpError if there is none."""
        if name not in self._by_name and len(self._added) + self._num_loading >= MAX_ADDED:
            oldest = next((one for one, is_found in self._added.items() if is_found), None)
            if oldest is None:
                raise _invalid(
                    f"{MAX_ADDED} adapters were added, which is the limit: unload one with "
                    "/v1/unload_lora_adapter",
                    "lora_name",
                )
            await self.unload(engine, oldest)
        self._num_loading += 1
        try:
            yield
        finally:
            self._num_loading -= 1

    def _lock_of(self, name: str) -> asyncio.Lock:
        lock = self._locks.get(name)
        if lock is None:
            lock = self._locks[name] = asyncio.Lock()
        return lock

    def _request(self, module: AdapterModule, *, load_inplace: bool) -> LoRARequest:
        """With the number that the name has already, or the next one."""
        known = self._by_name.get(module.name)
        return LoRARequest(
            module.name,
            self._next_id() if known is None else known.adapter_id,
            module.path,
            module.base_model_name,
            load_inplace,
        )

    def _next_id(self) -> int:
        self._num_ids += 1
        return self._num_ids

    def _check_folder(self, path: str) -> None:
        if not self._folders:
            return
        try:
            real = Path(path).resolve()
        except (OSError, ValueError, RuntimeError):
            raise _invalid(f"lora_path {quoted(path)} is not a path", "lora_path") from None
        if not any(real.is_relative_to(folder) for folder in self._folders):
            raise _invalid(
                f"lora_path must be inside of a folder of --lora-folders, got {quoted(path)}",
                "lora_path",
            )


_OPTIONS = {
    "lora": ("--lora-modules", "--enable-lora"),
    "prompt": ("--prompt-adapters", "--enable-prompt-adapter"),
}


def check_modules(
    kind: Literal["lora", "prompt"],
    modules: Sequence[AdapterModule],
    names: Sequence[str],
    *,
    is_on: bool,
) -> None:
    """Raises ConfigError if the adapters of an option cannot be served next to these names."""
    option, switch = _OPTIONS[kind]
    if modules and not is_on:
        raise ConfigError(f"{option} needs adapters in the engine: add {switch}")
    for module in modules:
        if module.name in names:
            raise ConfigError(
                f"{option}: the name {quoted(module.name)} is that of another model or adapter; "
                "choose another name"
            )


def _is_adapter(path: Path) -> bool:
    """Whether there may be an adapter: a folder of PEFT, a task, or a GGUF file. Raises
    CheckpointError for a path that cannot be looked at."""
    if path.suffix == ".gguf":
        return has_file(path)
    return has_adapter(path) or (path.is_dir() and any(path.glob("*.gguf")))


async def _asked(resolver: LoRAResolver, base_model: str, name: str) -> LoRARequest | None:
    """The adapter that a resolver knows by a name. A resolver that fails knows none."""
    try:
        return await resolver.resolve_lora(base_model, name)
    except Exception as error:
        logger.warning("%s failed for %s: %s", type(resolver).__name__, quoted(name), reason(error))
        return None


def _unknown(name: str) -> HttpError:
    return HttpError(Problem(404, f"LoRA adapter {name[:200]} does not exist", "model"))


def served_modules(
    args: ServerArgs, names: Sequence[str], config: EngineConfig
) -> list[AdapterModule]:
    """The adapters of the options. Raises ConfigError if they cannot be served with a model of
    these names."""
    loras = parse_modules(args.lora_modules)
    prompts = parse_prompt_adapters(args.prompt_adapters)
    check_modules("lora", loras, names, is_on=config.lora is not None)
    taken = [*names, *(one.name for one in loras)]
    check_modules("prompt", prompts, taken, is_on=config.prompt_adapters is not None)
    return [*loras, *prompts]


async def _load(engine: AsyncLLM, request: AnyAdapterRequest) -> None:
    if isinstance(request, LoRARequest):
        await engine.add_lora(request)
    else:
        await engine.add_prompt_adapter(request)


def _invalid(message: str, parameter: str | None = None) -> HttpError:
    return HttpError(Problem(400, message, parameter, type="InvalidUserInput"))
