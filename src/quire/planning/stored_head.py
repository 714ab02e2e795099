"""Whether a checkpoint's head is its table of embeddings: its tensors decide, as in transformers.

`tie_word_embeddings` may be wrong, or differ between config.json and the section of the text model.
Called by `as_stored`, before anything is built.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from quire.log import get_logger
from quire.models import build_program, is_transformers, name_map, with_tied_head
from quire.program import Embed, Program, Tensor
from quire.units import MiB
from quire.weights import WeightStore

logger = get_logger(__name__)

_CODES = ("weight", "qweight", "weight_packed", "W_q", "_weight_qdata")
"""Last words of the names of tensors that hold a matrix."""
_PIECE_BYTES = 16 * MiB


def with_stored_head(hf_config: Mapping[str, Any], files: WeightStore) -> Mapping[str, Any]:
    """The configuration with a head of its own where the files have one that differs from the
    table, and with a tied head where they have none. transformers keeps a head of its own itself.
    """
    untied = with_tied_head(hf_config, False)
    if is_transformers(hf_config):
        head, table = "lm_head.weight", "the table of embeddings"
        is_tied = head not in _parts(build_program(hf_config))
        has_head = head in files.names()
        return hf_config if is_tied or has_head else _as_tied(hf_config, files, head, table)
    program = build_program(untied)
    head = program.logits.weight.parts[0].name
    table = next(op.table.parts[0].name for op in program.ops if isinstance(op, Embed))
    is_tied = head not in _parts(build_program(hf_config))
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
