"""`AsyncLLM` with prompts that come in pieces: what is sent, joined, ended and refused."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections.abc import AsyncGenerator, Iterator
from pathlib import Path
from typing import Any

import pytest

from quire.errors import EngineDeadError, EngineGenerateError, RequestError
from quire.frontend.online.async_llm import AsyncLLM
from quire.inputs import StreamingInput
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams

from .conftest import make_thread_client


@pytest.fixture
def engine(tmp_path: Path) -> Iterator[AsyncLLM]:
    from fake_engine import fake_config
    from tiny_model import write_tiny_model

    config = fake_config(tokenizer=write_tiny_model(tmp_path / "tiny"))
    engine = AsyncLLM(config, client=make_thread_client(config))
    yield engine
    engine.shutdown()


def deltas(max_tokens: int = 3, **options: Any) -> SamplingParams:
    return SamplingParams(
        max_tokens=max_tokens, output_kind=RequestOutputKind.DELTA, ignore_eos=True, **options
    )


async def pieces(*prompts: Any, pause_s: float = 0.0) -> AsyncGenerator[StreamingInput, None]:
    for prompt in prompts:
        yield StreamingInput(prompt)
        if pause_s:
            await asyncio.sleep(pause_s)


async def collect(
    engine: AsyncLLM, inputs: AsyncGenerator[StreamingInput, None], params: SamplingParams
) -> list[RequestOutput]:
    return [output async for output in engine.generate(inputs, params, "session")]


def text_of(outputs: list[RequestOutput]) -> str:
    return "".join(output.outputs[0].text for output in outputs)


@pytest.mark.parametrize("pause_s", [0.0, 0.5])
async def test_each_piece_is_answered_and_the_next_prompt_is_all_but_the_last_token(
    engine: AsyncLLM, pause_s: float
) -> None:
    outputs = await collect(engine, pieces("A", "K", [48], pause_s=pause_s), deltas())
    assert text_of(outputs) == "BCDLMNRST"
    ends = [output for output in outputs if output.outputs[0].finish_reason]
    assert [end.prompt_token_ids for end in ends] == [
        [32],
        [32, 33, 34, 42],
        [32, 33, 34, 42, 43, 44, 48],
    ]
    assert [end.prompt for end in ends] == ["A", "AK", None]
    assert [end.outputs[0].finish_reason for end in ends] == ["length"] * 3
    assert not any(output.finished for output in outputs[:-1])
    assert outputs[-1].finished is (pause_s == 0)  # else the end came after the last output
    assert {output.request_id for output in outputs} == {"session"}
    assert engine.get_num_unfinished_requests() == 0


async def test_cumulative_outputs_go_on_over_pieces(engine: AsyncLLM) -> None:
    params = SamplingParams(max_tokens=2, logprobs=0)
    outputs = await collect(engine, pieces("A", "K"), params)
    last = outputs[-1].outputs[0]
    assert (last.text, last.token_ids) == ("BCLM", [33, 34, 43, 44])
    texts = [output.outputs[0].text for output in outputs]
    assert all(later.startswith(text) for text, later in itertools.pairwise(texts))


async def test_a_piece_may_have_parameters_of_its_own(engine: AsyncLLM) -> None:
    async def inputs() -> AsyncGenerator[StreamingInput, None]:
        yield StreamingInput("A", sampling_params=deltas(1))
        yield StreamingInput({"prompt": "K", "cache_salt": "s"})

    assert text_of(await collect(engine, inputs(), deltas(2))) == "BLM"


def test_no_piece_is_no_output(engine: AsyncLLM) -> None:
    assert asyncio.run(collect(engine, pieces(), deltas())) == []


async def test_errors_of_the_generator_and_of_pieces_reach_the_caller(engine: AsyncLLM) -> None:
    from fake_core import REFUSE

    async def breaks() -> AsyncGenerator[StreamingInput, None]:
        yield StreamingInput("A")
        raise LookupError("the microphone is gone")

    async def wrong() -> AsyncGenerator[Any, None]:
        yield "A"

    with pytest.raises(LookupError, match="microphone"):
        await collect(engine, breaks(), deltas())
    with pytest.raises(TypeError, match="StreamingInput"):
        await collect(engine, wrong(), deltas())
    with pytest.raises(RequestError, match="cannot be empty"):
        await collect(engine, pieces("A", []), deltas())
    with pytest.raises(RequestError, match="maximum context length"):
        await collect(engine, pieces([32] * 300, [32] * 300), deltas())
    with pytest.raises(EngineGenerateError, match="refused"):
        await collect(engine, pieces([REFUSE]), deltas())
    assert engine.get_num_unfinished_requests() == 0


@pytest.mark.parametrize(
    "params",
    [
        deltas(n=2, temperature=1.0),
        deltas(stop=["x"]),
        SamplingParams(output_kind=RequestOutputKind.FINAL_ONLY),
    ],
)
async def test_what_needs_the_whole_prompt_is_refused(
    engine: AsyncLLM, params: SamplingParams
) -> None:
    async def later() -> AsyncGenerator[StreamingInput, None]:
        yield StreamingInput("A", sampling_params=params)

    for inputs, given in ((pieces("A"), params), (later(), deltas())):
        with pytest.raises(RequestError, match="Input streaming not currently supported"):
            await collect(engine, inputs, given)


@pytest.mark.parametrize("way", ["close", "cancel", "abort", "abort_all", "shutdown"])
@pytest.mark.parametrize("is_answering", [True, False])
def test_a_session_that_ends_early_ends_its_generator(
    engine: AsyncLLM, way: str, is_answering: bool
) -> None:
    was_cancelled = asyncio.Event()

    async def slow() -> AsyncGenerator[StreamingInput, None]:
        try:
            yield StreamingInput("A")
            await asyncio.sleep(100)
        except asyncio.CancelledError:
            was_cancelled.set()
            raise

    async def scenario() -> None:
        generator = engine.generate(slow(), deltas(400 if is_answering else 1), "session")
        await generator.__anext__()
        rest = asyncio.create_task(read(generator))
        await asyncio.sleep(0.02)
        if way in ("close", "cancel"):
            rest.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await rest
            if way == "close":
                await generator.aclose()
        elif way == "shutdown":
            engine.shutdown()
            with pytest.raises(EngineDeadError):
                await rest
        else:
            await (engine.abort("session") if way == "abort" else engine.abort_all())
            outputs = await rest
            if is_answering:
                assert outputs[-1].outputs[0].finish_reason == "abort"
                assert outputs[-1].finished
        await asyncio.wait_for(was_cancelled.wait(), 5)
        assert engine.get_num_unfinished_requests() == 0

    async def read(generator: AsyncGenerator[RequestOutput, None]) -> list[RequestOutput]:
        return [output async for output in generator]

    asyncio.run(scenario())
