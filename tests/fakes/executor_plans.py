"""Plans and requests for executors, and the configuration of a tiny model to run them on."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from quire.adapters import LoRARequest
from quire.config.engine_args import EngineArgs
from quire.config.records import EngineConfig
from quire.core.engine_core import EngineCore
from quire.params import SamplingParams
from quire.planning.plan import build_engine_config
from quire.protocol import EngineCoreRequest, ScheduledRequest, SchedulePlan

PROMPT = [*range(3, 43)]


def config_of(directory: Path, **given: Any) -> EngineConfig:
    fixed = {"backend": "reference", "max_model_len": 64, "max_num_seqs": 4, "num_threads": 1}
    return build_engine_config(EngineArgs(str(directory), **{**fixed, **given}))


def plan_of(request_id: str, token_ids: list[int], computed: int = 0) -> SchedulePlan:
    request = ScheduledRequest(
        request_id=request_id,
        token_ids=token_ids,
        num_prompt_tokens=len(token_ids),
        sampling_params=SamplingParams(temperature=0, seed=0, logprobs=2),
        block_ids=[[5, 2, 3]],
        first_entries=[0],
        num_computed_tokens=computed,
    )
    return SchedulePlan(
        request_ids=[request_id],
        num_scheduled_tokens=[len(token_ids) - computed],
        started={request_id: request},
        new_block_ids={},
        released_request_ids=[],
    )


def outputs(
    core: EngineCore, adapters: Sequence[LoRARequest | None] = (None, None, None)
) -> dict[str, list[Any]]:
    """The tokens and log-probabilities of several requests at once. `adapters`: of each."""
    for number, adapter in enumerate(adapters):
        params = SamplingParams(
            temperature=0.8, seed=number, max_tokens=9, ignore_eos=True, logprobs=2
        )
        core.add_request(
            EngineCoreRequest(
                request_id=str(number),
                prompt_token_ids=PROMPT[number:],
                sampling_params=params,
                arrival_time=0.0,
                lora=adapter,
            )
        )
    found: dict[str, list[Any]] = {}
    while core.has_unfinished_requests():
        for one in core.step().outputs:
            found.setdefault(one.request_id, []).append((one.new_token_ids, one.logprobs))
    core.shutdown()
    return found
