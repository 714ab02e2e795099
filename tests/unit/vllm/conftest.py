"""From here on, `vllm` can be imported."""

import quire.vllm  # noqa: F401
