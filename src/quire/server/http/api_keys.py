"""Reads the API keys of a server: from arguments, a file and the environment."""

from __future__ import annotations

from pathlib import Path

from quire import env
from quire.errors import ConfigError, quoted
from quire.server.args import ServerArgs

_MAX_KEY_FILE_BYTES = 1 << 20


def load_api_keys(args: ServerArgs) -> tuple[str, ...]:
    """All keys from arguments, file and environment, those of the operator first. Raises
    ConfigError if a key is unusable, or if the server would be open to the network without any."""
    keys = [*_given_operator_keys(args), *args.api_key]
    if args.api_key_file is not None:
        keys += _keys_of_file(Path(args.api_key_file))
    keys += env.api_keys()
    if any(not key.isascii() or not key.isprintable() or key != key.strip() or not key
           for key in keys):  # fmt: skip
        raise ConfigError(
            "an API key is empty, or has blanks around it or characters that are not printable "
            "ASCII; a key like one from `openssl rand -hex 32` works"
        )
    if not keys and not args.is_loopback and not args.allow_no_api_key:
        raise ConfigError(
            f"host {args.host} can be reached from other machines, and no API key is set; "
            "give --api-key, or --allow-no-api-key if that is what you want, "
            "or listen on 127.0.0.1"
        )
    return tuple(dict.fromkeys(keys))


def operator_keys(args: ServerArgs, keys: tuple[str, ...]) -> frozenset[str]:
    """The keys that may change and read what tenants share: the given ones, or the first."""
    return frozenset(_given_operator_keys(args) or keys[:1])


def _given_operator_keys(args: ServerArgs) -> tuple[str, ...]:
    return (*args.operator_api_key, *env.operator_api_keys())


def _keys_of_file(path: Path) -> list[str]:
    try:
        with path.open("rb") as file:
            data = file.read(_MAX_KEY_FILE_BYTES + 1)  # a device has no size to look at
        lines = data.decode("utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"api_key_file {quoted(str(path))} cannot be read: {reason}") from None
    if len(data) > _MAX_KEY_FILE_BYTES:
        raise ConfigError(f"api_key_file {path} is larger than 1 MiB; is it the right file?")
    keys = [line.strip() for line in lines]
    keys = [key for key in keys if key and not key.startswith("#")]
    if not keys:
        raise ConfigError(f"api_key_file {path} holds no key; write one per line")
    return keys
