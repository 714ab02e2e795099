"""Who is let in: bursts, lasting overloads, and bounds that a user chose."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

from quire.config import SchedulerConfig
from quire.errors import RequestError
from quire.frontend.arguments import EngineInput
from quire.frontend.observers import admission
from quire.frontend.observers.admission import AdmissionControl, QueueFullError
from quire.frontend.output_processor import OutputProcessor
from quire.frontend.request_record import RequestRecord
from quire.images.rules import Layout
from quire.params import RequestOutputKind, SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, EngineCoreRequest, ImageInput


class Door:
    """An admission control, and a clock of the event loop's work."""

    def __init__(self, **options: Any) -> None:
        config = {"max_num_seqs": 8, "max_num_queued_reqs": 32, "queue_may_stand": False}
        self.work_s = self.now = 0.0
        self.control = AdmissionControl(
            SchedulerConfig(max_num_batched_tokens=64, **{**config, **options}),
            work_clock=lambda: self.work_s,
            now=lambda: self.now,
        )
        self.outputs = OutputProcessor(None, observers=[self.control])
        self.open: list[RequestRecord] = []
        self._count = 0

    def come(self, count: int = 1, num_tokens: int = 1, num_bytes: int = 0) -> bool:
        """`count` requests at once, as of one client; whether they are let in."""
        self.work_s += 0.001
        try:
            self.control.check(count, num_tokens, num_bytes)
        except QueueFullError:
            return False
        for _ in range(count):
            self._count += 1
            self.open.append(self.outputs.admit(self._request(num_tokens, num_bytes)))
            self.outputs.begin(self.open[-1])
        return True

    def step(self, seconds: float, num_first: int, *, leaves: bool = True) -> None:
        """A step, in which the longest waiting get their first tokens and leave with them."""
        self.now += seconds
        first = self.open[:num_first]
        if leaves:
            del self.open[:num_first]
        reason: Any = "length" if leaves else None
        self._process(
            EngineCoreOutput(request_id=_id(one), new_token_ids=[1], finish_reason=reason)
            for one in first
        )

    def leave(self, count: int) -> None:
        """The longest in leave, with the next step."""
        gone, self.open = self.open[:count], self.open[count:]
        for record in gone:
            record.completions[0].finish("length")
            self.control.on_finished(record, record.completions[0], self.now)

    def _process(self, outputs: Iterable[EngineCoreOutput]) -> None:
        self.outputs.process_outputs(EngineCoreOutputs(outputs=list(outputs), timestamp=self.now))

    def _request(self, num_tokens: int, num_bytes: int = 0) -> EngineInput:
        core = EngineCoreRequest(
            request_id=str(self._count),
            prompt_token_ids=[1] * num_tokens,
            sampling_params=SamplingParams(),
            arrival_time=self.now,
            images=[ImageInput(b"", Layout(()), bytes(num_bytes), 0, 0)] if num_bytes else [],
        )
        params = SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY)
        return EngineInput("r", None, core.prompt_token_ids, params, [core], self.now)


def _id(record: RequestRecord) -> str:
    return record.completions[0].request_id


def full_door() -> Door:
    """Of a server that has been asked for more than its queue takes."""
    door = Door()
    while door.come():
        pass
    door.work_s += 1
    return door


def test_a_burst_upon_a_calm_server_fills_the_queue() -> None:
    door = Door()
    assert [door.come() for _ in range(50)] == [True] * 40 + [False] * 10


def test_a_lasting_overload_keeps_the_wait_short() -> None:
    """Ten are served a second, fifty come: no more are let in than can run."""
    door = full_door()
    for _ in range(35):
        door.step(0.1, 1)
    lengths = []
    for _ in range(200):
        for _ in range(5):
            door.come()
        door.step(0.1, 1)
        lengths.append(len(door.open))
    assert set(lengths[100:]) == {7}  # one has left, and its place is taken at once


def test_as_many_as_can_run_are_never_refused() -> None:
    """However slow the model is."""
    door = Door()
    assert [door.come() for _ in range(8)] == [True] * 8
    door.work_s += 1
    for _ in range(10):
        door.step(60.0, 1)
        assert door.come()


def test_long_replies_make_a_long_wait_fair() -> None:
    door = Door()
    for _ in range(100):  # replies of a minute, one first token a second
        assert door.come()
        door.now += 1
        door.step(0.0, 1, leaves=False)
        door.now += 60
        door.leave(1)
    while door.come():
        pass
    door.work_s += 1
    door.step(0.1, 1)
    door.step(0.1, 1)
    assert door.come()  # behind 38 others, at ten a second
    for _ in range(40):
        door.step(1.0, 1)
        door.come()
    assert 8 <= len(door.open) <= 9  # at one a second, that is too far behind


def test_a_calm_moment_makes_room_for_the_next_burst() -> None:
    door = full_door()
    for _ in range(5):
        door.step(1.0, 1)
    assert not door.come()
    door.leave(34)
    door.now += 3
    assert door.come()  # the server has one request of eight: calm
    assert [door.come() for _ in range(40)].count(True) == 38


def test_replies_that_end_together_do_not_end_an_overload() -> None:
    door = full_door()
    for _ in range(5):
        door.step(1.0, 1)
    assert not door.come()
    door.leave(35)  # nobody is left, a moment after a refusal
    assert [door.come() for _ in range(20)].count(True) == 8


def test_nobody_waits_for_replies_that_have_just_begun() -> None:
    """Waves: all replies begin and end together, with many first tokens at each beginning."""
    door = Door()
    for wave in range(20):
        while len(door.open) < 8:
            assert door.come()
        door.step(0.01, 8, leaves=False)
        door.now += 1
        door.work_s += 1
        if wave > 10:  # the mean knows how long they take
            assert not door.come()  # another second to go
        door.now += 1
        door.leave(8)


def test_a_chosen_bound_holds_always_and_for_ever() -> None:
    door = Door(queue_may_stand=True, max_num_queued_reqs=4)
    assert [door.come() for _ in range(15)] == [True] * 12 + [False] * 3
    door.work_s += 100
    for _ in range(20):
        door.leave(1)
        assert door.come()
        assert not door.come()


def test_an_idle_server_takes_any_single_request_within_the_bounds() -> None:
    door = Door()
    for _ in range(3):
        assert not door.come(count=41)
        assert door.come(count=40)
        assert not door.come()
        door.step(60.0, 40)
        door.work_s += 1


def test_prompt_tokens_are_bounded() -> None:
    door = Door(max_num_queued_tokens=100)
    assert door.come(num_tokens=500)
    assert not door.come(num_tokens=1)
    door.step(1.0, 1, leaves=False)
    assert door.come(num_tokens=60)
    assert door.come(num_tokens=40)
    assert not door.come(num_tokens=1)


def test_decoded_images_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "_MOST_IMAGE_BYTES", 100)
    door = Door()
    assert door.come(num_bytes=500)
    assert not door.come(num_bytes=1)
    assert door.come()
    door.step(1.0, 1, leaves=False)
    assert door.come(num_bytes=60)
    assert door.come(num_bytes=40)
    with pytest.raises(QueueFullError, match="100 B of decoded images and sounds are waiting"):
        door.control.check(1, 1, 1)


def test_images_that_are_asked_about_many_times_are_bounded(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(admission, "_MOST_IMAGE_BYTES", 100)
    Door().control.check(2, 2, 100)
    with pytest.raises(RequestError, match=r"at most 100 B, but 3 times they have 150 B") as error:
        Door().control.check(3, 3, 150)
    assert error.value.parameter == "n"


def test_a_refusal_names_the_option() -> None:
    door = Door(queue_may_stand=True, max_num_queued_reqs=1)
    while door.come():
        pass
    with pytest.raises(QueueFullError, match=r"1 requests are waiting \(max_num_queued_reqs 1\)"):
        door.control.check(1, 1)
    with pytest.raises(QueueFullError) as refused:
        door.control.check(1, 1)
    assert 1 <= refused.value.retry_after_s <= 30
    assert refused.value.reason == "max_num_queued_reqs"


def test_a_withdrawn_request_gives_its_place_back() -> None:
    door = Door(queue_may_stand=True, max_num_queued_reqs=4, max_num_queued_tokens=50)
    assert door.come(num_tokens=40)
    for _ in range(20):
        record = door.outputs.admit(door._request(10))
        with pytest.raises(QueueFullError):
            door.control.check(1, 1)
        door.outputs.withdraw(record)
    assert door.come(num_tokens=10)
