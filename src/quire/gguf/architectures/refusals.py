"""Architectures of GGUF files that are not read: why, and the one that is most like them."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from quire.errors import UnsupportedModelError, quoted
from quire.gguf.keys import Keys

_CUTOFF = 0.6
"""Least likeness of two names, from 0 to 1."""

REASONS: dict[str, frozenset[str]] = {
    "the recurrence of RWKV is not supported; the nearest are mamba2 and qwen35": frozenset([
        "arwkv7", "rwkv6", "rwkv6qwen2", "rwkv7",
    ]),
    "attention that chooses its positions (an indexer) is not supported; the nearest is "
    "deepseek2": frozenset(["deepseek32", "glm-dsa"]),
    "encoders of this kind are not supported": frozenset([
        "jina-bert-v3", "llama-embed", "neo-bert", "nomic-bert-moe",
        "t5", "t5encoder", "wavtokenizer-dec",
    ]),
    "the file holds an image encoder; give the file of the language model, and this one with "
    "--mmproj": frozenset(["clip"]),
    "it fills in many tokens at once (diffusion), and Quire runs decoders": frozenset([
        "dream", "llada", "llada-moe", "rnd1",
    ]),
    "llama.cpp neither writes nor reads such files": frozenset(["gptj"]),
}  # fmt: skip
"""Architectures by the reason."""
NEAREST = {
    "bailingmoe3": ("kimi-linear", "another layout of experts and of linear attention"),
    "deepseek2-ocr": ("deepseek2", "plain attention next to an image encoder"),
    "mistral4": ("deepseek2", "a scale of q that grows with the position"),
    "plamo2": ("jamba", "norms after each part, and Mamba 1 with heads"),
    "plm": ("deepseek2", "an MLP without a gate"),
    "bailingmoe2": ("glm4moe", "q, k and v in one matrix"),
    "codeshell": ("starcoder2", "q, k and v in one matrix"),
    "dbrx": ("llama", "layer norms, and other names of tensors"),
    "grok": ("llama", "soft caps and norms after each block"),
    "grovemoe": ("qwen3moe", "experts that groups of experts share"),
    "jais": ("gpt2", "ALiBi instead of learned positions, and a gated MLP"),
    "jais2": ("nemotron", "norms without an offset, and biases"),
    "maincoder": ("qwen3", "norms of q and k after the rotation"),
    "mellum": ("qwen3moe", "windows in most layers"),
    "openelm": ("llama", "another number of heads in each layer"),
    "plamo": ("llama", "attention and MLP that read the same row"),
    "qwen": ("qwen2", "q, k and v in one matrix"),
    "refact": ("llama", "ALiBi instead of a rotation"),
    "smallthinker": ("qwen3moe", "a router that reads the row before attention"),
    "starcoder": ("gpt2", "one head of k and v for all"),
}
"""The architecture that one is most like, and what differs."""


def not_read(keys: Keys, known: Iterable[str]) -> UnsupportedModelError:
    """The error about a file's architecture; the caller raises it."""
    name, known = keys.architecture, sorted(known)
    words = f"{keys.path}: GGUF files of architecture {quoted(name)} are not read"
    reason = next((why for why, names in REASONS.items() if name in names), None)
    if reason is not None:
        return UnsupportedModelError(f"{words}: {reason}")
    if name in NEAREST:
        nearest, difference = NEAREST[name]
        words += f"; the nearest is {nearest}, which differs: {name} has {difference}"
    elif likely := difflib.get_close_matches(name, known, n=1, cutoff=_CUTOFF):
        words += f"; the nearest name is {likely[0]}, and what differs is not known"
    return UnsupportedModelError(
        f"{words}. Those of {', '.join(known)} are read; `quire models` lists "
        "what is read from safetensors"
    )
