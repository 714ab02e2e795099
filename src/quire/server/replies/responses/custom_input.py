"""`custom_input`: the text that a model gave a custom tool, which it writes as an argument."""

from __future__ import annotations

import msgspec

from quire.server.replies.messages.input_text import InputText
from quire.server.requests.responses.tools import CUSTOM_INPUT


class _Arguments(msgspec.Struct):
    input: str


def custom_input(arguments: str) -> str:
    """The text in these arguments, as far as it goes if they were cut. Arguments that have none are
    the text themselves."""
    cut = InputText()
    for text in (arguments, cut.feed(arguments) + cut.close()):
        try:
            return msgspec.json.decode(text, type=_Arguments).input
        except msgspec.DecodeError:
            continue
    is_before_text = f'{{"{CUSTOM_INPUT}":"'.startswith("".join(arguments.split()))
    return "" if is_before_text else arguments
