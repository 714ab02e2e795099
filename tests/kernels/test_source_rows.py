"""A decoder over the rows of an encoder, against the reference: keys before and after the end of
the sources, in every division of a request into steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
from harness import VOCAB, Floats, Seq, Weights, batch_of, compile_on, make_seqs

from quire.backends.base import CompiledModel, TokenRows
from quire.backends.cpu import CpuBackend
from quire.backends.reference import ReferenceBackend
from quire.errors import BackendError
from quire.program import (
    Attention,
    Embed,
    KeepSources,
    Linear,
    Logits,
    Op,
    Program,
    RowsOut,
    SourcesEnd,
    TakeRows,
    Value,
)

_DIM, _HEADS, _KV_HEADS, _HEAD_DIM = 64, 4, 2, 32
_KV = _KV_HEADS * _HEAD_DIM


def _program(weights: Weights, num_sources: int) -> Program:
    table = weights.param("table", (VOCAB, _DIM))
    rows, x = Value("rows", _DIM), Value("x0", _DIM)
    ops: list[Op] = [Embed(rows, table)]
    for layer in range(2):
        k, v = Value(f"sk{layer}", _KV), Value(f"sv{layer}", _KV)
        weight = weights.param(f"skv{layer}", (2 * _KV, _DIM), _DIM**-0.5)
        ops += [Linear(rows, (k, v), weight), KeepSources(k, v, layer, _KV_HEADS, _HEAD_DIM)]
        ops.append(RowsOut(k))
    ops += [SourcesEnd(num_sources), Embed(x, table)]
    for layer in range(2):
        q, k, v = Value(f"q{layer}", _DIM * 2), Value(f"k{layer}", _KV), Value(f"v{layer}", _KV)
        q = replace(q, dim=_HEADS * _HEAD_DIM)
        own, seen, out = (Value(f"{n}{layer}", q.dim) for n in ("own", "seen", "out"))
        sizes = (layer, _HEADS, _KV_HEADS, _HEAD_DIM, _HEAD_DIM**-0.5)
        x_next = Value(f"x{layer + 1}", _DIM)
        ops += [
            Linear(x, (q, k, v), weights.param(f"qkv{layer}", (q.dim + 2 * _KV, x.dim), 0.125)),
            Attention(q, k, v, own, *sizes, first_key=num_sources),
            Linear(own, (out,), weights.param(f"sq{layer}", (q.dim, q.dim), q.dim**-0.5)),
            Attention(out, None, None, seen, *sizes, num_keys=num_sources),
            Linear(seen, (x_next,), weights.param(f"o{layer}", (_DIM, q.dim), q.dim**-0.5)),
        ]
        if layer == 0:
            ops.append(RowsOut(replace(out)))
        x = x_next
    taken = Value("taken", _DIM)
    head = weights.given("identity", np.eye(_DIM, dtype=np.float32))
    ops += [TakeRows(x, taken), Logits(taken, Value("logits", _DIM), head)]
    program = Program("test", tuple(ops))
    program.check()
    return program


def _logits(
    model: CompiledModel, work: Sequence[tuple[Seq, int]], num_sources: int
) -> tuple[Floats, Floats | None]:
    """The logits of the decoder's tokens of a step whose source rows are given."""
    batch = batch_of(work)
    is_source = batch.positions < num_sources
    batch.logits_rows = np.flatnonzero(~is_source).astype(np.int32)
    batch.want_logits, batch.sampling = True, None
    given = np.random.default_rng(5).normal(0, 1, (num_sources, _DIM)).astype(np.float32)
    for begin, end in zip(batch.seq_starts[:-1], batch.seq_starts[1:], strict=True):
        own = batch.positions[begin:end]
        own = own[own < num_sources]
        if len(own):
            batch.input_rows.append(TokenRows(int(begin), given[own]))
    output = model.step(batch)
    assert output.logits is not None
    return output.logits, output.rows_out


@pytest.mark.parametrize("num_sources", [21, 32, 300])
@pytest.mark.parametrize(("dtype", "kv", "tolerance"), [
    ("float32", "float32", 2e-5), ("bfloat16", "bfloat16", 3e-2), ("float32", "int8", 3e-2),
])  # fmt: skip
def test_steps_are_those_of_the_reference(
    backend: CpuBackend, num_sources: int, dtype: str, kv: str, tolerance: float
) -> None:
    weights = Weights(3)
    program = _program(weights, num_sources)
    models = [
        compile_on(one, program, weights, dtype, kv_dtype=kv)  # type: ignore[arg-type]
        for one in (backend, ReferenceBackend())
    ]
    plans = ([[num_sources + 9, 5, 7], [1, num_sources + 3, num_sources - 7], [1, 1, 5]],)
    for plan in plans:
        found = []
        for model in models:
            seqs = make_seqs([sum(counts) for counts in zip(*plan, strict=True)])
            found.append(
                [_logits(model, [*zip(seqs, counts, strict=True)], num_sources) for counts in plan]
            )
        for (native, rows), (wanted, wanted_rows) in zip(*found, strict=True):
            assert native.shape == wanted.shape
            assert np.abs(native - wanted).max(initial=0) <= tolerance * np.abs(wanted).max(
                initial=1
            )
            assert rows is not None
            assert wanted_rows is not None
            assert np.abs(rows - wanted_rows).max() <= tolerance * np.abs(wanted_rows).max()


def test_a_row_has_the_same_bits_however_the_request_is_divided(backend: CpuBackend) -> None:
    weights, num_sources, length = Weights(3), 75, 75 + 30
    model = compile_on(backend, _program(weights, num_sources), weights, "bfloat16")
    [alone] = make_seqs([length])
    whole, rows = _logits(model, [(alone, length)], num_sources)
    for sizes in ([1] * length, [16, 60, 1, 28], [75, 30], [74, 2, 29]):
        seq, other = make_seqs([length, 40])
        parts, given = [], []
        for size in sizes:
            work = [(seq, size)]
            if other.computed < 40:
                work.append((other, 1))
            found, of_step = _logits(model, work, num_sources)
            count = max(0, seq.computed - max(num_sources, seq.computed - size))
            parts.append(found[:count])
            assert of_step is not None
            given.append(of_step[:size])
        assert np.array_equal(np.concatenate(parts), whole)
        assert rows is not None
        assert np.array_equal(np.concatenate(given), rows)


def test_a_source_row_has_no_logits(backend: CpuBackend) -> None:
    weights = Weights(3)
    program = _program(weights, 20)
    for one in (backend, ReferenceBackend()):
        model = compile_on(one, program, weights, "float32")
        with pytest.raises(BackendError, match="source rows have no logits"):
            model.step(batch_of([(make_seqs([8])[0], 8)]))
