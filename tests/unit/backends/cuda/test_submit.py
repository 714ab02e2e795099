"""Steps that are launched before the host has seen the last tokens, and recorded steps."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from sampling_columns import SamplingRow, build_columns
from small_model import OPTIONS, RandomStore, one_request, small_program

from quire.backends.base import CompiledModel, KVCacheSpec, StepBatch
from quire.backends.cuda import CudaBackend
from quire.backends.cuda.emulated import EmulatedDevice
from quire.backends.cuda.graphs import MOST_RECORDINGS, StepGraphs, padded
from quire.backends.cuda.kernel import Launch
from quire.backends.cuda.model import CudaModel
from quire.errors import BackendError
from quire.program import keep_all

PROGRAM = small_program()
SPEC = KVCacheSpec(6, 16, "float32", keep_all(PROGRAM))
PROMPT = [3, 1, 4, 1, 5]
Made = Callable[..., CudaModel]


@pytest.fixture(params=[False, True], ids=["at once", "lazy"])
def device(request: pytest.FixtureRequest) -> EmulatedDevice:
    return EmulatedDevice(is_lazy=request.param)


def made(device: EmulatedDevice, **options: Any) -> CudaModel:
    model: CompiledModel = CudaBackend(device, **options).compile(
        PROGRAM, RandomStore(PROGRAM), SPEC, OPTIONS
    )
    assert isinstance(model, CudaModel)
    return model


def sampling(batch: StepBatch, *rows: dict[str, Any]) -> StepBatch:
    batch.want_logits = False
    batch.sampling = build_columns([SamplingRow(**row) for row in rows])
    return batch


ROW = {"temperature": 1.0, "seed": 5}


def prompt(**changes: Any) -> StepBatch:
    last = len(PROMPT) - 1
    batch = one_request(PROMPT, [2, 4], logits_rows=[last])
    return sampling(batch, ROW | {"position": last + 1} | changes)


def following(token_id: int, number: int, **changes: Any) -> StepBatch:
    """The step after `number` generated tokens."""
    place = len(PROMPT) + number - 1
    batch = one_request(PROMPT, [2, 4], logits_rows=[0])
    batch = replace(
        batch,
        token_ids=np.array([token_id], np.int32),
        positions=np.array([place], np.int32),
        seq_starts=np.array([0, 1], np.int32),
        context_lens=np.array([place + 1], np.int32),
    )
    return sampling(batch, ROW | {"position": place + 1} | changes)


def one_after_another(model: CudaModel, count: int) -> list[int]:
    found = [int(model.step(prompt()).sampled[0])]
    while len(found) < count:
        found.append(int(model.step(following(found[-1], len(found))).sampled[0]))
    return found


def kept(batch: StepBatch, *, place: int = 2, reads: bool = True) -> StepBatch:
    batch.sampled_places = np.array([place], np.int32)
    if reads:
        batch.token_places = np.array([place], np.int32)
    return batch


@pytest.mark.parametrize("enforce_eager", [False, True])
def test_tokens_stay_on_the_device(device: EmulatedDevice, enforce_eager: bool) -> None:
    wanted = one_after_another(made(EmulatedDevice(), enforce_eager=True), 6)
    assert len(set(wanted)) > 2
    model = made(device, enforce_eager=enforce_eager)
    device.num_waits = 0
    begun = [model.submit(kept(prompt(), reads=False))]
    begun += [model.submit(kept(following(0, number))) for number in range(1, 6)]
    assert device.num_waits == 0
    assert [int(model.collect(one).sampled[0]) for one in begun] == wanted


def test_recorded_steps_have_the_same_bits(device: EmulatedDevice) -> None:
    """The third step with the same sizes is done by a recording."""
    wanted = made(EmulatedDevice(), enforce_eager=True)
    model = made(device)
    for number in range(1, 5):
        rows = following(7, number, num_logprobs=3)
        found, alike = model.step(rows), wanted.step(following(7, number, num_logprobs=3))
        assert found.sampled.tolist() == alike.sampled.tolist()
        assert found.logprobs is not None
        assert alike.logprobs is not None
        assert found.logprobs.logprobs.tobytes() == alike.logprobs.logprobs.tobytes()
    assert model._graphs is not None
    assert [one is not None for one in model._graphs._recordings.values()] == [True]
    model.discard_kv()
    assert not model._graphs._recordings
    assert one_after_another(model, 4) == one_after_another(wanted, 4)


def test_what_changes_between_steps_lies_in_memory() -> None:
    """Launches of steps with one key have equal arguments, so a recording serves all of them."""
    model = made(EmulatedDevice())
    found = []
    for token, number in ((7, 1), (2, 9)):
        whole = padded(following(token, number), SPEC, OPTIONS)
        assert whole is not None
        step = model._begin(whole)
        launches = [one for one in model._recorded(step) if isinstance(one, Launch)]
        found.append((step.shapes, launches))
    assert found[0] == found[1]
    assert len(found[0][1]) > 10


def test_padding() -> None:
    one = following(7, 1)
    three = replace(
        one,
        token_ids=np.array([7, 8, 9], np.int32),
        positions=np.array([5, 5, 5], np.int32),
        seq_starts=np.arange(4, dtype=np.int32),
        context_lens=np.array([6, 6, 6], np.int32),
        block_tables=np.repeat(one.block_tables, 3, 0),
        logits_rows=np.arange(3, dtype=np.int32),
    )
    options = replace(OPTIONS, max_num_seqs=16)
    whole = padded(three, SPEC, options)
    assert whole is not None
    assert len(whole.token_ids) == 4
    assert whole.block_tables[3].min() == whole.block_tables[3].max() == SPEC.num_blocks
    assert whole.most_context == min(256, OPTIONS.max_model_len)
    assert padded(prompt(), SPEC, options) is None
    assert padded(replace(three, adapters=[None] * 3), SPEC, options) is None
    axes = np.arange(9, dtype=np.int32).reshape(3, 3)
    with_axes = padded(replace(three, axis_positions=axes), SPEC, options)
    assert with_axes is not None
    assert with_axes.axis_positions is not None
    assert with_axes.axis_positions.tolist() == [*axes.tolist(), [0, 0, 0]]
    assert padded(replace(three, unpooled=np.zeros(3, np.bool_)), SPEC, options) is None
    exact = padded(three, SPEC, replace(options, max_num_seqs=3))
    assert exact is not None
    assert len(exact.token_ids) == 3


def test_rows_of_the_host_are_among_others(device: EmulatedDevice) -> None:
    """Log-probabilities of one row; the other's token is chosen by the device."""
    last = len(PROMPT) - 1
    rows = [ROW | {"position": 1, "num_logprobs": 2}, ROW | {"position": last + 1}]
    batch = sampling(one_request(PROMPT, [2, 4], logits_rows=[0, last]), *rows)
    wanted = replace(batch, want_logits=True)
    found = made(device).collect(made(device).submit(batch))
    alike = made(device).step(wanted)
    assert found.sampled.tolist() == alike.sampled.tolist()
    assert found.logprobs is not None
    assert alike.logprobs is not None
    for name in ("token_ids", "logprobs", "ranks", "sampled", "sampled_ranks"):
        assert np.array_equal(getattr(found.logprobs, name), getattr(alike.logprobs, name))


def test_a_token_of_the_host_is_kept_too(device: EmulatedDevice) -> None:
    wanted = one_after_another(made(EmulatedDevice()), 2)
    model = made(device)
    first = model.submit(kept(prompt(num_logprobs=1), reads=False))
    second = model.submit(kept(following(0, 1)))
    assert [int(model.collect(one).sampled[0]) for one in (first, second)] == wanted


@pytest.mark.parametrize("name", ["token_places", "sampled_places"])
def test_places_that_do_not_exist_are_refused(name: str) -> None:
    model, batch = made(EmulatedDevice()), following(1, 1)
    for wrong in ([OPTIONS.max_num_seqs], [-2], [0, 0]):
        setattr(batch, name, np.array(wrong, np.int32))
        with pytest.raises(BackendError, match=name):
            model.submit(batch)


def test_a_step_that_cannot_be_recorded_is_launched(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fails(*_: object) -> None:
        raise BackendError("no graphs here")

    wanted = one_after_another(made(EmulatedDevice()), 5)
    monkeypatch.setattr(EmulatedDevice, "record", fails)
    assert one_after_another(made(EmulatedDevice()), 5) == wanted
    assert caplog.text.count("kernel by kernel: no graphs here") == 1


def test_the_oldest_recordings_are_forgotten() -> None:
    graphs = StepGraphs(EmulatedDevice())
    for key in range(MOST_RECORDINGS + 5):
        for _ in range(3):
            graphs.run(key, list)
    assert len(graphs._recordings) == MOST_RECORDINGS
    assert 0 not in graphs._recordings
