"""Write down what is said in sound files: text, subtitles or JSON.

Several files are computed at once. A file that cannot be used gets an error and does not affect the
others. Options have the names of openai-whisper's command where it has them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys
from collections.abc import Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from quire.cli.commands.rows import add_row_options, open_server
from quire.cli.row_work import all_of
from quire.config.command_line.parser import Parser
from quire.config.declaration import common_options
from quire.config.engine_args import AsyncEngineArgs
from quire.errors import ConfigError, EngineDeadError, QuireError, RequestError, quoted
from quire.files import replacing
from quire.log.writer import printable, say
from quire.system.free_memory import bound_free_memory
from quire.transcription.formats import TEXT_FORMATS, verbose_json
from quire.transcription.records import Segment, Transcript, TranscriptionOptions

if TYPE_CHECKING:
    from quire.cli.chat_speech import ChatSpeech
    from quire.cli.in_process import InProcessServer
    from quire.transcription.transcriber import Transcriber

_FORMATS = (*TEXT_FORMATS, "json")
_SIZES = (
    "tiny", "tiny.en", "base", "base.en", "small", "small.en", "medium", "medium.en", "large-v1",
    "large-v2", "large-v3", "large-v3-turbo",
)  # fmt: skip
_NAMES = {
    **{size: f"openai/whisper-{size}" for size in _SIZES},
    "large": "openai/whisper-large-v3",
    "turbo": "openai/whisper-large-v3-turbo",
}
"""Models by the names that openai-whisper has for them."""
_MOST_AT_ONCE = 16
_STEP = 0.2
"""Default of --temperature-increment-on-fallback."""
_STDIN = "-"


def configure(parser: Parser) -> None:
    """Declare the options."""
    parser.add_argument(
        "files", nargs="*", metavar="FILE ...", help="Sound files; - is standard input."
    )
    add = parser.add_argument_group("words").add_argument
    add("--language", help="Language that is spoken, such as en or French; found by default.")
    add(
        "--task",
        dest="speech_task",
        choices=("transcribe", "translate"),
        default="transcribe",
        help="translate: the words in English.",
    )
    add("--prompt", "--initial-prompt", default="", help="Text before the words: names to spell.")
    add("--temperature", type=float, default=0.0, help="First temperature of sampling; 0.")
    add(
        "--temperature-increment-on-fallback",
        type=float,
        metavar="STEP",
        help="Added where the words seem wrong, up to 1; 0: never. 0.2 by default.",
    )
    on_off = argparse.BooleanOptionalAction
    add("--word-timestamps", action=on_off, default=False, help="Find the time of each word.")
    add("--vad-filter", action=on_off, default=False, help="Leave out parts without speech.")
    add(
        "--condition-on-previous-text",
        action=on_off,
        help="Show the model the text so far; on by default.",
    )
    add = parser.add_argument_group("output").add_argument
    add(
        "--format",
        "--output-format",
        "-f",
        choices=(*_FORMATS, "all"),
        metavar="FORMAT",
        help=f"Files to write: {', '.join(_FORMATS)} or all. Without it and --output-dir, the text "
        "is printed.",
    )
    add("--output-dir", "-o", metavar="DIR", help="Folder for the files; this one by default.")
    add_row_options(parser, has_positional=False, skip=("task",))
    parser.shorten({"ModelConfig"}, {*common_options(AsyncEngineArgs), "model"})


def execute(args: argparse.Namespace) -> int:
    """Transcribe all files. Returns 1 if one of them failed."""
    if not args.files:
        raise ConfigError("give a file: quire transcribe talk.mp3 --model base --format srt")
    bound_free_memory()
    named = getattr(args, "model", None) or "base"
    is_local = Path(named).exists()
    args.model = named if is_local else _NAMES.get(named, named)
    job = _Job.of(args)
    with open_server(args) as server:
        found = server.transcriber() or _chat_speech(server, args)
        job.options = replace(job.options, language=_code(args.language, found))
        at_once = min(_MOST_AT_ONCE, server.engine.config.scheduler.max_num_seqs)
        asyncio.run(job.run(found, args.files, at_once))
    return 1 if job.num_failed else 0


def _chat_speech(server: InProcessServer, args: argparse.Namespace) -> ChatSpeech:
    """Raises ConfigError if the model cannot do what is asked for."""
    from quire.cli.chat_speech import ChatSpeech  # for such models alone

    found = ChatSpeech.of(server)
    if found is None:
        raise ConfigError(
            f"--model {quoted(args.model)} must be a model of Whisper's kind, such as base or "
            "openai/whisper-small, or Voxtral"
        )
    of_whisper = {
        "--format": args.format not in (None, "txt"),
        "--task": args.speech_task != "transcribe",
        "--prompt": args.prompt,
        "--word-timestamps": args.word_timestamps,
        "--vad-filter": args.vad_filter,
        "--condition-on-previous-text": args.condition_on_previous_text is True,
        "--no-condition-on-previous-text": args.condition_on_previous_text is False,
        "--temperature-increment-on-fallback": args.temperature_increment_on_fallback is not None,
    }
    for option in (name for name, is_given in of_whisper.items() if is_given):
        raise ConfigError(
            f"{option} needs a model of Whisper's kind: {quoted(args.model)} writes down the words "
            "of a sound alone, as txt and without times"
        )
    return found


def _code(language: str | None, model: Transcriber | ChatSpeech) -> str | None:
    from quire.models.media.languages import asked_code

    try:
        return None if language is None else asked_code(language, model.languages)
    except RequestError as error:
        raise ConfigError(f"--language: {error}") from None


def _temperatures(first: float, step: float | None) -> tuple[float, ...]:
    step = _STEP if step is None else step
    if not 0 <= first <= 1:
        raise ConfigError(f"--temperature must be from 0 to 1, got {first}")
    if not (step == 0 or 0.01 <= step <= 1):
        raise ConfigError(
            f"--temperature-increment-on-fallback must be 0, or from 0.01 to 1, got {step}"
        )
    count = int((1 - first) / step + 1e-6) if step else 0
    return tuple(round(first + at * step, 6) for at in range(count + 1))


@dataclass(slots=True)
class _Job:
    """The work of one run."""

    options: TranscriptionOptions
    formats: Sequence[str]
    """Files to write for each sound; none: the text is printed."""
    directory: Path
    has_names: bool
    """Whether printed texts are headed by the names of their files."""
    shows_bar: bool
    num_failed: int = 0
    places: set[int] = field(default_factory=set)
    """Lines of the terminal that have a bar."""

    @classmethod
    def of(cls, args: argparse.Namespace) -> _Job:
        """Raises ConfigError."""
        options = TranscriptionOptions(
            task=args.speech_task,
            initial_prompt=args.prompt,
            temperatures=_temperatures(args.temperature, args.temperature_increment_on_fallback),
            condition_on_previous_text=args.condition_on_previous_text is not False,
            word_timestamps=args.word_timestamps,
            vad_filter=args.vad_filter,
            seed=getattr(args, "seed", None),
            silence=args.format in ("json", "all"),
        )
        is_printed = args.format is None and args.output_dir is None
        one = () if is_printed else (args.format or "txt",)
        formats = _FORMATS if args.format == "all" else one
        directory = Path(args.output_dir or ".")
        job = cls(options, formats, directory, len(args.files) > 1, not args.disable_tqdm)
        if formats:
            job._check(args.files)
        return job

    def _check(self, files: Sequence[str]) -> None:
        """Makes the folder. Raises ConfigError, also for two files with the same output."""
        first: dict[Path, str] = {}
        for name in dict.fromkeys(files):
            if (other := first.setdefault(self._target(name, ""), name)) != name:
                raise ConfigError(
                    f"{quoted(other)} and {quoted(name)} would have the same output; give them in "
                    "two runs, with another --output-dir"
                )
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"--output-dir {self.directory}: {error.strerror}") from None

    async def run(
        self, model: Transcriber | ChatSpeech, files: Sequence[str], at_once: int
    ) -> None:
        """Transcribe the files, so many of them at once."""
        names = iter(dict.fromkeys(files))
        await all_of([self._take(model, names) for _ in range(min(at_once, len(files)))])

    async def _take(self, model: Transcriber | ChatSpeech, names: Iterator[str]) -> None:
        for name in names:
            try:
                await self._one(model, name)
            except EngineDeadError:
                raise
            except QuireError as error:
                self.num_failed += 1
                self._say(f"quire transcribe: {name}: {error}", sys.stderr)

    async def _one(self, model: Transcriber | ChatSpeech, name: str) -> None:
        sound = await asyncio.to_thread(_source, name)
        place = min(set(range(len(self.places) + 1)) - self.places)
        self.places.add(place)
        try:
            found = await self._read(model, name, sound, place)
        finally:
            self.places.discard(place)
        for format in self.formats:
            with replacing(self._target(name, format)) as file:
                file.write(self._written(found, format).encode("utf-8", "replace"))
        if not self.formats:
            head = f"==> {name} <==\n" if self.has_names else ""
            self._say(head + self._written(found, "txt").rstrip("\n"), sys.stdout)

    async def _read(
        self, model: Transcriber | ChatSpeech, name: str, sound: bytes | Path, place: int
    ) -> Transcript:
        from tqdm import tqdm  # type: ignore[import-untyped]

        async with aclosing(model.transcribe(sound, self.options)) as items:
            header = await anext(items)
            if not isinstance(header, Transcript):
                raise RequestError("the transcription ended before it began")
            found = replace(header, segments=[])
            with tqdm(
                total=found.duration, desc=printable(Path(name).name), position=place,
                leave=False, disable=not self.shows_bar, dynamic_ncols=True, bar_format=_BAR,
            ) as bar:  # fmt: skip
                async for item in items:
                    if isinstance(item, Segment):
                        found.segments.append(item)
                        bar.update(min(item.end, found.duration) - bar.n)
        return found

    def _written(self, found: Transcript, format: str) -> str:
        if format in TEXT_FORMATS:
            return TEXT_FORMATS[format].whole(found.segments)
        value = verbose_json(found, self.options.task, words=self.options.word_timestamps)
        return json.dumps(value, ensure_ascii=False) + "\n"

    def _target(self, name: str, format: str) -> Path:
        stem = "stdin" if name == _STDIN else Path(name).stem
        return self.directory / f"{stem}.{format}"

    def _say(self, text: str, file: Any) -> None:
        from tqdm import tqdm

        with tqdm.external_write_mode(file=file):
            say(text, file=file)


_BAR = "{desc}: {percentage:3.0f}%|{bar}| {n:.0f}/{total:.0f} s [{elapsed}<{remaining}]"


def _source(name: str) -> bytes | Path:
    """The bytes of standard input, or a file's path. Raises RequestError."""
    if name == _STDIN:
        return sys.stdin.buffer.read()
    path, is_file = Path(name), False
    with suppress(OSError):
        is_file = path.is_file()
    if not is_file:
        raise RequestError("the file does not exist")
    return path
