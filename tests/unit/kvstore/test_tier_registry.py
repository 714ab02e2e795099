"""From URLs to tiers: schemes, installed packages, and what is missing."""

from __future__ import annotations

import sys
from importlib.metadata import EntryPoint

import pytest

from quire.errors import ConfigError
from quire.kvstore.tiers import registry
from quire.kvstore.tiers.memory import MemoryTier
from quire.kvstore.tiers.registry import open_tier, scheme_of

LOADED: list[tuple[str, float | None]] = []


def my_tier(url: str, ttl_s: float | None) -> MemoryTier:
    LOADED.append((url, ttl_s))
    return MemoryTier(1000)


def no_tier(*_: object) -> str:
    return "a text"


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Three packages with entry points of the group; the last one would be loaded in vain."""
    names = {"mine": "my_tier", "wrong": "no_tier", "broken": "no_such_name", "redis": "my_tier"}
    found = [EntryPoint(name, f"{__name__}:{to}", registry.GROUP) for name, to in names.items()]
    monkeypatch.setitem(sys.modules, __name__, sys.modules.get(__name__, sys))
    for to in ("my_tier", "no_tier"):
        monkeypatch.setattr(sys.modules[__name__], to, globals()[to], raising=False)
    monkeypatch.setattr(registry, "entry_points", lambda group: found if group else [])
    LOADED.clear()


@pytest.mark.parametrize(
    ("url", "name", "package"),
    [
        ("redis://localhost:1", "redis", "redis"),
        ("rediss://localhost:1", "redis", "redis"),
        ("unix:///tmp/no.sock", "redis", "redis"),
        ("valkey://localhost:1/2", "redis", "redis"),
        ("REDIS://localhost:1", "redis", "redis"),
        ("s3://bucket/prefix", "objects", "obstore"),
        ("gs://bucket", "objects", "obstore"),
        ("az://container/prefix", "objects", "obstore"),
    ],
)
def test_a_scheme_says_which_tier(
    url: str, name: str, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip(package)
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    tier = open_tier(url, ttl_s=5.0)
    assert (tier.name, tier.is_local) == (name, False)
    tier.close()


@pytest.mark.usefixtures("installed")
def test_an_installed_package_adds_a_scheme() -> None:
    assert isinstance(open_tier("mine://x", ttl_s=3.0), MemoryTier)
    assert LOADED == [("mine://x", 3.0)]


@pytest.mark.usefixtures("installed")
def test_only_the_one_that_is_named_is_loaded_and_own_schemes_are_ours() -> None:
    pytest.importorskip("redis")
    open_tier("redis://localhost:1").close()
    assert scheme_of("mine://x") == "mine"
    assert LOADED == []


@pytest.mark.usefixtures("installed")
def test_entry_points_that_are_wrong() -> None:
    with pytest.raises(ConfigError, match="gave str, not a Tier"):
        open_tier("wrong://x")
    with pytest.raises(ConfigError, match=r"'broken' of quire.kv_tiers .* cannot be loaded"):
        open_tier("broken://x")


@pytest.mark.parametrize("url", ["ftp://host/x", "mine://x", "/var/cache", "", "redis:localhost"])
def test_what_is_unknown_names_what_is_known(url: str) -> None:
    with pytest.raises(
        ConfigError, match=r"quire-engine\[redis\].*quire-engine\[objects\].*quire.kv_tiers"
    ):
        scheme_of(url)


@pytest.mark.parametrize(
    ("url", "package", "extra"),
    [("redis://host", "redis", "redis"), ("s3://bucket", "obstore", "objects")],
)
def test_a_missing_package_is_told(
    url: str, package: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in (package, f"{package}.exceptions"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ConfigError, match=rf"pip install 'quire-engine\[{extra}\]'"):
        open_tier(url)
