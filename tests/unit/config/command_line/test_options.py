"""Options made from dataclasses: shapes, help, and reading back."""

from __future__ import annotations

import argparse
from dataclasses import dataclass, field, fields
from typing import Any, Literal

import pytest

from quire.config.command_line.options import (
    add_options,
    field_documents,
    parse_count,
    parse_size,
    read,
)
from quire.config.command_line.parser import Parser
from quire.config.command_line.values import parse_duration
from quire.config.engine_args import AsyncEngineArgs, EngineArgs
from quire.server.args import ServerArgs


@dataclass(frozen=True)
class Base:
    model: str | None = None
    """Which model."""


@dataclass(frozen=True)
class Record(Base):
    max_len: int | None = None
    """Most tokens,
    100 % of them."""
    is_on: bool | None = None
    kind: Literal["a", "b"] = "a"
    names: str | list[str] | None = None
    extra: dict[str, Any] = field(default_factory=dict)
    size_bytes: int = 7
    share: float = 0.5
    token: str | bool | None = None


def parse(*words: str) -> Record:
    parser = Parser("quire test", "")
    add_options(parser, Record, title="record")
    return read(Record, parser.parse(words))


def test_nothing_given_keeps_the_dataclass_defaults() -> None:
    assert parse() == Record()


def test_every_shape_reads_back() -> None:
    found = parse(
        "--model", "m", "--max-len", "2K", "--no-is-on", "--kind", "b", "--names", "x", "y",
        "--extra", '{"a": [1]}', "--size-bytes", "4KiB", "--share", "0.25", "--token", "true",
    )  # fmt: skip
    assert found == Record(
        model="m", max_len=2048, is_on=False, kind="b", names=["x", "y"], extra={"a": [1]},
        size_bytes=4096, share=0.25, token=True,
    )  # fmt: skip
    assert parse("--is-on").is_on is True
    assert parse("--token", "hf_abc").token == "hf_abc"
    assert parse("--token", "--is-on").token is True
    assert parse("--token", "None").token is None


@pytest.mark.parametrize(
    ("text", "count"),
    [("12", 12), ("1k", 1000), ("1K", 1024), ("1.5k", 1500), ("2m", 2_000_000), ("1_000", 1000),
     ("-1", -1), ("1G", 2**30), ("10.2123451234567k", 10212), ("2.0K", 2048)],
)  # fmt: skip
def test_counts_as_people_write_them(text: str, count: int) -> None:
    assert parse_count(text) == count


@pytest.mark.parametrize("text", ["", "k", "1.5", "1q", "0x10", "one", "1.0001K", "nan", "inf"])
def test_what_is_no_count_is_refused(text: str) -> None:
    with pytest.raises(argparse.ArgumentTypeError):
        parse_count(text)


def test_sizes() -> None:
    assert parse_size("1.5GiB") == 1_610_612_736
    with pytest.raises(argparse.ArgumentTypeError, match="4GiB"):
        parse_size("much")


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("1.5h", 5400), ("7d", 604_800), ("2 W", 1_209_600), ("0.5m", 30),
     ("1h30m", 5400), ("5m0s", 300), ("250ms", 0.25)],
)  # fmt: skip
def test_times(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds
    for bad in ("", "d", "-1d", "1y", "inf", "1h30", "1.m", "90 90"):
        with pytest.raises(argparse.ArgumentTypeError, match="such as 90s, 30m, 12h or 7d"):
            parse_duration(bad)


def test_the_tiers_of_the_kv_store() -> None:
    parser = Parser("quire test", "")
    add_options(parser, EngineArgs, title="record")
    words = "--kv-store-url a b --kv-store-size 20GiB --kv-store-memory 1.5g --kv-store-url c"
    found = read(EngineArgs, parser.parse([*words.split(), "--kv-store-ttl", "7d"]))
    assert found.kv_store_url == ["a", "b", "c"]
    assert (found.kv_store_size, found.kv_store_ttl) == (20 << 30, 604_800)
    assert found.kv_store is None
    assert read(EngineArgs, parser.parse(["--no-kv-store"])).kv_store is False
    assert read(EngineArgs, parser.parse(["--kv-store"])).kv_store is True


def test_documents_come_from_below_the_fields_and_from_bases() -> None:
    documents = field_documents(Record)
    assert documents["model"] == "Which model."
    assert documents["max_len"] == "Most tokens,\n100 % of them."
    parser = Parser("quire test", "")
    add_options(parser, Record, title="record")
    text = " ".join(parser.format_help().split())
    assert "Most tokens, 100 % of them." in text
    assert "(default: 0.5)" in text


def test_a_field_that_no_option_can_hold_is_an_error_of_ours() -> None:
    @dataclass
    class Odd:
        value: complex = 0j

    with pytest.raises(TypeError, match="value"):
        add_options(Parser("quire test", ""), Odd, title="odd")


@pytest.mark.parametrize("record", [EngineArgs, AsyncEngineArgs, ServerArgs])
def test_every_field_of_the_real_records_becomes_a_documented_option(record: type) -> None:
    parser = Parser("quire test", "")
    add_options(parser, record, title="record")
    documents = field_documents(record)
    for one in fields(record):
        assert "--" + one.name.replace("_", "-") in parser.flags()
        assert documents.get(one.name), f"{record.__name__}.{one.name} has no text below it"
    assert read(record, parser.parse([])) == record()
