"""`render`: a conversation to the prompt text that its model was trained on.

Depends on its `RenderJob` alone, which holds JSON. Called by the child process. Knows no tokens and
no files.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import jinja2

from quire.chat.content_format import detect_content_format, expects_no_content, expects_text
from quire.chat.job import ChatInput, ContentFormat, RenderJob
from quire.chat.messages import Images, check_nesting, template_messages
from quire.chat.sandbox.environment import render_template
from quire.chat.sandbox.sizes import TemplateLimitError, new_budget
from quire.errors import RequestError

_CONTINUED = "CONTINUE_FINAL_MESSAGE_TAG "
"""Marks the end of the message to be continued; cut off after rendering."""
_MAX_MESSAGE_CHARS = 2000


def render(job: RenderJob) -> str:
    """The prompt. Encode it without special tokens: the template has written them.

    Raises RequestError, with the template's own words where it refuses the conversation.
    """
    try:
        with new_budget(job.max_seconds):
            return _rendered(job)
    except RequestError:
        raise
    except TemplateLimitError as error:
        message = f"the chat template {job.template_name!r} was stopped: {error.message}"
    except jinja2.TemplateSyntaxError as error:
        message = f"the chat template is not valid: {error.message} (line {error.lineno})"
    except jinja2.TemplateError as error:
        message = str(error.message or type(error).__name__)
    except MemoryError:
        message = f"the chat template {job.template_name!r} was stopped: it needs too much memory"
    except Exception as error:  # a template can raise anything that an expression can
        message = f"the chat template fails with {type(error).__name__}: {error}"
    raise _error(message[:_MAX_MESSAGE_CHARS])


def _rendered(job: RenderJob) -> str:
    chat = job.chat
    content_format = chat.content_format or detect_content_format(job.template)
    for what in ("messages", "tools", "documents", "chat_template_kwargs"):
        check_nesting(getattr(chat, what), what)
    keeps_text = chat.content_format is None and expects_text(job.template)
    failure: Exception | None = None
    for missing, has_text_arguments in _forms(chat, content_format, job.template):
        messages = template_messages(
            chat.messages, content_format, missing=missing, keeps_text=keeps_text,
            has_text_arguments=has_text_arguments,
            images=Images(chat.image_placeholder, chat.no_images),
        )  # fmt: skip
        try:
            return _filled(job, messages)
        except (TypeError, jinja2.UndefinedError) as error:
            failure = failure or error
    assert failure is not None
    raise failure


def _forms(
    chat: ChatInput, content_format: ContentFormat, template: str
) -> Iterator[tuple[Any, bool]]:
    """The content that a message without any gets, and whether arguments of calls are texts. The
    first form that a template does not fail with is taken.

    A key that is not there makes many templates fail, and many print None. Arguments are objects
    for all templates but some that join them to a text.
    """
    messages = [message for message in chat.messages if isinstance(message, dict)]
    has_calls = any(message.get("tool_calls") for message in messages)
    contents: tuple[Any, ...] = ("",)
    if content_format == "openai":
        contents = [], [{"type": "text", "text": ""}]
    elif expects_no_content(template):
        contents = None, ""
    if all(message.get("content") is not None for message in messages):
        contents = contents[:1]
    yield from ((content, False) for content in contents)
    if has_calls:
        yield from ((content, True) for content in contents)


def _filled(job: RenderJob, messages: list[dict[str, Any]]) -> str:
    chat = job.chat
    final_text = _mark_end(messages) if chat.continue_final_message else None
    variables = {
        **job.special_tokens,
        **(chat.chat_template_kwargs or {}),
        "messages": messages,
        "tools": chat.tools,
        "documents": chat.documents,
        "add_generation_prompt": chat.add_generation_prompt,
    }
    rendered = render_template(job.template, variables)
    return rendered if final_text is None else _cut_at_mark(rendered, final_text)


def _error(message: str) -> RequestError:
    return RequestError(message, parameter="messages")


def _mark_end(chat: list[dict[str, Any]]) -> str:
    """Appends the mark to the last message's text, which is returned without it."""
    content = chat[-1].get("content")
    if isinstance(content, list) and content:
        if "text" not in content[-1]:
            raise _error("continue_final_message is set, but the final message ends with an image")
        text = str(content[-1]["text"])
        content[-1]["text"] = text + _CONTINUED
        return text
    if not isinstance(content, str):
        raise _error("continue_final_message is set, but the final message has no content")
    chat[-1]["content"] = content + _CONTINUED
    return content


def _cut_at_mark(rendered: str, final_text: str) -> str:
    begin = rendered.rfind(_CONTINUED.strip())
    if begin < 0 or final_text.strip() not in rendered:
        raise _error(
            "continue_final_message is set, but the final message does not appear in the "
            "rendered chat: the template leaves out some of it"
        )
    if rendered.startswith(_CONTINUED, begin):
        return rendered[:begin]
    return rendered[:begin].rstrip()
