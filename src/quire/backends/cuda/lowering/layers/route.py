"""Which experts each token goes to, and the lists that products with experts read."""

from __future__ import annotations

from collections.abc import Iterator

from quire.backends.cuda.kernel import TYPE_NAMES, Arguments, Kernel, Launch
from quire.backends.cuda.lowering.context import Emit, Lowering, Rows
from quire.backends.cuda.memory import Buffer
from quire.program import Route

SCORES = ("softmax", "sigmoid", "sparsemixer")
"""In the order of the kernel's numbers."""
BLOCKS = (64, 1024)
"""Numbers of experts that kernels are compiled for."""
_PAIRS = 1024
"""Pairs that `assign` reads at once."""


def route_kernel(dtype: str, block: int) -> Kernel:
    """The choice of experts by logits of one type."""
    integers = (
        "num_experts", "top_k", "score", "normalise", "has_bias", "num_groups", "top_groups",
        "group_best",
    )  # fmt: skip
    types = (
        ("logits", f"*{dtype}"), ("bias", "*fp32"), ("out", f"*{dtype}"),
        *((name, "i32") for name in integers), ("floor", "fp32"), ("scale", "fp32"),
        ("jitter", "fp32"), ("stride_logits", "i32"), ("stride_out", "i32"),
    )  # fmt: skip
    return Kernel("route", "route", types, (("BLOCK", block),), num_warps=_warps(block))


def choose_kernel(dtype: str, block: int) -> Kernel:
    """The experts of a row by weights of one type."""
    types = (
        ("routes", f"*{dtype}"), ("chosen", "*i32"), ("num_experts", "i32"), ("top_k", "i32"),
        ("stride_routes", "i32"),
    )  # fmt: skip
    return Kernel("route", "choose", types, (("BLOCK", block),), num_warps=_warps(block))


def assign_kernel() -> Kernel:
    """The list of each expert."""
    types = (
        ("chosen", "*i32"), ("lists", "*i32"), ("counts", "*i32"), ("num_rows", "i32"),
        ("num_pairs", "i32"),
    )  # fmt: skip
    return Kernel("route", "assign", types, (("BLOCK", _PAIRS),))


def tiles_kernel(height: int, block: int) -> Kernel:
    """The tiles of all experts' rows."""
    types = (("counts", "*i32"), ("found", "*i32"), ("num_experts", "i32"))
    constants = (("BLOCK_M", height), ("BLOCK", block))
    return Kernel("route", "tiles", types, constants, num_warps=_warps(block))


def variants() -> Iterator[Kernel]:
    """All kernels that this module launches."""
    yield assign_kernel()
    for block in BLOCKS:
        for dtype in TYPE_NAMES.values():
            yield route_kernel(dtype, block)
            yield choose_kernel(dtype, block)


def block_of(num_experts: int, lowering: Lowering) -> int:
    """The numbers of an array with a place for each expert. Raises BackendError for too many."""
    for block in BLOCKS:
        if num_experts <= block:
            return block
    return lowering.refuse(f"choice among {num_experts} experts; {BLOCKS[-1]} is the most")


def lower_route(op: Route, lowering: Lowering) -> Emit:
    """One launch, with a program for each row."""
    logits, out, num_experts = lowering.rows[op.logits], lowering.rows[op.out], op.logits.dim
    kernel = route_kernel(logits.type_name, block_of(num_experts, lowering))
    args: Arguments = {
        "logits": logits.buffer, "bias": lowering.vector(op.bias), "out": out.buffer,
        "num_experts": num_experts, "top_k": op.top_k, "score": SCORES.index(op.score),
        "normalise": int(op.normalise), "has_bias": int(op.bias is not None),
        "num_groups": op.num_groups, "top_groups": op.top_groups,
        "group_best": min(op.group_best, num_experts // op.num_groups), "floor": op.floor,
        "scale": op.scale, "jitter": op.jitter, "stride_logits": logits.stride,
        "stride_out": out.stride,
    }  # fmt: skip
    return lambda step: [Launch(kernel, (lowering.num_rows(op.logits, step),), args)]


def list_launches(
    routes: Rows, count: int, top_k: int, places: dict[str, Buffer], tiles: tuple[Kernel, int]
) -> Iterator[Launch]:
    """The lists of `count` rows' experts: `chosen`, `lists`, `counts` and `found` of `places`.
    `tiles`: the kernel that finds them, and how many there may be."""
    block = dict(tiles[0].constants)["BLOCK"]
    shared: Arguments = {"num_experts": routes.width}
    yield Launch(
        choose_kernel(routes.type_name, block),
        (count,),
        {
            **shared, "routes": routes.buffer, "chosen": places["chosen"], "top_k": top_k,
            "stride_routes": routes.stride,
        },
    )  # fmt: skip
    yield Launch(
        assign_kernel(),
        (routes.width,),
        {
            "chosen": places["chosen"], "lists": places["lists"], "counts": places["counts"],
            "num_rows": count, "num_pairs": count * top_k,
        },
    )  # fmt: skip
    yield Launch(
        tiles[0],
        (tiles[1],),
        {**shared, "counts": places["counts"], "found": places["found"]},
    )


def _warps(block: int) -> int:
    return 1 if block <= BLOCKS[0] else 4
