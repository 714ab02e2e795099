"""`quire transcribe`, with a transcriber that gives fixed segments."""

from __future__ import annotations

import io
import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from fake_speech import FakeSpeech

from quire.cli import main
from quire.cli.in_process import InProcessServer

TEXT = "Hello there.\nHow are\nyou?\n"


@pytest.fixture
def speech(monkeypatch: pytest.MonkeyPatch) -> FakeSpeech:
    found = FakeSpeech()
    monkeypatch.setattr(InProcessServer, "transcriber", lambda _: found)
    return found


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    for name in ("a.wav", "b.mp3"):
        Path(name).write_bytes(b"RIFF" + name.encode())
    Path("bad.wav").write_bytes(b"bad")
    return tmp_path


def run(model_dir: Path, *words: str) -> int:
    return main(["transcribe", *words, "--model", str(model_dir), "--disable-tqdm"])


def test_the_text_is_printed(
    folder: Path, speech: FakeSpeech, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model_dir, "a.wav", "--word-timestamps", "--language", "German", "--vad-filter") == 0
    assert capsys.readouterr().out == TEXT
    [(sound, options)] = speech.asked
    assert (sound, options.language) == (Path("a.wav"), "de")
    assert options.word_timestamps
    assert options.vad_filter
    assert options.condition_on_previous_text
    assert options.temperatures == (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
    assert run(model_dir, "a.wav", "b.mp3") == 0
    assert sorted(capsys.readouterr().out.split("==> ")) == [
        "", f"a.wav <==\n{TEXT}", f"b.mp3 <==\n{TEXT}",
    ]  # fmt: skip
    assert sorted(path.name for path in folder.iterdir()) == ["a.wav", "b.mp3", "bad.wav"]


@pytest.mark.usefixtures("folder")
def test_files_are_written(speech: FakeSpeech, model_dir: Path) -> None:
    words = [
        "a.wav",
        "b.mp3",
        "--output_format",
        "all",
        "--output_dir",
        "out/x",
        "--word_timestamps",
    ]
    assert run(model_dir, *words, "--task", "translate", "--initial_prompt", "Quire") == 0
    names = sorted(path.name for path in Path("out/x").iterdir())
    assert names == sorted(
        f"{x}.{kind}" for x in "ab" for kind in ("json", "srt", "tsv", "txt", "vtt")
    )
    assert Path("out/x/b.txt").read_text() == TEXT
    assert Path("out/x/a.srt").read_text().startswith("1\n00:00:00,000 --> ")
    found = json.loads(Path("out/x/a.json").read_text())
    assert (found["task"], found["language"], len(found["words"])) == ("translate", "english", 5)
    assert {options.initial_prompt for _, options in speech.asked} == {"Quire"}
    assert run(model_dir, "a.wav", "-f", "srt", "--temperature", "0.9") == 0
    assert Path("a.srt").exists()
    assert speech.asked[-1][1].temperatures == (0.9,)


@pytest.mark.usefixtures("folder")
def test_a_file_that_fails_does_not_end_the_others(
    speech: FakeSpeech, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model_dir, "bad.wav", "a.wav", "none.wav", "b.mp3", "-o", "out") == 1
    assert sorted(path.name for path in Path("out").iterdir()) == ["a.txt", "b.txt"]
    errors = capsys.readouterr().err
    assert "bad.wav: the audio must be a file of type WAV" in errors
    assert "none.wav: the file does not exist" in errors
    assert speech.num_open == 0


def test_standard_input(
    folder: Path,
    speech: FakeSpeech,
    model_dir: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for options, names in (((), []), (("-o", "out"), ["stdin.txt"])):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"RIFF-")))
        assert run(model_dir, "-", *options) == 0
        assert speech.sounds.pop() == b"RIFF-"
        assert [path.name for path in folder.glob("out/*")] == names
    assert capsys.readouterr().out == TEXT


@pytest.mark.usefixtures("folder", "speech")
def test_the_bar_shows_seconds(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["transcribe", "a.wav", "--model", str(model_dir), "-o", "x"]) == 0
    assert "a.wav" in capsys.readouterr().err


@pytest.mark.usefixtures("folder", "speech")
@pytest.mark.parametrize(
    ("words", "error"),
    [
        ([], "give a file"),
        (["a.wav", "--temperature", "2"], "from 0 to 1"),
        (["a.wav", "--temperature-increment-on-fallback", "0.001"], "from 0.01 to 1"),
        (["a.wav", "--language", "xx"], "Must be one of"),
        (["a.wav", "./x/a.mp3", "-f", "srt"], "same output"),
        (["a.wav", "-o", "b.mp3"], "--output-dir b.mp3"),
    ],
)
def test_wrong_options_are_named(
    words: list[str], error: str, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(model_dir, *words) == 1
    assert error in capsys.readouterr().err


@pytest.mark.usefixtures("folder")
def test_other_models_are_refused(model_dir: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(model_dir, "a.wav") == 1
    assert "must be a model of Whisper's kind" in capsys.readouterr().err
