"""A logits processor that makes a model do what the prompt of an agent asks for.

A user's text has a call of a tool, `[[{"name": ..., "arguments": ...}]]`, or the same as opencode
quotes it, with a backslash before each quotation mark: that is the first reply, and the result of
the tool, repeated, is the second. `[[SAY ...]]` is repeated where there are no tools; all other
prompts are answered with `OK`.
So agents with long prompts of their own can be driven by a small model. QUIRE_OBEDIENT_TOKENIZER
names its `tokenizer.json`.
"""

from __future__ import annotations

import os
import re
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tokenizers import Tokenizer

from quire.logits_processors import AdapterLogitsProcessor, RequestLogitsProcessor
from quire.params import SamplingParams

_CALL = re.compile(r"\[\[(\{.*?\})\]\]", re.DOTALL)
_SAY = re.compile(r"\[\[SAY (.*?)\]\]", re.DOTALL)
_RESULT = re.compile(r"<tool_response>\n(.*?)\n</tool_response>", re.DOTALL)
_END = "<|im_end|>"
_MOST_RESULT = 300


def reply_to(prompt: str) -> str:
    """What the model says."""
    results, call = _RESULT.findall(prompt), _CALL.search(prompt)
    if results:
        return f"The tool says: {results[-1][:_MOST_RESULT]}"
    if call is not None and "<tools>" in prompt:
        return f"<tool_call>\n{_unquoted(call[1])}\n</tool_call>"
    said = _SAY.search(prompt)
    return "OK" if said is None else said[1]


def _unquoted(call: str) -> str:
    return call.replace('\\"', '"') if call.startswith('{\\"') else call


class Obedient(AdapterLogitsProcessor):
    """Forces the tokens of the reply, one after the other."""

    def __init__(self, vllm_config: Any, device: str, is_pin_memory: bool) -> None:
        super().__init__(vllm_config, device, is_pin_memory)
        self._tokenizer = Tokenizer.from_file(os.environ["QUIRE_OBEDIENT_TOKENIZER"])

    def is_argmax_invariant(self) -> bool:
        return False

    def new_req_logits_processor(self, params: SamplingParams) -> RequestLogitsProcessor:  # noqa: ARG002
        wanted: list[int] = []

        def forced(
            prompt: list[int], output: list[int], logits: NDArray[np.float32]
        ) -> NDArray[np.float32]:
            if not wanted:
                text = reply_to(self._tokenizer.decode(prompt, skip_special_tokens=False)) + _END
                wanted.extend(self._tokenizer.encode(text, add_special_tokens=False).ids)
            token = wanted[min(len(output), len(wanted) - 1)]
            logits[:] = -np.inf
            logits[token] = 0.0
            return logits

        return forced
