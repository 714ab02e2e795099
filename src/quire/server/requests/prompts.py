"""Converts a request's prompt or messages to the token ids for the engine.

Generation, `/tokenize` and the render endpoints use it, so that all give the same ids. Long texts
are rendered and tokenized in the server's `WorkPool`, off the event loop.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from quire.chat.job import ChatInput
from quire.errors import PromptError, RequestError
from quire.frontend.arguments import located
from quire.frontend.tokenization import Truncation
from quire.frontend.too_long import prompt_too_long, text_too_long
from quire.inputs import TokensPrompt
from quire.server.context import ServerContext
from quire.server.requests.chats.tools_in_words import render_chat
from quire.server.requests.request_work import count_chars
from quire.server.schema.chat import ChatMessage, ChatRequest
from quire.server.schema.completion import PROMPT_KINDS, CompletionRequest
from quire.server.schema.service import TokenizeRequest
from quire.server.work_pool import INLINE_SIZE, check_wanted
from quire.tokenizer import Tokenizer
from quire.tokenizer.tokenizer import PIECE_CHARS

if TYPE_CHECKING:
    from quire.server.requests.chats.reply_plan import ReplyPlan

_IDS_PER_UNIT = 16
"""Token ids that take as long to check as one unit of the pool's work."""


@dataclass(frozen=True, slots=True)
class PreparedPrompt:
    """One prompt for the engine."""

    token_ids: list[int]
    text: str | None
    """None if the caller sent token ids."""
    cache_salt: str | None = None
    reply: ReplyPlan | None = None
    """How its reply is read; None: it is its text."""

    def of_tenant(self, salt: str | None) -> PreparedPrompt:
        """With the tenant's salt before the request's own. None: there is one tenant."""
        if salt is None:
            return self
        own = "" if self.cache_salt is None else f"/{self.cache_salt}"
        return replace(self, cache_salt=salt + own)

    def for_engine(self) -> TokensPrompt:
        """The argument of `generate`."""
        prompt: dict[str, Any] = {"prompt_token_ids": self.token_ids}
        if self.text is not None:
            prompt["prompt"] = self.text
        if self.cache_salt is not None:
            prompt["cache_salt"] = self.cache_salt
        return prompt  # type: ignore[return-value]


async def completion_prompts(
    context: ServerContext, request: CompletionRequest
) -> list[PreparedPrompt]:
    """The prompts of a completion request, in order. Raises RequestError."""
    parts = [request.prompt] if isinstance(request.prompt, str) else request.prompt
    size = len(parts) // _IDS_PER_UNIT
    if parts and not isinstance(parts[0], int):
        sizes = [len(each) for each in parts if isinstance(each, str)]
        context.limits.check_text("prompt", max(sizes, default=0))
        num_ids = sum(len(each) for each in parts if isinstance(each, list))
        size += sum(sizes) + num_ids // _IDS_PER_UNIT
    return await context.pool.run(size, _completion_prompts, context, request)


def _completion_prompts(context: ServerContext, request: CompletionRequest) -> list[PreparedPrompt]:
    parts, salt = _split_prompts(request.prompt), request.cache_salt
    context.limits.check_prompts(len(parts), max(request.n or 1, request.best_of or 1))
    truncation = Truncation.of(
        request.truncate_prompt_tokens, request.truncation_side, context.limits.max_model_len
    )
    add_special_tokens = request.add_special_tokens is not False
    prompts = []
    for index, part in enumerate(parts):
        if isinstance(part, str):
            with located("prompt", index, len(parts)):
                token_ids = _prompt_ids(context, part, add_special_tokens, truncation)
            prompts.append(PreparedPrompt(token_ids, part, salt))
        else:
            token_ids = part if truncation is None else truncation.kept(part)
            prompts.append(PreparedPrompt(token_ids, None, salt))
        check_wanted()
    return prompts


def _prompt_ids(
    context: ServerContext, text: str, add_special_tokens: bool, truncation: Truncation | None
) -> list[int]:
    """The token ids that are kept of a prompt's text."""
    if truncation is None:
        return encode(context, text, add_special_tokens)
    token_ids = encode(context, text, add_special_tokens, must_fit=False)
    frame = context.tokenizer().special_frame if add_special_tokens else None
    return truncation.kept(token_ids, frame)


def _split_prompts(prompt: Any) -> list[str | list[int]]:
    if isinstance(prompt, str):
        return [prompt]
    if not prompt:
        raise RequestError("prompt must not be empty", parameter="prompt")
    if isinstance(prompt[0], int):
        if not all(isinstance(entry, int) for entry in prompt):
            raise _mixed()
        return [prompt]
    if not all(isinstance(entry, type(prompt[0])) for entry in prompt):
        raise _mixed()
    return list(prompt)


def _mixed() -> RequestError:
    return RequestError(PROMPT_KINDS, parameter="prompt")


async def chat_prompt(
    context: ServerContext, request: ChatRequest | TokenizeRequest
) -> PreparedPrompt:
    """Renders the messages by the model's chat template. Raises RequestError."""
    if isinstance(request, ChatRequest) and (ids := _handed_ids(request)) is not None:
        text = context.tokenizer().decode(ids, skip_special_tokens=False)
        return PreparedPrompt(ids, text, request.cache_salt)
    messages = request.messages or []
    if len(messages) > context.args.max_messages:
        raise RequestError(
            f"{len(messages)} messages are more than this server allows in one request "
            f"(max_messages {context.args.max_messages}).",
            parameter="messages",
        )
    if request.chat_template is not None:
        raise RequestError(
            "chat_template is refused: this server trusts no template from a request; "
            "give it one with --chat-template",
            parameter="chat_template",
        )
    size = sum(len(text) for message in messages for text in message.texts)
    context.limits.check_text("messages", size)
    others = [getattr(request, name) for name in _TEMPLATE_FIELDS[1:]]
    size += count_chars(others, INLINE_SIZE)  # no further than it makes a difference
    await context.pool.run(size, _check_template_fields, context, request)
    chat = _chat_input(context, request, messages)
    offers_tools = getattr(request, "tool_choice", None) != "none"
    text = await render_chat(context, chat, offers_tools=offers_tools)
    special = request.add_special_tokens is True
    salt = truncation = None
    if isinstance(request, ChatRequest):
        salt = request.cache_salt
        truncation = Truncation.of(
            request.truncate_prompt_tokens, request.truncation_side, context.limits.max_model_len
        )
    token_ids = await context.pool.run(len(text), _prompt_ids, context, text, special, truncation)
    return PreparedPrompt(token_ids, text, salt)


def _handed_ids(request: ChatRequest) -> list[int] | None:
    """The prompt that another engine has made of the messages, if the request has it."""
    ids = (request.kv_transfer_params or {}).get("prompt_token_ids")
    if ids is None:
        return None
    if not isinstance(ids, list) or not ids or not all(type(one) is int for one in ids):
        raise RequestError(
            "kv_transfer_params.prompt_token_ids must be a list of token ids",
            parameter="kv_transfer_params",
        )
    return ids


_TEMPLATE_FIELDS = ("messages", "tools", "documents", "chat_template_kwargs")
"""What the template is given, in the order in which it counts against the limit."""


def _check_template_fields(context: ServerContext, request: ChatRequest | TokenizeRequest) -> None:
    """Raises RequestError if the template's inputs are longer than the limit of a prompt."""
    limits, size = context.limits, 0
    for name in _TEMPLATE_FIELDS:
        size += count_chars(getattr(request, name), limits.max_tokenize_bytes)
        limits.check_text(name, size)


def _chat_input(
    context: ServerContext, request: ChatRequest | TokenizeRequest, messages: list[ChatMessage]
) -> ChatInput:
    own, variables = request.chat_template_kwargs or {}, context.args.default_chat_template_kwargs
    if (effort := request.reasoning_effort) is not None:
        own = {**thinking_variables(effort), **own, "reasoning_effort": effort}
    args = context.args
    hides_tools = (
        args.exclude_tools_when_tool_choice_none and getattr(request, "tool_choice", "") == "none"
    )
    content_format = args.chat_template_content_format
    return ChatInput(
        messages,
        tools=None if hides_tools else request.tools or None,
        documents=request.documents,
        add_generation_prompt=request.add_generation_prompt is not False,
        continue_final_message=request.continue_final_message is True,
        chat_template_kwargs={**variables, **own},
        content_format=None if content_format == "auto" else content_format,
    )


def thinking_variables(effort: str) -> dict[str, Any]:
    """What an effort means for templates that know `enable_thinking` instead."""
    return {"enable_thinking": effort != "none"}


def encode(
    context: ServerContext, text: str, add_special_tokens: bool, *, must_fit: bool = True
) -> list[int]:
    """Token ids of a text. Raises RequestError if it is not valid Unicode, is longer than the
    server's limit, or (`must_fit`) cannot fit into the context; then tokenizing stops early.
    """
    tokenizer, limits = context.tokenizer(), context.limits
    try:
        num_bytes = len(text.encode("utf-8"))
    except UnicodeEncodeError:
        raise PromptError("the prompt is not valid Unicode", parameter="prompt") from None
    limits.check_text("prompt", num_bytes)
    if len(text) <= INLINE_SIZE:
        return tokenizer.encode(text, add_special_tokens=add_special_tokens)
    limit, longest = limits.max_model_len, _longest_piece_bytes(tokenizer)
    if must_fit and longest is not None and num_bytes > limit * longest:
        raise text_too_long(num_bytes, limit * longest, limit)
    ids: list[int] = []
    for piece in tokenizer.encode_pieces(text, add_special_tokens=add_special_tokens):
        ids += piece
        if must_fit and len(ids) >= limit + PIECE_CHARS:
            raise prompt_too_long(len(ids), limit, is_whole=False)
        check_wanted()
    return ids


@lru_cache(maxsize=4)
def _longest_piece_bytes(tokenizer: Tokenizer) -> int | None:
    """Bytes of the longest token; None if the tokens' bytes are not known."""
    pieces = tokenizer.pieces
    if pieces is None:
        return None
    return max(len(pieces.piece_bytes(token_id)) for token_id in range(tokenizer.max_token_id + 1))
