"""The comparison with transformers sees each value of a spec: with another one it fails."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hybrid_cases import HYBRID_CASES
from model_cases import CASES, logits_of, prompt_of, write_checkpoint
from model_harness import Runner, load

from quire.backends.reference import ReferenceBackend
from quire.models import decoder
from quire.models.families import gemma3n, gemma4
from quire.models.families.gemma4 import Experts
from quire.models.families.gemma_blocks import GemmaSpec
from quire.models.mixers import LatentAttention
from quire.models.spec import DecoderSpec, QkNorm
from quire.program import Rotary

TOKENS = 60
Change = Callable[[DecoderSpec], DecoderSpec]


def attention(**changes: Any) -> Change:
    return lambda spec: replace(spec, attention=replace(spec.attention, **changes))


def whole(**changes: Any) -> Change:
    return lambda spec: replace(spec, **changes)


def rotaries(change: Callable[[Rotary], Rotary | None]) -> Change:
    def changed(spec: DecoderSpec) -> DecoderSpec:
        found = [None if one is None else change(one) for one in spec.attention.rotaries]
        return replace(spec, attention=replace(spec.attention, rotaries=tuple(found)))

    return changed


def everywhere(spec: DecoderSpec) -> DecoderSpec:
    """Rotates in all layers."""
    one = next(rotary for rotary in spec.attention.rotaries if rotary is not None)
    return attention(rotaries=(one,) * spec.num_layers)(spec)


def without_windows(spec: DecoderSpec) -> DecoderSpec:
    return attention(windows=(None,) * spec.num_layers)(spec)


def before_rope(spec: DecoderSpec) -> DecoderSpec:
    assert spec.attention.qk_norm is not None
    return attention(qk_norm=replace(spec.attention.qk_norm, after_rope=False))(spec)


def reversed_rotaries(spec: DecoderSpec) -> DecoderSpec:
    return attention(rotaries=spec.attention.rotaries[::-1])(spec)


def experts(**changes: Any) -> Change:
    """Of all layers that have any; `routing` has changes of that. A weight that is left out needs
    no test: the checkpoint then has a tensor too many."""
    routing = changes.pop("routing", {})

    def changed(spec: DecoderSpec) -> DecoderSpec:
        found = tuple(
            moe and replace(moe, routing=replace(moe.routing, **routing), **changes)
            for moe in spec.experts
        )
        return replace(spec, experts=found)

    return changed


neighbours = rotaries(lambda one: replace(one, interleaved=not one.interleaved))
unscaled = rotaries(lambda one: replace(one, scale=1.0))
narrower = rotaries(lambda one: replace(one, inv_freq=one.inv_freq[:-1]))
MUTATIONS = [
    ("ernie4.5", neighbours), ("glm", neighbours), ("glm", narrower), ("cohere", neighbours),
    ("cohere", whole(parallel=False)), ("cohere", whole(logits_scale=1.0)),
    ("hunyuan", before_rope), ("olmo", attention(clip_qkv=None)), ("smollm3", everywhere),
    ("exaone4", everywhere), ("cohere2", everywhere), ("cohere2", without_windows),
    ("olmo3", without_windows), ("olmo3", reversed_rotaries), ("phi3-longrope", unscaled),
    ("phi3-longrope", narrower), ("phi3-longrope", without_windows),
    ("ministral3", attention(q_scaling=None)), ("olmo3", unscaled),
    ("nemotron", lambda spec: replace(spec, norm=replace(spec.norm, offset=0.0))),
    ("gemma", lambda spec: replace(spec, norm=replace(spec.norm, offset=0.0))),
    ("gpt-neox", whole(parallel=False)), ("stablelm-parallel", whole(parallel=False)),
    ("gpt-neox-serial", whole(parallel=True)), ("falcon-40b", whole(parallel=False)),
    ("bloom", attention(alibi_slopes=None)), ("granite", whole(residual_scale=1.0)),
    ("granite", whole(embed_scale=1.0)), ("granite", attention(scale=None)),
    ("gemma2", attention(softcap=None)), ("gemma2", whole(logits_softcap=None)),
    ("arcee", lambda spec: replace(spec, mlp=replace(spec.mlp, activation="relu"))),
    ("starcoder2", lambda spec: replace(spec, mlp=replace(spec.mlp, activation="gelu_quick"))),
    ("falcon-40b", lambda spec: attention(fused="concat")(spec)),
    ("gpt-oss", without_windows), ("gpt-oss", experts(activation="silu")),
    ("glm4-moe", narrower), ("glm4-moe", experts(routing={"normalise": False})),
    ("glm4-moe", experts(routing={"scale": 1.0})),
    ("glm4-moe-groups", experts(routing={"num_groups": 1, "top_groups": 1})),
    ("glm4-moe-groups", experts(routing={"group_best": 1})),
    ("dots1", experts(routing={"score": "softmax"})), ("ernie4.5-moe", neighbours),
    ("exaone-moe", everywhere), ("solar-open", experts(routing={"scale": 1.0})),
    ("granite4", attention(rotaries=(None, None))), ("granite4-dense", whole(residual_scale=1.0)),
    ("mellum", without_windows), ("mellum", reversed_rotaries), ("hunyuan-moe", before_rope),
    ("phimoe", experts(routing={"jitter": 100.0})), ("minimax-m2", narrower),
    ("flex-olmo", experts(routing={"score": "sigmoid"})),
    ("olmoe-clipped", attention(clip_qkv=None)), ("llama4", attention(is_chunked=False)),
    ("llama4", attention(q_scaling=None)), ("llama4", attention(qk_norm=None)),
    ("llama4", neighbours), ("llama4", everywhere), ("llama4", experts(weighs_inputs=False)),
]  # fmt: skip


def mixers(**changes: Any) -> Change:
    """Of all layers that have one."""
    return lambda spec: replace(
        spec, mixers=tuple(mixer and replace(mixer, **changes) for mixer in spec.mixers)
    )


def other_halves(spec: DecoderSpec) -> DecoderSpec:
    """Latent attention rotates halves of a head, or neighbours, the other way."""
    found = [
        replace(mixer, rotary=replace(mixer.rotary, interleaved=not mixer.rotary.interleaved))
        for mixer in spec.mixers
        if isinstance(mixer, LatentAttention) and mixer.rotary is not None
    ]
    return replace(spec, mixers=tuple(found))


MUTATIONS += [
    ("qwen3.5", lambda spec: replace(spec, norm=replace(spec.norm, offset=0.0))),
    ("qwen3.5", mixers(is_tiled=True)), ("qwen3-next", experts(routing={"normalise": False})),
    ("granite4-h", mixers(norm="before")), ("granite4-h", whole(residual_scale=1.0)),
    ("granite4-h-dense", mixers(dt_limits=(0.0, float("inf")))),
    ("falcon-h1", mixers(factors=None)), ("falcon-h1", whole(attention_factors=(1.0, 1.0))),
    ("falcon-h1-plain", mixers(norm="after")), ("bamba", narrower), ("mamba2", mixers(eps=0.1)),
    ("nemotron-h", lambda spec: replace(spec, mlp=replace(spec.mlp, activation="relu"))),
    ("jamba", mixers(eps=0.1)), ("deepseek-v2", mixers(scale=0.1)), ("deepseek-v3", other_halves),
    ("glm4-moe-lite", experts(routing={"normalise": False})), ("minicpm3", other_halves),
    ("minicpm3", whole(residual_scale=1.0)), ("lfm2", attention(qk_norm=QkNorm(after_rope=True))),
]  # fmt: skip


def layers(**changes: Any) -> Callable[[GemmaSpec], GemmaSpec]:
    """Of every layer of Gemma 3n or 4."""
    return lambda spec: replace(
        spec, layers=tuple(replace(layer, **changes) for layer in spec.layers)
    )


def first_layer_is_read(spec: GemmaSpec) -> GemmaSpec:
    """By those that read the K and V of the last layer of their kind."""
    found = [replace(one, reads=one.reads and one.reads % 2) for one in spec.layers]
    return replace(spec, layers=tuple(found))


def gemma(**changes: Any) -> Callable[[GemmaSpec], GemmaSpec]:
    return lambda spec: replace(spec, **changes)


def other_rotation(spec: GemmaSpec) -> GemmaSpec:
    """All frequencies that are not 0, of the whole head."""
    found = [
        replace(
            one,
            rotary=Rotary(tuple(f for f in one.rotary.inv_freq if f)),
        )
        for one in spec.layers
    ]
    return replace(spec, layers=tuple(found))


GEMMA_MUTATIONS = [
    ("gemma3n", layers(window=None)), ("gemma3n", first_layer_is_read),
    ("gemma3n", gemma(active=0)), ("gemma3n", gemma(sparsity=(0.9, 0.0, 0.6, 0.3, 0.0, 0.0))),
    ("gemma3n", gemma(sparsity=(0.9, 0.1, 0.6, 0.3, 0.0, 0.8))),
    ("gemma3n", gemma(logits_softcap=None)), ("gemma3n", gemma(activation="gelu_quick")),
    ("gemma4", layers(window=None)), ("gemma4", first_layer_is_read),
    ("gemma4", other_rotation), ("gemma4", gemma(logits_softcap=None)),
    ("gemma4-mixture", gemma(experts=Experts(7, 27, 2))), ("gemma4-unified", layers(window=None)),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change"),
    GEMMA_MUTATIONS,
    ids=[f"{i}-{name}" for i, (name, _) in enumerate(GEMMA_MUTATIONS)],
)
def test_another_value_of_gemma_is_seen(
    name: str,
    change: Callable[[GemmaSpec], GemmaSpec],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    module = gemma3n if name == "gemma3n" else gemma4
    build: Any = module.build
    monkeypatch.setattr(module, "build", lambda name, spec: build(name, change(spec)))
    assert_differs(name, tmp_path)


@pytest.mark.sweep(24)
@pytest.mark.parametrize(
    ("name", "change"), MUTATIONS, ids=[f"{i}-{name}" for i, (name, _) in enumerate(MUTATIONS)]
)
def test_another_value_is_seen(
    name: str, change: Change, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build = decoder.build_decoder
    monkeypatch.setattr(
        decoder, "build_decoder", lambda spec, *others: build(change(spec), *others)
    )
    assert_differs(name, tmp_path)


def assert_differs(name: str, tmp_path: Path) -> None:
    """The program as it is now gives other logits than transformers."""
    case = next(case for case in [*CASES, *HYBRID_CASES] if case.name == name)
    model = load(write_checkpoint(case, tmp_path), ReferenceBackend())
    runner = Runner(model)
    prompt = prompt_of(case, TOKENS)
    [found] = runner.step([(runner.request(prompt), TOKENS)])
    model.close()
    truth = logits_of(case, prompt)
    assert np.abs(found - truth).max() > 1e-3 * np.abs(truth).max()
