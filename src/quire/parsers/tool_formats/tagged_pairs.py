"""Calls in tags whose arguments are pairs: a tag with the key, and one with the value.

`<tool_call>f<arg_key>k</arg_key><arg_value>v</arg_value></tool_call>`, used by GLM and others.
"""

from __future__ import annotations

from dataclasses import asdict, astuple, dataclass

from quire.parsers.arguments.grammar import Layout, calls_part
from quire.parsers.arguments.reading import ValueEnds, after_space, read_value, up_to
from quire.parsers.arguments.values import ANY, TEXT, Types, type_named
from quire.parsers.arguments.writer import ArgumentsWriter
from quire.parsers.events import Reply
from quire.parsers.json_calls import read_json_call
from quire.parsers.reader import Parse, TextReader
from quire.parsers.tool_format import Schemas, ToolFormat
from quire.structured.tags.parts import Part

_MOST_NAME = 256
_NOT_IN_NAMES = frozenset(" \t{}\"'")


@dataclass(frozen=True)
class PairTags:
    """The tags of a family."""

    call: str
    call_end: str
    key: str
    key_end: str
    value: str
    value_end: str
    type: str = ""
    """Optional tag between key and value, around the type of the value."""
    type_end: str = ""
    name_end: str = ""
    """Optional mark after the tool's name."""
    section: str = ""
    """Begins a section of calls."""
    section_end: str = ""

    @property
    def value_ends(self) -> ValueEnds:
        """The texts that end a value."""
        after_call = (self.section_end, self.call) if self.section else ()
        others: dict[str, tuple[str, ...]] = {self.key: (), self.call_end: after_call}
        if self.section:
            others[self.section_end] = ()
        after = (*others, self.call)
        return ValueEnds(self.value_end, after, others, (self.key,), (f"{{name}}{self.key_end}",))


def pair_tags(
    *, section: str = "", name_end: str = "", has_types: bool = False, mark: str = ""
) -> PairTags:
    """Build tags with `mark` before each name."""

    def begin(name: str) -> str:
        return f"<{mark}{name}>" if name else ""

    def end(name: str) -> str:
        return f"</{mark}{name}>" if name else ""

    type_name = "arg_type" if has_types else ""
    return PairTags(
        call=begin("tool_call"), call_end=end("tool_call"),
        key=begin("arg_key"), key_end=end("arg_key"),
        value=begin("arg_value"), value_end=end("arg_value"),
        type=begin(type_name), type_end=end(type_name),
        name_end=begin(name_end), section=begin(section), section_end=end(section),
    )  # fmt: skip


class PairCalls(ToolFormat):
    """A family that writes calls in such tags. A call in JSON within the tags is read too."""

    tags: PairTags
    line = ""
    """Text after the tool's name and after each pair."""
    unknown: Types = TEXT
    """Types assumed for an argument that the tool does not declare."""

    def __init_subclass__(cls) -> None:
        cls.markers = tuple(one for one in (cls.tags.section, cls.tags.call) if one)
        cls.other_texts = tuple(filter(None, astuple(cls.tags)))

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        return calls_part(tools, pair_layout(self.tags, self.line), is_parallel=is_parallel)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads one call without a section, or all calls of a section; end tags may be missing. An
        empty section or call is ignored."""
        return (
            yield from self.read(reply, self.tags, is_section=reply.marker == self.tags.section)
        )

    def read(self, reply: Reply, tags: PairTags, *, is_section: bool) -> Parse[bool]:
        """Reads calls with these tags."""
        reader, before = reply.reader, reply.num_calls
        found: str | None = tags.call
        if is_section:
            yield from reader.skip_space()
            found = yield from reader.literal(tags.call, tags.section_end)
            if found == tags.section_end:
                return True
        while found == tags.call:
            char = yield from reader.skip_space()
            if (yield from reader.literal(tags.call_end)):
                return True
            if char == "{":
                found = yield from _read_json(reply, tags)
            else:
                found = yield from self._read_call(reply, tags)
            if found == tags.call_end and tags.section:
                next_call = (tags.call,) if is_section else ()
                found = yield from after_space(reader, *next_call, tags.section_end)
        return reply.num_calls > before

    def _read_call(self, reply: Reply, tags: PairTags) -> Parse[str | None]:
        """Reads one call. Returns the tag that ended it; None if it is cut short or not a call."""
        reader = reply.reader
        name = yield from _name(reader)
        if tags.name_end and (yield from reader.literal(tags.name_end)):
            yield from reader.skip_space()
        ends = [one for one in (tags.call_end, tags.section_end, tags.call) if one]
        if not name or (yield from reader.starts_with(tags.key, *ends)) is None:
            return None
        writer = ArgumentsWriter(reply, name, unknown=self.unknown)
        found = yield from reader.until((tags.key, *ends))
        while found == tags.key:
            found = yield from _read_pair(reader, writer, tags)
            if found in (tags.key_end, tags.value_end):
                found = yield from reader.until((tags.key, *ends))
        if found is not None:
            writer.end()
        return found


def _read_json(reply: Reply, tags: PairTags) -> Parse[str | None]:
    if not (yield from read_json_call(reply)):
        return None
    return (yield from after_space(reply.reader, tags.call_end))


def _name(reader: TextReader) -> Parse[str]:
    """Reads a tool's name and the white space after it; empty if the name is invalid."""
    parts: list[str] = []
    while len(parts) < _MOST_NAME:
        char = yield from reader.next_char()
        if not char or char in "<\r\n":
            break
        parts.append(reader.take(1))
    yield from reader.skip_space()
    name = "".join(parts).strip()
    return "" if _NOT_IN_NAMES & set(name) else name


def _read_pair(reader: TextReader, writer: ArgumentsWriter, tags: PairTags) -> Parse[str | None]:
    """Reads a pair after its first tag. Returns the tag that ended it."""
    parts: list[str] = []
    found = yield from reader.until((tags.key_end, tags.value, tags.call_end), parts.append)
    if found == tags.key_end:
        yield from reader.skip_space()
        hint = yield from _type(reader, tags)
        if (yield from reader.literal(tags.value)) is None:
            return tags.key_end
    elif found == tags.value:
        hint = ANY
    else:
        return found
    key = "".join(parts).strip()
    form = writer.form(key, hint)
    value = writer.value(key, form)
    ends = tags.value_ends.of_names(writer.names)
    end = yield from read_value(reader, ends, value.take, form.types)
    if end is not None:
        value.end()
    return end


def _type(reader: TextReader, tags: PairTags) -> Parse[Types]:
    """Reads the type of a value, if one is written."""
    if not tags.type or (yield from reader.literal(tags.type)) is None:
        return ANY
    name = yield from up_to(reader, "<", "\n", _MOST_NAME)
    yield from reader.literal(tags.type_end[1:])
    yield from reader.skip_space()
    return type_named(name or "")


def pair_layout(tags: PairTags, line: str = "") -> Layout:
    """The layout of calls in these tags. `line`: text after the name and after each pair."""
    begin = f"{tags.key}{{key}}{tags.key_end}{line}"
    return Layout(
        call=(
            f"{tags.call}{{name}}{tags.name_end}{line}",
            tags.call_end + (line if tags.section else ""),
        ),
        text=(f"{begin}{tags.value}", f"{tags.value_end}{line}"),
        around=(f"{tags.section}{line}", tags.section_end) if tags.section else None,
        separator="" if tags.section else "\n",
        ends=tags.value_ends,
    )


class Glm45Calls(PairCalls):
    """GLM 4.5 and 4.6."""

    tags = pair_tags()
    line = "\n"


class Glm47Calls(PairCalls):
    """GLM 4.7 and 5, Ling 3."""

    tags = pair_tags()


class PoolsideCalls(PairCalls):
    """Poolside."""

    tags = pair_tags()
    line = "\n"
    unknown = ANY


def _with_suffix(tags: PairTags, suffix: str) -> PairTags:
    names = {name: text.replace(">", f"{suffix}>") for name, text in asdict(tags).items()}
    return PairTags(**names)


class HunyuanV3Calls(PairCalls):
    """Hunyuan 3, whose tags end with a suffix that differs between checkpoints."""

    tags = pair_tags(section="tool_calls", name_end="tool_sep")
    line = "\n"

    def __init__(self, suffix: str = "") -> None:
        """`suffix`: the suffix of the checkpoint's tags, used by `grammar`. Reading accepts any."""
        self._suffix = suffix
        self.markers = tuple(marker.removesuffix(">") for marker in type(self).markers)

    def grammar(self, tools: Schemas, *, is_parallel: bool) -> Part:
        layout = pair_layout(_with_suffix(self.tags, self._suffix), self.line)
        return calls_part(tools, layout, is_parallel=is_parallel)

    def read_calls(self, reply: Reply) -> Parse[bool]:
        """Reads calls; the first tag determines the suffix of all tags."""
        is_section = reply.marker == self.markers[0]
        suffix = yield from up_to(reply.reader, ">", "< \n", _MOST_NAME)
        if suffix is None or (suffix and not suffix.startswith(":")):
            return False
        return (yield from self.read(reply, _with_suffix(self.tags, suffix), is_section=is_section))


class HunyuanV4Calls(HunyuanV3Calls):
    """Hunyuan 4: like Hunyuan 3, without a mark after the name."""

    tags = pair_tags(section="tool_calls")
    line = ""


class K2HorizonCalls(PairCalls):
    """K2 Horizon, which may also write the types of values, or calls in JSON."""

    tags = pair_tags(section="tool_calls", mark="ifm|", has_types=True)
