"""Reads facts from a checkpoint's tensors that config.json omits or states wrongly: whether the
head is tied, which matrices are quantised, whether the columns of a quantisation group are
adjacent, and in which types numbers are stored.

Called by `read_checkpoint`, before anything is built.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from quire.config.records import WeightSource
from quire.config.stored_numbers import StoredNumbers
from quire.errors import CheckpointError
from quire.log import get_logger
from quire.models import (
    Expanded,
    ModelDescription,
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
from quire.models.pooling.head import MARK, marked, pooling_head
from quire.models.text_part import TRANSPOSED, text_part, with_text_keys
from quire.program import Embed, Param, Program, Tensor
from quire.program.values import GroupedFormat
from quire.units import MiB
from quire.weights import PackedHeader, WeightStore, open_checkpoint, open_with_folders
from quire.weights.quantised.experts import split_experts
from quire.weights.quantised.store import QuantisedStore, quantised_store

logger = get_logger(__name__)

_ORDERS = (".g_idx", ".weight_g_idx")
_CODES = ("weight", "qweight", "weight_packed", "W_q", "_weight_qdata")
"""Last parts of the names of tensors that hold a matrix."""
_PIECE_BYTES = 16 * MiB


def as_stored(hf_config: Mapping[str, Any], path: Path) -> Mapping[str, Any]:
    """Return the configuration with added notes about the files in `path`, where they matter."""
    try:
        files = open_checkpoint(path)
    except CheckpointError:  # loading reports the error
        return hf_config
    with closing(files):
        head = pooling_head(hf_config)
        if head is None:
            hf_config = _with_stored_head(hf_config, files)
        elif head.token_rows:  # rows of the language model's head
            plain = {key: value for key, value in hf_config.items() if key != MARK}
            hf_config = marked(_with_stored_head(plain, files), head)
        hf_config = _with_stored_experts(hf_config, files)
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
    """Return the program's names of the matrices that are stored in groups."""
    canonical = name_map(hf_config).canonical
    names = {}
    for stored in store.names():
        if stored.endswith(".weight") and (name := canonical(stored)) is not None:
            names[name] = stored
    return {name for name, stored in names.items() if store.describe(stored).dtype == "GROUPED"}


def _has_order(shipped: Shipped, files: WeightStore) -> bool:
    """Whether a matrix has a column order that the configuration does not mention."""
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
    """Return a message about two matrices that are multiplied as one but have different column
    orders; "" if there are none."""
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
                return f", which differs between {unlike[0].name} and {unlike[1].name}"
    return ""


def _matrices(param: Param) -> Iterator[list[Tensor]]:
    """Yield the parts of each matrix of a parameter. A parameter of experts has one matrix per
    expert."""
    rows, parts = 0, []
    for part in param.parts:
        parts.append(part)
        rows += part.num_rows
        if rows % param.shape[-2] == 0:
            yield parts
            parts = []


def _with_stored_experts(hf_config: Mapping[str, Any], files: WeightStore) -> Mapping[str, Any]:
    """Return the configuration with a note whether the matrices of Qwen3-VL's experts are
    transposed: transformers 5 saves them in another form than the published one."""
    text = text_part(hf_config)
    if text.get("model_type") != "qwen3_vl_moe_text":
        return hf_config
    shapes = (files.shape(name) for name in files.names() if name.endswith(".experts.gate_up_proj"))
    shape = next(shapes, ())
    is_plain = len(shape) == 3 and shape[2] == text.get("hidden_size") != shape[1]
    return with_text_keys(hf_config, {TRANSPOSED: not is_plain})


def _with_stored_head(hf_config: Mapping[str, Any], files: WeightStore) -> Mapping[str, Any]:
    """Return the configuration with an untied head if the files have a head that differs from the
    embedding table, and with a tied head if they have none. For transformers' modules an untied
    head in the files needs no change."""
    untied = with_tied_head(hf_config, False)
    if is_transformers(hf_config):
        head, table = "lm_head.weight", "the embedding table"
        is_tied = head not in _parts(build_program(hf_config))
        has_head = head in files.names()
        return hf_config if is_tied or has_head else _as_tied(hf_config, files, head, table)
    is_tied = model_facts(hf_config).tie_word_embeddings
    # config.json agrees with the files: no program needs to be built
    if is_tied != _has_head(hf_config, files):
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
    """Handle a tied model whose files also have a head. `head` and `table` are names in the
    files."""
    is_plain = head.endswith(".weight") and table.endswith(".weight")
    if is_plain and files.shape(head) != files.shape(table):
        logger.warning(
            "%s: %s %s is ignored: config.json ties the head to %s %s",
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
    """Return the tensors of a program by name."""
    return {part.name: part for param in program.params() for part in param.parts}


def _has_head(hf_config: Mapping[str, Any], files: WeightStore) -> bool:
    """Whether the files have a matrix that only an untied model has."""
    tied, untied = (_stored(with_tied_head(hf_config, flag), files) for flag in (True, False))
    return tied.keys() != untied.keys()


def _stored(hf_config: Mapping[str, Any], files: WeightStore) -> dict[str, str]:
    """Map the program's names to the files' names, for tensors that hold a matrix."""
    canonical = name_map(hf_config).canonical
    found: dict[str, str] = {}
    for stored in files.names():
        module, _, last = stored.rpartition(".")
        if last in _CODES and (name := canonical(f"{module}.weight")) is not None:
            found[name] = stored
    return found


def _is_same(files: WeightStore, first: str, second: str) -> bool:
    """Whether two tensors of one shape hold the same numbers. Releases their pages afterwards."""
    ours, theirs = files.get(first), files.get(second)
    if ours.dtype == theirs.dtype:
        pieces = (slice(at, at + _PIECE_BYTES) for at in range(0, ours.data.size, _PIECE_BYTES))
        same = all(np.array_equal(ours.data[piece], theirs.data[piece]) for piece in pieces)
    else:
        same = np.array_equal(ours.to_float32(), theirs.to_float32())
    for name in (first, second):
        files.release(name)
    return same


def stored_numbers(
    dtype: str,
    model: ModelDescription,
    path: Path,
    weights: WeightSource,
    packed: PackedHeader | None = None,
) -> StoredNumbers | None:
    """Return the types of the numbers, which matter to a float32 model alone. None: for a model
    that is not float32 by default, or that transformers computes, and for files with an error,
    which loading reports. `dtype`: the argument."""
    if packed is not None:
        return _of_packed(packed)
    head = pooling_head(model.hf_config)
    if (dtype == "auto" and head is None) or model.is_transformers:
        return None
    if weights == "dummy":
        return StoredNumbers("BF16", {})
    try:
        files = open_with_folders(path, () if head is None else [one.folder for one in head.dense])
        with closing(files):
            return _of_files(files, model)
    except CheckpointError:
        return None


def _of_packed(packed: PackedHeader) -> StoredNumbers:
    """Matrices are packed in the model's type, and tables as the checkpoint had them."""
    narrow = [one for one in packed.sections if one.layout.startswith("bfloat16 ")]
    return StoredNumbers("F32", {name: "BF16" for one in narrow for name in one.tensors})


def _of_files(files: WeightStore, model: ModelDescription) -> StoredNumbers:
    canonical = model.names.canonical
    wanted = {part.name for param in model.program.params() for part in param.parts}
    store = quantised_store(files, model.shipped)
    store = split_experts(store, [name for name in store.names() if canonical(name) in wanted])
    found = {name: canonical(name) for name in store.names()}
    return StoredNumbers.of_tensors(
        {own: store.describe(name).dtype for name, own in found.items() if own in wanted}
    )
