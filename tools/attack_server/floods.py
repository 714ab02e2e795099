"""Floods: many more clients at once than the server has connections for, all of whom ask."""

from __future__ import annotations

import asyncio
import ssl
from collections import Counter
from typing import Any

from tools.attack_server.attacks import COMPLETIONS, Attack
from tools.attack_server.client import head, post

_TIMEOUT_S = 120.0
_FEW = {"prompt": "abc", "max_tokens": 4}


def flood(
    num_clients: int, request: bytes, *, is_tls: bool = False, pause_s: float = 0.0
) -> Attack:
    """So many clients connect at once, and each sends a request after a pause. Each has to get 200
    or 503; `closed` are those that got no reply."""

    def attack(port: int, _: float) -> Counter[Any]:
        return asyncio.run(_visit_all(port, num_clients, request, is_tls, pause_s))

    return attack


async def _visit_all(
    port: int, num_clients: int, request: bytes, is_tls: bool, pause_s: float
) -> Counter[Any]:
    context = ssl.create_default_context() if is_tls else None
    if context is not None:
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE

    async def visit() -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context)
            try:
                await asyncio.sleep(pause_s)
                writer.write(request)
                return (await reader.read())[9:12].decode() or "closed"
            finally:
                writer.close()
        except OSError as error:
            return type(error).__name__

    async def within_time() -> str:
        try:
            return await asyncio.wait_for(visit(), _TIMEOUT_S)
        except asyncio.TimeoutError:
            return "no reply"

    return Counter(await asyncio.gather(*(within_time() for _ in range(num_clients))))


_ASK = post(COMPLETIONS, _FEW).replace(b"\r\n", b"\r\nConnection: close\r\n", 1)
_LARGE = head("/tokenize", "Content-Length: 1000000\r\nConnection: close\r\n\r\n") + bytes(
    1_000_000
)
FLOODS: dict[str, Attack] = {
    "flood of 3,500": flood(3500, _ASK),
    "flood of 3,500, half a second later": flood(3500, _ASK, pause_s=0.5),
    "flood of 2,600 bodies of 1 MB": flood(2600, _LARGE),
}
TLS_FLOODS: dict[str, Attack] = {"TLS, flood of 500": flood(500, _ASK, is_tls=True)}
