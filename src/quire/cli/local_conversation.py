"""A conversation with an engine in this process, for `quire run`.

Drives `LLMEngine` step by step, so that text is shown after each step and Ctrl+C takes effect
between two steps. Owned by the main thread.
"""

from __future__ import annotations

import itertools
import secrets
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from quire.chat.job import ChatInput, has_images
from quire.chat.renderer import ChatRenderer
from quire.chat.templates import ChatTemplates
from quire.cli.http_client import SamplingDefaults
from quire.cli.repl import Conversation, TokenCounts
from quire.config.checkpoint.model_files import chat_sampling_params
from quire.config.engine_args import EngineArgs
from quire.errors import RequestError
from quire.frontend.inputs.images.prompts import ImagePrompts, rendered_with_images
from quire.frontend.offline.llm_engine import LLMEngine
from quire.outputs import RequestOutput
from quire.params import RequestOutputKind, SamplingParams
from quire.parsers.call_rules import CallRules, OfferedTool
from quire.parsers.constraint import reply_constraint
from quire.parsers.detection.finder import find_blocking
from quire.parsers.detection.found import FoundFormat
from quire.parsers.detection.names import FormatChoice
from quire.parsers.events import CallBegins, Content, Event
from quire.parsers.format import ReplyFormat
from quire.parsers.kept_tokens import kept_token_ids
from quire.parsers.parser import ReplyParser
from quire.parsers.tool_formats.in_words import GenericCalls, with_tools_in_words
from quire.reasoning.marks import ReasoningMarks
from quire.tokenizer.tokenizer import Tokenizer


class LocalConversation(Conversation):
    """A conversation with a model in this process.

    A model without a chat template continues the last message as plain text, without the history.
    """

    def __init__(self, args: EngineArgs, system_prompt: str | None = None) -> None:
        super().__init__(system_prompt)
        self.engine = LLMEngine.from_engine_args(args)
        self._images = ImagePrompts(self.engine.model_config)
        special_tokens = self.engine.get_tokenizer().inner.roles
        templates = ChatTemplates.of_model(self.engine.model_config, special_tokens)
        self._renderer = ChatRenderer(templates)
        if templates:
            self._renderer.start()
        model_defaults = self.engine.model_config.default_sampling_params
        self.defaults = SamplingDefaults(model_defaults, chat_sampling_params(model_defaults))
        self._numbers = itertools.count()
        self._call_numbers = itertools.count()
        self._is_cut = False
        self._choice = FormatChoice.of(None, args.reasoning_parser)
        self._found: FoundFormat | None = None

    @property
    def is_chat(self) -> bool:
        """Whether the model has a chat template."""
        return bool(self._renderer.templates)

    def stream(self, messages: list[dict[str, Any]]) -> Iterator[Event]:
        """Yields the reasoning, the answer and tool calls in pieces; closing the generator aborts
        the request."""
        if not self.is_chat:
            if has_images(messages):
                raise RequestError("images need a model with a chat template")
            for text in self._generate({"prompt": messages[-1]["content"]}, self._params()):
                yield from _as_content(text)
            return
        tokenizer = self.engine.get_tokenizer().inner
        format, params = self._format(), self._params()
        chat = self._chat_input(messages, format)
        prompt, engine_prompt = self._rendered(chat, tokenizer)
        params.keep_tokens(kept_token_ids(format, tokenizer, has_tools=bool(self.tools)))
        tags = format.reasoning
        is_reasoning = tags is not None and tags.is_open_in(prompt)
        schemas = self._constrain(params, format, prompt, is_reasoning=is_reasoning)
        parser = ReplyParser(format, schemas, is_reasoning=is_reasoning)
        for text in self._generate(engine_prompt, params):
            yield from self._with_ids(parser.feed(text), format)
        yield from self._with_ids(parser.finish(is_cut=self._is_cut and bool(self.tools)), format)

    def _chat_input(self, messages: list[dict[str, Any]], format: ReplyFormat) -> ChatInput:
        """The conversation with the tools, which a text describes if the template does not."""
        chat = ChatInput(messages, self.tools or None, variables=self.template_variables())
        if not self.tools or not isinstance(format.tools, GenericCalls):
            return chat
        words = replace(chat, messages=with_tools_in_words(messages, self.tools), tools=None)
        try:
            self._renderer.render(words)
        except RequestError:  # the template accepts no system message
            words = replace(
                words, messages=with_tools_in_words(messages, self.tools, has_system=False)
            )
        return words

    def _constrain(
        self, params: SamplingParams, format: ReplyFormat, prompt: str, *, is_reasoning: bool
    ) -> dict[str, Mapping[str, Any]] | None:
        """Limit calls to valid calls of the tools; returns the schemas of their arguments."""
        if not self.tools:
            return None
        if format.tools is None:
            raise RequestError(
                "this model's chat template shows tools, but the form of its calls is not known; "
                "chat without --mcp-config"
            )
        given = [tool["function"] for tool in self.tools]
        tools = [OfferedTool(one["name"], one["parameters"]) for one in given]
        tags = format.reasoning
        params.structured_outputs = reply_constraint(
            format,
            CallRules(tools),
            self.engine.input_processor.check_grammar,
            is_reasoning=is_reasoning,
            may_reason=tags is not None and not prompt.rstrip().endswith(tags.ends),
        )
        if tags is not None:
            params.mark_reasoning(
                ReasoningMarks(tags.begin, tags.end, is_reasoning, is_in_grammar=True)
            )
        return {tool.name: tool.readable for tool in tools}

    def _with_ids(self, events: Iterable[Event], format: ReplyFormat) -> Iterator[Event]:
        for event in events:
            if isinstance(event, CallBegins) and event.id is None:
                number = next(self._call_numbers)
                own = format.tools.make_id(event.name, number) if format.tools else None
                event = replace(event, id=own or f"call-{secrets.token_hex(8)}")
            yield event

    def _rendered(self, chat: ChatInput, tokenizer: Tokenizer) -> tuple[str, dict[str, Any]]:

        def encode(text: str) -> list[int]:
            return tokenizer.encode(text, add_special_tokens=False)

        if not has_images(chat.messages):
            prompt = self._renderer.render(chat)
            return prompt, {"prompt_token_ids": encode(prompt)}
        prompt, placed = rendered_with_images(self._renderer.render, chat, self._images, encode)
        data = {"image": placed}
        return prompt, {"prompt_token_ids": placed.token_ids, "multi_modal_data": data}

    def _format(self) -> ReplyFormat:
        """The model's reply format, which is detected for the first message."""
        if self._found is None:
            self._found = find_blocking(self._choice, self.engine.model_config, self._renderer)
        found = self._found
        if self.tools and found.reply.tools is None and not found.shows_tools:
            return replace(found.reply, tools=GenericCalls())
        return found.reply

    def _generate(self, prompt: Any, params: SamplingParams) -> Iterator[str]:
        request_id = f"run-{next(self._numbers)}"
        self.engine.add_request(request_id, prompt, params)
        self.counts, self._is_cut = TokenCounts(), False
        try:
            while self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    if not isinstance(output, RequestOutput):
                        continue
                    self.counts.prompt = len(output.prompt_token_ids or ())
                    self.counts.cached = output.num_cached_tokens or 0
                    for completion in output.outputs:
                        self._is_cut = completion.finish_reason not in (None, "stop")
                        self.counts.completion += len(completion.token_ids)
                        yield completion.text
        finally:
            self.engine.abort_request(request_id)

    def _params(self) -> SamplingParams:
        """Sampling parameters from the user's settings and the defaults; no limit of
        `max_tokens`."""
        defaults = self.engine.model_config.default_sampling_params
        wanted = {"max_tokens": None, **defaults, **self.sampling()}
        return SamplingParams.from_optional(output_kind=RequestOutputKind.DELTA, **wanted)

    def close(self) -> None:
        """Free the model."""
        self._renderer.close()
        self.engine.shutdown()


def _as_content(text: str) -> Iterator[Event]:
    if text:
        yield Content(text)
