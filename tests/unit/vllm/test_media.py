"""Pictures and sounds as scripts for vLLM read and write them."""

from __future__ import annotations

import base64
import io
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
from sound_files import mono_samples
from vllm.multimodal.image import convert_image_mode
from vllm.multimodal.utils import (
    encode_audio_url,
    encode_image_base64,
    encode_image_url,
    encode_video_url,
    fetch_image,
)

from quire.errors import ConfigError, RequestError
from quire.images.config import ImagesConfig
from quire.images.sources import ImageSources

Image = pytest.importorskip("PIL.Image")


def test_a_picture_becomes_a_url_and_back(tmp_path: Path) -> None:
    pixels = np.random.default_rng(1).integers(0, 256, (4, 6, 3)).astype(np.uint8)
    image = Image.fromarray(pixels)
    url = encode_image_url(image)
    assert url.startswith("data:image/png;base64,")
    assert np.array_equal(np.asarray(fetch_image(url)), pixels)
    assert encode_image_url(image, format="JPEG").startswith("data:image/jpeg;base64,")
    path = tmp_path / "a b.png"
    path.write_bytes(base64.b64decode(encode_image_base64(image)))
    assert np.array_equal(np.asarray(fetch_image(path.as_uri())), pixels)
    handler = partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        root = f"http://127.0.0.1:{server.server_port}"
        assert np.array_equal(np.asarray(fetch_image(f"{root}/a%20b.png")), pixels)
        with pytest.raises(RequestError, match="could not be fetched: HTTP Error 404"):
            fetch_image(f"{root}/missing.png")
        server.shutdown()
    for wrong, why in (
        ("data:image/png;base64,aGk=", "that of a picture"),
        ("x:y", "data or file"),
    ):
        with pytest.raises(RequestError, match=why):
            fetch_image(wrong)


def test_what_is_transparent_gets_a_color_and_orientations_are_applied() -> None:
    image = Image.new("RGBA", (2, 3), (10, 20, 30, 0))
    kept = encode_image_url(image, image_mode=None)
    assert fetch_image(kept).getpixel((0, 0)) == (255, 255, 255)
    assert fetch_image(kept, {"image_mode": None}).mode == "RGBA"
    black = {"rgba_background_color": [0, 0, 0]}
    assert fetch_image(kept, black).getpixel((0, 0)) == (0, 0, 0)
    with pytest.raises(RequestError, match="alone, not x"):
        fetch_image(kept, {"x": 1})
    assert convert_image_mode(image, "L").mode == "L"
    assert convert_image_mode(image, "RGBA") is image
    exif = Image.Exif()
    exif[0x0112] = 6
    file = io.BytesIO()
    Image.new("RGB", (2, 3)).save(file, "PNG", exif=exif)
    url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
    assert fetch_image(url).size == (3, 2)


def test_scripts_may_import_the_pictures_that_they_do_not_use() -> None:
    from vllm.assets.image import ImageAsset

    with pytest.raises(ConfigError, match=r"vllm\.assets\.image\.ImageAsset: .* PIL\.Image\.open"):
        ImageAsset("stop_sign")


def test_sounds_and_videos_become_urls() -> None:
    sources = ImageSources.of(ImagesConfig({"image": 1}))
    samples = np.linspace(-1, 1, 50, dtype=np.float32)
    data = sources.read(encode_audio_url(samples, 16000))
    assert np.array_equal(mono_samples(data)[0], samples)
    frames = sources.read_frames(encode_video_url(np.zeros((3, 4, 4, 3), np.uint8)))
    assert [Image.open(io.BytesIO(one)).format for one in frames] == ["JPEG"] * 3
    with pytest.raises(RequestError, match="format must be 'WAV', not 'MP3'"):
        encode_audio_url(samples, 16000, format="MP3")
    with pytest.raises(RequestError, match="format must be 'JPEG', not 'MP4'"):
        encode_video_url(np.zeros((3, 4, 4, 3), np.uint8), format="MP4")
