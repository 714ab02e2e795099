"""Rows that are given with a step: embeddings, and K and V."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import Backend, CompiledModel, KVCacheSpec, TokenRows
from quire.errors import BackendError
from quire.program import Embed, Program, keep_all

TOKENS = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8, 9, 7, 9, 3, 2, 3, 8, 4]
PROGRAM = small_program(windows=(None,))
SPEC = KVCacheSpec(6, 16, "float32", keep_all(PROGRAM))
WIDTH = 8
KV_WIDTH = 2 * 2 * 4


def compiled(backend: Backend, program: Program) -> CompiledModel:
    return backend.compile(program, RandomStore(program), SPEC, OPTIONS)


@pytest.fixture(scope="module")
def model(backend: Backend) -> Iterator[CompiledModel]:
    found = compiled(backend, PROGRAM)
    yield found
    found.close()


def step(
    model: CompiledModel, tokens: list[int], rows: list[TokenRows], computed: int = 0
) -> NDArray[np.float32]:
    batch = one_request(tokens, [4, 1], computed=computed)
    batch.input_rows = rows
    found = model.step(batch).logits
    assert found is not None
    return found


def table() -> NDArray[np.float32]:
    tensor = RandomStore(PROGRAM).get("embed.weight")
    return tensor.data.view(np.float32).reshape(-1, WIDTH)


def test_rows_of_the_table_give_what_their_tokens_give(model: CompiledModel) -> None:
    whole = step(model, TOKENS, [])
    rows = table()[TOKENS]
    placeholders = [*TOKENS[:2], *[0] * 9, *TOKENS[11:14], 0, *TOKENS[15:]]
    assert step(model, placeholders, []).tobytes() != whole.tobytes()
    given = [TokenRows(2, rows[2:11]), TokenRows(14, rows[14:15])]
    assert step(model, placeholders, given).tobytes() == whole.tobytes()
    step(model, placeholders[:7], [TokenRows(2, rows[2:7])])
    rest = step(model, placeholders, [TokenRows(0, rows[7:11]), TokenRows(7, rows[14:15])], 7)
    assert rest.tobytes() == whole[7:].tobytes()


def test_a_program_may_scale_given_rows(backend: Backend) -> None:
    ops = [replace(op, given_scale=0.5) if isinstance(op, Embed) else op for op in PROGRAM.ops]
    scaling = compiled(backend, replace(PROGRAM, ops=tuple(ops)))
    rows = [TokenRows(0, table()[TOKENS] * 2)]
    assert step(scaling, TOKENS[::-1], rows).tobytes() == step(scaling, TOKENS, []).tobytes()
    scaling.close()


def test_given_kv_takes_the_place_of_what_is_computed(model: CompiledModel) -> None:
    """Whatever the tokens are, later ones see the given numbers."""
    kv = np.random.default_rng(1).standard_normal((5, KV_WIDTH)).astype(np.float32)
    found = []
    for first in ([1, 2, 3, 4, 5], [9, 9, 9, 9, 9]):
        batch = one_request([*first, *TOKENS], [4, 1])
        batch.given_kv = [TokenRows(0, kv)]
        logits = model.step(batch).logits
        assert logits is not None
        found.append(logits[5:])
    assert found[0].tobytes() == found[1].tobytes()
    batch = one_request([*first, *TOKENS], [4, 1])
    batch.given_kv = [TokenRows(0, 1.5 * kv)]
    other = model.step(batch).logits
    assert other is not None
    assert other[5:].tobytes() != found[0].tobytes()
    # In chunks.
    for begin, end in ((0, 3), (3, 11), (11, 25)):
        batch = one_request([*first, *TOKENS][:end], [4, 1], computed=begin)
        batch.given_kv = [TokenRows(0, kv[begin:end])] if begin < 5 else []
        logits = model.step(batch).logits
    assert logits is not None
    assert logits.tobytes() == found[0][6:].tobytes()


@pytest.mark.parametrize("shape", [(2, WIDTH + 1), (21, WIDTH), (2,)])
def test_rows_of_another_shape_are_refused(model: CompiledModel, shape: tuple[int, ...]) -> None:
    for name in ("input_rows", "given_kv"):
        batch = one_request(TOKENS, [4, 1])
        setattr(batch, name, [TokenRows(0, np.zeros(shape, np.float32))])
        with pytest.raises(BackendError, match=f"{name} .* for the 20 tokens"):
            model.step(batch)
    assert step(model, TOKENS, []).shape == (20, 11)
