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
from quire.log import get_logger
from quire.models import (
    Expanded,
    Shipped,
    as_expanded,
    build_program,
    is_transformers,
    model_facts,
    name_map,
    shipped_format,
    with_order,
    with_plain,
    with_tied_head,
)
from quire.program import Embed, Param, Program, Tensor
from quire.program.values import GroupedFormat
from quire.units import MiB
from quire.weights import WeightStore, open_checkpoint
from quire.weights.quantised.store import QuantisedStore

logger = get_logger(__name__)

_ORDERS = (".g_idx", ".weight_g_idx")
_CODES = ("weight", "qweight", "weight_packed", "W_q", "_weight_qdata")
"""Last words of the names of tensors that hold a matrix."""
_PIECE_BYTES = 16 * MiB


def as_stored(hf_config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """The configuration with notes of what the files in `path` say, where it matters."""
    try:
        files = open_checkpoint(path)
    except CheckpointError:  # loading says what is wrong
        return hf_config
    with closing(files):
        hf_config = _with_stored_head(hf_config, files)
        shipped = shipped_format(hf_config)
        if not isinstance(shipped, Shipped) or shipped.expanded is None:
            return hf_config
        return _as_quantised(hf_config, shipped, shipped.expanded, files)


def _as_quantised(
    hf_config: Mapping[str, Any], shipped: Shipped, how: Expanded, files: WeightStore
) -> Mapping[str, Any]:
    if not shipped.format.has_order and _has_order(shipped, files):
        hf_config = with_order(hf_config)
        found = shipped_format(hf_config)
        if not isinstance(found, Shipped) or found.expanded is None:
            return hf_config
        shipped, how = found, found.expanded
    params = list(_held(build_program(hf_config)))
    if shipped.format.has_order and (unlike := _unlike_orders(hf_config, params, files)):
        return as_expanded(hf_config, unlike)
    quantised = _quantised(hf_config, QuantisedStore(files, how, shipped))
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


def _with_stored_head(hf_config: Mapping[str, Any], files: WeightStore) -> Mapping[str, Any]:
    """The configuration with a head of its own where the files have one that differs from the
    table, and with a tied head where they have none. transformers keeps a head of its own itself.
    """
    untied = with_tied_head(hf_config, False)
    if is_transformers(hf_config):
        head, table = "lm_head.weight", "the table of embeddings"
        is_tied = head not in _parts(build_program(hf_config))
        has_head = head in files.names()
        return hf_config if is_tied or has_head else _as_tied(hf_config, files, head, table)
    is_tied = model_facts(hf_config).tie_word_embeddings
    if is_tied != _has_head(hf_config, files):  # as config.json says: no program is built for it
        return hf_config
    program = build_program(untied)
    head = program.logits.weight.parts[0].name
    table = next(op.table.parts[0].name for op in program.ops if isinstance(op, Embed))
    stored = _stored(untied, files)
    if head == table or table not in stored or is_tied != (head in stored):
        return hf_config
    if is_tied:
        return _with_own_head(hf_config, files, stored[head], stored[table])
    is_alike = program.logits.weight.shape == _parts(program)[table].shape
    return _as_tied(hf_config, files, head, table) if is_alike else hf_config


def _as_tied(
    hf_config: Mapping[str, Any], files: WeightStore, head: str, table: str
) -> Mapping[str, Any]:
    logger.warning(
        "%s has no %s, and config.json does not tie the head to the embeddings; %s is used as the "
        "head",
        files.source,
        head,
        table,
    )
    return with_tied_head(hf_config, True)


def _with_own_head(
    hf_config: Mapping[str, Any], files: WeightStore, head: str, table: str
) -> Mapping[str, Any]:
    """Of a tied model whose files have a head too; the names are those of the files."""
    is_plain = head.endswith(".weight") and table.endswith(".weight")
    if is_plain and files.shape(head) != files.shape(table):
        logger.warning(
            "%s: %s %s is left out: config.json ties the head to %s %s",
            files.source,
            head,
            list(files.shape(head)),
            table,
            list(files.shape(table)),
        )
        return hf_config
    if is_plain and _is_same(files, head, table):
        return hf_config
    logger.info(
        "%s: %s differs from %s, to which config.json ties the head; the file's own head is used",
        files.source,
        head,
        table,
    )
    return with_tied_head(hf_config, False)


def _parts(program: Program) -> dict[str, Tensor]:
    """The tensors of a program by name."""
    return {part.name: part for param in program.params() for part in param.parts}


def _has_head(hf_config: Mapping[str, Any], files: WeightStore) -> bool:
    """Whether the files have a matrix that an untied model has, and a tied one has not."""
    tied, untied = (_stored(with_tied_head(hf_config, flag), files) for flag in (True, False))
    return tied.keys() != untied.keys()


def _stored(hf_config: Mapping[str, Any], files: WeightStore) -> dict[str, str]:
    """The files' names of tensors that hold a matrix, by the program's."""
    canonical = name_map(hf_config).canonical
    found: dict[str, str] = {}
    for stored in files.names():
        module, _, last = stored.rpartition(".")
        if last in _CODES and (name := canonical(f"{module}.weight")) is not None:
            found[name] = stored
    return found


def _is_same(files: WeightStore, first: str, second: str) -> bool:
    """Whether two tensors of one shape hold the same numbers. Drops their pages again."""
    ours, theirs = files.get(first), files.get(second)
    if ours.dtype == theirs.dtype:
        pieces = (slice(at, at + _PIECE_BYTES) for at in range(0, ours.data.size, _PIECE_BYTES))
        same = all(np.array_equal(ours.data[piece], theirs.data[piece]) for piece in pieces)
    else:
        same = np.array_equal(ours.to_float32(), theirs.to_float32())
    for name in (first, second):
        files.release(name)
    return same
