"""Benchmark datasets: the classes that scripts import from `vllm.benchmarks.datasets`.

The requests are those of `quire bench`. The tokenizer may be any that has the methods of
transformers' tokenizers.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from quire.bench.datasets import DatasetArgs, DatasetName, load_requests
from quire.errors import ConfigError

DEFAULT_NUM_PROMPTS = 1000


@dataclass
class SampleRequest:
    """One request. The fields and their order are vLLM's; fields of features that Quire lacks are
    None."""

    prompt: str | list[int]
    prompt_len: int
    expected_output_len: int = 0
    multi_modal_data: None = None
    lora_request: None = None
    request_id: str | None = None
    timestamp: float | None = None
    chat_messages: list[dict[str, Any]] | None = None
    request_overrides: dict[str, Any] | None = None


class BenchmarkDataset:
    """Base class of the datasets."""

    DEFAULT_SEED = 0
    IS_MULTIMODAL = False
    name: ClassVar[DatasetName]

    def __init__(
        self,
        dataset_path: str | None = None,
        random_seed: int = DEFAULT_SEED,
        disable_shuffle: bool = False,
    ) -> None:
        """`dataset_path`: the dataset's file, if it has one."""
        self.dataset_path = dataset_path
        self.random_seed = random_seed
        self.disable_shuffle = disable_shuffle

    def _load(
        self, tokenizer: Any, num_requests: int, id_prefix: str, **options: Any
    ) -> list[SampleRequest]:
        """Load requests as `quire bench` does. Raises ConfigError."""
        args = DatasetArgs(
            dataset_name=self.name,
            dataset_path=self.dataset_path,
            num_prompts=num_requests,
            seed=self.random_seed,
            disable_shuffle=self.disable_shuffle,
            **options,
        )
        found = load_requests(args, _Tokenizer(tokenizer))  # type: ignore[arg-type]
        return [
            SampleRequest(
                one.prompt, one.prompt_len, one.output_len, request_id=f"{id_prefix}{number}"
            )
            for number, one in enumerate(found)
        ]


class RandomDataset(BenchmarkDataset):
    """Random tokens."""

    name = "random"

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        request_id_prefix: str = "",
        *,
        prefix_len: int = 0,
        range_ratio: float = 0.0,
        input_len: int = 1024,
        output_len: int = 128,
    ) -> list[SampleRequest]:
        """Return prompts of `prefix_len` shared tokens and about `input_len` tokens of their own.
        Raises ConfigError."""
        return self._load(
            tokenizer,
            num_requests,
            request_id_prefix,
            random_prefix_len=prefix_len,
            random_range_ratio=range_ratio,
            random_input_len=input_len,
            random_output_len=output_len,
        )


class PrefixRepetitionRandomDataset(BenchmarkDataset):
    """Random tokens after a few shared prefixes."""

    name = "prefix_repetition"

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        prefix_len: int = 256,
        suffix_len: int = 256,
        num_prefixes: int = 10,
        output_len: int = 128,
        request_id_prefix: str = "",
    ) -> list[SampleRequest]:
        """Return prompts of a shared prefix and a random suffix. Raises ConfigError."""
        return self._load(
            tokenizer,
            num_requests,
            request_id_prefix,
            prefix_repetition_prefix_len=prefix_len,
            prefix_repetition_suffix_len=suffix_len,
            prefix_repetition_num_prefixes=num_prefixes,
            prefix_repetition_output_len=output_len,
        )


class ShareGPTDataset(BenchmarkDataset):
    """Conversations of a ShareGPT file."""

    name = "sharegpt"

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        output_len: int | None = None,
        request_id_prefix: str = "",
    ) -> list[SampleRequest]:
        """Return prompts of conversations. `output_len`: None: the length of the recorded answer.
        Raises ConfigError."""
        return self._load(
            tokenizer, num_requests, request_id_prefix, sharegpt_output_len=output_len
        )


class CustomDataset(BenchmarkDataset):
    """JSONL lines `{"prompt": ..., "output_tokens": ...}`."""

    name = "custom"

    def sample(
        self,
        tokenizer: Any,
        num_requests: int,
        output_len: int | None = None,
        skip_chat_template: bool = False,
        request_id_prefix: str = "",
        chat_template_kwargs: dict[str, Any] | None = None,
    ) -> list[SampleRequest]:
        """Return prompts of the file as chat messages, or as they are if `skip_chat_template`.
        `chat_template_kwargs`: further variables of the template. Raises ConfigError."""
        wanted = None if output_len == -1 else output_len  # in vLLM, -1 means each line's own
        found = self._load(tokenizer, num_requests, request_id_prefix, custom_output_len=wanted)
        if not skip_chat_template:
            for request in found:
                request.prompt = tokenizer.apply_chat_template(
                    [{"role": "user", "content": request.prompt}],
                    add_generation_prompt=True,
                    tokenize=False,
                    **(chat_template_kwargs or {}),
                )
                request.prompt_len = _length(tokenizer, str(request.prompt))
        return found


def _length(tokenizer: Any, text: str) -> int:
    """Number of tokens of a text. A script's own tokenizer may lack `encode` and be callable."""
    if hasattr(tokenizer, "encode"):
        return len(tokenizer.encode(text, add_special_tokens=False))
    return len(tokenizer(text).input_ids)


class _Tokenizer:
    """Adapts a tokenizer of transformers to the interface that `load_requests` needs."""

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self.vocab_size: int = getattr(tokenizer, "vocab_size", 0)
        self.special_token_ids = set(getattr(tokenizer, "all_special_ids", ()))

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """The tokens of a text."""
        if not hasattr(self._tokenizer, "encode"):
            return list(self._tokenizer(text).input_ids)
        return list(self._tokenizer.encode(text, add_special_tokens=add_special_tokens))

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """The text of tokens."""
        return str(self._tokenizer.decode(ids, skip_special_tokens=skip_special_tokens))


_OF_ALL = ("dataset_name", "dataset_path", "num_prompts", "seed", "disable_shuffle")
"""Options of every dataset."""
_SHORT = ("input_len", "output_len")
"""Short forms of other options. They are not declared, because scripts define their own."""
_DATASETS: dict[str, type[BenchmarkDataset]] = {
    one.name: one
    for one in (RandomDataset, PrefixRepetitionRandomDataset, ShareGPTDataset, CustomDataset)
}


def add_dataset_parser(parser: argparse.ArgumentParser) -> None:
    """Declares the options that select the requests, for `get_samples`."""
    for field in fields(DatasetArgs):
        if field.name in _SHORT:
            continue
        flag = "--" + field.name.replace("_", "-")
        if field.name == "disable_shuffle":
            parser.add_argument(flag, action="store_true")
        elif field.name == "dataset_name":
            parser.add_argument(flag, choices=sorted(_DATASETS), default=field.default)
        else:
            parser.add_argument(
                flag, type=_type_of(field.default, field.name), default=field.default
            )
    parser.add_argument("--skip-chat-template", action="store_true")
    parser.add_argument("--request-id-prefix", default="")
    parser.add_argument("--chat-template-kwargs", type=json.loads, default=None)


def get_samples(args: argparse.Namespace, tokenizer: Any) -> list[SampleRequest]:
    """Return the requests that the options of `add_dataset_parser` select. Raises ConfigError."""
    kind = _DATASETS.get(args.dataset_name)
    if kind is None:
        raise ConfigError(
            f"dataset_name {args.dataset_name!r} is not supported; use "
            + " or ".join(sorted(_DATASETS))
        )
    options = {
        field.name: getattr(args, field.name)
        for field in fields(DatasetArgs)
        if hasattr(args, field.name) and field.name not in (*_SHORT, *_OF_ALL)
    }
    dataset = kind(
        getattr(args, "dataset_path", None),
        getattr(args, "seed", BenchmarkDataset.DEFAULT_SEED),
        getattr(args, "disable_shuffle", False),
    )
    prefix = getattr(args, "request_id_prefix", "") or ""
    if isinstance(dataset, CustomDataset):
        length = options.get("custom_output_len")
        skips = getattr(args, "skip_chat_template", False)
        variables = getattr(args, "chat_template_kwargs", None)
        return dataset.sample(tokenizer, args.num_prompts, length, skips, prefix, variables)
    return dataset._load(tokenizer, args.num_prompts, prefix, **options)


def _type_of(default: object, name: str) -> type:
    if default is not None:
        return type(default)
    return str if name == "dataset_path" else int
