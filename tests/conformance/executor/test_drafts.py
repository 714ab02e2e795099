"""Speculation on ranks that are processes: the tokens and log-probabilities of one rank."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from executor_plans import config_of
from noted_drafts import counted_drafts
from rank_cases import run
from tiny_checkpoint import write_tiny_checkpoint

from quire import SamplingParams
from quire.core.engine_core import EngineCore
from quire.protocol import EngineCoreRequest
from quire.scheduler.drafting.drafting import RowCosts

TWO_PARTS, TWO_STAGES = {"tensor_parallel_size": 2}, {"pipeline_parallel_size": 2}


def requests() -> list[tuple[int, EngineCoreRequest]]:
    """The last one is alone for a while, because a pipeline guesses only then."""
    return [
        (
            0,
            EngineCoreRequest(
                request_id=str(number),
                prompt_token_ids=[5, 6, 7 + number] * 5,
                sampling_params=SamplingParams(
                    temperature=0.7 * (number % 2),
                    seed=number,
                    max_tokens=10 + 15 * number,
                    ignore_eos=True,
                    logprobs=1,
                ),
                arrival_time=0.0,
            ),
        )
        for number in range(3)
    ]


@pytest.mark.parametrize(
    ("method", "split"),
    [("ngram", TWO_PARTS), ("ngram", TWO_STAGES), ("draft_model", TWO_PARTS)],
    ids=["guesses of parts", "guesses of stages", "a draft model in parts"],
)
def test_drafts_change_no_bit(
    method: str, split: dict[str, int], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    target = str(write_tiny_checkpoint(tmp_path / "target", num_hidden_layers=3))
    spec: dict[str, Any] = {"method": "ngram", "prompt_lookup_min": 1}
    if method == "draft_model":
        spec = {"model": target, "num_speculative_tokens": 3}
    given = {"backend": "cpu", "max_num_batched_tokens": 16}
    wanted = run(EngineCore(config_of(Path(target), speculation=False, **given)), requests())
    drafts = counted_drafts(monkeypatch)
    core = EngineCore(config_of(Path(target), speculative_config=spec, **given, **split))
    assert run(core, requests()).digest == wanted.digest
    assert sum(drafts) > 0
