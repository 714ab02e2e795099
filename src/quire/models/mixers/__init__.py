"""Replacements of attention in a layer: recurrent layers, and latent attention."""

from quire.models.mixers.base import Mixer
from quire.models.mixers.gated_delta import GatedDeltaMixer, KimiDeltaMixer
from quire.models.mixers.latent import LatentAttention
from quire.models.mixers.mamba import MambaMixer
from quire.models.mixers.mamba2 import Mamba2Factors, Mamba2Mixer
from quire.models.mixers.short_conv import ShortConvMixer

__all__ = [
    "GatedDeltaMixer", "KimiDeltaMixer", "LatentAttention", "Mamba2Factors", "Mamba2Mixer",
    "MambaMixer", "Mixer", "ShortConvMixer",
]  # fmt: skip
