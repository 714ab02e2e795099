"""Reading a checkpoint's JSON files: bounded, exact, and with vLLM's view of the defaults."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from quire.config.checkpoint import model_files as checkpoint
from quire.config.checkpoint.model_files import (
    GenerationConfig,
    default_sampling_params,
    eos_token_ids,
    has_file,
    read_config,
    read_generation_config,
    read_json_object,
    read_optional_json_object,
)
from quire.errors import CheckpointError, ModelNotFoundError


@pytest.mark.parametrize(
    ("raw", "message"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"[1]", "expected a JSON object, found list"),
        (b"null", "expected a JSON object, found NoneType"),
        (b'{"a": 1, "b": {"c": 1, "c": 2}}', "key 'c' is given twice"),
        (b'{"a": "\xff"}', "not UTF-8"),
        (b'{"a":' * 100_000, "nested too deeply|not valid JSON"),
        (b'{"a": ' + b"9" * 50_000 + b"}", "not valid JSON"),
        (b'{"a": [{"b": "\\ud83d!"}]}', "lone surrogate"),
        (b'{"\\uDC00": 1}', "lone surrogate"),
    ],
)
def test_bad_json_is_named(tmp_path: Path, raw: bytes, message: str) -> None:
    path = tmp_path / "config.json"
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=message) as caught:
        read_config(tmp_path)
    assert str(path) in str(caught.value)


def test_a_pair_of_surrogates_is_a_character(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"a": "\\ud83d\\ude00 \\\\ud83d"}')
    assert read_config(tmp_path) == {"a": "\U0001f600 \\ud83d"}


def test_a_message_stays_short(tmp_path: Path) -> None:
    (tmp_path / "generation_config.json").write_text(json.dumps({"top_k": "9" * 1_000_000}))
    with pytest.raises(
        CheckpointError, match=r"generation_config.json: top_k is .*not a number"
    ) as e:
        default_sampling_params(read_generation_config(tmp_path, {}))
    assert len(str(e.value)) < 2500


def test_what_lies_in_a_files_place_is_told(tmp_path: Path) -> None:
    assert not has_file(tmp_path / "none")
    assert not has_file(tmp_path)
    (tmp_path / "file").write_text("x")
    (tmp_path / "link").symlink_to("file")
    assert has_file(tmp_path / "link")
    assert not has_file(tmp_path / "file" / "below")
    (tmp_path / "nowhere").symlink_to("blobs/0123")
    (tmp_path / "loop").symlink_to("loop")
    os.mkfifo(tmp_path / "pipe")
    for name, message in [
        ("nowhere", "links to blobs/0123, where there is nothing"),
        ("loop", "cannot be read"),
        ("pipe", "must be a regular file"),
        ("n" * 300, "cannot be read"),
    ]:
        with pytest.raises(CheckpointError, match=message):
            has_file(tmp_path / name)


def test_the_size_is_bounded(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"a": "x" * 100}))
    with pytest.raises(CheckpointError, match="larger than the 50 B allowed"):
        read_json_object(path, max_bytes=50)
    assert checkpoint.MAX_CONFIG_BYTES >= 1 << 20
    assert read_json_object(path)["a"] == "x" * 100


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match=r"holds no config\.json"):
        read_config(tmp_path)
    assert read_optional_json_object(tmp_path / "none.json") == {}
    with pytest.raises(CheckpointError, match="cannot be read"):
        read_json_object(tmp_path / "none.json")
    (tmp_path / "config.json").mkdir()
    with pytest.raises(ModelNotFoundError):
        read_config(tmp_path)


def test_a_byte_order_mark_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(b'\xef\xbb\xbf{"a": 1}')
    assert read_config(tmp_path) == {"a": 1}


def test_sampling_defaults_as_vllm_applies_them(tmp_path: Path) -> None:
    values = {
        "do_sample": True,
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "min_p": None,
        "repetition_penalty": 1.05,
        "max_new_tokens": 2048,
        "eos_token_id": [151645, 151643],
        "transformers_version": "4.51.0",
    }
    (tmp_path / "generation_config.json").write_text(json.dumps(values))
    config = read_generation_config(tmp_path, {"temperature": 9.0})
    assert default_sampling_params(config) == {
        "temperature": 0.6,
        "top_k": 20,
        "top_p": 0.95,
        "repetition_penalty": 1.05,
        "max_tokens": 2048,
    }
    assert eos_token_ids(config) == (151645, 151643)
    assert config.source == str(tmp_path / "generation_config.json")


def test_a_model_may_say_that_special_tokens_are_shown(tmp_path: Path) -> None:
    path = tmp_path / "generation_config.json"
    path.write_text('{"skip_special_tokens": false}')
    assert default_sampling_params(read_generation_config(tmp_path, {})) == {
        "skip_special_tokens": False
    }
    path.write_text('{"skip_special_tokens": 0}')
    with pytest.raises(CheckpointError, match=r"skip_special_tokens is .*not true or false"):
        default_sampling_params(read_generation_config(tmp_path, {}))


def test_old_checkpoints_keep_the_defaults_in_config_json(tmp_path: Path) -> None:
    config = {"temperature": 0.7, "eos_token_id": 2, "hidden_size": 8, "top_p": None}
    values = read_generation_config(tmp_path, config)
    assert values.values == {"temperature": 0.7, "eos_token_id": 2}
    assert values.source == str(tmp_path / "config.json")


@pytest.mark.parametrize("value", ["hot", True, [0.5], {}])
def test_a_default_that_is_no_number_is_refused(value: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^some file: temperature is .*, not a number"):
        default_sampling_params(GenerationConfig({"temperature": value}, "some file"))


@pytest.mark.parametrize(
    ("values", "expected"),
    [(None, ()), (0, (0,)), ([], ()), ([3, 3, 2], (3, 2)), ([None, 5], (5,))],
)
def test_end_tokens(values: Any, expected: tuple[int, ...]) -> None:
    assert eos_token_ids(GenerationConfig({"eos_token_id": values}, "")) == expected
    assert eos_token_ids(GenerationConfig({}, "")) == ()


@pytest.mark.parametrize("values", ["2", -1, 2.0, True, [[1]], {"id": 1}])
def test_end_tokens_that_are_no_ids(values: Any) -> None:
    with pytest.raises(CheckpointError, match=r"^some file: .*not a token id"):
        eos_token_ids(GenerationConfig({"eos_token_id": values}, "some file"))


@pytest.mark.skipif(sys.platform != "linux", reason="relies on /proc")
def test_a_small_file_takes_little_memory_whatever_its_bound(tmp_path: Path) -> None:
    """As with `ulimit -v`, where memory counts that is reserved and not used."""
    (tmp_path / "a").write_bytes(b"text")
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from quire.config.checkpoint.model_files import read_bytes\n"
        "pages = int(Path('/proc/self/statm').read_text().split()[0])\n"
        "resource.setrlimit(resource.RLIMIT_AS, (pages * 4096 + (64 << 20),) * 2)\n"
        "assert read_bytes(Path(sys.argv[1]), max_bytes=1 << 30) == b'text'"
    )
    subprocess.run([sys.executable, "-c", code, str(tmp_path / "a")], check=True)
