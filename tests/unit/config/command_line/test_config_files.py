"""Files of options: what is read, and what is refused at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from quire.config.command_line.config_files import read_config
from quire.errors import ConfigError

NESTED = "a: " + 200 * "[" + 200 * "]"
DEEP = "a: " + 20_000 * "["
BOMB = "\n".join(
    ["a0: &a0 [1]", *(f"a{i}: &a{i} [{', '.join(9 * [f'*a{i - 1}'])}]" for i in range(1, 12))]
)
MERGE_BOMB = "\n".join(
    ["a0: &a0 {x: 1}"]
    + [f"a{i}: &a{i} {{<<: [{', '.join(9 * [f'*a{i - 1}'])}]}}" for i in range(1, 12)]
)
MANY = "a: &a [" + 5000 * "1," + "]\nb: [" + 5000 * "*a," + "]"


def test_yaml_may_share_values(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("\ufeffbase: &b {x: 1, y: é}\nmore: {<<: *b, y: 2}\nagain: *b\n", "utf-8")
    assert read_config(file) == {
        "base": {"x": 1, "y": "é"}, "more": {"x": 1, "y": 2}, "again": {"x": 1, "y": "é"},
    }  # fmt: skip
    file.write_text("# nothing")
    with pytest.raises(ConfigError, match="expected `option: value` lines"):
        read_config(file)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"\xff\xfe\xfa", "a.yaml: .*"),
        (b"a: \x80\x81", "invalid start byte"),
        (b"a: \x00", "special characters"),
        ("a: 1\nb: {c: 1, c: 2}", r"key 'c' must be given once: +in .*line 2"),
        ("a: 1\n'a': 2", "key 'a' must be given once"),
        ("a: &a [*a]", "an alias counts as"),
        ("a: &a {b: *a}", "an alias counts as"),
        ("a: &a {<<: *a}", "an alias counts as"),
        (NESTED, "32 levels"),
        (DEEP, "32 levels"),
        (BOMB, "at most 20000 values"),
        (MERGE_BOMB, "at most 20000 values"),
        (MANY, "at most 20000 values"),
        ("a: *b", "undefined alias"),
        ("a: 1\n--- \nb: 1", "single document"),
        ("a: !!python/object/apply:os.system [ls]", "could not determine a constructor"),
        ("a: !!int many", "valid for its type"),
        ("a: !!int ''", "valid for its type"),
        ("a: !!bool perhaps", "valid for its type"),
        ("a: !!timestamp now", "valid for its type"),
        ("a: 2026-13-45", "valid for its type"),
        ("a: " + 5000 * "9", "valid for its type"),
        ("a: !!binary é", "a.yaml: "),
        ("? [a, b]\n: 1\n? {c: d}\n: 2", "unhashable key"),
        ("\ta: 1", "a.yaml: "),
        ("a: 1\n" * 20_000, "larger than the 64.0 KiB allowed"),
        ("just text", "expected `option: value` lines"),
    ],
)
def test_bad_yaml_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(ConfigError, match=message) as found:
        read_config(file, "--models")
    assert str(found.value).startswith(f"--models {file}: ")
    assert len(str(found.value)) < 1000


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"a": 1, "a": 2}', "'a' is given twice"),
        ('{"a": ' + 30_000 * "[", "nested too deeply"),
        ('{"a": ' + 5000 * "9" + "}", "not valid JSON"),
        ('{"a": "\\ud800"}', "lone surrogate"),
        ("[1]", "expected a JSON object"),
        ("", "not valid JSON"),
    ],
)
def test_bad_json_is_named(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message) as found:
        read_config(file)
    assert str(found.value).startswith(f"--config {file}: ")


def test_what_is_no_file_is_named(tmp_path: Path) -> None:
    for path, message in (
        (tmp_path, "Is a directory"), (tmp_path / "gone.yaml", "No such file"),
        (Path("/dev/zero"), "larger than"), (Path("/dev/null"), "expected `option: value` lines"),
    ):  # fmt: skip
        with pytest.raises(ConfigError, match=message):
            read_config(path)
