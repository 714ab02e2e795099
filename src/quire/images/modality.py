"""`Modality`: what the engine must know of a kind of files that a request may have besides text.

`MODALITIES` lists all kinds. Its users are the parts of messages (chat/), the processes that decode
files, arguments (planning/), and the reading of checkpoints (models/). Only records without further
imports are here, because the process that renders chat templates has them, too.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Decoder:
    """A process that decodes files."""

    files: str
    """Name of the files, for errors: "image"."""
    module: str
    """Module with a `main`, which calls `serve_decoder`."""
    package: str
    """Package that it needs besides msgspec."""
    max_seconds: float
    """Processor time to decode one file."""
    extra: str = ""
    """Package that some of the files need, if it is installed."""


@dataclass(frozen=True, slots=True)
class Modality:
    """One kind of files."""

    name: str
    """Key of `multi_modal_data` and `limit_mm_per_prompt`; templates get `{"type": name}`."""
    plural: str
    """Name of several, for texts."""
    parts: tuple[str, ...]
    """Types of parts of messages, and names of what they hold."""
    wanted: str
    """The fields that such a part must have, as errors name them."""
    section: str
    """Section of config.json with the settings of its encoder."""
    tensors: str
    """Part of the names of its encoder's tensors."""
    decoder: Decoder
    base64_part: str = ""
    """Part whose `data` is base64 of a file; "": there is none."""
    goes_with: str = ""
    """The modality whose encoder computes it; "": it has its own."""

    @property
    def stem(self) -> str:
        """Its word in the names of tensors and sections: "vision"."""
        return self.section.removesuffix("_config")


_PICTURES = Decoder("image", "quire.images.child", "PIL", 10.0)
_EVERY = (
    Modality(
        "image",
        "images",
        ("image_url", "input_image", "image_pil", "image", "image_embeds"),
        "the URL of an image",
        "vision_config",
        "vis",
        _PICTURES,
    ),
    Modality(
        "video",
        "videos",
        ("video_url", "video"),
        "the URL of a video",
        "vision_config",
        "vis",
        _PICTURES,
        goes_with="image",
    ),
    Modality(
        "audio",
        "audio",
        ("audio_url", "input_audio", "audio"),
        "the URL of audio, or input_audio with data",
        "audio_config",
        "audio",
        Decoder("audio", "quire.images.sound.child", "numpy", 30.0, "av"),
        base64_part="input_audio",
    ),
)
MODALITIES = {one.name: one for one in _EVERY}
"""All modalities, by name."""
SPECTRA = Decoder("audio", "quire.images.sound.stream_child", "numpy", 30.0, "av")
"""The process for the spectra of long sounds."""
