"""`prompt_embeds` of requests: tensors in base64, which take the place of a prompt's text."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from quire.frontend.inputs.prompt_embeds import NOT_ENABLED, embeds_error, read_embeds
from quire.frontend.inputs.tensors import tensor_of
from quire.server.json_pieces import check_wanted
from quire.server.served_model import ServedModel


def decode_embeds(model: ServedModel, text: str) -> NDArray[np.float32]:
    """The rows of one text. Raises RequestError."""
    check_wanted()
    config = model.loaded_engine().config.model
    if config.prompt_embeds_width is None:
        raise embeds_error(NOT_ENABLED)
    array = tensor_of(text, "prompt_embeds")
    return read_embeds(array, config.prompt_embeds_width, config.max_model_len)
