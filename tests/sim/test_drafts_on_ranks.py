"""Draft models and heads on several ranks propose what they propose on one, and change no bit."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest
from executor_plans import config_of
from noted_drafts import counted_drafts, noted_drafts
from rank_cases import engine_of_ranks, run
from tiny_checkpoint import write_tiny_checkpoint
from tiny_heads import write_head, write_mtp_model

from quire import SamplingParams
from quire.core.engine_core import EngineCore
from quire.errors import ConfigError
from quire.protocol import EngineCoreRequest
from quire.scheduler.drafting.drafting import RowCosts
from quire.structured.params import StructuredOutputsParams

WIDE = {"num_attention_heads": 8, "head_dim": 8, "num_key_value_heads": 4}
LAYERS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 3]}
KINDS = ("draft_model", "mtp-glm", "mtp-deepseek", "mtp-qwen-next", "mtp-qwen-3.5", "eagle",
         "eagle3", "eagle3-d2t", "medusa")  # fmt: skip


def written(folder: Path, kind: str) -> tuple[Path, dict[str, Any]]:
    """A model, and the `speculative_config` with which it is drafted for."""
    if kind.startswith("mtp-"):
        return write_mtp_model(folder / "target", kind.removeprefix("mtp-")), {"method": "mtp"}
    target = write_tiny_checkpoint(folder / "target", num_hidden_layers=3, **WIDE)
    if kind == "draft_model":
        return target, {"model": str(target)}
    method, _, parts = kind.partition("-")
    options: dict[str, Any] = LAYERS if method == "eagle3" else {}
    if parts:
        options = {**options, "tensors": ("lm_head.weight", "d2t"), "draft_vocab_size": 99}
    if method == "medusa":
        options = {"medusa_num_heads": 3}
    head = write_head(folder / "head", target, method, 1, **options)
    return target, {"method": method, "model": str(head)}


def requests() -> list[tuple[int, EngineCoreRequest]]:
    chance = random.Random(5)
    found = []
    for number in range(5):
        tokens = [number, *(chance.randrange(250) for _ in range(chance.randint(1, 30)))]
        params = SamplingParams(
            temperature=chance.choice([0.0, 0.0, 1.0]),
            seed=number,
            max_tokens=chance.randint(5, 20),
            ignore_eos=True,
            logprobs=1,
        )
        request = EngineCoreRequest(
            request_id=str(number),
            prompt_token_ids=tokens,
            sampling_params=params,
            arrival_time=float(number),
        )
        found.append((chance.choice([0, 3]), request))
    return found


@pytest.mark.sweep(3)
@pytest.mark.parametrize("backend", ["cpu", "reference"])
@pytest.mark.parametrize("kind", KINDS)
def test_ranks_draft_as_one_rank_does(
    kind: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    target, config = written(tmp_path, kind)
    spec = {"speculative_config": {**config, "num_speculative_tokens": 3}}
    given = {"backend": backend, "max_num_batched_tokens": 16, "max_num_seqs": 3}
    wanted = run(EngineCore(config_of(target, speculation=False, **given)), requests())
    noted, drafted = noted_drafts(monkeypatch), []
    for tensor in (1, 2, 3) if backend == "cpu" else (1, 2):
        split = config_of(target, tensor_parallel_size=tensor, **spec, **given)
        core = EngineCore(split) if tensor == 1 else engine_of_ranks(split)
        assert run(core, requests()).digest == wanted.digest
        drafted.append(noted.copy())
        noted.clear()
    assert len(drafted[0]) > 10
    assert all(one == drafted[0] for one in drafted)


@pytest.mark.parametrize(
    ("method", "grammar"),
    [("ngram", None), ("suffix", None), ("ngram", StructuredOutputsParams(regex="[ab]*"))],
)
def test_a_pipeline_has_guesses(
    method: str,
    grammar: StructuredOutputsParams | None,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    target = write_tiny_checkpoint(tmp_path / "target", num_hidden_layers=3, **WIDE)
    params = SamplingParams(
        temperature=0, seed=1, max_tokens=40, ignore_eos=True, logprobs=1,
        structured_outputs=grammar,
    )  # fmt: skip
    one = EngineCoreRequest(
        request_id="0", prompt_token_ids=[5, 6, 7] * 5, sampling_params=params, arrival_time=0.0
    )
    found, drafts = [], counted_drafts(monkeypatch)
    for config in (
        config_of(target, speculation=False),
        config_of(
            target,
            speculative_config={"method": method, "prompt_lookup_min": 1},
            pipeline_parallel_size=2,
        ),
    ):
        drafts.clear()
        ranks = config.parallel.world_size
        core = EngineCore(config) if ranks == 1 else engine_of_ranks(config)
        found.append(run(core, [(0, one)]).digest)
    assert found[0] == found[1]
    assert sum(drafts) > 0


def test_a_pipeline_has_no_draft_model(tmp_path: Path) -> None:
    target, config = written(tmp_path, "eagle")
    with pytest.raises(ConfigError, match="pipeline_parallel_size=2 divides the layers"):
        config_of(target, speculative_config=config, pipeline_parallel_size=2)
