"""Reads adapters in PEFT's format and binds them to a program."""

from quire.weights.adapters.bind import bind_adapter
from quire.weights.adapters.parts import AdapterPart, AdapterWeights
from quire.weights.adapters.prompts import PromptAdapter, num_virtual_tokens, read_prompt_adapter
from quire.weights.adapters.ranks import adapter_of_rank
from quire.weights.adapters.read import read_adapter
from quire.weights.adapters.slots import adapter_bytes, adapter_width

__all__ = [
    "AdapterPart", "AdapterWeights", "PromptAdapter", "adapter_bytes", "adapter_of_rank",
    "adapter_width", "bind_adapter", "num_virtual_tokens", "read_adapter",
    "read_prompt_adapter",
]  # fmt: skip
