"""`/v1/completions`: the writer of replies."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from heapq import nlargest

from quire.outputs import CompletionOutput, FlatLogprobs, RequestOutput
from quire.server.apis.completions.schema import (
    CompletionChoice,
    CompletionChunk,
    CompletionResponse,
)
from quire.server.generation.logprobs import CompletionLists, prompt_logprobs
from quire.server.generation.reply import ReplyHead, Update
from quire.server.generation.writer import ReplyWriter
from quire.server.json_pieces import JsonList
from quire.server.requests.prompts import PreparedPrompt
from quire.server.requests.request import AnyRequest
from quire.tokenizer import Tokenizer


class CompletionWriter(ReplyWriter[CompletionChunk]):
    """Replies to a request of one or several prompts, each with `n` choices."""

    def __init__(
        self,
        asked: AnyRequest,
        head: ReplyHead,
        prompts: Sequence[PreparedPrompt],
        tokenizer: Tokenizer | None,
    ) -> None:
        options, listed = asked.reply, asked.sampling.get("logprob_token_ids")
        num_top = len(listed or ()) or options.num_top or 0
        super().__init__(
            options, head, prompts, tokenizer, num_top=num_top, chunk_kind=CompletionChunk
        )
        self._is_echo_alone = options.is_echo_alone
        """The one token that is generated is not shown."""
        self.repeats_prompt = options.echo or self._wants_ids
        self._started = set[int]()
        """Choices of a stream that have had a chunk."""
        self._echoes: dict[int, str] = {}
        self._echoed_lists: dict[int, CompletionLists] = {}
        """Echoed log-probabilities by prompt; all `n` choices share them."""

    def whole(self, finals: Sequence[RequestOutput]) -> CompletionResponse:
        choices = JsonList()
        for prompt_index, final in enumerate(finals):
            if self._options.echo:
                self._take_prompt(prompt_index, final)
            of_prompt = self._of_prompt(final)
            shown = best_of(final, self._n, shows_logprobs=self._options.num_top is not None)
            for one in shown.outputs:
                choice = self._choice(prompt_index, one, is_first=True)
                choice.prompt_logprobs = None if of_prompt is None else of_prompt.as_field()
                if self._wants_ids:
                    token_ids = self._prompts[prompt_index].token_ids
                    choice.prompt_token_ids = JsonList(token_ids).as_field()
                choices.add([choice])
        return self._response(CompletionResponse, choices, finals)

    def events(self, updates: Sequence[Update]) -> bytes:
        parts = []
        for each in updates:
            self._chunks.see(each.prompt_index, each.output)
            if self._options.echo:
                self._take_prompt(each.prompt_index, each.output)
            index = each.prompt_index * self._n + each.completion.index
            is_first = index not in self._started
            choice = self._choice(each.prompt_index, each.completion, is_first)
            if is_first and self._wants_ids:
                token_ids = each.output.prompt_token_ids or []
                choice.prompt_token_ids = JsonList(token_ids).as_field()
            self._started.add(index)
            self._chunks.count(index, len(each.completion.token_ids))
            parts.append(self._chunks.chunk(each.prompt_index, choice))
        return b"".join(parts)

    def _choice(self, prompt_index: int, one: CompletionOutput, is_first: bool) -> CompletionChoice:
        """A choice's new output; the first time also the echoed prompt and its
        log-probabilities."""
        index = prompt_index * self._n + one.index
        text = "" if self._is_echo_alone else one.text
        echoed = None
        if is_first and self._options.echo:
            text = self._echo(prompt_index) + text
            echoed = self._echoed_lists.get(prompt_index)
        logprobs = None
        if self._is_echo_alone:
            logprobs = None if echoed is None else echoed.as_field()
        elif echoed is not None or one.logprobs is not None:
            logprobs = self._logprobs.completion(index, one, echoed)
        return CompletionChoice(index=index, text=text, logprobs=logprobs, **self._end_of(one))

    def _of_prompt(self, final: RequestOutput) -> JsonList | None:
        """The prompt's log-probabilities, if `prompt_logprobs` asks for them."""
        entries = final.prompt_logprobs
        if not self._options.has_prompt_logprobs or not isinstance(entries, FlatLogprobs):
            return None
        return prompt_logprobs(entries)

    def _take_prompt(self, prompt_index: int, output: RequestOutput) -> None:
        """Writes the log-probabilities of an echoed prompt as soon as they arrive."""
        positions = output.prompt_logprobs
        if isinstance(positions, FlatLogprobs) and prompt_index not in self._echoed_lists:
            lists = CompletionLists()
            self._logprobs.add_tokens(lists, self._prompts[prompt_index].token_ids, positions)
            self._echoed_lists[prompt_index] = lists

    def _echo(self, prompt_index: int) -> str:
        text = self._echoes.get(prompt_index)
        if text is None:
            prompt = self._prompts[prompt_index]
            text = prompt.text
            if text is None:
                text = ""
                if self._tokenizer is not None:
                    text = self._tokenizer.decode(prompt.token_ids, skip_special_tokens=False)
            self._echoes[prompt_index] = text
        return text


def best_of(final: RequestOutput, n: int, *, shows_logprobs: bool) -> RequestOutput:
    """The `n` samples with the highest log-probability per token, the best first. Without
    `shows_logprobs` they were asked for to compare samples alone."""
    if len(final.outputs) <= n:
        return final
    best = nlargest(n, final.outputs, key=_mean_logprob)
    shown = [
        replace(one, index=index, logprobs=one.logprobs if shows_logprobs else None)
        for index, one in enumerate(best)
    ]
    return replace(final, outputs=shown)


def _mean_logprob(one: CompletionOutput) -> float:
    if one.cumulative_logprob is None or not one.token_ids:
        return -math.inf
    return one.cumulative_logprob / len(one.token_ids)


def completion_writer(
    asked: AnyRequest, head: ReplyHead, prompts: Sequence[PreparedPrompt]
) -> CompletionWriter:
    """Writes the replies in the form of `/v1/completions`."""
    return CompletionWriter(asked, head, prompts, head.target.model.loaded_engine().tokenizer)
