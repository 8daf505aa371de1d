"""Ways to spoil bytes, all of them drawn from a `random.Random`, so that a seed gives the same again."""

from __future__ import annotations

import random
import re

NUMBERS = (
    *(b"0", b"-1", b"1", b"00", b"+5", b"1.0", b"1e3", b"0x10", b" 7", b"2147483647", b"2147483648", b"4294967296"),
    *(b"9223372036854775807", b"9223372036854775808", b"18446744073709551616", b"9" * 400, b"", b"NaN", b"\xc3\xa9"),
)
TOKENS = (
    *(b"\r\n", b"\n", b"\r", b"\0", b" ", b"\t", b":", b"{", b"}", b"[", b"]", b'"', b"\\", b"\\u0000", b"\xff"),
    *(b"null", b"true", b"[[[[", b"%2F", b"/", b"//", b"/..", b"?", b"#", b"HTTP/1.0", b"HTTP/2.0", b"chunked"),
)


def mutate(rng: random.Random, data: bytes, times: int = 1) -> bytes:
    """`data`, spoiled this many times."""
    for _ in range(times):
        data = rng.choice(_WAYS)(rng, data)
    return data


def pieces(rng: random.Random, data: bytes) -> list[bytes]:
    """`data` in pieces to be sent one after the other: mostly one."""
    if rng.random() < 0.7 or len(data) < 2:
        return [data]
    cuts = sorted(rng.randrange(len(data)) for _ in range(rng.randrange(1, 5)))
    return [data[start:end] for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True)]


def _flip(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([data[at] ^ (1 << rng.randrange(8))]) + data[at + 1 :]


def _set(rng: random.Random, data: bytes) -> bytes:
    if not data:
        return data
    at = rng.randrange(len(data))
    return data[:at] + bytes([rng.choice((0, 1, 10, 13, 32, 127, 128, 255, rng.randrange(256)))]) + data[at + 1 :]


def _span(rng: random.Random, data: bytes) -> tuple[int, int]:
    at = rng.randrange(len(data) + 1)
    return at, min(len(data), at + rng.choice((1, 2, 4, 16, 64)))


def _cut(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:start] + data[end:]


def _repeat(rng: random.Random, data: bytes) -> bytes:
    start, end = _span(rng, data)
    return data[:end] + data[start:end] * rng.choice((1, 1, 2, 50)) + data[end:]


def _truncate(rng: random.Random, data: bytes) -> bytes:
    return data[: rng.randrange(len(data) + 1)]


def _insert(rng: random.Random, data: bytes) -> bytes:
    at = rng.randrange(len(data) + 1)
    return data[:at] + rng.choice(TOKENS) + data[at:]


def _renumber(rng: random.Random, data: bytes) -> bytes:
    found = [*re.finditer(rb"-?[0-9]+", data)]
    if not found:
        return _insert(rng, data)
    match = rng.choice(found)
    return data[: match.start()] + rng.choice(NUMBERS) + data[match.end() :]


def _move_line(rng: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\r\n")
    line = rng.choice(lines)
    if rng.random() < 0.5:
        lines.remove(line)
    lines.insert(rng.randrange(len(lines) + 1), line)
    return b"\r\n".join(lines)


_WAYS = (_flip, _set, _cut, _repeat, _truncate, _insert, _renumber, _renumber, _move_line)
