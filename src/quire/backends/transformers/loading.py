"""Makes a module of transformers with the weights of a checkpoint, read by our readers."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterable
from typing import Any

import numpy as np
import torch

from quire.config.records import Dtype
from quire.errors import CheckpointError, reason
from quire.log import get_logger
from quire.models.transformers.modules import cache_name, find, quiet
from quire.program import Module, Program
from quire.weights import HostTensor, WeightStore, warn_not_finite

logger = get_logger(__name__)

_TYPES = {"F32": torch.float32, "BF16": torch.bfloat16, "F16": torch.float16}
_MAX_NAMED = 8


class Caller(torch.nn.Module):  # type: ignore[misc]  # torch has no types here
    """A module, called with what it takes."""

    def __init__(self, module: Any) -> None:
        super().__init__()
        self.module = module
        self.head = module.get_output_embeddings()
        taken = inspect.signature(module.forward).parameters
        self._cache_name = cache_name(module)
        self._takes_positions = "position_ids" in taken
        self._cuts_logits = "logits_to_keep" in taken

    def forward(self, ids: Any, positions: Any, cache: Any, wants_logits: bool) -> Any:
        """Logits [1, T, V] of token ids and positions [1, T]; where none are wanted, perhaps of the
        last row alone."""
        given: dict[str, Any] = {"position_ids": positions} if self._takes_positions else {}
        if self._cuts_logits and not wants_logits:
            given["logits_to_keep"] = 1
        given[self._cache_name] = cache
        return self.module(input_ids=ids, use_cache=True, **given).logits


def load(op: Module, program: Program, store: WeightStore, dtype: Dtype) -> Caller:
    """Raises CheckpointError for weights that do not fit the model."""
    found = find(json.loads(op.source.config))
    wanted = {"float32": torch.float32, "bfloat16": torch.bfloat16}[dtype]
    keeps_some = any(
        getattr(found.module, name, None)
        for name in ("_keep_in_fp32_modules", "_keep_in_fp32_modules_strict")
    )
    tensors, unread = _tensors(store, None if keeps_some else wanted)
    try:
        with quiet():
            module, info = found.module.from_pretrained(
                None,
                config=found.config,
                state_dict=tensors,
                dtype=wanted,
                attn_implementation="eager",
                experts_implementation="eager",
                local_files_only=True,
                ignore_mismatched_sizes=True,  # checked below
                output_loading_info=True,
            )
    except Exception as error:
        raise CheckpointError(
            f"{store.source}: {op.source} of transformers cannot load it: {reason(error)}"
        ) from None
    _check(op, store, info, unread)
    module.requires_grad_(False)
    bad = [name for name, value in module.named_parameters() if not torch.isfinite(value).all()]
    warn_not_finite(program, bad)
    return Caller(module.eval())


def _tensors(store: WeightStore, dtype: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """Copies of all tensors, in the type, if one is given; and why others could not be read. Those
    are buffers of whole numbers, which the module makes itself, or else are missed."""
    found: dict[str, Any] = {}
    unread: dict[str, str] = {}
    for name in store.names():
        try:
            tensor = store.get(name)
        except CheckpointError as error:
            unread[name] = str(error)
            continue
        found[name] = _copied(tensor, dtype)
        store.release(name)
    return found, unread


def _copied(tensor: HostTensor, dtype: Any) -> Any:
    """The store may take the pages of its file back."""
    if tensor.dtype not in _TYPES:
        values = torch.from_numpy(np.array(tensor.to_float32()))
    else:
        values = torch.from_numpy(np.array(tensor.data)).view(_TYPES[tensor.dtype])
    shaped = values.reshape(tensor.shape)
    return shaped if dtype is None else shaped.to(dtype)


def _check(op: Module, store: WeightStore, info: dict[str, Any], unread: dict[str, str]) -> None:
    mismatched = [
        f"tensor {name} has shape {list(found)}, config.json asks for {list(wanted)}"
        for name, found, wanted in sorted(info["mismatched_keys"])
    ]
    if mismatched or info.get("error_msgs"):
        what = _named(mismatched) or str(info["error_msgs"])
        raise CheckpointError(f"{store.source} does not fit its config.json: {what}")
    missing = sorted(map(str, info["missing_keys"]))
    if missing:
        why = next(iter(unread.values()), "")
        raise CheckpointError(
            f"{store.source} lacks tensors of {op.source}: {_named(missing)}{'; ' * bool(why)}{why}"
        )
    if info["unexpected_keys"]:
        logger.warning(
            "%s has no place for tensors of the checkpoint: %s",
            op.source,
            _named(sorted(map(str, info["unexpected_keys"]))),
        )


def _named(names: Iterable[str]) -> str:
    every = list(names)
    more = len(every) - _MAX_NAMED
    return ", ".join(every[:_MAX_NAMED]) + f" and {more} more" * (more > 0)
