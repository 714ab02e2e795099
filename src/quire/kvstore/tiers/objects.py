"""`ObjectTier`: chunks as objects of a bucket, `<folder>/<first two digits>/<name>.kv`.

It supports S3 and compatible servers, Google Cloud Storage and Azure. Credentials and endpoints
come from the environment, as for other tools: `AWS_ACCESS_KEY_ID`, `AWS_ENDPOINT_URL` ... The tier
does not limit the size of the bucket; configure a rule there that removes old objects.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError, ThreadPoolExecutor
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta, timezone
from typing import TYPE_CHECKING, Any

from quire.errors import ConfigError
from quire.kvstore.chunks import ChunkKey
from quire.kvstore.tiers.base import Buffer, Tier, TierError, TierUsage
from quire.redaction import redact

if TYPE_CHECKING:
    from obstore import ObjectMeta
    from obstore.store import ObjectStore

_THREADS = 16
"""Maximum number of concurrent queries."""
_MESSAGE_CHARS = 300


class ObjectTier(Tier):
    """Objects below a URL. Not a local tier."""

    name = "objects"
    is_local = False

    def __init__(
        self,
        url: str,
        ttl_s: float | None = None,
        *,
        timeout_s: float = 10.0,
        connect_timeout_s: float = 2.0,
    ) -> None:
        """`url`: `s3://bucket/prefix`, `gs://bucket/prefix` or `az://container/prefix`. `ttl_s`:
        objects that were written longer ago count as missing. `timeout_s`: limit for one request.

        Does not connect. Raises ConfigError if `url` is wrong or obstore is not installed.
        """
        try:
            from obstore.exceptions import BaseError
        except ImportError:
            raise ConfigError(
                f"a tier {_place_of(url)} needs obstore: `pip install 'quire-engine[objects]'`"
            ) from None
        self._obstore_error: type[Exception] = BaseError
        self._ttl = None if ttl_s is None else timedelta(seconds=ttl_s)
        self._place = _place_of(url)
        self._store = _store_of(url, timeout_s, connect_timeout_s)
        self._threads = ThreadPoolExecutor(_THREADS, thread_name_prefix="kv-objects")
        self._is_closed = False

    def contains(self, keys: Sequence[ChunkKey]) -> list[bool]:
        self._raise_if_closed()
        try:
            return list(self._threads.map(self._find, keys))
        except (CancelledError, RuntimeError) as error:  # closed meanwhile
            raise TierError(f"{self._place} is closed") from error

    def read(self, key: ChunkKey, max_bytes: int) -> Buffer | None:
        self._raise_if_closed()
        with self._errors():
            try:
                found = self._store.get(_path(key))
            except FileNotFoundError:
                return None
            if found.meta["size"] <= max_bytes and not self._is_expired(found.meta):
                return memoryview(found.bytes())
        self.delete(key)
        return None

    def write(self, key: ChunkKey, parts: Sequence[Buffer]) -> None:
        self._raise_if_closed()
        if self._find(key):
            return
        with self._errors():
            self._store.put(_path(key), b"".join(parts), use_multipart=False)

    def delete(self, key: ChunkKey) -> None:
        self._raise_if_closed()
        with self._errors(), suppress(FileNotFoundError):
            self._store.delete(_path(key))

    def usage(self) -> TierUsage:
        return TierUsage(num_chunks=0, num_bytes=0, max_bytes=None)

    def close(self) -> None:
        self._is_closed = True
        self._threads.shutdown(wait=False, cancel_futures=True)

    def _find(self, key: ChunkKey) -> bool:
        with self._errors():
            try:
                return not self._is_expired(self._store.head(_path(key)))
            except FileNotFoundError:
                return False

    def _is_expired(self, meta: ObjectMeta) -> bool:
        if self._ttl is None:
            return False
        return bool(meta["last_modified"] < datetime.now(timezone.utc) - self._ttl)

    def _raise_if_closed(self) -> None:
        if self._is_closed:
            raise TierError(f"{self._place} is closed")

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except (self._obstore_error, OSError, ValueError) as error:
            raise TierError(f"{self._place}: {_why(error)}") from None


def _store_of(url: str, timeout_s: float, connect_timeout_s: float) -> ObjectStore:
    from obstore.exceptions import BaseError
    from obstore.store import from_url

    is_on_network = url.split(":", 1)[0] not in ("file", "memory")
    options: dict[str, Any] = {}
    if is_on_network:
        options["client_options"] = {
            "allow_http": True,  # for endpoints with http://
            "timeout": timedelta(seconds=timeout_s),
            "connect_timeout": timedelta(seconds=connect_timeout_s),
        }
        options["retry_config"] = {"max_retries": 1, "retry_timeout": timedelta(seconds=timeout_s)}
    try:
        store: ObjectStore = from_url(url, **options)
    except (BaseError, OSError, ValueError, TypeError) as error:
        raise ConfigError(f"{_place_of(url)} cannot be opened: {_why(error)}") from None
    return store


def _place_of(url: str) -> str:
    """Return the URL for messages, without user, password and query."""
    scheme, _, rest = url.partition("://")
    return f"{scheme}://{rest.split('?')[0].split('@')[-1]}"


def _why(error: Exception) -> str:
    """Return the first line of an error without secrets such as user names and signatures."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return redact(lines[0])[:_MESSAGE_CHARS]


def _path(key: ChunkKey) -> str:
    return f"{key.folder}/{key.name[:2]}/{key.name}.kv"
