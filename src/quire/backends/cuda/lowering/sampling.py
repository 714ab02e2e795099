"""The choice of tokens from a piece of the logits, and tokens that the next step begins with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from quire.backends.base import StepBatch
from quire.backends.cuda.choices import FIELDS, MOST_LIST_BYTES, Choices
from quire.backends.cuda.kernel import (
    Action,
    Arguments,
    DeviceRanks,
    Exchange,
    Kernel,
    Launch,
    Upload,
)
from quire.backends.cuda.lowering.context import Lowering, Rows
from quire.backends.cuda.memory import ALIGNMENT, Buffer, aligned
from quire.backends.cuda.step import Integers, Step, StepArray
from quire.program import Split

CHUNK, TILE = 4096, 1024
"""Logits that one program reads, and reads at once."""
_BUNCH = 16
_BLOCK = 256
_ROUNDS, _BINS, _STATE = 8, 16, 36
"""The constants of `kernels/choice/tokens.py`."""
_ROW = (("logits", "*fp32"), ("numbers", "*fp64"))
_LIMITS = (("states", "*fp64"), ("allowed", "*i32"))


def _kernel(name: str, *types: tuple[str, str], module: str = "choice.tokens", **constants: int
            ) -> Kernel:  # fmt: skip
    return Kernel(module, name, types, tuple(constants.items()))


def survey_kernel() -> Kernel:
    """The largest logits."""
    return _kernel(
        "survey", ("logits", "*fp32"), ("tops", "*fp32"), ("firsts", "*i32"), ("width", "i32"),
        ("num_chunks", "i32"), CHUNK=CHUNK, TILE=TILE,
    )  # fmt: skip


def forbid_kernel() -> Kernel:
    """Masks."""
    return _kernel(
        "forbid", *_ROW, ("masks", "*i32"), ("width", "i32"), ("num_words", "i32"), CHUNK=CHUNK,
        TILE=TILE,
    )  # fmt: skip


def change_kernel(op: int) -> Kernel:
    """0: numbers that are added, 1: penalties."""
    return _kernel(
        "change", *_ROW, ("starts", "*i32"), ("ids", "*i32"), ("values", "*fp32"),
        ("width", "i32"), OP=op, TILE=TILE,
    )  # fmt: skip


def narrow_kernel(cut: int) -> Kernel:
    """0: top_k, 1: top_p."""
    types = (
        *_ROW, ("tops", "*fp32"), ("bins", "*fp64"), *_LIMITS, ("width", "i32"),
        ("num_rows", "i32"), ("num_chunks", "i32"), ("step", "i32"),
    )  # fmt: skip
    constants = (("CUT", cut), ("CHUNK", CHUNK), ("TILE", TILE), ("BUNCH", _BUNCH))
    return Kernel("choice.cuts", "narrow", types, constants, num_warps=8)


def weigh_kernel(cuts: int) -> Kernel:
    """`cuts`: 2 if a row may have top_k or top_p, 0 otherwise."""
    return _kernel(
        "weigh", *_ROW, ("tops", "*fp32"), *_LIMITS, ("sums", "*fp64"), ("width", "i32"),
        ("num_chunks", "i32"), CUTS=cuts, CHUNK=CHUNK, TILE=TILE, BUNCH=_BUNCH,
    )  # fmt: skip


def draw_kernel(cuts: int) -> Kernel:
    """`cuts` as of `weigh_kernel`."""
    return _kernel(
        "draw", *_ROW, ("raw_tops", "*fp32"), ("tops", "*fp32"), ("firsts", "*i32"), *_LIMITS,
        ("sums", "*fp64"), ("out", "*i32"), ("kept", "*i32"), ("width", "i32"),
        ("num_chunks", "i32"), CUTS=cuts, CHUNK=CHUNK, TILE=TILE, BUNCH=_BUNCH,
    )  # fmt: skip


def feed_kernel() -> Kernel:
    """Tokens of an earlier step."""
    return _kernel(
        "feed", ("token_ids", "*i32"), ("places", "*i32"), ("kept", "*i32"),
        ("num_tokens", "i32"), BLOCK=_BLOCK,
    )  # fmt: skip


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield from (survey_kernel(), forbid_kernel(), feed_kernel())
    for op in (0, 1):
        yield change_kernel(op)
        yield narrow_kernel(op)
    for cuts in (0, 2):
        yield weigh_kernel(cuts)
        yield draw_kernel(cuts)


class Sampler:
    """Chooses tokens from a piece of the logits, which it may change."""

    def __init__(
        self, logits: Rows, most_rows: int, lowering: Lowering, split: Split | None = None
    ) -> None:
        """`split`: of the logits among ranks. The first rank chooses."""
        self.is_shared = split is not None
        """Whether `shared` gives the tokens to other ranks."""
        options, add = lowering.options, lowering.values.add
        self._logits, self._width = logits, logits.width
        self._num_chunks = chunks = -(-logits.width // CHUNK)
        lists = MOST_LIST_BYTES + 8 * (most_rows + 1) + 8 * ALIGNMENT
        self._given = add(8 * FIELDS * most_rows + lists)
        self._surveys = [(add(4 * most_rows * chunks), add(4 * most_rows * chunks)) for _ in "01"]
        self._bins = add(2 * 8 * most_rows * chunks * _BINS)
        self._limits: Arguments = {
            "states": add(2 * 8 * most_rows * _STATE), "allowed": add(2 * 4 * most_rows * chunks),
        }  # fmt: skip
        self._sums = add(8 * most_rows * chunks)
        size, num_ranks = aligned(4 * options.max_num_seqs), len(split.spans) if split else 1
        self._of_ranks = add(num_ranks * size)
        self._own = self._of_ranks.from_byte(split.rank * size if split else 0, size)
        self.kept = self._of_ranks.from_byte(0, size)
        """The tokens that later steps may begin with, by place: those of the first rank."""
        self.out = add(8 * options.max_num_tokens)
        """[rows of the step, 2]: token and status."""
        self._places = "token places"
        lowering.arrays.add(self._places, StepArray(_places_of, options.max_num_tokens))

    def feed(self, step: Step) -> Launch:
        """Puts tokens of an earlier step where this one reads them."""
        args: Arguments = {
            "token_ids": step.buffers["token_ids"], "places": step.buffers[self._places],
            "kept": self.kept, "num_tokens": step.num_tokens,
        }  # fmt: skip
        return Launch(feed_kernel(), (-(-step.num_tokens // _BLOCK),), args)

    def keep(self, place: int, token_id: int) -> Upload:
        """Keeps a token that the host has chosen."""
        return Upload(self.kept.from_byte(4 * place), np.array([token_id], np.int32))

    def shared(self, ranks: DeviceRanks) -> Exchange:
        """Gives other ranks the tokens that later steps may begin with."""
        return Exchange(ranks, self._own, self._of_ranks)

    def emit(self, choices: Choices, first: int) -> Iterator[Action]:
        """Chooses for all rows of the piece, whose first row of the step is given."""
        count, chunks = len(choices.numbers), self._num_chunks
        upload, places = self._packed(choices)
        yield upload
        grid, (raw, changed) = (count, chunks), self._surveys
        base: Arguments = {"logits": self._logits.buffer, "width": self._width}
        row: Arguments = {**base, "numbers": places["numbers"]}
        yield self._survey(raw, grid, base)
        tops, firsts = raw
        if len(choices.masks):
            words: Arguments = {"masks": places["masks"], "num_words": choices.masks.shape[1]}
            yield Launch(forbid_kernel(), grid, {**row, **words})
        for op, _ in choices.lists:
            changes = {name: places[name, op] for name in ("starts", "ids", "values")}
            yield Launch(change_kernel(op), (count,), {**row, **changes})
        if len(choices.masks) or choices.lists:
            yield self._survey(changed, grid, base)
            tops, firsts = changed
        row |= {"num_chunks": chunks, "tops": tops, **self._limits}
        cuts = choices.has_cuts
        for cut in (0, 1):
            for step in range(_ROUNDS + 1 if cuts[cut] else 0):
                search: Arguments = {"bins": self._bins, "num_rows": count, "step": step}
                yield Launch(narrow_kernel(cut), grid, {**row, **search})
        row |= {"sums": self._sums}
        if not choices.is_greedy:
            yield Launch(weigh_kernel(2 * any(cuts)), grid, row)
        out = {"out": self.out.from_byte(8 * first), "kept": self.kept}
        drawn = {"raw_tops": raw[0], "firsts": firsts, **out}
        yield Launch(draw_kernel(2 * any(cuts)), (count,), {**row, **drawn})

    def _survey(
        self, found: tuple[Buffer, Buffer], grid: tuple[int, ...], base: Arguments
    ) -> Launch:
        own: Arguments = {"tops": found[0], "firsts": found[1], "num_chunks": self._num_chunks}
        return Launch(survey_kernel(), grid, {**base, **own})

    def _packed(self, choices: Choices) -> tuple[Upload, dict[object, Buffer]]:
        """All arrays in one, and where each is on the device."""
        arrays: dict[object, NDArray[Any]]
        arrays = {"numbers": choices.numbers, "masks": choices.masks}
        for op, lists in choices.lists:
            arrays |= {("starts", op): lists.starts, ("ids", op): lists.ids}
            if lists.values is not None:
                arrays["values", op] = lists.values
        places: dict[object, Buffer] = {}
        begin = 0
        for name, array in arrays.items():
            places[name] = self._given.from_byte(begin)
            begin += aligned(array.nbytes)
        whole = np.zeros(begin, np.uint8)
        for name, array in arrays.items():
            at = places[name].begin - self._given.begin
            whole[at : at + array.nbytes] = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        return Upload(self._given, whole), places


def _places_of(batch: StepBatch) -> Integers:
    """[T]; -1: the host knows the token."""
    places = batch.token_places
    return np.full(len(batch.token_ids), -1, np.int32) if places is None else places
