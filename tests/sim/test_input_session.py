"""A prompt in pieces gives the bits of the prompts that it stands for, many sessions at once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path

import numpy as np
import pytest
from tiny_checkpoint import write_tiny_checkpoint

from quire.config.engine_args import EngineArgs
from quire.frontend.online.async_llm import AsyncLLM
from quire.inputs import StreamingInput
from quire.llm import LLM
from quire.outputs import CompletionOutput
from quire.params import RequestOutputKind, SamplingParams

RANDOM = np.random.default_rng(5)
SESSIONS = [
    [RANDOM.integers(0, 256, int(length)).tolist() for length in RANDOM.integers(1, 40, 4)]
    for _ in range(5)
]
MAX_TOKENS = [3, 20, 1, 9]


def params_of(turn: int, kind: RequestOutputKind = RequestOutputKind.DELTA) -> SamplingParams:
    return SamplingParams(
        max_tokens=MAX_TOKENS[turn], temperature=0.8, seed=turn, logprobs=1, ignore_eos=True,
        output_kind=kind,
    )  # fmt: skip


async def pieces(session: int) -> AsyncGenerator[StreamingInput, None]:
    for turn, prompt in enumerate(SESSIONS[session]):
        yield StreamingInput({"prompt_token_ids": prompt}, params_of(turn))
        await asyncio.sleep(0.01 * session)


async def answers(engine: AsyncLLM, session: int) -> list[list[int]]:
    found: list[list[int]] = [[]]
    async for output in engine.generate(pieces(session), params_of(0), str(session)):
        found[-1] += output.outputs[0].token_ids
        if output.outputs[0].finish_reason is not None:
            found.append([])
    return found[:-1]


@pytest.mark.parametrize("caches", [True, False])
def test_a_session_gives_the_bits_of_its_prompts(tmp_path: Path, caches: bool) -> None:
    args = EngineArgs(
        model=str(write_tiny_checkpoint(tmp_path)), max_model_len=256, num_threads=1,
        max_num_seqs=3, max_num_batched_tokens=16, enable_prefix_caching=caches,
    )  # fmt: skip

    async def scenario() -> list[list[list[int]]]:
        engine = AsyncLLM.from_engine_args(args)
        try:
            return await asyncio.gather(*(answers(engine, one) for one in range(len(SESSIONS))))
        finally:
            engine.shutdown()

    found = asyncio.run(scenario())
    with LLM.from_engine_args(args) as llm:
        for session, turns in enumerate(found):
            prompt: list[int] = []
            assert [len(answer) for answer in turns] == MAX_TOKENS
            for turn, answer in enumerate(turns):
                prompt += SESSIONS[session][turn]
                given = params_of(turn, RequestOutputKind.FINAL_ONLY)
                whole: CompletionOutput = llm.generate(
                    {"prompt_token_ids": prompt}, given, use_tqdm=False
                )[0].outputs[0]
                assert answer == whole.token_ids
                prompt += answer[:-1]
