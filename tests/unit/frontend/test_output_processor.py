"""OutputProcessor: text, stop strings, kinds of outputs, logprobs, several outputs, aborts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire.config.records import EngineConfig
from quire.errors import EngineDeadError, QuireError
from quire.frontend.arguments import EngineInput
from quire.frontend.completion_state import CompletionState
from quire.frontend.inputs.input_processor import InputProcessor
from quire.frontend.observers.observer import RequestObserver, StepTokens
from quire.frontend.output_processor import OutputProcessor
from quire.frontend.request_record import RequestRecord
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.protocol import EngineCoreOutput, EngineCoreOutputs, SchedulerStats, TokenLogprobs
from quire.tokenizer import Tokenizer

DELTA, FINAL, CUMULATIVE = (
    RequestOutputKind.DELTA,
    RequestOutputKind.FINAL_ONLY,
    RequestOutputKind.CUMULATIVE,
)


class Told:
    """A sink that keeps what it was given."""

    def __init__(self) -> None:
        self.outputs: list[RequestOutput] = []
        self.errors: list[QuireError] = []

    def put(self, output: RequestOutput) -> None:
        self.outputs.append(output)

    def fail(self, error: QuireError) -> None:
        self.errors.append(error)


class Diary(RequestObserver):
    """Writes down what it is told of."""

    def __init__(self, events: list[str]) -> None:
        self.events = events

    def on_admitted(self, record: RequestRecord) -> None:
        self.events.append(f"{record.input.request_id} admitted, {record.num_core_requests}")

    def on_withdrawn(self, record: RequestRecord) -> None:
        self.events.append(f"{record.input.request_id} withdrawn")

    def on_handed_over(self, record: RequestRecord) -> None:
        self.events.append(f"{record.input.request_id} handed over")

    def on_first_token(self, record: RequestRecord, completion: CompletionState) -> None:
        self.events.append(f"{completion.index} first, {record.num_with_tokens} of the request")

    def on_finished(self, record: RequestRecord, completion: CompletionState, now: float) -> None:
        reason, num_open = completion.finish_reason, record.num_open
        assert now > 0
        self.events.append(f"{completion.index} {reason}, {num_open} open")

    def on_step(self, tokens: StepTokens, stats: SchedulerStats | None, now: float) -> None:
        assert now > 0
        name = "step" if stats is None else f"step, {stats.num_running} running"
        self.events.append(f"{name} +{tokens.num_new}, {tokens.gaps_s}")


class Bench:
    """An output processor and the inputs it was given."""

    def __init__(self, config: EngineConfig, tokenizer: Tokenizer | None) -> None:
        self.tokenizer = tokenizer
        self.inputs = InputProcessor(config, tokenizer)
        self.events: list[str] = []
        self.outputs = OutputProcessor(tokenizer, observers=[Diary(self.events)])

    def add(self, name: str = "r", sink: Any = None, **params: Any) -> EngineInput:
        request = self.inputs.process(name, [1, 2], SamplingParams(max_tokens=40, **params))
        self.outputs.add_request(request, sink)
        return request

    def feed(
        self,
        request: EngineInput,
        text: str | list[int],
        finish: str | None = None,
        index: int = 0,
        **fields: Any,
    ) -> tuple[list[RequestOutput], list[str]]:
        """One step's output for one of the request's completions."""
        ids = text
        if isinstance(text, str):
            assert self.tokenizer is not None
            ids = self.tokenizer.encode(text)
        output = EngineCoreOutput(
            request_id=request.core_requests[index].request_id,
            new_token_ids=ids,  # type: ignore[arg-type]
            finish_reason=finish,  # type: ignore[arg-type]
            **fields,
        )
        done = self.outputs.process_outputs(
            EngineCoreOutputs(outputs=[output], timestamp=request.arrival_time + 1)
        )
        return done.request_outputs, done.aborts


@pytest.fixture
def bench(make_config: Callable[..., EngineConfig], tokenizer: Tokenizer) -> Bench:
    return Bench(make_config(), tokenizer)


def test_cumulative_delta_and_final(bench: Bench) -> None:
    texts: dict[RequestOutputKind, list[str]] = {}
    counts: dict[RequestOutputKind, list[int]] = {}
    for kind in (CUMULATIVE, DELTA, FINAL):
        request = bench.add(output_kind=kind)
        texts[kind], counts[kind] = [], []
        for piece, finish in (("a", None), ("bc", None), ("d", "length")):
            for output in bench.feed(request, piece, finish)[0]:
                texts[kind].append(output.outputs[0].text)
                counts[kind].append(len(output.outputs[0].token_ids))
                assert output.finished is (piece == "d")
    assert texts == {CUMULATIVE: ["a", "abc", "abcd"], DELTA: ["a", "bc", "d"], FINAL: ["abcd"]}
    assert counts == {CUMULATIVE: [1, 3, 4], DELTA: [1, 2, 1], FINAL: [4]}
    assert not bench.outputs.has_unfinished_requests()


def test_an_earlier_cumulative_output_does_not_grow(bench: Bench) -> None:
    request = bench.add(logprobs=0)
    logprobs = [TokenLogprobs([97], [-1.0], [1])]
    [first], _ = bench.feed(request, [97], logprobs=logprobs)
    bench.feed(request, [97], logprobs=logprobs)
    assert first.outputs[0].token_ids == [97]
    assert len(first.outputs[0].logprobs or []) == 1


@pytest.mark.parametrize("kind", [CUMULATIVE, DELTA, FINAL])
def test_half_a_character_is_never_shown(bench: Bench, kind: RequestOutputKind) -> None:
    assert bench.tokenizer is not None
    ids = bench.tokenizer.encode("aé✓")
    request = bench.add(output_kind=kind)
    shown = ""
    for position, token_id in enumerate(ids):
        finish = "length" if position == len(ids) - 1 else None
        for output in bench.feed(request, [token_id], finish)[0]:
            text = output.outputs[0].text
            assert "\ufffd" not in text
            shown = shown + text if kind is DELTA else text
    assert shown == "aé✓"


def test_a_stop_string_cuts_the_text_and_aborts_in_the_core(bench: Bench) -> None:
    for include, text in ((False, "one "), (True, "one STOP")):
        request = bench.add(stop=["STOP"], include_stop_str_in_output=include)
        seen: list[str] = []
        aborts: list[str] = []
        outputs: list[RequestOutput] = []
        for letter in "one STOP":
            outputs, aborts = bench.feed(request, letter)
            seen.append(outputs[0].outputs[0].text)
        assert aborts == [request.core_requests[0].request_id]
        assert seen[-1] == text
        assert not any("S" in shown for shown in seen[:-1]), "nothing of it was shown before"
        one = outputs[0].outputs[0]
        assert (one.finish_reason, one.stop_reason) == ("stop", "STOP")
        assert len(one.token_ids) == 8
        assert bench.feed(request, "x") == ([], []), "what the core still sends is dropped"


def test_a_stop_string_at_the_last_token_needs_no_abort(bench: Bench) -> None:
    request = bench.add(stop="b")
    [output], aborts = bench.feed(request, "ab", "length")
    assert (output.outputs[0].finish_reason, output.outputs[0].text) == ("stop", "a")
    assert aborts == []


def test_tokens_after_a_stop_string_in_one_step_are_dropped(bench: Bench) -> None:
    request = bench.add(stop="b", output_kind=FINAL)
    [output], _ = bench.feed(request, "abcd")
    assert len(output.outputs[0].token_ids) == 2


def test_held_back_text_comes_out_at_the_end(bench: Bench) -> None:
    request = bench.add(stop="STOP", output_kind=DELTA)
    assert bench.feed(request, "aST")[0][0].outputs[0].text == "a"
    [output], _ = bench.feed(request, "x", "length")
    assert output.outputs[0].text == "STx"


def test_stop_strings_wait_for_min_tokens(bench: Bench) -> None:
    request = bench.add(stop="b", min_tokens=3)
    assert bench.feed(request, "abb")[1] == []
    assert bench.feed(request, "b")[1] != []


@pytest.mark.parametrize("kind", [CUMULATIVE, FINAL])
def test_the_stop_tokens_text_is_left_out(bench: Bench, kind: RequestOutputKind) -> None:
    request = bench.add(output_kind=kind, skip_special_tokens=False)
    [output], _ = bench.feed(request, [65, 66, 256], "stop")
    text = output.outputs[0].text
    assert output.outputs[0].token_ids == [65, 66, 256]
    assert "<|end|>" not in text
    request = bench.add(
        output_kind=kind, skip_special_tokens=False, include_stop_str_in_output=True
    )
    [output], _ = bench.feed(request, [65, 66, 256], "stop")
    assert output.outputs[0].text == text + "<|end|>"


def test_a_server_keeps_marks_that_are_special_tokens(bench: Bench) -> None:
    params = SamplingParams(max_tokens=40)
    params.keep_tokens({256})
    request = bench.inputs.process("r", [1, 2], params)
    bench.outputs.add_request(request)
    assert request.params.kept_token_ids == [256]
    [output], _ = bench.feed(request, [65, 256, 66], "length")
    assert output.outputs[0].text == "b<|end|>c"


def test_without_detokenizing_there_are_only_ids(bench: Bench) -> None:
    request = bench.add(detokenize=False, logprobs=0)
    [output], _ = bench.feed(request, [65], "length", logprobs=[TokenLogprobs([65], [-0.5], [1])])
    one = output.outputs[0]
    assert (one.text, one.token_ids) == ("", [65])
    assert one.logprobs is not None
    assert one.logprobs[0][65].decoded_token is None


def test_logprobs_hold_the_chosen_token_first(bench: Bench) -> None:
    request = bench.add(logprobs=2)
    bench.feed(request, [70], logprobs=[TokenLogprobs([70, 65, 66], [-3.0, -0.5, -1.0], [9, 1, 2])])
    [output], _ = bench.feed(
        request,
        [65],
        "length",
        logprobs=[TokenLogprobs([65, 65, 66], [-0.5, -0.5, -1.0], [1, 1, 2])],
    )
    one = output.outputs[0]
    assert one.cumulative_logprob == -3.5
    assert one.logprobs is not None
    assert [list(position) for position in one.logprobs] == [[70, 65, 66], [65, 66]]
    chosen = one.logprobs[0][70]
    assert (chosen.logprob, chosen.rank) == (-3.0, 9)
    assert bench.tokenizer is not None
    assert chosen.decoded_token == bench.tokenizer.decode([70])


def test_n_final_outputs_come_together_in_order(bench: Bench) -> None:
    request = bench.add(n=3, output_kind=FINAL)
    assert bench.feed(request, "c", "length", index=2) == ([], [])
    assert bench.feed(request, "a", "length", index=0) == ([], [])
    assert bench.outputs.get_num_unfinished_requests() == 1
    [output], _ = bench.feed(request, "b", "length", index=1)
    assert [one.text for one in output.outputs] == ["a", "b", "c"]
    assert [one.index for one in output.outputs] == [0, 1, 2]
    assert output.finished
    assert output.metrics is not None
    assert output.metrics.num_generation_tokens == 3


def test_n_streamed_outputs_come_one_by_one(bench: Bench) -> None:
    request = bench.add(n=2, output_kind=DELTA)
    [output], _ = bench.feed(request, "b", "length", index=1)
    assert ([one.index for one in output.outputs], output.finished) == ([1], False)
    [output], _ = bench.feed(request, "a", "length", index=0)
    assert ([one.index for one in output.outputs], output.finished) == ([0], True)


def test_stream_interval_keeps_the_first_and_the_last(bench: Bench) -> None:
    request = bench.add(output_kind=DELTA, stream_interval=3)
    sent = []
    for position, letter in enumerate("abcdefgh"):
        for output in bench.feed(request, letter, "length" if position == 7 else None)[0]:
            sent.append(output.outputs[0].text)
    assert sent == ["a", "bcd", "efg", "h"]


def test_errors_reach_the_user(bench: Bench) -> None:
    request = bench.add(output_kind=FINAL)
    [output], _ = bench.feed(request, [], "error", error="the step failed")
    assert output.outputs[0].finish_reason == "error"
    assert output.error == "the step failed"


def test_abort_by_the_users_id(bench: Bench) -> None:
    told = Told()
    first, second = bench.add("same", n=2), bench.add("same", sink=told)
    other = bench.add("other")
    wanted = [core.request_id for one in (first, second) for core in one.core_requests]
    assert bench.outputs.abort_requests(["same", "never"]) == wanted
    assert [one.input for one in bench.outputs.records()] == [other]
    assert bench.feed(first, "x") == ([], [])
    [output] = told.outputs
    assert (output.finished, output.outputs[0].finish_reason) == (True, "abort")
    assert bench.feed(other, "x")[0]


def test_an_abort_is_told_of_what_was_still_running(bench: Bench) -> None:
    for kind, ended in ((DELTA, [1]), (FINAL, [0, 1])):
        told = Told()
        request = bench.add("r", n=2, output_kind=kind, sink=told)
        bench.feed(request, "a", "length", index=0)
        bench.outputs.abort_requests(["r"])
        last = told.outputs[-1]
        assert last.finished
        assert [one.index for one in last.outputs] == ended
        assert last.outputs[-1].finish_reason == "abort"


def test_outputs_go_to_the_sink_that_was_given(bench: Bench) -> None:
    told = Told()
    request = bench.add(sink=told)
    assert bench.feed(request, "a", "length") == ([], [])
    assert told.outputs[0].finished


def test_times_and_counts(bench: Bench) -> None:
    request = bench.add(output_kind=FINAL)
    begin = request.arrival_time
    [output], _ = bench.feed(
        request, "ab", "length",
        scheduled_time=begin + 0.5, num_cached_tokens=1, num_preemptions=2,
    )  # fmt: skip
    stats = output.metrics
    assert stats is not None
    assert stats.first_token_latency == pytest.approx(1)
    assert (stats.scheduled_ts, stats.num_preemptions) == (begin + 0.5, 2)
    assert output.num_cached_tokens == 1


def test_observers_are_told_of_each_event_once_and_in_order(bench: Bench) -> None:
    request = bench.add("r", n=2, stop="b")
    bench.feed(request, "ax", index=1)
    bench.feed(request, "b", index=1)
    bench.feed(request, "x", index=0)
    bench.feed(request, "x", index=1)  # it has ended
    bench.outputs.abort_requests(["r"])
    assert bench.events == [
        "r admitted, 2", "r handed over",
        "1 first, 1 of the request", "step +2, []",
        "1 stop, 1 open", "step +1, [0.0]",
        "0 first, 2 of the request", "step +1, []",
        "step +0, []",
        "0 abort, 0 open",
    ]  # fmt: skip


def test_an_admitted_request_counts_until_it_is_withdrawn(bench: Bench) -> None:
    request = bench.inputs.process("r", [1, 2], SamplingParams())
    record = bench.outputs.admit(request)
    assert bench.outputs.has_unfinished_requests()
    assert bench.outputs.abort([record]) == []
    assert bench.outputs.abandon([record]) == []
    assert not bench.outputs.has_unfinished_requests()
    assert bench.events == ["r admitted, 1", "r withdrawn"]


def test_a_failure_reaches_every_sink_once(bench: Bench) -> None:
    running, waiting, ended = Told(), Told(), Told()
    first = bench.add("first", sink=running)
    bench.outputs.admit(bench.inputs.process("second", [1], SamplingParams()), waiting)
    bench.feed(bench.add("third", sink=ended), "a", "length")
    bench.events.clear()
    error = EngineDeadError("it died")
    assert bench.outputs.fail(error) == [first.core_requests[0].request_id]
    for told in (running, waiting):
        [own] = told.errors
        assert str(own) == "it died"
        assert own is not error, "tracebacks of several waiters must not mix"
        assert told.outputs == []
    assert (len(ended.outputs), ended.errors) == (1, [])
    assert bench.events == ["0 abort, 0 open", "second withdrawn"]
    assert not bench.outputs.has_unfinished_requests()
    assert bench.outputs.fail(error) == []


def test_nothing_follows_what_was_abandoned(bench: Bench) -> None:
    told = Told()
    request = bench.add("r", sink=told)
    [record] = bench.outputs.records()
    assert bench.outputs.abandon([record]) == [request.core_requests[0].request_id]
    assert bench.feed(request, "x", "length") == ([], [])
    assert (told.outputs, told.errors) == ([], [])
    assert bench.outputs.abandon([record]) == []
