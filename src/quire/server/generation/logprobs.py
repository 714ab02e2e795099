"""Log-probabilities in the two shapes that OpenAI gave them: parallel lists for completions,
a list of positions for chats. JSON has no infinity: minus infinity becomes -9999, and plus
infinity, which a processed logit may be, the largest number of 32 bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from quire.outputs import CompletionOutput, FlatLogprobs
from quire.server.json_pieces import ITEMS_AT_ONCE, JsonList
from quire.server.requests.fields import (
    ChatLogprobs,
    CompletionLogprobs,
    PositionLogprobs,
    PromptLogprob,
    TokenLogprob,
)
from quire.tokenizer import Tokenizer
from quire.tokenizer.vocabulary import MAX_TOKENS_BEFORE

LEAST_LOGPROB = -9999.0
MOST_LOGPROB = 3.4028234663852886e38


class CompletionLists:
    """The parallel lists of a completion's log-probabilities, as they grow."""

    def __init__(self, num_chars: int = 0) -> None:
        self.text_offset = JsonList()
        self.token_logprobs = JsonList()
        self.tokens = JsonList()
        self.top_logprobs = JsonList()
        self.num_chars = num_chars
        """Characters of all tokens so far, from the beginning of the choice."""

    def join(self, others: CompletionLists) -> None:
        """Adds those of another one, which begins where this one ends."""
        self.text_offset.join(others.text_offset)
        self.token_logprobs.join(others.token_logprobs)
        self.tokens.join(others.tokens)
        self.top_logprobs.join(others.top_logprobs)
        self.num_chars = others.num_chars

    def as_field(self) -> CompletionLogprobs:
        """The lists as a field of the reply."""
        return CompletionLogprobs(
            text_offset=self.text_offset.as_field(),
            token_logprobs=self.token_logprobs.as_field(),
            tokens=self.tokens.as_field(),
            top_logprobs=self.top_logprobs.as_field(),
        )


class LogprobsWriter:
    """Writes one request's log-probabilities; remembers the text offset of each choice."""

    def __init__(self, tokenizer: Tokenizer | None, num_top: int, as_token_ids: bool) -> None:
        """`num_top` -1: log-probabilities of all tokens."""
        self._num_top = num_top
        self._tokenizer = tokenizer
        self._text: Callable[[int, Sequence[int]], str] = (
            _numbered if as_token_ids or tokenizer is None else tokenizer.text_after
        )
        """The text of a token after the given tokens."""
        self._offsets: dict[int, int] = {}
        self._before: dict[int, list[int]] = {}
        """The last tokens of each choice."""

    def completion(
        self, choice: int, output: CompletionOutput, echoed: CompletionLists | None = None
    ) -> CompletionLogprobs | None:
        """Log-probabilities of a completion's new tokens, after those of the echoed prompt; None if
        none were asked for."""
        if echoed is None and not isinstance(output.logprobs, FlatLogprobs):
            return None
        lists = CompletionLists(self._offsets.get(choice, 0))
        if echoed is not None:
            lists.join(echoed)
        if isinstance(output.logprobs, FlatLogprobs):
            before = self._tokens_before(choice, output.token_ids)
            self.add_tokens(lists, output.token_ids, output.logprobs, before)
        self._offsets[choice] = lists.num_chars
        return lists.as_field()

    def add_tokens(
        self,
        lists: CompletionLists,
        token_ids: Sequence[int],
        positions: FlatLogprobs,
        before: Sequence[int] = (),
    ) -> None:
        """Adds those of the next tokens, be they echoed or new; what nothing precedes has none.
        `before`: the last tokens before them."""
        count = min(len(token_ids), len(positions))
        ids = [*before, *token_ids]
        for begin in range(0, count, ITEMS_AT_ONCE):
            places = range(begin, min(begin + ITEMS_AT_ONCE, count))
            offsets, tokens, best, num_chars = [], [], [], lists.num_chars
            for place in places:
                earlier = _last(ids, len(before) + place)
                token = self._text(token_ids[place], earlier)
                tokens.append(token)
                offsets.append(num_chars)
                best.append(self._best(positions, place, earlier))
                num_chars += len(token)
            lists.num_chars = num_chars
            lists.tokens.add(tokens)
            lists.text_offset.add(offsets)
            lists.token_logprobs.add([_chosen(positions, place) for place in places])
            lists.top_logprobs.add(best)

    def chat(self, output: CompletionOutput) -> ChatLogprobs | None:
        """Log-probabilities of a chat reply's new tokens; None if none were asked for."""
        content = self.positions(output)
        return None if content is None else ChatLogprobs(content=content.as_field())

    def positions(self, output: CompletionOutput, *, with_end: bool = True) -> JsonList | None:
        """Log-probabilities of a reply's new tokens, position by position; None if none were asked
        for. `with_end`: also the token that ends the reply and has no text."""
        positions, token_ids = output.logprobs, output.token_ids
        if not isinstance(positions, FlatLogprobs):
            return None
        before = self._tokens_before(output.index, token_ids)
        ids = [*before, *token_ids]
        content = JsonList()
        count = min(len(token_ids), len(positions))
        if (
            not with_end
            and output.finish_reason == "stop"
            and not isinstance(output.stop_reason, str)
        ):
            count = min(count, len(token_ids) - 1)
        for place in range(count):
            earlier = _last(ids, len(before) + place)
            chosen = self._entry(token_ids[place], _chosen(positions, place), earlier)
            entries = self._limited(_entries(positions, place), self._num_top)
            content.add(
                [
                    PositionLogprobs(
                        token=chosen.token,
                        logprob=chosen.logprob,
                        bytes=chosen.bytes,
                        top_logprobs=[self._entry(*each, earlier) for each in entries],
                    )
                ]
            )
        return content

    def _tokens_before(self, choice: int, token_ids: Sequence[int]) -> list[int]:
        """The last tokens before these of a choice; remembers these."""
        before = self._before.get(choice, [])
        ids = [*before, *token_ids]
        self._before[choice] = _last(ids, len(ids))
        return before

    def _best(
        self, positions: FlatLogprobs, place: int, before: Sequence[int]
    ) -> dict[str, float] | None:
        """The chosen token, then the best ones: at most `num_top`, if the chosen one is not among
        them. Where several have the same text, the first one is shown."""
        entries = self._limited(_entries(positions, place), self._num_top + 1)
        text = self._text
        shown = [(text(token_id, before), logprob) for token_id, logprob in entries]
        best = dict(shown)
        if len(best) < len(shown):
            first = dict(reversed(shown))
            best = {name: first[name] for name in best}
        return best or None

    def _limited(self, entries: list[tuple[int, float]], count: int) -> list[tuple[int, float]]:
        return entries if self._num_top == -1 else entries[:count]

    def _entry(self, token_id: int, logprob: float | None, before: Sequence[int]) -> TokenLogprob:
        return TokenLogprob(
            token=self._text(token_id, before),
            logprob=LEAST_LOGPROB if logprob is None else logprob,
            bytes=list(self._bytes(token_id)),
        )

    def _bytes(self, token_id: int) -> bytes:
        if self._tokenizer is None:
            return b""
        pieces = self._tokenizer.pieces
        if pieces is not None:
            return pieces.piece_bytes(token_id)
        return self._tokenizer.token_text(token_id).encode()


def prompt_logprobs(positions: FlatLogprobs) -> JsonList:
    """A prompt's log-probabilities in vLLM's shape."""
    found = JsonList()
    for place in range(len(positions)):
        found.add(
            [
                {
                    str(token_id): PromptLogprob(
                        logprob=finite_logprob(entry.logprob),
                        rank=entry.rank,
                        decoded_token=entry.decoded_token,
                    )
                    for token_id, entry in positions[place].items()
                }
                or None
            ]
        )
    return found


def _chosen(positions: FlatLogprobs, place: int) -> float | None:
    """Log-probability of the token at `place`; None for the first token of a prompt."""
    first = positions.first(place)
    return None if first is None else finite_logprob(first)


def _entries(positions: FlatLogprobs, place: int) -> list[tuple[int, float]]:
    """Tokens with their log-probabilities: the chosen one, then the others from the best on."""
    least, most = LEAST_LOGPROB, MOST_LOGPROB
    ids, values = positions.entries(place)
    logprobs = [each if least <= each <= most else finite_logprob(each) for each in values]
    return list(zip(ids, logprobs, strict=True))


def _numbered(token_id: int, _: Sequence[int]) -> str:
    return f"token_id:{token_id}"


def _last(token_ids: list[int], end: int) -> list[int]:
    """The last tokens before `end`, on which the text of the next token may depend."""
    return token_ids[max(0, end - MAX_TOKENS_BEFORE) : end]


def finite_logprob(logprob: float) -> float:
    """Replaces NaN and the infinities, which JSON does not have."""
    # NaN is not above the least either.
    return min(logprob, MOST_LOGPROB) if logprob >= LEAST_LOGPROB else LEAST_LOGPROB
