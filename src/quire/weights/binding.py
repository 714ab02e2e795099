"""Binds a checkpoint to a program: the store that a backend compiles from.

Called when an engine is built. Checks, before any weight is read, that the checkpoint holds every
tensor of the program in the right shape, and no unknown tensor: a model with missing weights would
give wrong output without an error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

from quire.errors import CheckpointError
from quire.program import Program, Tensor
from quire.weights.quantised.experts import split_experts
from quire.weights.store import HostTensor, WeightStore

_MAX_NAMED = 8
"""Most problems listed in one message; the rest are counted."""


class BoundStore(WeightStore):
    """A checkpoint under the program's names. Invariant: it has every tensor of the program."""

    def __init__(
        self,
        store: WeightStore,
        stored_names: dict[str, str],
        given: Mapping[str, HostTensor] | None = None,
    ) -> None:
        """`stored_names` gives the checkpoint's name for each of the program's; `given` has tensors
        that replace the checkpoint's."""
        self._store = store
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
        return replace(self._store.get(stored), name=name)

    def stored(self, name: str) -> HostTensor:
        if name in self._given:
            return self._given[name]
        found = self._stored_names.get(name)
        if found is None:
            raise CheckpointError(f"the program has no tensor {name!r}")
        return replace(self._store.stored(found), name=name)

    def release(self, name: str) -> None:
        stored = self._stored_names.get(name)
        if stored is not None:
            self._store.release(stored)

    def prefetch(self) -> None:
        self._store.prefetch()

    def check(self) -> None:
        self._store.check()

    def close(self) -> None:
        self._store.close()


def bind(
    program: Program,
    store: WeightStore,
    canonical_name: Callable[[str], str | None],
    given: Mapping[str, HostTensor] | None = None,
) -> BoundStore:
    """The store keyed by the names in the program's `Param.parts`, of which `given` replaces some.

    `canonical_name` is the model family's: a checkpoint's tensor name to the program's, `None`
    for a known tensor that the program does not use (a rotary table, a tied head).
    Raises CheckpointError that names every missing, unexpected and misshapen tensor, with its file.
    """
    wanted = {part.name: part for param in program.params() for part in param.parts}
    fused = [name for name in store.names() if canonical_name(name) in wanted]
    store = split_experts(store, fused)
    stored_names: dict[str, str] = {}
    problems: list[str] = []
    for stored in store.names():
        name = canonical_name(stored)
        if name is None:
            continue
        if name not in wanted:
            problems.append(f"unexpected tensor {stored!r}: {program.name} has no place for it")
        elif name in stored_names:
            problems.append(f"tensor {name!r} is there twice: {stored!r}, {stored_names[name]!r}")
        else:
            stored_names[name] = stored
    for name, part in wanted.items():
        if name not in stored_names:
            problems.append(f"missing tensor {name!r} of shape {list(part.shape)}")
        else:
            problems.extend(_shape_problem(store.describe(stored_names[name]), part))
    if problems:
        raise CheckpointError(_summary(store.source, problems))
    return BoundStore(store, stored_names, given)


def _shape_problem(tensor: HostTensor, part: Tensor) -> list[str]:
    if tensor.shape == part.shape:
        return []
    return [
        f"{tensor.file}: tensor {tensor.name!r} has shape {list(tensor.shape)}, "
        f"config.json asks for {list(part.shape)}"
    ]


def _summary(source: str, problems: list[str]) -> str:
    named = "; ".join(problems[:_MAX_NAMED])
    rest = len(problems) - _MAX_NAMED
    more = f"; and {rest} more" if rest > 0 else ""
    return f"{source} does not fit its config.json: {named}{more}"
