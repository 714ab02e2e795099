"""Loads a checkpoint the way the engine does, and runs requests on a compiled model by hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakKeyDictionary

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_columns import SamplingRow, build_columns

from quire.backends.base import (
    Backend,
    CompiledModel,
    CompileOptions,
    Dtype,
    KVCacheSpec,
    LoadedAdapter,
    StepBatch,
    TokenRows,
)
from quire.config.checkpoint.model_files import read_config
from quire.models import build_program, model_facts, name_map, shipped_format
from quire.planning.stored_matrices import as_stored
from quire.program import keep_all
from quire.program.passes import run_passes
from quire.program.values import WeightFormat
from quire.weights import bind, open_checkpoint
from quire.weights.adapters import adapter_width, bind_adapter, read_adapter
from quire.weights.quantised.store import as_shipped

BLOCK_SIZE = 16
NUM_BLOCKS = 400

Floats = NDArray[np.float32]
_NUM_GROUPS: WeakKeyDictionary[CompiledModel, int] = WeakKeyDictionary()
"""Of layers, which have a block table each: more than one where heads differ."""
_STATE_BLOCKS: WeakKeyDictionary[CompiledModel, int] = WeakKeyDictionary()
"""Blocks that the state of recurrent layers takes."""


def each_case(cases: Sequence[object]) -> Any:
    """A fixture for a module's `case`: each of these in turn."""

    @pytest.fixture(scope="module", params=cases, ids=str)
    def case(request: pytest.FixtureRequest) -> Any:
        return request.param

    return case


def load(
    directory: Path,
    backend: Backend,
    dtype: Dtype = "float32",
    weight_format: WeightFormat = "dense",
    max_lora_rank: int = 0,
) -> CompiledModel:
    """config.json to program, safetensors to weights, both to a compiled model."""
    config = as_stored(read_config(directory), directory)
    program = run_passes(build_program(config), weight_format)
    max_model_len = model_facts(config).max_model_len
    options = CompileOptions(
        dtype,
        max_num_tokens=512,
        max_num_seqs=64,
        max_model_len=max_model_len,
        max_adapter_width=adapter_width(program, max_lora_rank),
    )
    store = as_shipped(open_checkpoint(directory), shipped_format(config))
    try:
        bound = bind(program, store, name_map(config).canonical)
        layout = keep_all(program)
        spec = KVCacheSpec(NUM_BLOCKS * len(layout.groups), BLOCK_SIZE, dtype, layout)
        spec = backend.sized(program, spec)
        model = backend.compile(program, bound, spec, options)
        _NUM_GROUPS[model] = len(layout.groups)
        _STATE_BLOCKS[model] = max((group.num_blocks for group in spec.layout.states), default=0)
        return model
    finally:
        store.close()


def load_adapter(
    model: CompiledModel, directory: Path, folder: Path, dtype: Dtype = "float32"
) -> LoadedAdapter:
    """Reads an adapter of the checkpoint in a directory, as a worker does."""
    config = as_stored(read_config(directory), directory)
    program = run_passes(build_program(config), "dense")
    canonical = name_map(config).canonical
    files = read_adapter(folder, max_rank=112, max_bytes=1 << 30)
    weights = bind_adapter(
        files, program, canonical, lambda: bind(program, open_checkpoint(directory), canonical)
    )
    return model.load_adapter(weights, dtype)


@dataclass
class Request:
    """Tokens, and the scattered blocks that hold the K/V of the first `computed` of them."""

    tokens: list[int]
    blocks: list[int]
    sampling: SamplingRow = field(default_factory=SamplingRow)
    computed: int = 0
    adapter: LoadedAdapter | None = None
    input_rows: Floats | None = None
    """Rows in place of the embeddings of the first tokens."""
    given_kv: Floats | None = None
    """K and V of the first tokens."""


class Runner:
    """Steps requests through a compiled model; keeps no state of its own but free blocks."""

    def __init__(self, model: CompiledModel, seed: int = 0) -> None:
        self.model = model
        self._num_groups = _NUM_GROUPS.get(model, 1)
        random = np.random.default_rng(seed)
        self._free = [int(block) for block in random.permutation(NUM_BLOCKS)]

    def request(self, tokens: Sequence[int], room: int = 0, **sampling: float) -> Request:
        """A new request with blocks for its tokens and `room` more."""
        count = -(-(len(tokens) + room) // BLOCK_SIZE)
        count = max(count, _STATE_BLOCKS.get(self.model, 0))
        blocks = [self._free.pop() for _ in range(count)]
        return Request(list(tokens), blocks, SamplingRow(**sampling))  # type: ignore[arg-type]

    def release(self, request: Request) -> None:
        """Its blocks may be used again, and are used again soon."""
        self._free.extend(request.blocks)

    def block_ids(self, request: Request) -> NDArray[np.int32]:
        """A request's blocks of all groups, as the model numbers them."""
        return self._of_groups(np.array([request.blocks], np.int32)).reshape(-1)

    def step(self, work: Sequence[tuple[Request, int]]) -> list[Floats]:
        """Computes the next n tokens of each request; every token's logits, [n, V] per request."""
        batch = self._batch(work, all_rows=True)
        logits = self.model.step(batch).logits
        if logits is None:
            raise RuntimeError("the backend did not return the logits")
        ends = np.cumsum([count for _, count in work])[:-1]
        return [part.copy() for part in np.split(logits, ends)]

    def decode(self, requests: Sequence[Request]) -> None:
        """One step of everything that is left of each request; appends the chosen tokens."""
        work = [(request, len(request.tokens) - request.computed) for request in requests]
        batch = self._batch(work, all_rows=False)
        rows = []
        for request in requests:
            row = request.sampling
            rows.append(
                SamplingRow(row.temperature, row.top_k, row.top_p, row.min_p, row.seed,
                            position=len(request.tokens))
            )  # fmt: skip
        batch.sampling = build_columns(rows)
        for request, token in zip(requests, self.model.step(batch).sampled, strict=True):
            request.tokens.append(int(token))

    def _batch(self, work: Sequence[tuple[Request, int]], *, all_rows: bool) -> StepBatch:
        counts = [count for _, count in work]
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int32)
        tables = np.zeros((len(work), max(len(request.blocks) for request, _ in work)), np.int32)
        tokens: list[int] = []
        positions: list[int] = []
        given: dict[str, list[TokenRows]] = {"input_rows": [], "given_kv": []}
        for row, (request, count) in enumerate(work):
            tables[row, : len(request.blocks)] = request.blocks
            begin, request.computed = request.computed, request.computed + count
            for name, of_step in given.items():
                part = getattr(request, name)
                if part is not None and begin < len(part):
                    of_step.append(TokenRows(len(tokens), part[begin : request.computed]))
            tokens += request.tokens[begin : request.computed]
            positions += range(begin, request.computed)
        with_adapters = any(request.adapter is not None for request, _ in work)
        rows = np.arange(len(tokens)) if all_rows else starts[1:] - 1
        return StepBatch(
            token_ids=np.array(tokens, np.int32),
            positions=np.array(positions, np.int32),
            seq_starts=starts,
            context_lens=np.array([request.computed for request, _ in work], np.int32),
            block_tables=self._of_groups(tables),
            logits_rows=rows.astype(np.int32),
            sampling=None,
            want_logits=all_rows,
            adapters=[request.adapter for request, _ in work] if with_adapters else None,
            **given,
        )

    def _of_groups(self, tables: NDArray[np.int32]) -> NDArray[np.int32]:
        """[R, G, B]: each block stands for one of each group."""
        groups = np.arange(self._num_groups, dtype=np.int32)[:, None]
        return tables[:, None] * np.int32(self._num_groups) + groups
