"""The engines that can be scored: each is a function from prompts to texts, decoded greedily."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer

MAX_TOKENS = 200
# Prompts in one padded batch of the transformers engine.
_BATCH = 16

Generate = Callable[[Sequence[str]], list[str]]


def transformers_engine(model_directory: Path) -> Generate:
    """transformers in bf16, the precision the weights are shipped in."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer: Any = AutoTokenizer.from_pretrained(model_directory, padding_side="left")
    model: Any = AutoModelForCausalLM.from_pretrained(model_directory, dtype=torch.bfloat16)

    def generate(prompts: Sequence[str]) -> list[str]:
        # Prompts of one length share a batch, so that little is padded.
        order = sorted(range(len(prompts)), key=lambda place: len(prompts[place]))
        texts = [""] * len(prompts)
        for start in range(0, len(order), _BATCH):
            places = order[start : start + _BATCH]
            batch = tokenizer(
                [prompts[place] for place in places], return_tensors="pt", padding=True,
                add_special_tokens=False,
            )  # fmt: skip
            with torch.no_grad():
                ids = model.generate(
                    input_ids=batch["input_ids"], attention_mask=batch["attention_mask"],
                    do_sample=False, temperature=None, top_p=None, max_new_tokens=MAX_TOKENS,
                )  # fmt: skip
            answers = tokenizer.batch_decode(
                ids[:, batch["input_ids"].shape[1] :], skip_special_tokens=True
            )
            for place, text in zip(places, answers, strict=True):
                texts[place] = text
        return texts

    return generate


def quire_engine(model_directory: Path) -> Generate:
    """Quire itself."""
    from quire import LLM, SamplingParams

    tokenizer = Tokenizer.from_file(str(model_directory / "tokenizer.json"))
    engine = LLM(model=str(model_directory), dtype="float32")
    parameters = SamplingParams(temperature=0, max_tokens=MAX_TOKENS)

    def generate(prompts: Sequence[str]) -> list[str]:
        encoded = [
            {"prompt_token_ids": tokenizer.encode(prompt, add_special_tokens=False).ids}
            for prompt in prompts
        ]
        return [result.outputs[0].text for result in engine.generate(encoded, parameters)]

    return generate


ENGINES: dict[str, Callable[[Path], Generate]] = {
    "transformers": transformers_engine,
    "quire": quire_engine,
}
