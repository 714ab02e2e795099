"""`BaseThinkingReasoningParser`: vLLM's base class for reasoning between two tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from quire.server.plugins.reasoning_parser import ReasoningParser
from quire.server.plugins.records import DeltaMessage


class BaseThinkingReasoningParser(ReasoningParser):
    """Reasoning between two tokens. A subclass has the properties `start_token`, `end_token`."""

    start_token: str
    end_token: str

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        """Raises ValueError without the two texts, RuntimeError if they are not tokens."""
        super().__init__(tokenizer, *args, **kwargs)
        if not tokenizer:
            raise ValueError(f"the model tokenizer must be passed to {type(self).__name__}")
        if not self.start_token or not self.end_token:
            raise ValueError("start_token and end_token must be defined in subclasses")
        begin, end = self.vocab.get(self.start_token), self.vocab.get(self.end_token)
        if begin is None or end is None:
            raise RuntimeError(
                f"{type(self).__name__} reasoning parser could not locate think start/end tokens "
                f"in the tokenizer: {self.start_token} and {self.end_token}"
            )
        self.start_token_id, self.end_token_id = begin, end

    @property
    def reasoning_start_str(self) -> str | None:
        """`start_token`."""
        return self.start_token

    @property
    def reasoning_end_str(self) -> str | None:
        """`end_token`."""
        return self.end_token

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Whether the last of the two tokens is the end."""
        marks = (self.start_token_id, self.end_token_id)
        last = next((one for one in reversed(input_ids) if one in marks), None)
        return last == self.end_token_id

    def is_reasoning_end_streaming(
        self,
        input_ids: Sequence[int],  # noqa: ARG002
        delta_ids: Iterable[int],
    ) -> bool:
        """Whether the end is among the new tokens."""
        return self.end_token_id in delta_ids

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """What follows the first end."""
        ids = list(input_ids)
        return ids[ids.index(self.end_token_id) + 1 :] if self.end_token_id in ids else []

    def extract_reasoning(
        self,
        model_output: str,
        request: Any,  # noqa: ARG002
    ) -> tuple[str | None, str | None]:
        """The begin may be missing; without an end all is reasoning."""
        before, begin, after = model_output.partition(self.start_token)
        reasoning, end, content = (after if begin else before).partition(self.end_token)
        return reasoning, (content or None) if end else None

    def extract_reasoning_streaming(
        self,
        previous_text: str,  # noqa: ARG002
        current_text: str,  # noqa: ARG002
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Without a begin all is content, as in vLLM: subclasses decide otherwise."""
        marks = (self.start_token_id, self.end_token_id)
        if len(delta_token_ids) == 1 and delta_token_ids[0] in marks:
            return None
        if self.end_token_id in previous_token_ids or self.start_token_id not in current_token_ids:
            return DeltaMessage(content=delta_text)
        text = delta_text
        if self.start_token_id in delta_token_ids:
            text = text.partition(self.start_token)[2]
        if self.end_token_id not in delta_token_ids:
            return DeltaMessage(reasoning=text)
        reasoning, _, content = text.partition(self.end_token)
        return DeltaMessage(reasoning=reasoning, content=content or None)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Tokens between the two; they may be nested."""
        count = depth = 0
        for token_id in token_ids:
            if token_id == self.start_token_id:
                depth += 1
            elif token_id == self.end_token_id:
                depth = max(0, depth - 1)
            elif depth:
                count += 1
        return count
