"""The table of speech to text: the time for the words of recordings, and the memory of engines.

    python bench/transcription.py DIR --sound speech.wav --checkpoint quire=WHISPER
        --peer faster=/venvs/faster/bin/python --checkpoint faster=CT2
        --option faster='{"compute_type": "int8"}'
        --peer whispercpp=/venvs/cpp/bin/python --checkpoint whispercpp=ggml-base.bin

`quire` needs no `--peer`. A name may have a second part, such as `quire-int8`, with a checkpoint
and options of its own. Each round has other files, with noise that cannot be heard, so that no
engine has anything of them cached: one file, and several at once. Rounds of the engines alternate.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import wave
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
from helpers.command_line import named_values
from helpers.peer_process import Peer, PeerError, PeerSpec

_QUIET = 2.0
"""Deviation of the noise, in steps of 16 bits."""


class SpeechPeer(Peer):
    """An engine that writes down what it hears."""

    child = Path(__file__).parent / "helpers" / "speech_child.py"


def main() -> int:
    """Measures and prints the table. 1 if an engine failed."""
    args = _arguments()
    args.directory.mkdir(parents=True, exist_ok=True)
    pythons = named_values(args.peer, "--peer")
    options = named_values(args.option, "--option")
    peers: dict[str, SpeechPeer] = {}
    times: dict[tuple[str, int], list[float]] = defaultdict(list)
    memory: dict[tuple[str, int], int] = defaultdict(int)
    failed = False
    try:
        for name, checkpoint in named_values(args.checkpoint, "--checkpoint").items():
            python = pythons.get(name, sys.executable)
            settings = json.loads(options.get(name, "{}"))
            spec = PeerSpec(name, python, checkpoint, settings, {"QUIRE_LOG_LEVEL": "WARNING"})
            try:
                peers[name] = SpeechPeer(spec, args.directory / f"{name}.log", args.timeout)
            except PeerError as error:
                failed = True
                print(f"{name}: {error}", flush=True)
        for number in range(-1, args.rounds):
            for count in (1, args.several):
                files = [_variant(args, number, at) for at in range(count)]
                for name, peer in peers.items():
                    answer = peer.answer({"files": files})
                    if count > 1 or number < 0:  # later, several files have been heard
                        memory[name, count] = max(memory[name, count], peer.resident_bytes())
                    if number >= 0:
                        times[name, count].append(answer["seconds"])
                    elif count == 1:
                        print(f"{name} {peer.version}: {answer['texts'][0][:120]!r}", flush=True)
    finally:
        for peer in peers.values():
            peer.close()
    print(_table(args, [*peers], times, memory))
    return int(failed)


def _variant(args: argparse.Namespace, number: int, at: int) -> str:
    """The recording with noise of its own."""
    path = args.directory / f"{number}-{at}.wav"
    with wave.open(str(args.sound)) as sound:
        form, samples = sound.getparams(), sound.readframes(sound.getnframes())
    if (form.sampwidth, form.framerate) != (2, 16_000):
        raise SystemExit(f"--sound {args.sound}: must be a WAV file of 16 bits and 16,000 Hz")
    noise = np.random.default_rng([number + 1, at]).normal(0, _QUIET, len(samples) // 2)
    values = np.frombuffer(samples, "<i2") + noise
    with wave.open(str(path), "wb") as file:
        file.setparams(form)
        file.writeframes(np.clip(values, -32768, 32767).astype("<i2").tobytes())
    return str(path)


def _table(
    args: argparse.Namespace,
    names: list[str],
    times: dict[tuple[str, int], list[float]],
    memory: dict[tuple[str, int], int],
) -> str:
    """Medians, with the ratio to the first engine's."""
    with wave.open(str(args.sound)) as sound:
        seconds = sound.getnframes() / sound.getframerate()
    lines = [
        f"{seconds:.1f} s of speech, {args.rounds} rounds",
        f"| engine | 1 file | x real time | MiB | {args.several} files | x real time | MiB |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    medians: dict[tuple[str, int], float] = {
        key: statistics.median(found) for key, found in times.items()
    }
    for name in names:
        cells: list[Any] = [name]
        for count in (1, args.several):
            own, first = medians[name, count], medians[names[0], count]
            cells += [f"{own:.2f} s ({own / first:.2f})", f"{count * seconds / own:.1f}"]
            cells.append(f"{memory[name, count] / 2**20:.0f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--sound", type=Path, required=True, help="speech: WAV, 16 bits, 16,000 Hz")
    parser.add_argument("--checkpoint", action="append", default=[], metavar="NAME=PATH")
    parser.add_argument("--peer", action="append", default=[], metavar="NAME=PYTHON")
    parser.add_argument("--option", action="append", default=[], metavar="NAME=JSON")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--several", type=int, default=8)
    parser.add_argument("--timeout", type=float, default=600.0)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
