"""`ImagesConfig`: whether an engine takes images, and where they may come from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ImagesConfig:
    """The limits and sources of images, for an engine whose model has an image encoder."""

    most: int
    """Images in one prompt, at most."""
    most_videos: int = 0
    """Videos in one prompt, at most."""
    takes_embeds: bool = False
    """Whether requests may have images that the caller has encoded (`image_embeds`)."""
    local_path: str = ""
    """The folder below which `file://` URLs may point; "": none may."""
    domains: tuple[str, ...] = ()
    """Domains from which images may be fetched."""
    cache_bytes: int = 1 << 28
    """Bytes of the rows of encoded images that are kept, at most."""
    pixel_bytes: int = 1 << 26
    """Bytes of decoded images that are kept, at most."""
