"""Which requests get the engine's watermark: all that do not say otherwise, and can have one.

A request that asks for a watermark and cannot have it runs without, as in vLLM; the log says so
once for each reason.
"""

from __future__ import annotations

from functools import lru_cache

from quire.log import get_logger
from quire.params import GREEDY_BELOW, SamplingParams
from quire.watermark.config import WatermarkConfig

logger = get_logger(__name__)


def settle_watermark(params: SamplingParams, config: WatermarkConfig | None) -> None:
    """Says in the engine's own copy of a request's parameters whether its tokens get the
    watermark, or would have been to get it."""
    is_asked = params.watermarking is not False
    if config is None:
        if params.watermarking:
            _warn("the engine has no watermark_config")
        params.watermarking = False
        return
    why_not = _why_not(params) if is_asked else ""
    if why_not:
        _warn(why_not)
    params.settle_watermark(is_applied=is_asked and not why_not, is_skipped=bool(why_not))


def tell_beams(config: WatermarkConfig | None, watermarking: bool | None) -> None:
    """Says in the log, once, that beam search puts in no watermark, if one was asked for."""
    if watermarking or (config is not None and watermarking is None):
        _warn("beam search chooses no token by chance")


def _why_not(params: SamplingParams) -> str:
    if params.trace_decode_token_ids is not None:
        return "trace_decode_token_ids says what the tokens are"
    if params.temperature < GREEDY_BELOW:
        return "temperature=0 chooses no token by chance"
    return ""


@lru_cache
def _warn(why: str) -> None:
    """Once for each reason."""
    logger.warning("a request that is to get a watermark runs without: %s", why)
