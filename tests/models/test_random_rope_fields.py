"""Rope fields of config.json at random values, against transformers in float32."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hybrid_cases import HYBRID_CASES
from model_cases import CASES, Case, logits_of_checkpoint, prompt_of, write_checkpoint
from model_harness import Runner, load

from quire.backends.reference import ReferenceBackend

NUM_DRAWS = 12
LATENT = ("deepseek-v2", "deepseek-v3", "minicpm3", "glm4-moe-lite", "qwen3.5", "falcon-h1", "lfm2")
"""Latent attention, for which yarn scales q.k too, and hybrids."""
BY_LAYER = ("gemma3", "olmo3", "gemma4")
FAMILIES = (
    "llama-1-layer-tied", "qwen3-biases", "mistral-no-window", "granite", "glm", "ministral3",
    "seed-oss", "smollm3", "stablelm", "ernie4.5", "olmo2", "cohere", "mixtral",
    *BY_LAYER,
)  # fmt: skip


def _scaling(random: np.random.Generator) -> dict[str, Any]:
    """A scaling with values in the range that published files have, or somewhat beyond."""

    def number(low: float, high: float) -> float:
        return round(float(random.uniform(low, high)), 3)

    original = int(random.integers(8, 100))
    values: dict[str, dict[str, Any]] = {
        "default": {},
        "linear": {"factor": number(1, 9)},
        "llama3": {
            "factor": number(1, 40), "low_freq_factor": number(0.5, 2),
            "high_freq_factor": number(2.5, 9), "original_max_position_embeddings": original,
        },
        "yarn": {"factor": number(1, 40), "original_max_position_embeddings": original},
    }  # fmt: skip
    kind = str(random.choice([*values]))
    found = {"rope_type": kind, "rope_theta": number(100, 1e6), **values[kind]}
    more = {
        "attention_factor": number(0.5, 2), "beta_fast": number(8, 60), "beta_slow": number(0.5, 4),
        "mscale": number(0.3, 1.5), "mscale_all_dim": number(0.3, 1.5), "truncate": False,
    }  # fmt: skip
    if kind == "yarn":
        found |= {key: value for key, value in more.items() if random.random() < 0.4}
    return found


CHOSEN = [one for one in (*CASES, *HYBRID_CASES) if one.name in (*FAMILIES, *LATENT)]


@pytest.mark.sweep(12)
@pytest.mark.parametrize("seed", range(NUM_DRAWS))
@pytest.mark.parametrize("case", CHOSEN, ids=str)
def test_random_fields(case: Case, seed: int, tmp_path: Path) -> None:
    """config.json has the fields as transformers writes them, or as older files have them."""
    random = np.random.default_rng([seed, len(case.name)])
    kept = {key: value for key, value in case.settings.items() if "rope" not in key}
    old = case.settings.get("rope_parameters") or {}
    part = {key: old[key] for key in ("partial_rotary_factor",) if key in old}
    scaling = {**_scaling(random), **part}
    if case.name in BY_LAYER:
        kinds = {kind: _scaling(random) for kind in ("full_attention", "sliding_attention")}
        for one in kinds.values():
            one.pop("truncate", None)  # transformers reads it elsewhere
        scaling = kinds
    chosen = Case(f"{case.name}-{seed}", case.config_class, {**kept, "rope_parameters": scaling})
    write_checkpoint(chosen, tmp_path)
    tokens = prompt_of(chosen, 60)
    truth = logits_of_checkpoint(tmp_path, tokens, torch.float32)
    file = tmp_path / "config.json"
    config = json.loads(file.read_text())
    if seed % 2 and case.name not in BY_LAYER:
        own = config.pop("rope_parameters")
        config["rope_theta"] = own.pop("rope_theta")
        if "partial_rotary_factor" in own:
            config["partial_rotary_factor"] = own.pop("partial_rotary_factor")
        config["rope_scaling"] = {"type": own.pop("rope_type"), **own}
        file.write_text(json.dumps(config))
    compiled = load(tmp_path, ReferenceBackend())
    runner = Runner(compiled)
    [found] = runner.step([(runner.request(tokens), len(tokens))])
    compiled.close()
    assert np.abs(found - truth).max() < 2e-4 * np.abs(truth).max(), scaling
