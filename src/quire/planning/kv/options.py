"""`AskedStore`: the KV store's settings from the arguments, by Quire's names and vLLM's.

Called by `gather_facts`, which then examines the directory. Knows no model and no machine.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from quire import env
from quire.config.engine_args import EngineArgs
from quire.config.kv_cache import KVRole
from quire.errors import ConfigError, quoted
from quire.planning.kv.connectors import ConnectorStore, connector_store
from quire.units import GiB, format_bytes

_MOST_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class AskedStore:
    """The user's settings for each tier; None: use the default."""

    is_off: bool
    is_named: bool
    """Whether an argument asks for the store; if so, a missing store is logged as a warning."""
    path: Path | None
    disk_bytes: int | None
    memory_bytes: int
    memory_name: str
    """Name of the argument that set `memory_bytes`."""
    remotes: tuple[str, ...]
    tenant_bytes: int | None
    ttl_s: float | None
    role: KVRole


def asked_store(args: EngineArgs) -> AskedStore:
    """Collect the settings. Raises ConfigError for unsupported values and for arguments that
    contradict each other."""
    connector = connector_store(args.kv_transfer_config)
    tiers = {
        "kv_store_path": args.kv_store_path,
        "kv_store_size": args.kv_store_size,
        "kv_store_memory": args.kv_store_memory,
        "kv_store_url": args.kv_store_url,
        "kv_store_tenant_size": args.kv_store_tenant_size,
        "kv_store_ttl": args.kv_store_ttl,
        "kv_offloading_size": args.kv_offloading_size,
        "swap_space": args.swap_space,
        "kv_transfer_config": connector,
    }
    given = [name for name, value in tiers.items() if value]
    if args.kv_store is False and given:
        raise ConfigError(f"kv_store=False and {given[0]} contradict each other; leave one out")
    _check_numbers(args)
    memory_name, memory_bytes = _memory(args, connector)
    is_named = bool(args.kv_store or given)
    return AskedStore(
        is_off=args.kv_store is False or (not is_named and env.kv_store_is_off()),
        is_named=is_named,
        path=_path(args, connector),
        disk_bytes=_disk_bytes(args, connector),
        memory_bytes=memory_bytes,
        memory_name=memory_name,
        remotes=_remotes(args, connector),
        tenant_bytes=args.kv_store_tenant_size,
        ttl_s=args.kv_store_ttl,
        role=connector.role if connector else "kv_both",
    )


def _check_numbers(args: EngineArgs) -> None:
    for name in ("kv_store_size", "kv_store_memory", "kv_offloading_size", "swap_space"):
        value = getattr(args, name)
        if value is not None and value < 0:
            raise ConfigError(f"{name} must not be negative, got {value}; use 0 to disable it")
        if value is not None and value > _MOST_BYTES:
            raise ConfigError(
                f"{name} must be at most {_MOST_BYTES}, got {value}; use 0 to disable it"
            )
    if args.kv_store_tenant_size is not None and not 0 < args.kv_store_tenant_size <= _MOST_BYTES:
        raise ConfigError(
            f"kv_store_tenant_size must be more than 0 bytes, got {args.kv_store_tenant_size}; "
            "leave it out for no limit per tenant"
        )
    if args.kv_store_ttl is not None and args.kv_store_ttl <= 0:
        raise ConfigError(
            f"kv_store_ttl must be more than 0 seconds, got {args.kv_store_ttl}; leave it out to "
            "keep K/V until its room is needed"
        )
    if args.kv_offloading_backend != "native":
        raise ConfigError(
            f"kv_offloading_backend={quoted(args.kv_offloading_backend)} is not supported: "
            "Quire keeps K/V itself; use native, and set kv_store_path or kv_store_url to share K/V"
        )


def _path(args: EngineArgs, connector: ConnectorStore | None) -> Path | None:
    found = args.kv_store_path or (connector and connector.path)
    if not found:
        return None
    try:
        return Path(found).expanduser().absolute()
    except RuntimeError as error:
        raise ConfigError(
            f"kv_store_path={quoted(found)}: {error}; give a path without ~"
        ) from None


def _disk_bytes(args: EngineArgs, connector: ConnectorStore | None) -> int | None:
    if args.kv_store_size is not None or connector is None:
        return args.kv_store_size
    return connector.disk_bytes


def _memory(args: EngineArgs, connector: ConnectorStore | None) -> tuple[str, int]:
    """Return the name and the value of the argument that sets the memory tier's size."""
    sizes = {
        "kv_store_memory": args.kv_store_memory or 0,
        "kv_offloading_size": int((args.kv_offloading_size or 0) * GiB),
        "swap_space": int((args.swap_space or 0) * GiB),
        "kv_transfer_config": connector.memory_bytes if connector else 0,
    }
    given = {name: size for name, size in sizes.items() if size}
    if len(set(given.values())) > 1:
        listed = " and ".join(f"{name} ({format_bytes(size)})" for name, size in given.items())
        raise ConfigError(f"{listed} all set the size of the memory tier; give one of them")
    return next(iter(given.items()), ("kv_store_memory", 0))


def _remotes(args: EngineArgs, connector: ConnectorStore | None) -> tuple[str, ...]:
    found = tuple(args.kv_store_url or ()) + (connector.remotes if connector else ())
    for url in found:
        from quire.kvstore.tiers.registry import scheme_of  # only engines with remote tiers need it

        try:
            scheme_of(url)
        except ConfigError as error:
            raise ConfigError(f"kv_store_url: {error}") from None
    return found
