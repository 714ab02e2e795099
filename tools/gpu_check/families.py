"""Small models of many families, against the reference backend."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tools.gpu_check.guard import guarded
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row

from quire.backends.base import Backend, CompileOptions, KVCacheSpec
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.device import Device
from quire.backends.reference import ReferenceBackend
from quire.config.kv_cache import KVCacheDtype
from quire.config.records import Dtype
from quire.errors import DeviceError, QuireError
from quire.models import build_program
from quire.planning.speed.timing import blocks_needed, prompt_step
from quire.program import Program, kv_layout
from quire.program.passes import run_passes
from quire.weights import HostTensor
from quire.weights.dummy import DummyStore

_FAKES = Path(__file__).parents[2] / "tests" / "fakes"
_BASE: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "vocab_size": 288, "max_position_embeddings": 512,
    "rms_norm_eps": 1e-6, "rope_theta": 10000.0, "hidden_act": "silu",
    "tie_word_embeddings": False, "torch_dtype": "bfloat16",
}  # fmt: skip
_TOKENS = 40
LIMITS: Mapping[Dtype, float | None] = {"float32": 1e-3, "bfloat16": None}
"""The largest difference of logits, as a part of the largest logit. In bfloat16 a near tie of two
experts may change a whole row, so it has no limit."""


def families() -> dict[str, dict[str, Any]]:
    """Names, and keys of config.json."""
    sys.path.insert(0, str(_FAKES))
    from small_families import FAMILIES

    return {"llama": {"architectures": ["LlamaForCausalLM"]}, **FAMILIES}


def cases() -> Iterator[tuple[str, dict[str, Any], Dtype, KVCacheDtype]]:
    """Names, keys of config.json, and the types of the model and of its K and V."""
    found = families()
    for dtype in LIMITS:
        for kv in ("int8", "fp8"):
            yield f"llama in {dtype}, K and V in {kv}", found["llama"], dtype, kv
    for name, config in found.items():
        for dtype in LIMITS:
            yield f"{name} in {dtype}", config, dtype, dtype


def program_of(config: dict[str, Any]) -> Program:
    """The program of a small model."""
    return run_passes(build_program({**_BASE, **config}), None)


def options_of(dtype: Dtype) -> CompileOptions:
    """Sizes for one prompt."""
    return CompileOptions(dtype, _TOKENS, 1, _TOKENS)


def cache_of(program: Program, backend: Backend, dtype: KVCacheDtype) -> KVCacheSpec:
    """A KV cache for one prompt."""
    kv = backend.sized(program, KVCacheSpec(1, 16, dtype, kv_layout(program, _TOKENS)))
    return replace(kv, num_blocks=blocks_needed(kv, 1, _TOKENS))


def check_families(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Logits of a prompt."""
    backend = CudaBackend(device)
    for title, config, dtype, kv in islice(cases(), 8 if sizes.is_emulated else None):
        yield from guarded(sizes, title, _family(backend, title, config, dtype, kv))


def _family(
    backend: Backend, title: str, config: dict[str, Any], dtype: Dtype, kv: KVCacheDtype
) -> Iterator[Row]:
    program, limit = program_of(config), LIMITS[dtype]
    try:
        found = _logits(program, backend, dtype, kv)
    except DeviceError:
        raise
    except QuireError as error:
        yield Row(title, f"not run: {error}"[:160])
        return
    exact = "float32" if kv == dtype else kv
    wanted = _logits(program, ReferenceBackend(), dtype, exact)
    difference = float(np.abs(found - wanted).max() / np.abs(wanted).max())
    title += ", difference of logits"
    if limit is None:
        yield Row(title, difference)
    else:
        yield Row(title, difference, "", f"<= {limit:g}", difference <= limit)


def _logits(
    program: Program, backend: Backend, dtype: Dtype, kv_dtype: KVCacheDtype
) -> NDArray[np.float32]:
    kv = cache_of(program, backend, kv_dtype)
    model = backend.compile(program, _Weights(program), kv, options_of(dtype))
    try:
        batch = prompt_step(kv, _TOKENS, program.vocab_size)
        rows = np.arange(_TOKENS, dtype=np.int32)
        logits = model.step(replace(batch, sampling=None, logits_rows=rows, want_logits=True))
    finally:
        model.close()
    if logits.logits is None:
        raise ValueError("the step gave no logits")
    return logits.logits


class _Weights(DummyStore):
    """Random numbers of a size that leaves choices open."""

    def get(self, name: str) -> HostTensor:
        found = super().get(name)
        numbers = (found.data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
        scaled = numbers * np.float32(50 / found.shape[-1] ** 0.5)
        if len(found.shape) == 1:
            scaled = np.float32("norm" in name) + 5 * numbers
        return replace(found, dtype="F32", data=scaled.view(np.uint8))
