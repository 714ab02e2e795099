"""The choice of tokens on the device against its specification, by kernels and by twins."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sampling_columns import SamplingRow, build_columns
from triton_interpreter import InterpretedDevice

from quire.backends.cuda.choices import choices_of, chosen_by_host, random_numbers
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.lowering import sampling
from quire.backends.cuda.lowering.context import Rows
from quire.backends.cuda.memory import Memory
from quire.sampling.columns import SamplingColumns, TokenLists
from quire.sampling.masks import TokenMasks
from quire.sampling.reference import no_choice, not_finite, sample, uniform

WIDTH, ROWS = 75, 6
SEEDS = {EmulatedDevice: range(6), InterpretedDevice: range(1)}
DEVICES = [EmulatedDevice, InterpretedDevice]


@pytest.fixture(autouse=True)
def _sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are several chunks of several tiles, and a rest."""
    monkeypatch.setattr(sampling, "CHUNK", 32)
    monkeypatch.setattr(sampling, "TILE", 16)
    monkeypatch.setattr(sampling, "_BUNCH", 2)


class Sampling:
    """A sampler with its memory."""

    def __init__(self, device: EmulatedDevice, rows: int = ROWS) -> None:
        self._device, values = device, Memory()
        self._logits = Rows(values.add(4 * WIDTH * rows), WIDTH, WIDTH, "fp32")
        options = SimpleNamespace(max_num_seqs=8, max_num_tokens=rows)
        arrays = SimpleNamespace(add=lambda *_: None)
        lowering: Any = SimpleNamespace(options=options, values=values, arrays=arrays)
        self._sampler = sampling.Sampler(self._logits, rows, lowering)
        device.hold(values)

    def run(
        self,
        logits: NDArray[np.float32],
        columns: SamplingColumns,
        places: NDArray[np.int32] | None = None,
    ) -> NDArray[np.int32]:
        """[L, 2]: token and status."""
        self._device.upload(self._logits.buffer, logits)
        by_host = chosen_by_host(columns, WIDTH)
        assert not by_host.any()
        for action in self._sampler.emit(choices_of(columns, by_host, places, WIDTH), 0):
            self._device.run(action)
        found = np.zeros((len(logits), 2), np.int32)
        self._device.download(self._sampler.out, found)
        return found

    def kept(self) -> list[int]:
        found = np.zeros(8, np.int32)
        self._device.download(self._sampler.kept, found)
        return found.tolist()


def logits_of(seed: int, *, has_ties: bool) -> NDArray[np.float32]:
    numbers = np.random.default_rng(seed).standard_normal((ROWS, WIDTH)) * 2
    found = (np.round(numbers * 2) / 2 if has_ties else numbers).astype(np.float32)
    found[0, 3:40] = -np.inf
    return found


SETTINGS: list[dict[str, Any]] = [
    {"temperature": 0.0},
    {"temperature": 1.0},
    {"temperature": 0.05},
    {"temperature": 1.5, "top_k": 1},
    {"temperature": 1.5, "top_k": 7},
    {"temperature": 1.0, "top_p": 0.6},
    {"temperature": 1.0, "top_p": 1e-9},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 1.2, "top_k": 9, "top_p": 0.8, "min_p": 0.01},
]


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("has_ties", [False, True])
def test_tokens_are_those_of_the_specification(
    device: type[EmulatedDevice], has_ties: bool
) -> None:
    """Rows of a step have different settings."""
    sampler = Sampling(device())
    for seed in SEEDS[device]:
        logits = logits_of(seed, has_ties=has_ties)
        chosen = [SETTINGS[-1 - (seed * 2 + i) % len(SETTINGS)] for i in range(ROWS)]
        columns = build_columns(
            [SamplingRow(**one, seed=seed + 2**63, position=i) for i, one in enumerate(chosen)]
        )
        wanted = sample(logits, columns)
        assert sampler.run(logits, columns).tolist() == [[one, 0] for one in wanted]


@pytest.mark.parametrize(
    ("device", "setting"),
    [*((EmulatedDevice, one) for one in SETTINGS), (InterpretedDevice, SETTINGS[-1])],
    ids=str,
)
def test_a_row_alone_has_the_token_that_it_has_in_company(
    device: type[EmulatedDevice], setting: dict[str, Any]
) -> None:
    sampler, logits = Sampling(device()), logits_of(5, has_ties=False)
    other = {"temperature": 0.7, "top_p": 0.5}
    rows = [SamplingRow(**(setting if i == 2 else other), seed=1, position=i) for i in range(4)]
    together = sampler.run(logits[:4], build_columns(rows), np.array([3, 2, -1, 0], np.int32))
    assert sampler.kept()[:4] == [together[3, 0], 0, together[1, 0], together[0, 0]]
    alone = sampler.run(logits[2:3], build_columns(rows[2:3]))
    assert alone.tolist() == together[2:3].tolist()


def lists(rows: dict[int, list[tuple[int, float]]]) -> TokenLists:
    """Tokens and numbers of some rows."""
    pairs = [
        None if row not in rows else tuple(map(np.array, zip(*rows[row], strict=True)))
        for row in range(ROWS)
    ]
    return TokenLists.join(
        [p and (p[0].astype(np.int32), p[1].astype(np.float32)) for p in pairs]  # type: ignore[misc, index]
    )


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_penalties_biases_and_masks(device: type[EmulatedDevice], temperature: float) -> None:
    sampler, logits = Sampling(device()), logits_of(7, has_ties=False)
    rows = [SamplingRow(temperature=temperature, top_k=20, seed=i, position=2) for i in range(ROWS)]
    columns = build_columns(rows)
    best = int(logits[1].argmax())
    columns.bias = lists({1: [(best, -np.inf), (5, 9.0), (64, 8.5)], 3: [(70, 3.0)]})
    columns.seen = lists({2: [(t, t % 3) for t in range(0, WIDTH, 2)], 3: [(70, 2), (1, 0)]})
    columns.repetition_penalty = np.full(ROWS, 1.7, np.float32)
    columns.frequency_penalty = np.full(ROWS, 0.25, np.float32)
    columns.presence_penalty = np.full(ROWS, 0.5, np.float32)
    columns.allowed = TokenLists.join([None] * 4 + [(np.array([2, 33, 74], np.int32), None), None])
    words = np.random.default_rng(1).integers(0, 2**32, (1, 3), np.uint32)
    columns.mask = TokenMasks(np.array([-1, -1, 0, -1, -1, 0], np.int32), words)
    found = sampler.run(logits, columns)
    assert found[:, 0].tolist() == sample(logits, columns).tolist()
    assert found[4, 0] in (2, 33, 74)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_without_a_token_are_named(device: type[EmulatedDevice]) -> None:
    sampler, logits = Sampling(device()), logits_of(8, has_ties=False)
    logits[0, 70], logits[1, 5], logits[2] = np.nan, np.inf, -np.inf
    rows = [SamplingRow(temperature=float(i % 2), seed=1, position=0) for i in range(ROWS)]
    columns = build_columns(rows)
    columns.bias = lists({4: [(t, -np.inf) for t in range(WIDTH)]})
    found = sampler.run(logits, columns)
    assert found[:, 1].tolist() == [1, 1, 1, 0, 2, 0]
    assert (found[:, 1] == 1).tolist() == not_finite(logits).tolist()
    assert (found[:, 1] == 2).tolist() == no_choice(logits, columns).tolist()
    assert found[:, 0].tolist() == sample(logits, columns).tolist()


def test_random_numbers_are_those_of_the_specification() -> None:
    random = np.random.default_rng(3)
    seeds, counters = random.integers(0, 2**64, (2, 50), np.uint64)
    wanted = [uniform(int(s), int(c)) for s, c in zip(seeds, counters, strict=True)]
    assert random_numbers(seeds, counters).tolist() == wanted


def test_what_the_host_chooses() -> None:
    columns = build_columns([SamplingRow(temperature=1.0, seed=1, position=i) for i in range(ROWS)])
    assert not chosen_by_host(columns, WIDTH).any()
    columns.bias = lists({0: [(3, 1.0), (3, 2.0)], 1: [(3, 1.0)], 2: [(4, np.inf)]})
    columns.num_logprobs = np.array([-1, -1, -1, 0, -1, -1], np.int32)
    columns.chosen = np.array([-1, -1, -1, -1, 7, -1], np.int32)
    assert chosen_by_host(columns, WIDTH).tolist() == [True, False, True, True, True, False]
    assert not chosen_by_host(replace(columns.take(np.array([5], np.int32))), WIDTH).any()


@pytest.mark.parametrize("device", DEVICES)
def test_tokens_of_an_earlier_step(device: type[EmulatedDevice]) -> None:
    memory = Memory()
    ids, places, kept = (memory.add(64) for _ in range(3))
    made = device()
    made.hold(memory)
    made.upload(ids, np.arange(5, dtype=np.int32))
    made.upload(places, np.array([-1, 2, -1, 0, -1], np.int32))
    made.upload(kept, np.array([50, 51, 52], np.int32))
    args = {"token_ids": ids, "places": places, "kept": kept, "num_tokens": 5}
    made.launch(sampling.Launch(sampling.feed_kernel(), (1,), args))
    found = np.zeros(5, np.int32)
    made.download(ids, found)
    assert found.tolist() == [0, 52, 2, 50, 4]
