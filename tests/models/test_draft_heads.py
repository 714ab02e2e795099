"""Draft heads propose what the published formulas give, computed by torch and transformers."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from noted_drafts import noted_drafts
from safetensors.torch import load_file, save_file
from tiny_checkpoint import write_tiny_checkpoint
from tiny_heads import write_head, write_mtp_model
from torch import Tensor, nn

from quire import LLM, SamplingParams
from quire.scheduler.drafting.drafting import RowCosts

LONGEST = 128
DRAFT = 4
TIE = 1e-3
"""Logits that differ less may be exchanged by roundings."""

Propose = Callable[[list[int]], list[Tensor]]
"""The logits of each draft token after a text."""


@dataclass(frozen=True)
class Case:
    target: Path
    config: dict[str, Any]
    """`speculative_config`."""
    propose: Propose


def rms(x: Tensor, weight: Tensor, offset: float = 0.0) -> Tensor:
    scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)
    return scaled * (weight + offset)


def chain(
    text: list[int],
    hidden: Tensor,
    step: Callable[[list[int], Tensor], tuple[Tensor, Tensor]],
    token_of: Callable[[int], int] = lambda token: token,
) -> list[Tensor]:
    """Drafts tokens with a head: `step` gives the logits and the hidden state of the last row."""
    token_ids, found = text[1:], []
    for _ in range(DRAFT):
        logits, last = step(token_ids, hidden)
        found.append(logits)
        token_ids = [*token_ids, token_of(int(logits.argmax()))]
        hidden = torch.cat([hidden, last[None]])
    return found


def mtp_case(folder: Path, kind: str) -> Case:
    """The layer becomes a further layer of a model of transformers."""
    path = write_mtp_model(folder / kind, kind)
    config = json.loads((path / "config.json").read_text())
    tensors = load_file(path / "model.safetensors")
    count = config["num_hidden_layers"]
    is_qwen = kind.startswith("qwen")
    begin = "mtp." if is_qwen else f"model.layers.{count}."
    layer = "mtp.layers.0." if is_qwen else begin
    grown = {name.replace(layer, f"model.layers.{count}."): one for name, one in tensors.items()}
    config |= {"num_hidden_layers": count + 1}
    if is_qwen:
        config["layer_types"] = [*config["layer_types"], "full_attention"]
    other = folder / f"{kind}-grown"
    other.mkdir()
    (other / "config.json").write_text(json.dumps(config))
    save_file(grown, other / "model.safetensors", {"format": "pt"})
    loaded = transformers.AutoModelForCausalLM.from_pretrained(other, dtype=torch.float32)
    model = loaded.eval()
    block = model.model.layers[count]
    model.model.layers = model.model.layers[:count]
    names = ("pre_fc_norm_embedding", "pre_fc_norm_hidden", "fc", "norm") if is_qwen else (
        "enorm", "hnorm", "eh_proj", "shared_head.norm")  # fmt: skip
    embed_norm, hidden_norm, project, norm = (tensors[f"{begin}{name}.weight"] for name in names)
    offset = 1.0 if is_qwen else 0.0

    def step(token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        embedded = model.model.embed_tokens(torch.tensor(token_ids))
        pair = torch.cat([rms(embedded, embed_norm, offset), rms(hidden, hidden_norm, offset)], -1)
        x = (pair @ project.T)[None]
        places = torch.arange(len(token_ids))[None]
        rotary = model.model.rotary_emb(x, places)
        found = block(x, attention_mask=None, position_ids=places, position_embeddings=rotary)
        x = (found[0] if isinstance(found, tuple) else found)[0, -1]
        normed = rms(x, norm, offset)
        return model.lm_head(normed), normed if is_qwen else x

    def propose(text: list[int]) -> list[Tensor]:
        hidden = model.model(torch.tensor([text[:-1]])).last_hidden_state[0]
        return chain(text, hidden, step)

    return Case(path, {"method": "mtp"}, propose)


def llama(folder: Path) -> Path:
    return write_tiny_checkpoint(
        folder / "target", architectures=["LlamaForCausalLM"], model_type="llama",
        num_hidden_layers=6,
    )  # fmt: skip


def eagle_case(folder: Path, method: str, **options: Any) -> Case:
    target = llama(folder)
    path = write_head(folder / "head", target, method, 3, **options)
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tensors = load_file(path / "model.safetensors")
    config = transformers.LlamaConfig.from_pretrained(path)
    config.max_position_embeddings = LONGEST
    config._attn_implementation = "sdpa"
    layer = transformers.models.llama.modeling_llama.LlamaDecoderLayer(config, 0).eval()
    if method == "eagle":
        layer.input_layernorm = nn.Identity()
    else:
        attention, size = layer.self_attn, config.hidden_size
        for name in ("q_proj", "k_proj", "v_proj"):
            rows = getattr(attention, name).out_features
            setattr(attention, name, nn.Linear(2 * size, rows, bias=False))
    begin = "layers.0."
    own = {n.removeprefix(begin): t for n, t in tensors.items() if n.startswith(begin)}
    more = {name: own.pop(name) for name in ("hidden_norm.weight",) if name in own}
    if method == "eagle3":
        more["input_layernorm.weight"] = own["input_layernorm.weight"]
    layer.load_state_dict(own)
    embed = tensors.get("embed_tokens.weight", model.model.embed_tokens.weight)
    d2t = tensors.get("d2t")

    def rotary(x: Tensor) -> dict[str, Any]:
        places = torch.arange(x.shape[1])[None]
        return {"position_ids": places, "position_embeddings": model.model.rotary_emb(x, places)}

    def eagle(token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        x = torch.cat([embed[token_ids], hidden], -1) @ tensors["fc.weight"].T
        x = (x + tensors.get("fc.bias", torch.zeros(())))[None]
        found = layer(x, attention_mask=None, **rotary(x))
        x = (found[0] if isinstance(found, tuple) else found)[0, -1]
        return model.lm_head(x), x

    def eagle3(token_ids: list[int], hidden: Tensor) -> tuple[Tensor, Tensor]:
        normed = rms(hidden, more["hidden_norm.weight"])
        pair = torch.cat([rms(embed[token_ids], more["input_layernorm.weight"]), normed], -1)
        attended = layer.self_attn(pair[None], attention_mask=None, **rotary(pair[None]))[0][0]
        is_normed = json.loads((path / "config.json").read_text()).get("norm_before_residual")
        x = (normed if is_normed else hidden) + attended
        x = (x + layer.mlp(layer.post_attention_layernorm(x)))[-1]
        head = tensors.get("lm_head.weight", model.lm_head.weight)
        return rms(x, tensors["norm.weight"]) @ head.T, x

    def propose(text: list[int]) -> list[Tensor]:
        found = model.model(torch.tensor([text[:-1]]), output_hidden_states=True)
        if method == "eagle":
            return chain(text, found.last_hidden_state[0], eagle)
        layers = json.loads((path / "config.json").read_text()).get(
            "eagle_aux_hidden_state_layer_ids", (2, 3, 3)
        )
        joined = torch.cat([found.hidden_states[i][0] for i in layers], -1)
        hidden = joined @ tensors["fc.weight"].T
        token_of = (lambda token: token) if d2t is None else (lambda token: token + int(d2t[token]))
        return chain(text, hidden, eagle3, token_of)

    return Case(target, {"method": method, "model": str(path)}, propose)


def medusa_case(folder: Path) -> Case:
    target = llama(folder)
    path = write_head(
        folder / "head", target, "medusa", 4, ("0.0.linear.bias",), medusa_num_heads=DRAFT,
        medusa_num_layers=2,
    )  # fmt: skip
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32).eval()
    tensors = load_file(path / "model.safetensors")

    def propose(text: list[int]) -> list[Tensor]:
        last, found = model.model(torch.tensor([text[:-1]])).last_hidden_state[0, -1], []
        for head in range(DRAFT):
            x = last
            for block in range(2):
                name = f"{head}.{block}.linear"
                x = x + nn.functional.silu(tensors[f"{name}.weight"] @ x + tensors[f"{name}.bias"])
            found.append(tensors[f"{head}.2.weight"] @ x)
        return found

    return Case(target, {"method": "medusa", "model": str(path)}, propose)


_IDS = {"eagle_aux_hidden_state_layer_ids": [1, 2, 5]}
CASES: dict[str, Callable[[Path], Case]] = {
    "mtp-glm": lambda folder: mtp_case(folder, "glm"),
    "mtp-deepseek": lambda folder: mtp_case(folder, "deepseek"),
    "mtp-qwen-next": lambda folder: mtp_case(folder, "qwen-next"),
    "mtp-qwen-3.5": lambda folder: mtp_case(folder, "qwen-3.5"),
    "eagle": lambda folder: eagle_case(folder, "eagle"),
    "eagle-own-embedding": lambda folder: eagle_case(
        folder, "eagle", tensors=("embed_tokens.weight", "fc.bias")
    ),
    "eagle3": lambda folder: eagle_case(
        folder, "eagle3", tensors=("lm_head.weight", "d2t"), draft_vocab_size=90, **_IDS
    ),
    "eagle3-whole-vocabulary": lambda folder: eagle_case(
        folder, "eagle3", tensors=("lm_head.weight", "embed_tokens.weight"),
        norm_before_residual=True, **_IDS,
    ),
    "medusa": medusa_case,
    "eagle3-shared-head": lambda folder: eagle_case(folder, "eagle3", **_IDS),
}  # fmt: skip


def requests(seed: int) -> tuple[list[dict[str, Any]], list[SamplingParams]]:
    """Prompts without a common beginning: of a prefix hit, the head's last position may have been
    computed with another token."""
    chance = random.Random(seed)
    prompts, params = [], []
    for number in range(10):
        tokens = [number, *(chance.randrange(250) for _ in range(chance.randint(1, 60)))]
        prompts.append({"prompt_token_ids": tokens})
        params.append(
            SamplingParams(
                temperature=chance.choice([0.0, 1.0]),
                seed=number,
                ignore_eos=True,
                logprobs=1,
                max_tokens=chance.randint(5, 25),
            )
        )
    return prompts, params


def open_llm(case: Case, backend: str, *, is_on: bool = True, **options: Any) -> LLM:
    spec: dict[str, Any] = {"speculation": False}
    if is_on:
        spec = {"speculative_config": {**case.config, "num_speculative_tokens": DRAFT}}
    return LLM(str(case.target), max_model_len=LONGEST, num_threads=1, backend=backend,
               dtype="float32", **spec, **options)  # fmt: skip


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return CASES[request.param](tmp_path_factory.mktemp("head"))


@torch.no_grad()
@pytest.mark.parametrize("backend", ["auto", "reference"])
def test_proposals_are_those_of_the_formula(
    case: Case, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the replies have the bits that they have without."""
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)
    proposed = noted_drafts(monkeypatch)
    few = {"max_num_seqs": 4, "num_gpu_blocks_override": 18, "max_num_batched_tokens": 32}
    with open_llm(case, backend, **few) as llm:
        found = llm.generate(*requests(1), use_tqdm=False)
    with open_llm(case, backend, is_on=False) as llm:
        wanted = llm.generate(*requests(1), use_tqdm=False)
    for one, other in zip(found, wanted, strict=True):
        assert one.outputs[0].token_ids == other.outputs[0].token_ids
        assert one.outputs[0].logprobs == other.outputs[0].logprobs
    assert len(proposed) > 20
    num_ties = 0
    for text, ids in random.Random(2).sample(proposed, 12):
        assert len(ids) <= DRAFT
        for token, logits in zip(ids, case.propose(text), strict=False):
            expected = int(logits.argmax())
            if len(logits) == 90:
                expected = _token(case, expected)
            if token != expected:
                top = logits.topk(2).values
                assert top[0] - top[1] < TIE, f"{ids} after {text}: {expected}"
                num_ties += 1
                break
    assert num_ties <= 2


def _token(case: Case, row: int) -> int:
    d2t = load_file(Path(case.config["model"]) / "model.safetensors")["d2t"]
    return row + int(d2t[row])
