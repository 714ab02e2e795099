"""`ServedAdapters`: the adapters of a served model by name, and how callers add and remove them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from quire.adapters import AdapterModule, LoRARequest
from quire.config.checkpoint.adapter_tasks import has_adapter
from quire.errors import ConfigError, quoted
from quire.server.http.problems import HttpError, Problem

if TYPE_CHECKING:
    from quire.frontend.online.async_llm import AsyncLLM

_MOST_NAME = 256


class ServedAdapters:
    """Names of adapters with what the engine needs to find them. Owned by the event loop."""

    def __init__(self, folders: Sequence[str] = ()) -> None:
        """`folders`: those that callers may load adapters from; empty: all."""
        self._folders = [Path(folder).resolve() for folder in folders]
        self._by_name: dict[str, LoRARequest] = {}
        self._num_ids = 0
        self._lock = asyncio.Lock()
        """Held while an adapter is loaded or removed, so that a name means one thing at a time."""

    def __contains__(self, name: str) -> bool:
        return name in self._by_name

    def __iter__(self) -> Iterator[str]:
        return iter([*self._by_name])

    def __getitem__(self, name: str) -> LoRARequest:
        return self._by_name[name]

    def add(self, module: AdapterModule) -> LoRARequest:
        """Offers an adapter, which is loaded with the first request that names it."""
        request = self._by_name[module.name] = self._request(module, load_inplace=False)
        return request

    async def load_all(self, engine: AsyncLLM, modules: Iterable[AdapterModule]) -> None:
        """Loads the adapters of the options. Raises ConfigError for one that cannot be loaded."""
        for module in modules:
            await engine.add_lora(self.add(module))

    async def load(
        self, engine: AsyncLLM, module: AdapterModule, taken: Iterable[str], *, in_place: bool
    ) -> None:
        """Loads an adapter for a caller. `taken`: names of models. Raises HttpError."""
        if not module.name or not module.path:
            raise _invalid("Both 'lora_name' and 'lora_path' must be provided.")
        if len(module.name) > _MOST_NAME:
            raise _invalid(f"lora_name must have at most {_MOST_NAME} characters", "lora_name")
        if module.name in taken:
            raise _invalid(
                f"The lora adapter '{module.name}' conflicts with a served base model.", "lora_name"
            )
        self._check_folder(module.path)
        async with self._lock:
            before = self._by_name.get(module.name)
            if before is not None and not in_place:
                raise _invalid(
                    f"The lora adapter '{module.name}' has already been loaded. If you want to "
                    "load the adapter in place, set 'load_inplace' to True.",
                    "lora_name",
                )
            if not has_adapter(Path(module.path)):
                raise HttpError(
                    Problem(404, f"No adapter found for {quoted(module.path)}", "lora_path")
                )
            request = self._request(module, load_inplace=in_place)
            try:
                await engine.add_lora(request)
            except ConfigError as error:
                raise _invalid(str(error), "lora_path") from None
            self._by_name[module.name] = request

    async def unload(self, engine: AsyncLLM, name: str) -> None:
        """Removes an adapter; requests that use it go on. Raises HttpError for an unknown name."""
        if not name:
            raise _invalid("'lora_name' needs to be provided to unload a LoRA adapter.")
        async with self._lock:
            request = self._by_name.pop(name, None)
            if request is None:
                raise HttpError(
                    Problem(404, f"The lora adapter '{name[:200]}' cannot be found.", "lora_name")
                )
            await engine.remove_lora(request.lora_int_id)

    def _request(self, module: AdapterModule, *, load_inplace: bool) -> LoRARequest:
        """With the number that the name has already, or the next one."""
        known = self._by_name.get(module.name)
        if known is None:
            self._num_ids += 1
        return LoRARequest(
            module.name,
            self._num_ids if known is None else known.lora_int_id,
            module.path,
            module.base_model_name,
            load_inplace,
        )

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


def check_modules(modules: Sequence[AdapterModule], names: Sequence[str], *, is_on: bool) -> None:
    """Raises ConfigError if the adapters of the options cannot be served with these models."""
    if modules and not is_on:
        raise ConfigError("--lora-modules needs adapters in the engine: add --enable-lora")
    for module in modules:
        if module.name in names:
            raise ConfigError(
                f"--lora-modules: the name {quoted(module.name)} is that of a served model; "
                "choose another name"
            )


def _invalid(message: str, parameter: str | None = None) -> HttpError:
    return HttpError(Problem(400, message, parameter, type="InvalidUserInput"))
