"""GGUF files of which a few bytes are wrong."""

from __future__ import annotations

import random
import struct

NUMBERS = [0, 1, 2, 7, 8, 9, 10, 31, 255, 2**15, 2**31 - 1, 2**31, 2**32 - 1]


def damaged(raw: bytes, header_end: int, generator: random.Random) -> bytes:
    """One to four changes, in the header mostly: bits, numbers, cuts, moved and doubled pieces."""
    data = bytearray(raw)
    for _ in range(generator.choice([1, 1, 2, 4])):
        end = min(len(data), header_end if generator.random() < 0.95 else len(data))
        place = generator.randrange(max(1, end - 8))
        match generator.randrange(7):
            case 0:
                data[place : place + 1] = bytes([generator.randrange(256)])
            case 1:
                data[place : place + 4] = struct.pack("<I", generator.choice(NUMBERS))
            case 2:
                number = generator.choice([*NUMBERS, 2**62, 2**63 - 1, 2**63, 2**64 - 1])
                data[place : place + 8] = struct.pack("<Q", number)
            case 3:
                del data[generator.randrange(len(data) or 1) :]
            case 4:
                del data[place : place + generator.randrange(1, 40)]
            case 5:
                piece = data[place : place + generator.randrange(1, 40)]
                data[place:place] = piece
            case 6 if data:
                data[place % len(data)] ^= 1 << generator.randrange(8)
    return bytes(data)
