"""Tokens that the GPU chooses: those of the specification, and the time that it takes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from tools.gpu_check.guard import guarded
from tools.gpu_check.launches import launch_seconds
from tools.gpu_check.parts import Sizes
from tools.gpu_check.report import Row, equal
from tools.gpu_check.shapes import model_folder, planned, shape_of

from quire.backends.cuda.choices import choices_of, chosen_by_host
from quire.backends.cuda.device import Device
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.plan import Plan
from quire.sampling.columns import SamplingColumns, TokenLists
from quire.sampling.reference import sample

_KINDS: dict[str, tuple[float, int, float]] = {
    "greedy": (0.0, 0, 1.0), "temperature": (0.8, 0, 1.0), "top_k and top_p": (0.8, 40, 0.9),
}  # fmt: skip
"""Temperature, top_k and top_p."""


class _Sampling:
    """The sampler of a model, without the model."""

    def __init__(self, device: Device, sizes: Sizes, most_rows: int) -> None:
        with model_folder(shape_of(is_emulated=sizes.is_emulated)) as folder:
            _, own = planned(
                folder, max_num_seqs=most_rows, max_num_batched_tokens=max(16, most_rows),
                max_model_len=256, num_gpu_blocks_override=64,
            )  # fmt: skip
        plan = Plan(own.program, replace(own.kv, num_blocks=64), own.options, device.facts)
        device.hold(plan.lowering.values)
        if plan.result.sampler is None:
            raise ValueError("the model has no logits")
        self._device, self.width = device, own.program.vocab_size
        self._rows, self._sampler = plan.result.rows, plan.result.sampler

    def launches(self, logits: NDArray[np.float32], columns: SamplingColumns) -> list[Launch]:
        """The launches that choose tokens, after all that they read is uploaded."""
        self._device.upload(self._rows.buffer, logits)
        by_host = chosen_by_host(columns, self.width)
        found: list[Launch] = []
        for action in self._sampler.emit(choices_of(columns, by_host, None, self.width), 0):
            if isinstance(action, Launch):
                found.append(action)
            else:
                self._device.run(action)
        return found

    def tokens(self, logits: NDArray[np.float32], columns: SamplingColumns) -> NDArray[np.int32]:
        """The chosen tokens."""
        for launch in self.launches(logits, columns):
            self._device.launch(launch)
        found = np.zeros((len(logits), 2), np.int32)
        self._device.download(self._sampler.out, found)
        return found[:, 0]

    def seconds(self, logits: NDArray[np.float32], columns: SamplingColumns, least: float) -> float:
        """The time of the launches."""
        launches = self.launches(logits, columns)
        return launch_seconds(self._device, launches, self._sampler.out, least)[0]


def _columns(kinds: list[str], seed: int) -> SamplingColumns:
    count = len(kinds)
    temperature, top_k, top_p = zip(*(_KINDS[one] for one in kinds), strict=True)
    return SamplingColumns(
        temperature=np.array(temperature, np.float32), top_k=np.array(top_k, np.int32),
        top_p=np.array(top_p, np.float32), seeds=np.arange(count, dtype=np.uint64),
        counters=np.full(count, seed, np.uint64),
    )  # fmt: skip


def check_sampling(device: Device, sizes: Sizes) -> Iterator[Row]:
    """Random logits."""
    count = 16 if sizes.is_emulated else 64
    sampling = _Sampling(device, sizes, max(count, *sizes.requests))
    random = np.random.default_rng(2)
    logits = random.standard_normal((count, sampling.width), np.float32) * np.float32(3)
    for name in ("chosen tokens", "chosen tokens, with penalties"):
        yield from guarded(sizes, name, _chosen(sampling, logits, name))
    for rows in sizes.requests:
        for kind in _KINDS:
            name = f"{rows} rows, {kind}"
            many = np.resize(logits, (rows, sampling.width))
            yield from guarded(sizes, name, _timed(sampling, many, name, kind, sizes))


def _chosen(sampling: _Sampling, logits: NDArray[np.float32], name: str) -> Iterator[Row]:
    count, random = len(logits), np.random.default_rng(3)
    columns = _columns([list(_KINDS)[row % len(_KINDS)] for row in range(count)], 7)
    if "penalties" in name:
        ids = np.unique(random.integers(0, sampling.width, 50)).astype(np.int32)
        counts = np.ones(len(ids), np.float32)
        columns.seen = TokenLists.join([(ids, counts)] * count)
        columns.presence_penalty = np.full(count, 0.7, np.float32)
    wanted = sample(logits, columns)
    different = int((sampling.tokens(logits, columns) != wanted).sum())
    yield equal(name, different, count)


def _timed(
    sampling: _Sampling, logits: NDArray[np.float32], name: str, kind: str, sizes: Sizes
) -> Iterator[Row]:
    columns = _columns([kind] * len(logits), 1)
    yield Row(name, 1e6 * sampling.seconds(logits, columns, sizes.least_seconds / 4), "us")
