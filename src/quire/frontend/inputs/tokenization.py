"""`Tokenization`: how a prompt is tokenized, from the `tokenization_kwargs` of vLLM's methods.

Used by `PromptParser`; the server truncates its prompts with the same `Truncation`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from quire.errors import ConfigError, RequestError, quoted
from quire.tokenizer.tokenizer import SpecialFrame

_KNOWN = (
    "add_special_tokens", "truncate_prompt_tokens", "truncation_side", "truncation", "max_length",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Truncation:
    """Number of tokens of a prompt to keep, and the end at which they are kept."""

    num_tokens: int
    side: Literal["left", "right"] | None
    """The end that is cut off. None: the left end, keeping the special tokens around a text."""
    keeps_frame: bool = False
    """Whether special tokens are kept whichever end is cut; by default the tokenizer says which."""

    @classmethod
    def of(
        cls,
        count: int | None,
        side: Literal["left", "right"] | None,
        max_model_len: int,
        *,
        pools: bool = False,
    ) -> Truncation | None:
        """Keep `count` tokens; -1: as many as leave room for one more; None: no truncation. Raises
        RequestError for 0, and for more than the context holds. `pools`: no token follows, and a
        text loses its end by default."""
        if count is None:
            return None
        if count == 0:
            raise RequestError(
                "truncate_prompt_tokens=0 would keep no token of the prompt. Please keep at least "
                "1, or use -1 to keep as many as fit.",
                parameter="truncate_prompt_tokens",
                value=count,
            )
        if count > max_model_len:
            raise RequestError(
                f"truncate_prompt_tokens={count} cannot be greater than max_model_len = "
                f"{max_model_len}. Please request a smaller truncation size.",
                parameter="truncate_prompt_tokens",
                value=count,
            )
        most = max_model_len if pools else max_model_len - 1
        return cls(most if count == -1 else count, side, keeps_frame=pools)

    def kept(
        self,
        token_ids: list[int],
        frame: SpecialFrame | None = None,
        own_side: Literal["left", "right"] = "right",
    ) -> list[int]:
        """The kept part of a prompt. `frame`: the special tokens at its beginning and end.
        `own_side`: the end that a text which pools loses if the request does not say."""
        if len(token_ids) <= self.num_tokens:
            return token_ids
        before = after = 0
        if frame is not None and (self.side is None or self.keeps_frame):
            before, after = len(frame.before), len(frame.after)
        room = max(0, self.num_tokens - before - after)
        inner = token_ids[before : len(token_ids) - after]
        side = self.side or (own_side if self.keeps_frame else "left")
        inner = inner[:room] if side == "right" else inner[len(inner) - room :]
        kept = [*token_ids[:before], *inner, *token_ids[len(token_ids) - after :]]
        return kept[: self.num_tokens]


@dataclass(frozen=True, slots=True)
class Tokenization:
    """The tokenization options of one request."""

    add_special_tokens: bool = True
    """Whether to add the tokenizer's special tokens to a text."""
    truncation: Truncation | None = None
    """None: a prompt that is too long is rejected."""

    @classmethod
    def of(
        cls, given: Mapping[str, Any] | None, max_model_len: int, *, pools: bool = False
    ) -> Tokenization:
        """Parse `tokenization_kwargs`. Raises ConfigError for unknown or invalid options, and
        RequestError for an impossible length."""
        if given is None:
            return AS_IT_IS
        if not isinstance(given, Mapping):
            raise ConfigError(f"tokenization_kwargs must be a dict, got {quoted(given)}")
        for name in given:
            if name not in _KNOWN:
                raise ConfigError(
                    f"tokenization_kwargs: {name if isinstance(name, str) else quoted(name):.100} "
                    f"is not supported; use {', '.join(_KNOWN)}"
                )
        special = given.get("add_special_tokens", True)
        if not isinstance(special, bool):
            raise ConfigError(f"add_special_tokens must be True or False, got {quoted(special)}")
        side = given.get("truncation_side")
        if side not in (None, "left", "right"):
            raise ConfigError(f"truncation_side must be left or right, got {quoted(side)}")
        return cls(special, Truncation.of(_num_kept(given), side, max_model_len, pools=pools))


AS_IT_IS = Tokenization()


def _num_kept(given: Mapping[str, Any]) -> int | None:
    """The value of `truncate_prompt_tokens`, or of `max_length` with `truncation`."""
    count, truncation = given.get("truncate_prompt_tokens"), given.get("truncation")
    if truncation not in (None, False, True, "longest_first", "do_not_truncate"):
        raise ConfigError(f"truncation must be True or False, got {quoted(truncation)}")
    if truncation in (True, "longest_first"):
        count = given.get("max_length", -1)
    elif given.get("max_length") is not None:
        raise ConfigError("max_length requires truncation=True")
    if count is not None and (type(count) is not int or count < -1):
        raise ConfigError(
            f"truncate_prompt_tokens must be a number of tokens, or -1, got {quoted(count)}"
        )
    return count
