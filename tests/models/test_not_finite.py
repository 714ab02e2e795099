"""One row of the embedding holds a NaN, through the whole engine: requests with that token end with
an error that names it, and the others give the same tokens and logprobs, bit for bit, as without
them: in the same steps, in the blocks that they leave behind, and behind a prefix that they share.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint

from quire import LLM, SamplingParams
from quire.backends.cpu import load
from quire.backends.cpu.library import TIERS
from quire.errors import BackendError
from quire.outputs import RequestOutput

POISON = 200
ERROR = "the model gave numbers that are not finite (NaN or infinity), first in: embed_tokens"
RANDOM = np.random.default_rng(3)
SHARED = RANDOM.integers(0, 199, 40).tolist()
HEALTHY = [
    *(RANDOM.integers(0, 199, length).tolist() for length in (5, 90, 17, 33)),
    [*SHARED, 7, 8, 9],
]
POISONED = [
    [POISON],
    [*RANDOM.integers(0, 199, 70).tolist(), POISON],
    [POISON, *RANDOM.integers(0, 199, 70).tolist()],
    [*SHARED, POISON, *RANDOM.integers(0, 199, 30).tolist()],
    [*SHARED[:20], POISON, *SHARED[21:], 7, 8, 9],
]
PARAMS = [
    # The token is forbidden to those who do not have it.
    SamplingParams(
        max_tokens=count, min_tokens=count, stop_token_ids=[POISON], ignore_eos=True, **given
    )
    for count, given in (
        (20, {"temperature": 0, "logprobs": 2}),
        (20, {"temperature": 1, "seed": 7, "top_p": 0.9, "logprobs": 2}),
        (9, {"temperature": 0, "logprobs": 0, "prompt_logprobs": 2}),
    )
]

FORMATS = {
    "float32": ("float32", None, "auto"), "bfloat16": ("bfloat16", None, "auto"),
    "int8": ("bfloat16", "int8", "auto"), "int8_w8a8": ("bfloat16", "int8_w8a8", "auto"),
    "int4": ("bfloat16", "int4", "auto"), "int4_w4a8": ("bfloat16", "int4_w4a8", "auto"),
    "bfloat16, KV int8": ("bfloat16", None, "int8"), "int8, KV int8": ("bfloat16", "int8", "int8"),
    "int8_w8a8, KV int8": ("bfloat16", "int8_w8a8", "int8"),
    "int4_w4a8, KV int8": ("bfloat16", "int4_w4a8", "int8"),
    "float32, KV bfloat16": ("float32", None, "bfloat16"),
}  # fmt: skip


IN_SHORT = ("float32", "int8", "bfloat16, KV int8", "int8_w8a8, KV int8", "int4_w4a8, KV int8")
"""What every tier is tried with; the machine's own and the reference take all. The tests of kernels
try every format on every tier."""
BACKENDS = [
    *((tier, name) for tier in ("reference", "auto") for name in FORMATS),
    *((tier, name) for tier in TIERS for name in IN_SHORT),
]


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = write_tiny_checkpoint(tmp_path_factory.mktemp("poisoned"))
    tensors = load_file(directory / "model.safetensors")
    tensors["model.embed_tokens.weight"][POISON, 11] = np.nan
    save_file(tensors, directory / "model.safetensors")
    return directory


@pytest.fixture
def tier(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The reference backend, or an instruction-set tier of this machine."""
    name: str = request.param
    if name == "reference":
        monkeypatch.setenv("QUIRE_BACKEND", name)
    elif name != "auto":
        try:
            load(name)
        except BackendError as error:
            pytest.skip(f"this processor cannot run it: {error}")
        monkeypatch.setenv("QUIRE_ISA", name)
    load.cache_clear()
    yield name
    load.cache_clear()


def engine(checkpoint: Path, name: str, **options: Any) -> LLM:
    """Prompts in pieces beside others that generate, in so few blocks that all are used again."""
    dtype, quantization, kv_cache_dtype = FORMATS[name]
    return LLM(
        str(checkpoint), dtype=dtype, quantization=quantization, kv_cache_dtype=kv_cache_dtype,
        max_model_len=128, max_num_batched_tokens=48, max_num_seqs=4, num_gpu_blocks_override=20,
        num_threads=2, **options,
    )  # fmt: skip


def run(
    llm: LLM, prompts: list[list[int]], params: list[SamplingParams] | SamplingParams
) -> list[RequestOutput]:
    inputs: Any = [{"prompt_token_ids": prompt} for prompt in prompts]
    return llm.generate(inputs, params, use_tqdm=False)


def bits(output: RequestOutput) -> Any:
    """Tokens and all log-probabilities as exact numbers."""
    one = output.outputs[0]
    assert one.finish_reason == "length", output.error
    logprobs = [
        {token: entry.logprob for token, entry in position.items()} if position else None
        for position in [*(output.prompt_logprobs or []), *(one.logprobs or [])]
    ]
    return one.token_ids, logprobs


@pytest.mark.sweep(4)
@pytest.mark.usefixtures("tier")
@pytest.mark.parametrize(("tier", "name"), BACKENDS, indirect=["tier"])
def test_a_poisoned_request_ends_alone(checkpoint: Path, name: str) -> None:
    with engine(checkpoint, name) as llm:
        wanted = [[bits(out) for out in run(llm, HEALTHY, params)] for params in PARAMS]
    mixed = [prompt for pair in zip(POISONED, HEALTHY, strict=True) for prompt in pair]
    with engine(checkpoint, name) as llm:
        for repeat in range(2):
            for params, expected in zip(PARAMS, wanted, strict=True):
                outputs = run(llm, mixed, params)
                assert [bits(out) for out in outputs[1::2]] == expected, (repeat, params)
                for out in outputs[::2]:
                    assert (out.outputs[0].finish_reason, out.error) == ("error", ERROR)
                    assert list(out.outputs[0].token_ids) == []
                llm.llm_engine.engine_core.scheduler.check_integrity()


@pytest.mark.parametrize("poison", ["weights", "activations"])
def test_every_request_ends_where_a_layer_is_poisoned(tmp_path: Path, poison: str) -> None:
    directory = write_tiny_checkpoint(tmp_path / "model", num_hidden_layers=4)
    tensors = load_file(directory / "model.safetensors")
    if poison == "weights":
        tensors["model.layers.2.mlp.up_proj.weight"][3, 4] = -np.inf
    else:  # products that overflow
        tensors["model.layers.2.mlp.gate_proj.weight"] *= np.float32(3e37)
    save_file(tensors, directory / "model.safetensors")
    for backend in ("cpu", "reference"):
        with LLM(str(directory), backend=backend, max_model_len=128) as llm:
            outputs = run(llm, HEALTHY, PARAMS[0])
        for out in outputs:
            assert out.outputs[0].finish_reason == "error"
            assert out.error is not None
            assert ", first in: layer 2, g" in out.error  # gate_up, or glu
