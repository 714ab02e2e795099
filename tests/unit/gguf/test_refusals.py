"""Architectures that are not read: the reason, or the nearest one and what differs."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.errors import UnsupportedModelError
from quire.gguf.architectures import ARCHITECTURES, architecture_of
from quire.gguf.architectures.refusals import NEAREST, REASONS
from quire.gguf.container import GgufHeader
from quire.gguf.keys import Keys


def _said(name: str) -> str:
    keys = Keys([GgufHeader(Path("m.gguf"), {"general.architecture": name}, {})])
    with pytest.raises(UnsupportedModelError) as caught:
        architecture_of(keys)
    return str(caught.value)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("rwkv7", "'rwkv7' are not read: the recurrence of RWKV is not supported; the nearest are"),
        ("glm-dsa", "attention that chooses its positions (an indexer) is not supported; the"),
        ("plm", "the nearest is deepseek2, which differs: plm has an MLP without a gate"),
        ("neo-bert", "encoders of this kind are not supported"),
        ("dream", "it fills in many tokens at once (diffusion)"),
        ("gptj", "llama.cpp neither writes nor reads such files"),
        ("qwen", "the nearest is qwen2, which differs: qwen has q, k and v in one matrix. Those"),
        ("bailingmoe2", "the nearest is glm4moe, which differs: bailingmoe2 has q, k and v in"),
        ("llama9", "the nearest name is llama, and what differs is not known. Those of apertus"),
        ("zzz", "'zzz' are not read. Those of apertus"),
    ],
)
def test_what_is_said(name: str, words: str) -> None:
    assert words in _said(name)


def test_lists_agree() -> None:
    """What is refused is not read, and what is named as the nearest is."""
    refused = {*NEAREST, *(name for names in REASONS.values() for name in names)}
    assert not refused & ARCHITECTURES.keys()
    assert {nearest for nearest, _ in NEAREST.values()} <= ARCHITECTURES.keys()


def test_all_names_of_gguf_py_are_read_or_refused() -> None:
    gguf = pytest.importorskip("gguf")
    for name in set(gguf.MODEL_ARCH_NAMES.values()) - ARCHITECTURES.keys():
        assert f"architecture {name!r} are not read" in _said(name)
