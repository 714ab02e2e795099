"""Formats whose calls are no plain JSON are found by what chat templates write."""

from __future__ import annotations

import pytest

from .conftest import Detect
from .templates import chatml

_EACH = "{% for key, value in call.function.arguments.items() %}"
_TEXT = "{{ value if value is string else value | tojson }}"
_NAME = "{{ call.function.name }}"


@pytest.mark.parametrize(
    ("name", "call"),
    [
        (
            "qwen3_coder",
            f"<tool_call>\n<function={_NAME}>\n{_EACH}<parameter={{{{ key }}}}>\n{_TEXT}\n"
            "</parameter>\n{% endfor %}</function>\n</tool_call>",
        ),
        (
            "seed_oss",
            f"<seed:tool_call>\n<function={_NAME}>\n{_EACH}<parameter={{{{ key }}}}>{_TEXT}"
            "</parameter>\n{% endfor %}</function>\n</seed:tool_call>",
        ),
        (
            "glm45",
            f"<tool_call>{_NAME}\n{_EACH}<arg_key>{{{{ key }}}}</arg_key>\n"
            f"<arg_value>{_TEXT}</arg_value>\n{{% endfor %}}</tool_call>",
        ),
        (
            "minimax_m2",
            f'<minimax:tool_call>\n<invoke name="{_NAME}">\n{_EACH}'
            f'<parameter name="{{{{ key }}}}">{_TEXT}</parameter>\n{{% endfor %}}</invoke>\n'
            "</minimax:tool_call>",
        ),
        (
            "lfm2",
            f"<|tool_call_start|>[{_NAME}({_EACH}{{{{ key }}}}={{{{ value | tojson }}}}"
            "{% if not loop.last %}, {% endif %}{% endfor %})]<|tool_call_end|>",
        ),
    ],
)
def test_a_format_is_recognised(detected: Detect, name: str, call: str) -> None:
    found = detected(chatml(call))
    assert found.tools is not None
    assert found.tools.name == name
