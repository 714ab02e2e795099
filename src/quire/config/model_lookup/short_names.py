"""Ollama's names of well-known models, and where the hub has them.

The hub is not asked whether they exist. A directory or an alias of the same name comes first.
"""

from __future__ import annotations

_LATEST = ":latest"
_SIZES = {
    "qwen3": ("unsloth/Qwen3-{}-GGUF:Q4_K_M", "0.6B 1.7B 4B 8B 14B 32B 30B-A3B"),
    "qwen2.5": ("bartowski/Qwen2.5-{}-Instruct-GGUF:Q4_K_M", "0.5B 1.5B 3B 7B 14B 32B 72B"),
    "llama3.2": ("bartowski/Llama-3.2-{}-Instruct-GGUF:Q4_K_M", "1B 3B"),
    "gemma3": ("unsloth/gemma-3-{}-it-GGUF:Q4_K_M", "1b 4b 12b 27b"),
    "smollm2": ("bartowski/SmolLM2-{}-Instruct-GGUF:Q4_K_M", "135M 360M 1.7B"),
    "granite3.3": ("ibm-granite/granite-3.3-{}-instruct-GGUF:Q4_K_M", "2b 8b"),
}
_DEFAULTS = {
    "qwen3": "8b", "qwen2.5": "7b", "llama3.2": "3b", "gemma3": "4b", "smollm2": "1.7b",
    "granite3.3": "8b", "deepseek-r1": "8b", "phi4": "14b", "mistral": "7b",
    "nomic-embed-text": "v1.5", "all-minilm": "22m",
}  # fmt: skip
"""The size that a name without one means."""
_DISTILLED = "bartowski/DeepSeek-R1-Distill-{}-GGUF:Q4_K_M"
_MODELS = {
    **{
        f"{name}:{size.lower()}": place.format(size)
        for name, (place, sizes) in _SIZES.items()
        for size in sizes.split()
    },
    "qwen3:30b": "unsloth/Qwen3-30B-A3B-GGUF:Q4_K_M",
    "deepseek-r1:1.5b": _DISTILLED.format("Qwen-1.5B"),
    "deepseek-r1:7b": _DISTILLED.format("Qwen-7B"),
    "deepseek-r1:8b": _DISTILLED.format("Llama-8B"),
    "deepseek-r1:14b": _DISTILLED.format("Qwen-14B"),
    "deepseek-r1:32b": _DISTILLED.format("Qwen-32B"),
    "deepseek-r1:70b": _DISTILLED.format("Llama-70B"),
    "phi4:14b": "bartowski/phi-4-GGUF:Q4_K_M",
    "mistral:7b": "bartowski/Mistral-7B-Instruct-v0.3-GGUF:Q4_K_M",
    "nomic-embed-text:v1.5": "nomic-ai/nomic-embed-text-v1.5-GGUF:F16",
    "all-minilm:22m": "sentence-transformers/all-MiniLM-L6-v2",
    "all-minilm:33m": "sentence-transformers/all-MiniLM-L12-v2",
}


def meant_by(name: str) -> str:
    """The hub id, with the GGUF file, that a short name means; another name as it is."""
    low = name.lower().removesuffix(_LATEST)
    return _MODELS.get(f"{low}:{_DEFAULTS[low]}" if low in _DEFAULTS else low, name)


def short_names() -> list[str]:
    """All names."""
    return [*_DEFAULTS, *_MODELS]
