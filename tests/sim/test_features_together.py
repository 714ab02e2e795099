"""Features together, at random: engines with ranks, in threads and processes, one or two of them,
give each request the tokens, log-probabilities and finish reasons that it gets alone from a plain
engine, while others are aborted and the engine is paused, put to sleep and given adapters."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import sweeps
from adapter_writer import write_adapter
from prompt_adapter_writer import write_prompt_adapter
from random_params import BEGIN, REASONING, params_of
from rank_cases import FAMILIES, FORMATS
from tiny_checkpoint import CONFIG, write_tiny_checkpoint
from tiny_heads import MTP_MODELS, write_head, write_mtp_model

from quire import LLM, SamplingParams
from quire.adapters import LoRARequest, PromptAdapterRequest
from quire.config.engine_args import EngineArgs
from quire.errors import DoesNotFitError, EngineGenerateError, RequestError
from quire.frontend.online.async_llm import AsyncLLM
from quire.params import RequestOutputKind
from quire.planning.plan import build_engine_config
from quire.scheduler.drafting.drafting import RowCosts

LONGEST = 256
MOST_S = 250  # that an engine may take for all requests of a round
TEXT = [one for one in (*FAMILIES, *MTP_MODELS) if one != "gpt2"]  # its weights are transposed
PICTURES = ["qwen3-vl", "gemma3", "qwen2.5-vl", "smolvlm"]
RECURRENT = ["lfm2", "mamba2", "qwen-next", "qwen-3.5"]
WITH_EAGLE = ["qwen3", "llama", "qwen2", "qwen2_moe", "minicpm3", "lfm2"]
MODULES = [
    f"{stem}.{layer}.{part}"
    for stem in ("model.layers", "backbone.layers", "transformer.blocks")
    for layer in (0, 1)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "self_attn.q_b_proj",
                 "mlp.gate_proj", "mlp.down_proj", "mixer.in_proj", "mixer.out_proj",
                 "conv.in_proj", "feed_forward.w2", "attn.Wqkv", "ffn.down_proj")
]  # fmt: skip
"""What adapters change."""
GIVEN = {"multi_modal_data", "prompt_embeds", "prompt_adapter_request"}
KINDS: list[dict[str, Any]] = [{}, {"lora_bias": True}, {"use_dora": True}]
FOR_TEXT = {"enable_lora": True, "max_lora_rank": 8, "enable_prompt_embeds": True,
            "enable_prompt_adapter": True, "max_prompt_adapter_token": 8}  # fmt: skip
PROCESSORS = ["logits_processors:Ledger", "logits_processors:TargetToken"]
PLAIN = {"speculation": False, "enable_prefix_caching": False, "max_num_seqs": 1,
         "kv_store": False, "num_threads": 1, "max_num_batched_tokens": LONGEST}  # fmt: skip


class Request(NamedTuple):
    prompt: dict[str, Any]
    params: SamplingParams
    adapters: dict[str, Any]
    wanted: Any


class Models(dict[str, Path]):
    """Checkpoints with adapters in their folders, written when they are first needed."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __missing__(self, family: str) -> Path:
        path = self[family] = self._folder / family
        if family in PICTURES:
            from vision_cases import CASES

            CASES[family](path)
            return path
        if family in MTP_MODELS:
            write_mtp_model(path, family)
        else:
            write_tiny_checkpoint(path, **{**FAMILIES[family], "max_seq_len": 512})
        if family in WITH_EAGLE:
            write_head(path / "eagle", path, "eagle")
        for number, kind in enumerate(KINDS):
            write_adapter(path / f"lora{number}", path, number, modules=MODULES, **kind)
        rows = np.random.default_rng(2).standard_normal((5, width_of(family)), np.float32)
        write_prompt_adapter(path / "rows", rows)
        return path


def width_of(family: str) -> int:
    return int({**CONFIG, **FAMILIES.get(family, {})}["hidden_size"])


def lora(model: Path, number: int, *, again: bool = False) -> LoRARequest:
    return LoRARequest(f"l{number}", number + 1, str(model / f"lora{number}"), None, again)


def joined(outputs: list[Any], *, is_delta: bool = False) -> Any:
    """All that the tokens of a request decide."""
    found: dict[int, list[Any]] = {}
    for output in outputs:
        for one in output.outputs:
            own = [[*one.token_ids], one.text, None if one.logprobs is None else [*one.logprobs],
                   one.cumulative_logprob, one.finish_reason, one.stop_reason,
                   one.index]  # fmt: skip
            if is_delta and (before := found.get(one.index)):
                own[0], own[1] = before[0] + own[0], before[1] + own[1]
                own[2] = None if own[2] is None else before[2] + own[2]
            found[one.index] = own
    prompt_logprobs = [one.prompt_logprobs for one in outputs if one.prompt_logprobs]
    return prompt_logprobs[:1], [found[index] for index in sorted(found)]


def begins(found: Any, wanted: Any) -> bool:
    """Whether an aborted request has what it would have begun with."""
    if isinstance(wanted, str):
        return True
    pairs = [(ours, wanted[1][ours[6]]) for ours in found[1]]
    return all(
        ours == theirs
        if ours[4] not in ("abort", None)
        else ours[0] == theirs[0][: len(ours[0])]
        and (ours[2] is None or ours[2] == theirs[2][: len(ours[2])])
        for ours, theirs in pairs
    )


class Round:
    """A model, requests, and what they give alone."""

    def __init__(
        self, models: Models, seed: str, folder: Path, count: int, families: list[str]
    ) -> None:
        self.models, self.chance, self.folder = models, random.Random(seed), folder
        chance, self.family = self.chance, self.chance.choice(families)
        self.model, self.is_text = models[self.family], self.family in TEXT
        self.has_processors = chance.random() < 0.2
        names, formats = ("dtype", "quantization", "kv_cache_dtype"), chance.choice(FORMATS)
        self.common: dict[str, Any] = dict(zip(names, formats, strict=True))
        # A number that is given lets requests wait however long the overload lasts.
        self.common |= {"max_num_queued_reqs": 1024}
        self.common |= {"max_model_len": LONGEST, "reasoning_config": REASONING}
        self.common |= FOR_TEXT if self.is_text else {}
        self.common |= {"logits_processors": PROCESSORS} if self.has_processors else {}
        self._base = [chance.randrange(250) for _ in range(90)]
        self.requests: list[Request] = []
        with LLM(str(self.model), **self.common, **PLAIN) as llm:
            self.layout = llm.llm_engine.vllm_config.cache.layout
            for number in range(count):
                params = params_of(self.chance, number)
                if self.has_processors and self.chance.random() < 0.3:
                    params.extra_args = {"target_token": self.chance.randrange(250)}
                prompt = self._prompt() if self.is_text else self._with_images(llm)
                adapters = self._adapters()
                if {*prompt, *adapters} & GIVEN:
                    params.prompt_logprobs = None  # it is refused
                try:
                    [output] = llm.generate([prompt], params, use_tqdm=False, **adapters)
                    wanted = str(output.error) if output.error else joined([output])
                except (RequestError, EngineGenerateError) as error:
                    wanted = str(error)
                self.requests.append(Request(prompt, params, adapters, wanted))

    def _prompt(self) -> dict[str, Any]:
        """Tokens that begin like others and repeat themselves; some have rows."""
        chance = self.chance
        own = [chance.randrange(250) for _ in range(chance.randint(1, 9))]
        shared = self._base[: chance.choice([0, 0, 15, 16, 17, 48, 64, 90])]
        prompt = [*shared, *own * chance.randint(1, 4)]
        if chance.random() < 0.2:
            prompt += [ord(char) - ord("!") for char in BEGIN]
        one: dict[str, Any] = {"prompt_token_ids": prompt}
        one |= chance.choice([{}, {}, {}, {}, {"prediction": own * 4}, {"cache_salt": "a"}])
        if chance.random() < 0.12:
            shape = (20 + len(prompt), width_of(self.family))
            one["prompt_token_ids"] = [7] * 20 + prompt
            one["prompt_is_token_ids"] = [i >= 20 or i % 5 == 0 for i in range(shape[0])]
            number = chance.randrange(3)
            one["prompt_embeds"] = np.random.default_rng(number).standard_normal(shape, np.float32)
        return one

    def _with_images(self, llm: LLM) -> dict[str, Any]:
        from PIL import Image

        from quire.models.media.families import vision_model

        vision = vision_model(llm.llm_engine.model_config.hf_config)
        assert vision is not None
        images, text = [], "Begin"
        for number in self.chance.choices(range(4), k=self.chance.randint(0, 3)):
            size = (20 + 7 * number, 23 + 11 * number, 3)
            pixels = np.random.default_rng(number).integers(0, 256, size)
            images.append(Image.fromarray(pixels.astype(np.uint8)))
            text += f" {vision.placeholder} " + "What is shown here, and where?"[: 9 * number]
        return {"prompt": text, **({"multi_modal_data": {"image": images}} if images else {})}

    def _adapters(self) -> dict[str, Any]:
        found: dict[str, Any] = {}
        if self.is_text and self.chance.random() < 0.4:
            found["lora_request"] = lora(self.model, self.chance.randrange(3))
        if self.is_text and self.chance.random() < 0.15:
            found["prompt_adapter_request"] = PromptAdapterRequest("r", 1, f"{self.model}/rows", 5)
        return found

    def engine(self) -> tuple[dict[str, Any], Any]:
        """The options of an engine, and where it runs."""
        chance = self.chance
        engines = chance.choice([1, 1, 1, 2])
        splits = [(1, 1), (2, 1), (1, 2), (3, 1), (2, 2), (3, 2)][: 6 if engines == 1 else 3]
        tensor, stages = chance.choice(splits if self.is_text else splits[:1])
        budgets = [16, 17, chance.randint(24, 70), 200, 512]
        budget = chance.choice(budgets if self.is_text else budgets[2:])  # an image is not cut
        fewest = self.layout.most_blocks(LONGEST, budget, 16) * stages
        options: dict[str, Any] = {
            **self.common, "num_threads": 1, "tensor_parallel_size": tensor,
            "pipeline_parallel_size": stages, "data_parallel_size": engines,
            "max_num_batched_tokens": budget, "kv_store": False,
            "max_num_seqs": min(budget, chance.choice([2, 6, 40])),
            "num_gpu_blocks_override": fewest + chance.choice([0, 7, 300]),
            "enable_prefix_caching": chance.random() < 0.85,
            "scheduling_policy": chance.choice(["fcfs", "priority"]),
        }  # fmt: skip
        options |= {"distributed_executor_backend": "mp"} if tensor * stages > 1 else {}
        if self.is_text:
            options["max_cpu_loras"] = chance.choice([1, 2, 3])
            options["max_loras"] = chance.choice([None, 1])
        if options["enable_prefix_caching"] and chance.random() < 0.5:
            path = str(self.folder / "store")
            options |= {"kv_store": True, "kv_store_path": path, "kv_store_size": 64 << 20}
        options |= {} if self.has_processors else self._speculation(stages)
        return options, "process" if engines == 2 else chance.choice(["thread", "process"])

    def _speculation(self, stages: int) -> dict[str, Any]:
        methods = ["ngram", "suffix", "off"]
        if stages == 1:
            methods += ["mtp"] * 2 * (self.family in MTP_MODELS)
            methods += ["eagle"] * (self.family in WITH_EAGLE)
            methods += ["draft_model"] * 2 * (self.is_text and self.family not in RECURRENT)
        method = self.chance.choice(methods)
        if method == "off":
            return {"speculation": False}
        config = {"method": method, "num_speculative_tokens": self.chance.choice([1, 3, 8, 32])}
        if method == "draft_model":
            config["model"] = str(self.models[self.chance.choice(["qwen3", "llama"])])
        elif method == "eagle":
            config["model"] = str(self.model / "eagle")
        elif method != "mtp":
            config["prompt_lookup_min"] = 1
        return {"speculative_config": config}


async def disturb(engine: AsyncLLM, of: Round, chance: random.Random, work: Any) -> None:
    """What else happens to an engine while it computes."""
    for _ in range(30):
        if work.done():
            return
        await asyncio.sleep(chance.choice([0, 0.01, 0.1]))
        mode: Any = chance.choice(["keep", "wait"])
        match chance.choice(["pause", "sleep", "reset", "abort", "load", "remove"]):
            case "pause":
                await engine.pause_generation(mode=mode, clear_cache=chance.random() < 0.5)
                await engine.resume_generation()
            case "sleep":
                await engine.sleep(chance.randrange(3), mode=mode)
                await engine.wake_up(chance.choice([["weights"], ["kv_cache"], None]))
                await engine.wake_up()
            case "reset":
                await engine.reset_prefix_cache(chance.random() < 0.7, chance.random() < 0.3)
                if chance.random() < 0.3:
                    await engine.reset_mm_cache()
            case "abort":
                await engine.abort(str(chance.randrange(len(of.requests))))
            case "load" if of.is_text:
                adapter = lora(of.model, chance.randrange(3), again=chance.random() < 0.5)
                await engine.add_lora(adapter)
            case "remove" if of.is_text:
                await engine.remove_lora(chance.randint(1, 3))
                await engine.remove_prompt_adapter(1)


async def served(engine: AsyncLLM, case: Round, seed: str) -> list[str]:
    """What is wrong with an engine that computes the requests of a round."""
    chance, faults = random.Random(seed), list[str]()
    spread = chance.choice([0, 0.05, 0.5])

    async def one(number: int, request: Request, kind: RequestOutputKind, leaves: bool) -> None:
        await asyncio.sleep(chance.random() * spread)
        params, outputs = request.params.clone(), list[Any]()
        params.output_kind = kind
        stream = engine.generate(
            request.prompt, params, str(number), priority=number % 3, **request.adapters
        )
        try:
            async for output in stream:
                outputs.append(output)
                if leaves:
                    await stream.aclose()
                    break
        except (RequestError, EngineGenerateError) as raised:
            found: Any = str(raised)
        else:
            error = outputs[-1].error if outputs else None  # if the caller left before it came
            found = str(error) if error else joined(outputs, is_delta=kind.name == "DELTA")
        ends = [] if isinstance(found, str) else [each[4] for each in found[1]]
        is_cut = "abort" in ends or (leaves and bool(ends))
        if not (begins(found, request.wanted) if is_cut else found == request.wanted):
            faults.append(f"request {number}, {kind}:\n{found}\nis not\n{request.wanted}")

    kinds = [*RequestOutputKind]
    work = asyncio.gather(*(
        one(number, request, chance.choice(kinds), chance.random() < 0.07)
        for number, request in enumerate(case.requests)
    ))  # fmt: skip
    await disturb(engine, case, random.Random(f"{seed} disturbance"), work)
    await work
    while not await engine.reset_prefix_cache():  # ends when no request holds blocks
        await asyncio.sleep(0.01)
    return faults


def check_round(
    models: Models, seed: str, folder: Path, count: int, engines: int, families: list[str]
) -> None:
    """Several engines compute the same requests; with the KV store, from what is stored there."""
    case = Round(models, seed, folder, count, families)
    for number in range(engines):
        options, mode = case.engine()
        where = f"seed {seed!r}, engine {number}: {case.family}, {mode}, {options}"
        print(where, flush=True)
        try:
            config = build_engine_config(EngineArgs(str(case.model), **options), "server")
        except DoesNotFitError:  # recurrent layers need more blocks with a head
            options["num_gpu_blocks_override"] += 64
            config = build_engine_config(EngineArgs(str(case.model), **options), "server")
        engine = AsyncLLM(config, engine_mode=mode)
        try:
            serving = served(engine, case, f"{seed} {number}")
            faults = asyncio.run(asyncio.wait_for(serving, MOST_S))
        finally:
            engine.shutdown()
        assert not faults, "\n".join([where, *faults])


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Models:
    return Models(tmp_path_factory.mktemp("models"))


@pytest.fixture(autouse=True)
def drafts_that_cost_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(RowCosts, "seconds", lambda *_: 1.0)


def test_a_random_round(models: Models, tmp_path: Path) -> None:
    check_round(models, str(sweeps.seed() or 0), tmp_path, 16, 1, TEXT)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("part", range(20))
def test_many_random_rounds(models: Models, tmp_path: Path, part: int) -> None:
    for number in range(5):
        folder = tmp_path / str(number)
        check_round(models, f"long {part} {number}", folder, 40, 4, [*TEXT, *PICTURES])
