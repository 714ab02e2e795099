"""Binds a checkpoint to a program: the store that a backend compiles from.

Called when an engine is built. Checks, before any weight is read, that the checkpoint holds every
tensor of the program in the right shape, and no unknown tensor: a model with missing weights would
give wrong output without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace
from math import prod

from quire.errors import CheckpointError
from quire.log import get_logger
from quire.program import Program, Tensor
from quire.weights.quantised.experts import split_experts
from quire.weights.store import HostTensor, WeightStore, WrappedStore

_MAX_NAMED = 8
"""Maximum number of problems listed in one message; the others are counted."""
_MAX_BIAS = 1 << 20
"""Maximum length of a bias that is checked for being all zero."""
_OF_QUANTISED = (".qweight", ".weight_packed", ".weight_scale", ".weight_scale_inv", ".W_q",
                 ".weight.absmax", "._weight_qdata")  # fmt: skip
"""Name suffixes of tensors that only quantised checkpoints have."""

logger = get_logger(__name__)


class BoundStore(WrappedStore):
    """A checkpoint under the program's names. Invariant: it has every tensor of the program."""

    def __init__(
        self,
        store: WeightStore,
        stored_names: dict[str, str],
        given: Mapping[str, HostTensor] | None = None,
        rows: Collection[str] = (),
    ) -> None:
        """`stored_names`: from the program's tensor names to the checkpoint's. `given`: tensors
        that replace the checkpoint's, by the program's names. `rows`: names of vectors that are
        matrices of one row in the program."""
        super().__init__(store)
        self._rows = frozenset(rows)
        self._stored_names = stored_names
        self._given = given or {}

    def names(self) -> Iterable[str]:
        return self._stored_names.keys()

    def get(self, name: str) -> HostTensor:
        if name in self._given:
            return self._given[name]
        stored = self._stored_names.get(name)
        if stored is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        return self._named(self._store.get(stored), name)

    def stored(self, name: str) -> HostTensor:
        if name in self._given:
            return self._given[name]
        found = self._stored_names.get(name)
        if found is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        return self._named(self._store.stored(found), name)

    def _named(self, tensor: HostTensor, name: str) -> HostTensor:
        shape = (1, *tensor.shape) if name in self._rows else tensor.shape
        return replace(tensor, name=name, shape=shape)

    def release(self, name: str) -> None:
        stored = self._stored_names.get(name)
        if stored is not None:
            self._store.release(stored)


def bind(
    program: Program,
    store: WeightStore,
    canonical_name: Callable[[str], str | None],
    given: Mapping[str, HostTensor] | None = None,
) -> BoundStore:
    """Return the store keyed by the names in the program's `Param.parts`.

    `canonical_name`: the model family's function from a checkpoint's tensor name to the program's,
    or `None` for a known tensor that the program does not use (a rotary table, a tied head).
    `given`: tensors that replace the checkpoint's. Raises CheckpointError that names the missing
    and unexpected tensors, and those of a wrong shape with their file.
    """
    wanted = {part.name: part for param in program.params() for part in param.parts}
    fused = [name for name in store.names() if canonical_name(name) in wanted]
    store = split_experts(store, fused)
    stored_names: dict[str, str] = {}
    problems: list[str] = []
    zeros: list[str] = []
    rows: list[str] = []
    for stored in store.names():
        name = canonical_name(stored)
        if name is None:
            continue
        if name not in wanted and _is_zero_bias(store, stored):
            zeros.append(stored)
        elif name not in wanted:
            problems.append(f"unexpected tensor {stored!r}: {program.name} has no place for it")
        elif name in stored_names:
            problems.append(f"tensor {name!r} is stored twice: {stored!r}, {stored_names[name]!r}")
        else:
            stored_names[name] = stored
    for name, part in wanted.items():
        if name not in stored_names:
            problems.append(f"missing tensor {name!r} of shape {list(part.shape)}")
        else:
            found = store.describe(stored_names[name])
            if part.shape == (1, *found.shape):
                rows.append(name)
            else:
                problems.extend(_shape_problem(found, part))
    if problems:
        raise CheckpointError(_summary(store.source, problems, _undescribed(store.names())))
    if zeros:
        logger.info(
            "%s: ignored %d biases that are all zero and that %s does not use, such as %s",
            store.source,
            len(zeros),
            program.name,
            zeros[0],
        )
    return BoundStore(store, stored_names, given, rows)


def _is_zero_bias(store: WeightStore, name: str) -> bool:
    """Whether the tensor is a bias of zeros. GPTQ checkpoints have one for each matrix."""
    if not name.endswith(".bias") or prod(store.shape(name)) > _MAX_BIAS:
        return False
    return not store.get(name).to_float32().any()


def _undescribed(names: Iterable[str]) -> str:
    """Advice for the error message if the names are those of a quantised checkpoint, else ""."""
    found = next((name for name in names if name.endswith(_OF_QUANTISED)), None)
    if found is None:
        return ""
    return (
        f". {found!r} belongs to a quantised checkpoint: quantization_config in config.json (or "
        "quantize_config.json, quant_config.json or hf_quant_config.json) must describe how it is "
        "quantised"
    )


def _shape_problem(tensor: HostTensor, part: Tensor) -> list[str]:
    if tensor.shape == part.shape:
        return []
    return [
        f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, "
        f"but config.json requires {list(part.shape)}"
    ]


def _summary(source: str, problems: list[str], advice: str) -> str:
    named = "; ".join(problems[:_MAX_NAMED])
    rest = len(problems) - _MAX_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return f"{source} does not fit its config.json: {named}{more}{advice}"
