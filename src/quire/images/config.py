"""`ImagesConfig`: whether an engine takes images or audio, and where they may come from."""

from __future__ import annotations

from dataclasses import dataclass

PROCESSOR_KWARGS = "mm_processor_kwargs"
"""Name of the settings of the image processor in arguments and prompts."""


@dataclass(frozen=True, slots=True)
class ImagesConfig:
    """The limits and sources of images and audio, for an engine whose model has an encoder."""

    limits: dict[str, int]
    """Most of each modality in one prompt, by its name."""
    takes_embeds: bool = False
    """Whether requests may have images that the caller has encoded (`image_embeds`)."""
    local_path: str = ""
    """The folder below which `file://` URLs may point; "": none may."""
    domains: tuple[str, ...] = ()
    """Domains from which files may be fetched."""
    download_bytes: int = 0
    """Bytes of the files that one request names by URLs, at most; 0: any number."""
    cache_bytes: int = 1 << 28
    """Bytes of the rows of encoded images or sounds that are kept, at most."""
    pixel_bytes: int = 1 << 26
    """Bytes of decoded images or sounds that are kept, at most."""
