"""`quire pull`, `list`, `show`, `rm` and `alias`, against a local server with the hub's API."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hub_cache import write_repo
from hub_server import HubServer

from quire.cli.app import main
from quire.cli.commands.library import PullLines, table
from quire.config.model_lookup import aliases
from quire.config.model_lookup.gguf import quant_of
from quire.config.model_lookup.hub import resolve_model
from quire.config.model_lookup.library import find_model, models_of
from quire.errors import ModelNotFoundError, QuireError

GGUF = b"GGUF" + bytes(range(256)) * 64


@pytest.fixture(autouse=True)
def own_places(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "settings"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def quire(url: str, *words: str, **env: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: huggingface_hub reads its variables once."""
    return subprocess.run(
        [sys.executable, "-m", "quire", *words],
        env={**os.environ, "HF_ENDPOINT": url, "HF_HUB_DISABLE_XET": "1", **env},
        capture_output=True, text=True, timeout=120, check=False,
    )  # fmt: skip


@pytest.mark.long
def test_a_file_is_pulled_compared_and_kept() -> None:
    files = {"README.md": b"x", "m-Q4_K_M.gguf": GGUF, "m-Q8_0.gguf": GGUF + b"8"}
    with HubServer("org/name", files, is_lfs=True) as hub:
        first = quire(hub.url, "pull", "hf.co/org/name:Q4_K_M")
        assert first.returncode == 0, first.stderr
        assert "org/name:Q4_K_M: 16.0 KiB" in first.stdout
        assert "1 checksums compared" in first.stdout
        assert hub.fetched() == {"m-Q4_K_M.gguf"}
        hub.requests.clear()
        assert quire(hub.url, "pull", "org/name:Q4_K_M").returncode == 0
        assert not [one for one in hub.requests if one.startswith("GET /org")]
        hub.files["m-Q8_0.gguf"] = b"another file of this length".ljust(len(GGUF) + 1, b"\0")
        hub.lfs_of = {"m-Q8_0.gguf": GGUF + b"8"}  # the hub's checksum is that of the right file
        damaged = quire(hub.url, "pull", "org/name:Q8_0")
        assert damaged.returncode == 1
        assert "does not have the checksum" in damaged.stderr
    listed = quire("http://127.0.0.1:9", "list", "--json")
    [entry] = json.loads(listed.stdout)
    assert (entry["name"], entry["num_bytes"]) == ("org/name:Q4_K_M", len(GGUF))


@pytest.mark.long
def test_a_pull_goes_on_where_it_was_interrupted() -> None:
    large = GGUF * 1536  # huggingface_hub writes pieces of 10 MiB
    with HubServer("org/name", {"m-Q4_0.gguf": large}, is_lfs=True) as hub:
        hub.cut_after = 15 << 20
        quire(hub.url, "pull", "org/name:Q4_0", HF_HUB_DOWNLOAD_TIMEOUT="2")
        hub.cut_after = None
        again = quire(hub.url, "pull", "--verify", "org/name:Q4_0")
        assert again.returncode == 0, again.stderr
        assert "1 checksums compared" in again.stdout
        assert max(hub.range_starts) >= 10 << 20


@pytest.mark.long
def test_without_a_network_the_answer_says_what_to_do() -> None:
    offline = quire("http://127.0.0.1:9", "pull", "org/name", HF_HUB_OFFLINE="1")
    assert offline.returncode == 1
    assert "HF_HUB_OFFLINE forbids it" in offline.stderr
    assert "hf download org/name" in offline.stderr
    unreachable = quire("http://127.0.0.1:9", "pull", "org/name")
    assert unreachable.returncode == 1
    assert "the hub http://127.0.0.1:9 cannot be reached: Connection refused." in unreachable.stderr
    assert "Traceback" not in unreachable.stderr


@pytest.mark.parametrize(
    ("refused", "said"), [("/models/org/name", "trying again in 0 s"), (".gguf", "Waiting")]
)
def test_waits_for_a_hub_that_limits_requests_are_shown(refused: str, said: str) -> None:
    with HubServer("org/name", {"m-Q4_K_M.gguf": GGUF}, is_lfs=True) as hub:
        for words in (("--json",), ()):
            hub.refused, hub.refusals = refused, [(429, {"Retry-After": "0"})]
            pulled = quire(hub.url, "pull", *words, "org/name")
            assert pulled.returncode == 0, pulled.stderr
            assert said in (pulled.stdout if words else pulled.stderr)
            assert not hub.refusals
            for path in hub_files():
                path.unlink()


def hub_files() -> list[Path]:
    return [path for path in Path(os.environ["HF_HUB_CACHE"]).rglob("*") if not path.is_dir()]


def test_show_fetches_nothing() -> None:
    with HubServer("org/name", {"config.json": b"{}", "model.safetensors": b"x"}) as hub:
        shown = quire(hub.url, "show", "org/name")
        assert not hub.requests
    assert shown.returncode == 1
    assert "nor the whole model of that name; quire pull org/name fetches it." in shown.stderr
    known = quire("http://127.0.0.1:9", "show", "qwen3:0.6b").stderr
    assert "quire pull qwen3:0.6b fetches it. Models that are on this machine: demo." in known


@pytest.mark.parametrize("name", ["smollm2:135m", "SmolLM2:135M", "SMOLLM2:135m"])
def test_a_short_name_is_pulled_and_shown(name: str) -> None:
    with HubServer("bartowski/SmolLM2-135M-Instruct-GGUF", {"m-Q4_K_M.gguf": GGUF}) as hub:
        pulled = quire(hub.url, "pull", name)
        assert pulled.stdout.startswith("bartowski/SmolLM2-135M-Instruct-GGUF:Q4_K_M: 16.0 KiB")
    assert quire("http://127.0.0.1:9", "rm", name.lower()).returncode == 0


def test_a_long_name_does_not_widen_other_lines() -> None:
    head, *lines = table(("NAME", "SIZE"), [("x" * 200, "1 B"), ("y", "2 B")]).splitlines()
    assert (head, lines[1]) == ("NAME" + " " * 58 + "SIZE", "y" + " " * 61 + "2 B")
    assert lines[0] == "x" * 200 + "  1 B"


def test_models_are_listed_by_name_and_file(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    cache = tmp_path / "hub"
    write_repo(cache, "a/plain", {"config.json": b"{}", "model.safetensors": b"12345"})
    write_repo(cache, "b/files", {
        "x-Q4_K_M.gguf": b"1234", "x-IQ2_XXS.gguf": b"12", "y-Q8_0-00001-of-00002.gguf": b"1",
        "y-Q8_0-00002-of-00002.gguf": b"2", "config.json": b"{}",
    })  # fmt: skip
    incomplete = write_repo(cache, "c/part", {"config.json": b"{}"})
    (incomplete.parents[1] / "blobs" / "abc.incomplete").write_bytes(b"1")
    found = {one.name: one for one in models_of(cache)}
    assert list(found) == ["a/plain", "b/files:IQ2_XXS", "b/files:Q4_K_M", "b/files:Q8_0", "c/part"]
    assert (found["a/plain"].num_bytes, found["b/files:Q8_0"].num_bytes) == (7, 2)
    assert not found["c/part"].is_complete
    main(["alias", "small", "b/files:Q4_K_M"])
    assert main(["list"]) == 0
    text = capsys.readouterr().out
    assert "b/files:Q4_K_M" in text
    assert "small" in text
    assert "incomplete" in text
    assert text.splitlines()[-1].startswith("demo")


def test_a_name_may_leave_out_what_is_not_needed(tmp_path: Path) -> None:
    cache = tmp_path / "hub"
    write_repo(cache, "a/one", {"x-Q4_K_M.gguf": b"1"})
    write_repo(cache, "b/two", {"x-Q4_K_M.gguf": b"1", "x-Q8_0.gguf": b"1"})
    assert find_model("a/one", cache).name == "a/one:Q4_K_M"
    assert find_model("b/two:x-Q8_0.gguf", cache).name == "b/two:Q8_0"
    with pytest.raises(ModelNotFoundError, match=r"may be any of b/two:Q4_K_M, b/two:Q8_0"):
        find_model("b/two", cache)
    with pytest.raises(ModelNotFoundError, match="which has: a/one:Q4_K_M"):
        find_model("c/three", cache)


@pytest.mark.parametrize(
    ("name", "quant"),
    [("m-Q4_K_M.gguf", "Q4_K_M"), ("m.q8_0.gguf", "Q8_0"), ("M-IQ3_XS.gguf", "IQ3_XS"),
     ("m-bf16.gguf", "BF16"), ("m-Q6_K-00001-of-00003.gguf", "Q6_K"), ("odd.gguf", "odd.gguf")],
)  # fmt: skip
def test_the_quantisation_is_read_from_the_name(name: str, quant: str) -> None:
    assert quant_of(Path(name)) == quant


def test_one_file_is_deleted_and_the_others_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    cache = tmp_path / "hub"
    write_repo(cache, "b/two", {"x-Q4_K_M.gguf": b"1", "x-Q8_0.gguf": b"12", "config.json": b"{}"})
    assert main(["rm", "b/two:Q8_0"]) == 0
    assert "2 B are free" in capsys.readouterr().out
    assert [one.name for one in models_of(cache)] == ["b/two:Q4_K_M"]
    assert main(["rm", "b/two:Q4_K_M", "b/none"]) == 1
    assert [one.name for one in models_of(cache)] == ["b/two:Q4_K_M"]  # all, or none
    assert main(["rm", "b/two"]) == 0
    assert models_of(cache) == []
    assert not list(cache.glob("models--*"))


def test_a_path_is_never_deleted(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    assert main(["rm", str(folder)]) == 1
    assert folder.is_dir()


def test_an_alias_of_a_path_holds_in_every_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    (tmp_path / "models").mkdir()
    monkeypatch.chdir(tmp_path)
    for place, wanted in (
        ("./models", tmp_path / "models"), ("models:Q4_K_M", f"{tmp_path}/models:Q4_K_M"),
        ("org/name:Q4_K_M", "org/name:Q4_K_M"), ("demo", "demo"),
    ):  # fmt: skip
        assert main(["alias", "small", place]) == 0
        assert aliases.target_of("small") == str(wanted)
        assert capsys.readouterr().out == f"small -> {wanted}\n"


def test_an_alias_stands_for_a_model(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    snapshot = write_repo(
        tmp_path / "hub", "a/one",
        {"config.json": b"{}", "tokenizer.json": b"{}", "model.safetensors": b"1"},
    )  # fmt: skip
    assert main(["alias", "small", "a/one"]) == 0
    assert main(["alias", "tiny", "small"]) == 0
    assert resolve_model("tiny") == snapshot
    capsys.readouterr()
    assert main(["alias"]) == 0
    assert capsys.readouterr().out == "small -> a/one\ntiny -> a/one\n"
    assert main(["alias", "--delete", "small"]) == 0
    assert aliases.read_aliases() == {"tiny": "a/one"}
    for words in (
        ["--delete", "small"], ["--delete", "tiny", "x"], ["tiny"], ["a/b/c", "x"], ["../x", "x"],
    ):  # fmt: skip
        assert main(["alias", *words]) == 1, words
    aliases.aliases_file().write_text("[]")
    with pytest.raises(QuireError, match="delete it"):
        aliases.read_aliases()
    with pytest.raises(QuireError, match="delete it"):
        aliases.target_of("tiny")
    assert aliases.target_of("./a/directory") is None


def test_facts_of_the_bundled_model(capsys: pytest.CaptureFixture) -> None:
    assert main(["show", "demo"]) == 0
    text = capsys.readouterr().out
    assert "Qwen3ForCausalLM" in text
    assert "4.0M" in text


def test_a_fact_of_a_file_is_on_its_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    fields = {"architectures": ["A\nlicense  free"]}
    (tmp_path / "config.json").write_text(json.dumps(fields))
    assert main(["show", str(tmp_path)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert not [line for line in lines if line.startswith("license")]
    assert [line for line in lines if line.endswith(r"A\nlicense  free")]


def test_progress_of_several_threads_is_one_object_a_line(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The stream gives up its turn after each write, as a pipe may."""

    class Pipe(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            time.sleep(0.0005)
            return count

    pipe = Pipe()
    monkeypatch.setattr(sys, "stdout", pipe)
    lines = PullLines("org/name")
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: lines.fetched(number, number), range(200)))
    written = pipe.getvalue().splitlines()
    assert len(written) == 200
    assert {json.loads(line)["completed"] for line in written} == set(range(200))
