"""Detection on a template, which is rendered in this process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from quire.chat.rendering import render
from quire.chat.templates import ChatTemplates
from quire.errors import RequestError
from quire.parsers.detection.detect import CheckpointFacts, detect
from quire.parsers.detection.found import FoundFormat
from quire.parsers.detection.names import FormatChoice

Detect = Callable[..., FoundFormat]


@pytest.fixture
def detected() -> Detect:
    """Called with a template, the choice, and the model_type."""

    def run(
        template: str | None,
        choice: FormatChoice | None = None,
        model_type: str = "",
        response_template: object = None,
    ) -> FoundFormat:
        given = {} if template is None else {"default": template}
        templates = ChatTemplates(given, {"eos_token": "<|im_end|>"})
        facts = CheckpointFacts({"model_type": model_type}, given, response_template)
        probing = detect(choice or FormatChoice(), facts)
        text: Any = None
        while True:
            try:
                chat = probing.send(text)
            except StopIteration as end:
                found: FoundFormat = end.value
                return found
            try:
                text = render(templates.job(chat))
            except RequestError:
                text = None

    return run
