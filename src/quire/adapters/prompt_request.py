"""`PromptAdapterRequest`: the prompt adapter of a request, under the names of vLLM 0.9."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.errors import RequestError, quoted

_MAX_ID = 2**63 - 1


class PromptAdapterRequest(msgspec.Struct, omit_defaults=True, frozen=True):
    """A prompt adapter of PEFT: its name, a number above 0 that identifies it, the folder with its
    files, and how many virtual tokens it puts before a prompt."""

    prompt_adapter_name: str
    prompt_adapter_id: int
    prompt_adapter_local_path: str
    prompt_adapter_num_virtual_tokens: int

    def __post_init__(self) -> None:
        for name, least in (("prompt_adapter_id", 1), ("prompt_adapter_num_virtual_tokens", 1)):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool):
                raise TypeError(f"{name} must be an integer, got {quoted(value)}")
            if not least <= value <= _MAX_ID:
                raise ValueError(f"{name.removeprefix('prompt_adapter_')} must be > 0, got {value}")
        for name in ("prompt_adapter_name", "prompt_adapter_local_path"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(
                    f"{name} must be a string that is not empty, got {quoted(getattr(self, name))}"
                )

    @property
    def adapter_id(self) -> int:
        """`prompt_adapter_id`."""
        return self.prompt_adapter_id

    @property
    def name(self) -> str:
        """`prompt_adapter_name`."""
        return self.prompt_adapter_name

    @property
    def path(self) -> str:
        """`prompt_adapter_local_path`."""
        return self.prompt_adapter_local_path

    @property
    def local_path(self) -> str:
        """`prompt_adapter_local_path`."""
        return self.prompt_adapter_local_path

    @property
    def load_inplace(self) -> bool:
        """False: files are not read again while an adapter with this number is in memory."""
        return False


def check_prompt_adapter(value: Any, *, is_enabled: bool) -> None:
    """Raises TypeError for another type than a prompt adapter, and RequestError if the engine has
    no prompt adapters."""
    if not isinstance(value, PromptAdapterRequest):
        raise TypeError(
            "prompt_adapter_request must be a PromptAdapterRequest or None, got "
            f"{type(value).__name__}"
        )
    if not is_enabled:
        raise RequestError(
            f"Got prompt_adapter_request {value.name!r} but prompt adapters are not enabled! Start "
            "the engine with enable_prompt_adapter=True",
            parameter="prompt_adapter_request",
        )
