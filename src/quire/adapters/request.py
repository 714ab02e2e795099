"""`LoRARequest` and `PromptAdapterRequest`: adapters that a request is computed with, under vLLM's
names."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.errors import RequestError, quoted

_MAX_ID = 2**63 - 1


class LoRARequest(msgspec.Struct, omit_defaults=True):
    """An adapter: its name, a number above 0 that identifies it, and the folder with its files.

    Two objects are equal if their names are, as in vLLM.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str = ""
    base_model_name: str | None = None
    load_inplace: bool = False
    """Whether `add_lora` reads the files again although an adapter with this number is loaded."""
    is_3d_lora_weight: bool = False
    """Accepted for compatibility: the tensors themselves say what shape they have."""

    def __post_init__(self) -> None:
        if not isinstance(self.lora_int_id, int) or isinstance(self.lora_int_id, bool):
            raise TypeError(f"lora_int_id must be an integer, got {quoted(self.lora_int_id)}")
        if self.lora_int_id < 1:
            raise ValueError(f"id must be > 0, got {self.lora_int_id}")
        if self.lora_int_id > _MAX_ID:
            raise ValueError(f"id must be at most {_MAX_ID}, got {self.lora_int_id}")
        for name in ("lora_name", "lora_path"):
            if not isinstance(getattr(self, name), str) or not getattr(self, name):
                raise ValueError(
                    f"{name} must be a string that is not empty, got {quoted(getattr(self, name))}"
                )

    @property
    def adapter_id(self) -> int:
        """`lora_int_id`."""
        return self.lora_int_id

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def path(self) -> str:
        """`lora_path`."""
        return self.lora_path

    def __eq__(self, other: object) -> bool:
        return isinstance(other, LoRARequest) and self.lora_name == other.lora_name

    def __hash__(self) -> int:
        return hash(self.lora_name)


class PromptAdapterRequest(msgspec.Struct, omit_defaults=True, frozen=True):
    """A prompt adapter of PEFT: its name, a number above 0 that identifies it, the folder with its
    files, and how many virtual tokens it puts before a prompt. Names are those of vLLM 0.9."""

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


AnyAdapterRequest = LoRARequest | PromptAdapterRequest
ARGUMENTS: dict[type, str] = {
    LoRARequest: "lora_request", PromptAdapterRequest: "prompt_adapter_request",
}  # fmt: skip
"""Names of the arguments that take adapters, in all methods."""


def check_adapter(value: Any, kind: type[AnyAdapterRequest], *, is_enabled: bool) -> None:
    """Raises TypeError for an adapter of another kind, and RequestError if the engine has none of
    this kind."""
    name = ARGUMENTS[kind]
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be a {kind.__name__} or None, got {type(value).__name__}")
    if not is_enabled:
        is_lora = kind is LoRARequest
        raise RequestError(
            f"Got {name} {value.name!r} but {'LoRA is' if is_lora else 'prompt adapters are'} not "
            f"enabled! Start the engine with enable_{'lora' if is_lora else 'prompt_adapter'}=True",
            parameter=name,
        )
