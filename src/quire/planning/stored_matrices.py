"""What the tensors of a checkpoint say in addition to its config.json.

Whether the head is tied, which matrices are quantised, and whether the columns of their groups are
neighbours: configurations leave this out, or are wrong about it. Called by `read_checkpoint`,
before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quire.errors import CheckpointError
from quire.models import (
    Shipped,
    as_expanded,
    build_program,
    name_map,
    shipped_format,
    with_order,
    with_plain,
)
from quire.planning.stored_head import with_stored_head
from quire.program import Param, Program, Tensor
from quire.program.values import GroupedFormat
from quire.weights import WeightStore, open_checkpoint
from quire.weights.quantised.store import as_shipped

_ORDERS = (".g_idx", ".weight_g_idx")


def as_stored(hf_config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The configuration with notes of what the files in `path` say, where it matters."""
    try:
        files = open_checkpoint(path)
    except CheckpointError:  # loading says what is wrong
        return hf_config
    with closing(files):
        hf_config = with_stored_head(hf_config, files)
        shipped = shipped_format(hf_config)
        if not isinstance(shipped, Shipped) or shipped.layout == "mxfp4":
            return hf_config
        return _as_quantised(hf_config, shipped, files)


def _as_quantised(
    hf_config: Mapping[str, Any], shipped: Shipped, files: WeightStore
) -> Mapping[str, Any]:
    if not shipped.format.has_order and _has_order(shipped, files):
        hf_config = with_order(hf_config)
        found = shipped_format(hf_config)
        if not isinstance(found, Shipped):
            return hf_config
        shipped = found
    params = list(_held(build_program(hf_config)))
    if shipped.format.has_order and (unlike := _unlike_orders(hf_config, params, files)):
        return as_expanded(hf_config, unlike)
    quantised = _quantised(hf_config, as_shipped(files, shipped))
    plain = {part.name for param in params for part in param.parts} - quantised
    return with_plain(hf_config, plain) if plain else hf_config


def _held(program: Program) -> Iterator[Param]:
    for param in program.params():
        if isinstance(param.format, GroupedFormat):
            yield param


def _quantised(hf_config: Mapping[str, Any], store: WeightStore) -> set[str]:
    """The program's names of the matrices that are stored in groups."""
    canonical = name_map(hf_config).canonical
    names = {}
    for stored in store.names():
        if stored.endswith(".weight") and (name := canonical(stored)) is not None:
            names[name] = stored
    return {name for name, stored in names.items() if store.describe(stored).dtype == "GROUPED"}


def _has_order(shipped: Shipped, files: WeightStore) -> bool:
    """Whether a matrix has an order of columns of which the configuration says nothing."""
    for stored in files.names():
        if stored.endswith(_ORDERS):
            order = files.integers(stored).reshape(-1)
            size = shipped.group_size or max(order.size, 1)
            is_none = bool((order == -1).all())
            if not is_none and not np.array_equal(order, np.arange(order.size) // size):
                return True
    return False


def _unlike_orders(
    hf_config: Mapping[str, Any], params: Iterable[Param], files: WeightStore
) -> str:
    """Two matrices that are multiplied as one and have unlike orders, in words; empty: none."""
    canonical = name_map(hf_config).canonical
    orders = {}
    for stored in files.names():
        for end in _ORDERS:
            name = canonical(stored.removesuffix(end) + ".weight") if stored.endswith(end) else None
            if name is not None:
                orders[name] = stored

    def is_alike(first: Tensor, second: Tensor) -> bool:
        ours, theirs = orders.get(first.name), orders.get(second.name)
        if ours is None or theirs is None:
            return ours is theirs
        return np.array_equal(files.integers(ours), files.integers(theirs))

    for param in params:
        for parts in _matrices(param):
            unlike = next((pair for pair in pairwise(parts) if not is_alike(*pair)), None)
            if unlike is not None:
                return f", unlike in {unlike[0].name} and {unlike[1].name}"
    return ""


def _matrices(param: Param) -> Iterator[list[Tensor]]:
    """The parts of each matrix of a slot: of a slot of experts, of each expert."""
    rows, parts = 0, []
    for part in param.parts:
        parts.append(part)
        rows += part.num_rows
        if rows % param.shape[-2] == 0:
            yield parts
            parts = []
