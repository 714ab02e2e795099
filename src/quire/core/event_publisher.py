"""`EventPublisher`: sends KV events to subscribers, and repeats batches that they missed.

The wire format is vLLM's. An XPUB socket, which acts as PUB for subscribers, sends three frames:
topic, sequence number (8 bytes, big-endian) and a `KVEventBatch`. A ROUTER socket receives a
sequence number and answers with all kept batches from that number on, then with the number -1.
"""

from __future__ import annotations

import os
import threading
import time
from collections import deque
from contextlib import suppress

import msgspec
import zmq

from quire.config.kv_cache import KVEventsConfig
from quire.errors import ConfigError
from quire.log import get_logger
from quire.protocol.kv_events import KVEvent, KVEventBatch

logger = get_logger(__name__)

MAX_KEPT_BYTES = 64 << 20
"""Maximum bytes of batches that are kept for replay."""
_MAX_QUEUED_EVENTS = 100_000
_MAX_RECEIVED_BYTES = 4096
"""Maximum size of a frame from a subscriber, such as a topic or a number. A subscriber that sends
more is disconnected."""
MAX_SUBSCRIBED_BYTES = 1 << 20
"""Maximum bytes of all subscribed topics, plus `_BYTES_OF_A_TOPIC` for each. ZeroMQ needs about a
hundred times as much memory for them. ZeroMQ does not report which subscriber sent a topic, so all
subscribers are disconnected beyond this limit; they may reconnect later."""
_BYTES_OF_A_TOPIC = 64
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 64.0
"""Seconds until subscribers may reconnect; doubled each time."""
_CLOSE_S = 2.0
_LINGER_MS = 200
_END = (-1).to_bytes(8, "big", signed=True)
_LOCAL = ("ipc://", "tcp://127.", "tcp://localhost:")


class EventPublisher:
    """A thread with two sockets. `publish` never waits: if batches are not sent fast enough, new
    ones are dropped, and subscribers see a gap in the sequence numbers."""

    def __init__(self, config: KVEventsConfig, rank: int = 0) -> None:
        """`rank`: the number of this engine, which each batch has. Raises ConfigError if an
        endpoint cannot be bound or connected."""
        self._config = config
        self._rank = rank
        self._topic = config.topic.encode("utf-8", "surrogatepass")
        self._lock = threading.Lock()
        self._queue: deque[tuple[int, KVEventBatch]] = deque()
        self._num_queued_events = 0
        self._next_number = 0
        self._num_dropped = 0
        self._kept: deque[tuple[bytes, bytes]] = deque()
        """Sequence numbers and payloads, oldest first."""
        self._num_kept_bytes = 0
        self._encode = msgspec.msgpack.Encoder().encode
        self._is_closing = False
        self._pid = os.getpid()
        self._context = zmq.Context(io_threads=1)
        self._sockets: list[zmq.Socket[bytes]] = []
        self._num_subscribed_bytes = 0
        self._pub: zmq.Socket[bytes] | None = None
        """None: subscriptions are refused until `_opens_at`."""
        self._opens_at = 0.0
        self._pause_s = _FIRST_PAUSE_S
        self._replay: zmq.Socket[bytes] | None = None
        try:
            self._open()
            if config.replay_endpoint is not None:
                most = config.buffer_steps + 1
                self._replay = self._socket(zmq.ROUTER, config.replay_endpoint, most)
                self._replay.setsockopt(zmq.ROUTER_MANDATORY, 1)
        except BaseException:
            self._close_sockets(0)
            raise
        self._woken, self._wake = os.pipe()
        os.set_blocking(self._woken, False)
        os.set_blocking(self._wake, False)
        self._thread = threading.Thread(target=self._run, name="kv-events", daemon=True)
        self._thread.start()
        logger.info("KV events are sent at %s", config.endpoint)
        if not config.endpoint.startswith(_LOCAL):
            logger.warning(
                "KV events contain all prompts; anyone who can reach %s can read them",
                config.endpoint,
            )

    def publish(self, events: list[KVEvent]) -> None:
        """Queues a batch to be sent. Any thread. `events` must not be changed afterwards."""
        batch = KVEventBatch(time.time(), events, self._rank)  # type: ignore[arg-type]
        with self._lock:
            number = self._next_number
            self._next_number += 1
            if (
                self._is_closing
                or len(self._queue) >= self._config.max_queue_size
                or self._num_queued_events + len(events) > _MAX_QUEUED_EVENTS
            ):
                self._num_dropped += 1
                return
            self._queue.append((number, batch))
            self._num_queued_events += len(events)
            if len(self._queue) == 1:
                with suppress(BlockingIOError):  # the pipe is full: the thread wakes anyway
                    os.write(self._wake, b".")

    def close(self) -> None:
        """Sends queued batches for a short time, and ends the thread. Idempotent."""
        with self._lock:
            if self._is_closing:
                return
            self._is_closing = True
            os.write(self._wake, b".")
        self._thread.join(_CLOSE_S)

    def abandon(self) -> None:
        """Closes without waiting, after the owner was dropped. May be called by the garbage
        collector, on a thread that holds the lock."""
        is_free = self._pid == os.getpid() and self._lock.acquire(blocking=False)
        was_closing, self._is_closing = self._is_closing, True
        if is_free:
            with suppress(BlockingIOError):
                if not was_closing:
                    os.write(self._wake, b".")
            self._lock.release()

    def _open(self) -> None:
        """Opens the socket for subscribers. Raises ConfigError."""
        self._pub = self._socket(zmq.XPUB, self._config.endpoint, self._config.hwm)
        self._num_subscribed_bytes = 0

    def _socket(self, kind: int, endpoint: str, hwm: int) -> zmq.Socket[bytes]:
        """A new socket. ROUTER sockets are bound; XPUB sockets too, unless the endpoint names
        another machine."""
        socket = self._context.socket(kind)
        self._sockets.append(socket)
        socket.set_hwm(hwm)
        socket.setsockopt(zmq.MAXMSGSIZE, _MAX_RECEIVED_BYTES)
        if "[" in endpoint:
            socket.setsockopt(zmq.IPV6, 1)
        is_bound = kind == zmq.ROUTER or "*" in endpoint or "::" in endpoint
        try:
            if is_bound or endpoint.startswith(_LOCAL):
                socket.bind(endpoint)
            else:
                socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._sockets.remove(socket)
            socket.close(linger=0)
            name = "replay_endpoint" if kind == zmq.ROUTER else "endpoint"
            raise ConfigError(
                f"kv_events_config: {name} {endpoint} cannot be used: {error.strerror}; choose "
                "a free port, as in tcp://127.0.0.1:5557"
            ) from None
        return socket

    def _close_sockets(self, linger_ms: int) -> None:
        for socket in self._sockets:
            socket.close(linger=linger_ms)
        self._context.term()

    def _run(self) -> None:
        try:
            while not (self._is_closing and not self._queue):
                self._turn()
        except Exception:
            logger.exception("the thread that sends KV events failed; no more events are sent")
        finally:
            with self._lock:
                self._is_closing = True
                os.close(self._wake)
                os.close(self._woken)
            self._close_sockets(_LINGER_MS)

    def _turn(self) -> None:
        """Waits for socket events and handles them."""
        poller = zmq.Poller()
        poller.register(self._woken, zmq.POLLIN)
        for one in self._sockets:
            poller.register(one, zmq.POLLIN)
        wait_ms = None
        if self._pub is None:
            wait_ms = 1 + int(1000 * max(0.0, self._opens_at - time.monotonic()))
        for socket, _ in poller.poll(wait_ms):
            if self._pub is not None and socket is self._pub:
                self._take_subscriptions(self._pub)
            elif self._replay is not None and socket is self._replay:
                self._send_again(self._replay)
            else:
                os.read(self._woken, 4096)
                self._send_queued()
        if self._pub is None and time.monotonic() >= self._opens_at:
            self._open_again()

    def _take_subscriptions(self, pub: zmq.Socket[bytes]) -> None:
        """Counts the bytes of topics that were subscribed to or unsubscribed from."""
        while self._num_subscribed_bytes <= MAX_SUBSCRIBED_BYTES:
            try:
                [frame, *_] = pub.recv_multipart(zmq.NOBLOCK)
            except zmq.Again:
                return
            if frame[:1] in (b"\0", b"\1"):
                size = len(frame) + _BYTES_OF_A_TOPIC
                self._num_subscribed_bytes += size if frame[0] else -size
        self._sockets.remove(pub)
        pub.close(linger=0)
        self._pub = None
        self._put_off()
        logger.warning(
            "KV events: subscribers sent too many topics; all are disconnected for %.0f s",
            self._opens_at - time.monotonic(),
        )

    def _open_again(self) -> None:
        try:
            self._open()
        except ConfigError as error:  # for example, the old socket is not closed yet
            logger.warning("%s", error)
            self._put_off()

    def _put_off(self) -> None:
        self._opens_at = time.monotonic() + self._pause_s
        self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)

    def _send_queued(self) -> None:
        while True:
            with self._lock:
                if not self._queue:
                    dropped, self._num_dropped = self._num_dropped, 0
                    break
                number, batch = self._queue.popleft()
                self._num_queued_events -= len(batch.events)
            payload, count = self._encode(batch), number.to_bytes(8, "big")
            if self._pub is not None:
                self._pub.send_multipart((self._topic, count, payload))
            self._keep(count, payload)
        if dropped:
            logger.warning("%d batches of KV events were dropped: too many at once", dropped)

    def _keep(self, number: bytes, payload: bytes) -> None:
        if self._replay is None:
            return
        self._kept.append((number, payload))
        self._num_kept_bytes += len(payload)
        while len(self._kept) > self._config.buffer_steps or self._num_kept_bytes > MAX_KEPT_BYTES:
            self._num_kept_bytes -= len(self._kept.popleft()[1])

    def _send_again(self, replay: zmq.Socket[bytes]) -> None:
        """Answers one replay request. If the subscriber does not read the answer fast enough, the
        rest of it is dropped. Invalid requests are ignored."""
        frames = replay.recv_multipart()
        if len(frames) != 3 or len(frames[2]) != 8:
            return
        who, _, first = frames
        with suppress(zmq.ZMQError):
            for number, payload in self._kept:
                if number >= first:
                    answer = (who, b"", self._topic, number, payload)
                    replay.send_multipart(answer, zmq.NOBLOCK)
            replay.send_multipart((who, b"", b"", _END, b""), zmq.NOBLOCK)
