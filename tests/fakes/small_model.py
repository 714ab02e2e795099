"""A small program with most ops, random weights for it, and batches for one request at a time."""

from __future__ import annotations

import zlib
from collections.abc import Iterable, Sequence

import numpy as np

from quire.backends.base import CompileOptions, KVCacheSpec, StepBatch
from quire.backends.reference import ReferenceBackend
from quire.program import Builder, HeadLayout, Out, Program, Rotary, Tensor, keep_all
from quire.weights import HostTensor, WeightStore

VOCAB_SIZE = 11
OPTIONS = CompileOptions("float32", max_num_tokens=64, max_num_seqs=4, max_model_len=32)


def small_program(
    num_layers: int = 2,
    *,
    windows: Sequence[int | None] = (5,),
    tied: bool = True,
    vocab_size: int = VOCAB_SIZE,
) -> Program:
    """Two heads, one kv head, learned positions and rotary ones, both norms. Layers have these
    windows in turn."""
    builder = Builder("small")
    table = Tensor("embed.weight", (vocab_size, 8))
    heads = HeadLayout(num_heads=2, num_kv_heads=1, head_dim=4)
    rotary = Rotary((1.0, 0.1))
    x = builder.learned_positions(builder.embed(table), Tensor("pos.weight", (34, 8)), offset=2)
    for layer in range(num_layers):
        with builder.scope(f"layers.{layer}"):
            normed = builder.rms_norm(x, f"l{layer}.norm", 1e-6)
            outs = [
                Out(n, f"l{layer}.{n}", d, bias=True) for n, d in (("q", 8), ("k", 4), ("v", 4))
            ]
            q, k, v = builder.linears(normed, outs, hint="qkv")
            q, k = builder.rope(q, 4, rotary, "q_rope"), builder.rope(k, 4, rotary, "k_rope")
            attended = builder.attention(q, k, v, heads, window=windows[layer % len(windows)])
            out = builder.linear(attended, f"l{layer}.o", 8, bias=False, hint="o")
            x = builder.add(x, out)
            [fc] = builder.conv1d(x, f"l{layer}.fc", {"fc": 12}, hint="fc")
            hidden = builder.act(fc, "relu")
            x = builder.add(x, builder.linear(hidden, f"l{layer}.p", 8, bias=True, hint="p"))
    x = builder.layer_norm(x, "norm", 1e-5)
    builder.logits(x, table if tied else Tensor("head.weight", (vocab_size, 8)))
    return builder.program()


class RandomStore(WeightStore):
    """Normal numbers for every tensor of a program, the same for the same name."""

    def __init__(self, program: Program, bad: dict[str, tuple[int, ...]] | None = None) -> None:
        """`bad`: tensors that have a NaN, and where."""
        self._shapes = {part.name: part.shape for p in program.params() for part in p.parts}
        self._bad = bad or {}

    def names(self) -> Iterable[str]:
        return self._shapes

    def get(self, name: str) -> HostTensor:
        random = np.random.default_rng(zlib.crc32(name.encode()))
        numbers = random.standard_normal(self._shapes[name], np.float32)
        if name in self._bad:
            numbers[self._bad[name]] = np.nan
        flat = numbers.reshape(-1).view(np.uint8)
        return HostTensor(name, "F32", self._shapes[name], flat, "random")

    def close(self) -> None:
        self._shapes = {}


def one_request(
    tokens: Sequence[int],
    blocks: Sequence[int],
    *,
    computed: int = 0,
    logits_rows: Sequence[int] | None = None,
) -> StepBatch:
    """A step of the request's tokens from `computed` on; logits of all of them unless told."""
    count = len(tokens) - computed
    rows = range(count) if logits_rows is None else logits_rows
    return StepBatch(
        token_ids=np.array(tokens[computed:], np.int32),
        positions=np.arange(computed, len(tokens), dtype=np.int32),
        seq_starts=np.array([0, count], np.int32),
        context_lens=np.array([len(tokens)], np.int32),
        block_tables=np.array([[blocks]], np.int32),
        logits_rows=np.array(rows, np.int32),
        sampling=None,
        want_logits=True,
    )


def logits_of(program: Program, rows: Sequence[int]) -> bytes:
    """The logits of some rows of a prompt of 9 tokens, by the reference."""
    spec = KVCacheSpec(4, 16, "float32", keep_all(program))
    model = ReferenceBackend().compile(program, RandomStore(program), spec, OPTIONS)
    logits = model.step(one_request([3, 1, 4, 1, 5, 9, 2, 6, 5], [2], logits_rows=rows)).logits
    if logits is None:
        raise RuntimeError("no logits")
    assert logits.shape == (len(rows), program.vocab_size)
    return np.ascontiguousarray(logits).tobytes()
