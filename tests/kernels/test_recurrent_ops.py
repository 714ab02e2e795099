"""Recurrent ops and latent attention: the reference's numbers, and equal bits for every cut of a
request, in any company."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pytest
from harness import Floats, logits_of
from small_model import RandomStore

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    StepBatch,
)
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.program import Builder, HeadLayout, Out, Program, Tensor, Value, keep_all
from quire.weights import HostTensor

VOCAB, WIDTH, NUM_BLOCKS, WIDEST = 64, 48, 600, 40
LENGTHS = (75, 1, 16, 33)
Body = Callable[[Builder, Value], Value]


def products(builder: Builder, x: Value, /, **dims: int) -> tuple[Value, ...]:
    return builder.linears(x, [Out(name, name, dim) for name, dim in dims.items()])


def delta(heads: int, key_heads: int, dk: int, dv: int, *, per_channel: bool = False) -> Body:
    def body(builder: Builder, x: Value) -> Value:
        decays = heads * dk if per_channel else heads
        q, k, v, a, b = products(
            builder, x, q=key_heads * dk, k=key_heads * dk, v=heads * dv, a=decays, b=heads
        )
        return builder.gated_delta(
            (q, k, v), a, b, num_heads=heads, num_key_heads=key_heads,
            a_log=Tensor("a_log", (heads,)), dt_bias=Tensor("dt_bias", (decays,)),
        )  # fmt: skip

    return body


def ssd(heads: int, groups: int, head_dim: int, state: int) -> Body:
    def body(builder: Builder, x: Value) -> Value:
        inner, dt, b, c = products(
            builder, x, x=heads * head_dim, dt=heads, b=groups * state, c=groups * state
        )
        return builder.ssd(inner, dt, (b, c), groups, "", (0.01, 1.5))

    return body


def mamba(builder: Builder, x: Value) -> Value:
    inner, dt, b, c = products(builder, x, x=300, dt=300, b=18, c=18)
    return builder.mamba(inner, dt, (b, c), "")


def conv(builder: Builder, x: Value) -> Value:
    [inner] = products(builder, x, x=300)
    first, second = builder.causal_conv(
        inner, "conv", 4, {"a": 170, "b": 130}, bias=True, act="silu"
    )
    return builder.join_heads(second, first, 10, "joined")


def latent(builder: Builder, x: Value) -> Value:
    heads, rank, rope = 20, 70, 10
    q, q_rope, k = products(builder, x, q=heads * 12, q_rope=heads * rope, k=rank + rope)
    parts = [Tensor("up", (heads * 12, rank), True, ((12 * n, 12),)) for n in range(heads)]
    absorbed = builder.head_linear(q, parts, (heads, rank, 12), "absorbed")
    joined = builder.join_heads(absorbed, q_rope, heads, "joined")
    layout = HeadLayout(heads, 1, rank + rope)
    return builder.attention(joined, k, None, layout, scale=0.3, latent_dim=rank)


BODIES: dict[str, Body] = {
    "delta": delta(4, 2, 128, 128),
    "delta-odd": delta(6, 3, 20, 12),
    "delta-per-channel": delta(3, 3, 24, 40, per_channel=True),
    "ssd": ssd(6, 2, 64, 128),
    "ssd-odd": ssd(5, 1, 12, 18),
    "mamba": mamba,
    "conv": conv,
    "latent": latent,
}


class ScaledStore(RandomStore):
    """Rows of matrices have about length 1."""

    def get(self, name: str) -> HostTensor:
        tensor = super().get(name)
        numbers = tensor.data.view(np.float32) / np.float32(np.sqrt(tensor.shape[-1]))
        return HostTensor(name, "F32", tensor.shape, numbers.view(np.uint8), "random")


def program_of(body: Body) -> Program:
    builder = Builder("recurrent")
    x = builder.embed(Tensor("embed", (VOCAB, WIDTH)), scale=6.0)
    out = body(builder, x)
    builder.logits(out, Tensor("head", (VOCAB, out.dim)))
    return builder.program()


class Runs:
    """A compiled program, and requests by hand."""

    def __init__(
        self, backend: Backend, program: Program, dtype: Dtype, kv_dtype: str = ""
    ) -> None:
        options = CompileOptions(dtype, max_num_tokens=256, max_num_seqs=8, max_model_len=256)
        spec = KVCacheSpec(NUM_BLOCKS, 16, kv_dtype or dtype, keep_all(program))
        spec = backend.sized(program, spec)
        self.model: CompiledModel = backend.compile(program, ScaledStore(program), spec, options)
        self._num_groups = len(spec.layout.groups)
        width = spec.layout.table_width(256, 16)
        assert width <= WIDEST
        ids = np.random.default_rng(4).permutation(NUM_BLOCKS).astype(np.int32)
        self._tables = ids[: 8 * self._num_groups * width].reshape(8, self._num_groups, width)

    def step(self, work: Sequence[tuple[int, int, int]]) -> Floats:
        """The tokens `begin` to `end` of each request (its number, begin, end): all logits."""
        tokens = [tokens_of(number)[begin:end] for number, begin, end in work]
        counts = [len(part) for part in tokens]
        batch = StepBatch(
            token_ids=np.concatenate(tokens),
            positions=np.concatenate([np.arange(b, e, dtype=np.int32) for _, b, e in work]),
            seq_starts=np.concatenate(([0], np.cumsum(counts))).astype(np.int32),
            context_lens=np.array([end for _, _, end in work], np.int32),
            block_tables=self._tables[[number for number, _, _ in work]],
            logits_rows=np.arange(sum(counts), dtype=np.int32),
            sampling=None,
            want_logits=True,
        )
        return logits_of(self.model.step(batch))


def tokens_of(number: int) -> np.ndarray:
    random = np.random.default_rng(number)
    return random.integers(0, VOCAB, LENGTHS[number]).astype(np.int32)


@pytest.fixture(params=BODIES)
def program(request: pytest.FixtureRequest) -> Program:
    return program_of(BODIES[request.param])


@pytest.mark.parametrize(("dtype", "tolerance"), [("float32", 2e-5), ("bfloat16", 3e-2)])
def test_the_reference_s_numbers(
    program: Program, backend: Backend, dtype: Dtype, tolerance: float
) -> None:
    work = [(number, 0, length) for number, length in enumerate(LENGTHS)]
    found = Runs(backend, program, dtype).step(work)
    wanted = Runs(ReferenceBackend(), program, dtype).step(work)
    assert np.isfinite(found).all()
    assert np.abs(found - wanted).max() < tolerance * np.abs(wanted).max()


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_every_cut_gives_the_same_bits(program: Program, backend: Backend, dtype: Dtype) -> None:
    runs = Runs(backend, program, dtype)
    length = LENGTHS[0]
    whole = runs.step([(0, 0, length)])
    random = np.random.default_rng(9)
    for largest in (1, 2, 15, 16, 17, 40, 70, *random.integers(2, 71, 8).tolist()):
        parts, begin = [], 0
        while begin < length:
            end = min(length, begin + int(random.integers(1, largest + 1)))
            other = int(random.integers(1, len(LENGTHS)))
            found = runs.step([(other, 0, LENGTHS[other]), (0, begin, end)])
            parts.append(found[LENGTHS[other] :])
            begin = end
        assert np.concatenate(parts).tobytes() == whole.tobytes(), largest


def test_latents_of_bytes(backend: Backend) -> None:
    program = program_of(latent)
    work = [(number, 0, length) for number, length in enumerate(LENGTHS)]
    found = Runs(backend, program, "float32", "int8").step(work)
    wanted = Runs(ReferenceBackend(), program, "float32", "int8").step(work)
    assert np.abs(found - wanted).max() < 2e-3 * np.abs(wanted).max()


def test_latents_of_4_bits_are_refused(backend: Backend) -> None:
    with pytest.raises(BackendError, match=r"latent attention.*'bfloat16' or 'int8'"):
        Runs(backend, program_of(latent), "float32", "int4")
