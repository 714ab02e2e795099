"""Outputs of every kind tell the same; their text ends where an independent search says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from tiny_checkpoint import EOS
from tokenizers import Tokenizer, pre_tokenizers

from quire import EngineArgs, LLMEngine, SamplingParams
from quire.outputs import CompletionOutput, RequestOutput
from quire.params import RequestOutputKind

EOS_ID = 256
LETTERS = "ab é你"
"""Of one, two and three bytes, each a token of its own."""
stops = st.lists(st.text("ab é", min_size=1, max_size=3), max_size=3)


class Bytes:
    """What each token of the tiny tokenizer stands for."""

    def __init__(self, model_dir: Path) -> None:
        self.tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        spelled = pre_tokenizers.ByteLevel(add_prefix_space=False)
        self.of_token = {EOS_ID: EOS.encode()}
        for byte in range(256):
            if byte < 128:
                text = chr(byte)
                [(symbol, _)] = spelled.pre_tokenize_str(text)[:1]
                self.of_token[self.tokenizer.token_to_id(symbol)] = bytes([byte])
        for char in LETTERS:
            for token_id, byte in zip(self.ids(char), char.encode(), strict=True):
                self.of_token[token_id] = bytes([byte])

    def ids(self, text: str) -> list[int]:
        return self.tokenizer.encode(text, add_special_tokens=False).ids


def shown(data: bytes, *, is_end: bool) -> str:
    """The characters of some bytes; one that is not whole yet only at the end."""
    import codecs

    return codecs.getincrementaldecoder("utf-8")("replace").decode(data, is_end)


def expected(
    tokens: list[int], params: SamplingParams, of_token: dict[int, bytes]
) -> tuple[int, str, bool]:
    """How many of the tokens there are, their text, and whether a stop string ended it: token by
    token, looking at every place anew."""
    data, before = b"", ""
    for count, token_id in enumerate(tokens, 1):
        is_hidden = params.skip_special_tokens and token_id == EOS_ID
        is_stop = token_id in (params.stop_token_ids or ()) and count == len(tokens)
        if is_stop and count > params.min_tokens and not params.include_stop_str_in_output:
            break
        data += b"" if is_hidden else of_token[token_id]
        text = shown(data, is_end=False)
        if count > params.min_tokens:
            for end in range(len(before) + 1, len(text) + 1):
                for stop in params.stop or ():
                    if text[:end].endswith(stop):
                        keeps = params.include_stop_str_in_output
                        return count, text[: end if keeps else end - len(stop)], True
        before = text
    return len(tokens), shown(data, is_end=True), False


@pytest.fixture(scope="module")
def pieces(model_dir: Path) -> Bytes:
    return Bytes(model_dir)


@pytest.fixture(scope="module")
def engine(model_dir: Path, backend: str) -> Iterator[LLMEngine]:
    args = EngineArgs(
        model=str(model_dir), backend=backend, max_model_len=64, num_threads=1,
        num_gpu_blocks_override=128, dtype="float32", disable_log_stats=True,
    )  # fmt: skip
    made = LLMEngine.from_engine_args(args)
    yield made
    made.shutdown()


def run(engine: LLMEngine, requests: dict[str, SamplingParams]) -> dict[str, list[RequestOutput]]:
    """All outputs of each, in the order in which they came."""
    for name, params in requests.items():
        engine.add_request(name, "ab", params)
    found: dict[str, list[RequestOutput]] = {name: [] for name in requests}
    while engine.has_unfinished_requests():
        for output in engine.step():
            found[output.request_id].append(output)
    return found


def joined(parts: list[CompletionOutput]) -> tuple[Any, ...]:
    """Deltas put together again."""
    logprobs = None
    if parts[0].logprobs is not None:
        logprobs = [position for part in parts for position in part.logprobs or ()]
    return (
        "".join(part.text for part in parts), [one for part in parts for one in part.token_ids],
        logprobs, *end_of(parts[-1]),
    )  # fmt: skip


def whole(one: CompletionOutput) -> tuple[Any, ...]:
    logprobs = None if one.logprobs is None else list(one.logprobs)
    return one.text, list(one.token_ids), logprobs, *end_of(one)


def end_of(one: CompletionOutput) -> tuple[Any, ...]:
    return one.cumulative_logprob, one.finish_reason, one.stop_reason


def parts_of(outputs: list[RequestOutput], index: int) -> list[CompletionOutput]:
    return [one for output in outputs for one in output.outputs if one.index == index]


@given(
    stop=stops, include=st.booleans(), min_tokens=st.integers(0, 6), skips=st.booleans(),
    stop_ids=st.sampled_from(["", "b", "é"]), logprobs=st.sampled_from([None, 0, 2]),
    flat=st.booleans(), n=st.integers(1, 2), interval=st.sampled_from([None, 1, 3]),
    seed=st.integers(0, 10**6), of_prompt=st.sampled_from([None, 1]),
)  # fmt: skip
@settings(
    max_examples=40, deadline=None, derandomize=True, phases=[Phase.generate],
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)  # fmt: skip
def test_kinds_agree_and_texts_end_where_they_should(
    engine: LLMEngine, pieces: Bytes, stop: list[str], include: bool, min_tokens: int, skips: bool,
    stop_ids: str, logprobs: int | None, flat: bool, n: int, interval: int | None, seed: int,
    of_prompt: int | None,
) -> None:  # fmt: skip
    common: dict[str, Any] = {
        "allowed_token_ids": [*pieces.ids(LETTERS), EOS_ID], "temperature": 2, "seed": seed,
        "max_tokens": 16, "min_tokens": min_tokens, "ignore_eos": True, "n": n,
        "include_stop_str_in_output": include, "skip_special_tokens": skips,
        "stop_token_ids": pieces.ids(stop_ids)[-1:],
    }  # fmt: skip
    reported = {"logprobs": logprobs, "flat_logprobs": flat, "prompt_logprobs": of_prompt}
    requests = {
        kind.name: SamplingParams(
            **common, **reported, stop=stop, stream_interval=interval, output_kind=kind
        )
        for kind in RequestOutputKind
    }
    requests["endless"] = SamplingParams(**common, output_kind=RequestOutputKind.FINAL_ONLY)
    found = run(engine, requests)
    [final] = found["FINAL_ONLY"]
    assert all(not one.finished for one in found["CUMULATIVE"][:-1])
    assert final.finished
    assert final.prompt_logprobs == found["CUMULATIVE"][-1].prompt_logprobs
    first, *others = found["DELTA"]
    assert first.prompt_logprobs == final.prompt_logprobs
    assert all(not one.prompt_logprobs for one in others)
    for index in range(n):
        [mine] = parts_of([final], index)
        assert joined(parts_of(found["DELTA"], index)) == whole(mine)
        growing = parts_of(found["CUMULATIVE"], index)
        assert whole(growing[-1]) == whole(mine)
        assert all(mine.text.startswith(one.text) for one in growing)
        [endless] = parts_of([found["endless"][-1]], index)
        count, text, is_stopped = expected(
            list(endless.token_ids), SamplingParams(**common, stop=stop), pieces.of_token
        )
        assert (len(mine.token_ids), mine.text) == (count, text), endless.text
        assert list(mine.token_ids) == list(endless.token_ids)[:count]
        if is_stopped:
            assert (mine.finish_reason, mine.stop_reason in stop) == ("stop", True)
        else:
            assert end_of(mine)[1:] == end_of(endless)[1:]
        if logprobs is not None:
            assert mine.logprobs is not None
            assert len(mine.logprobs) == len(mine.token_ids)
            chosen = [
                position[token].logprob
                for token, position in zip(mine.token_ids, mine.logprobs, strict=True)
                if position is not None
            ]
            assert mine.cumulative_logprob == pytest.approx(sum(chosen))
