"""`LoRARequest`: the adapter that a request is computed with, under vLLM's names."""

from __future__ import annotations

from typing import Any

import msgspec

from quire.errors import RequestError, quoted

LORA_REQUEST = "lora_request"
"""Name of the argument that takes an adapter, in all methods."""
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


def check_lora(value: Any, *, is_enabled: bool) -> None:
    """Raises TypeError for another type than an adapter, and RequestError if the engine has no
    adapters."""
    if not isinstance(value, LoRARequest):
        raise TypeError(f"{LORA_REQUEST} must be a LoRARequest or None, got {type(value).__name__}")
    if not is_enabled:
        raise RequestError(
            f"Got {LORA_REQUEST} {value.lora_name!r} but LoRA is not enabled! Start the engine "
            "with enable_lora=True",
            parameter=LORA_REQUEST,
        )
