"""Renders a conversation with images, for front ends that have an engine in their process."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from quire.chat.images import take_images
from quire.chat.job import ChatInput
from quire.frontend.inputs.images.placing import Encode, PlacedImages
from quire.frontend.inputs.images.prompts import ImagePrompts


def rendered_with_images(
    render: Callable[[ChatInput], str], chat: ChatInput, images: ImagePrompts, encode: Encode
) -> tuple[str, PlacedImages]:
    """The text of a conversation, and its tokens with the images in them. Raises RequestError."""
    images.check_on("messages")
    literals = images.literals()
    taken = take_images(chat.messages, literals.hidden)
    pictures = images.decoded(taken.images)
    hidden = replace(
        chat,
        messages=taken.messages,
        tools=literals.hidden(chat.tools),
        documents=literals.hidden(chat.documents),
        image_placeholder=images.placeholder,
    )
    text = render(hidden)
    return text, images.in_chat(text, literals, pictures, encode)
