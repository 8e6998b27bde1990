"""Valid contents of files, damaged in many ways, and what may come of reading them."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import jitdnn as jd
from jitdnn.errors import JitdnnError

NUMBERS = [
    "-1",
    "0",
    "99999999999999999999",
    "4294967296",
    "1e400",
    "nan",
    "-0",
    "0x7f",
    "9" * 5000,
    "2147483648",
]


def mutated(content: bytes, rng: random.Random, others: tuple[bytes, ...] = ()) -> bytes:
    """The content with one to three faults: bits, bytes, pieces lost, doubled, moved or taken from another file."""
    for _ in range(rng.choice((1, 1, 1, 2, 3))):
        n = len(content)
        start, stop = sorted((rng.randrange(n + 1), rng.randrange(n + 1)))
        piece = content[start : min(stop, start + rng.choice((1, 2, 4, 8, 64, n)))]
        behind = content[start + len(piece) :]
        kind = rng.randrange(8)
        if kind == 0:
            content = content[:start]
        elif kind == 1 and n:
            place = rng.randrange(n)
            content = content[:place] + bytes([content[place] ^ 1 << rng.randrange(8)]) + content[place + 1 :]
        elif kind == 2 and n:
            place = rng.randrange(n)
            content = (
                content[:place]
                + bytes([rng.choice((0, 1, 0x7F, 0x80, 0xFF, 0x22, 0x28))])
                + content[place + 1 :]
            )
        elif kind == 3:
            content = content[:start] + behind
        elif kind == 4:
            content = content[:start] + piece * rng.choice((2, 3, 50)) + behind
        elif kind == 5:
            place = rng.randrange(n + 1)
            content = content[:place] + piece + content[place:]
        elif kind == 6 and others:
            other = rng.choice(others)
            place = rng.randrange(len(other) + 1)
            content = content[:start] + other[place : place + max(1, len(piece))] + behind
        else:
            numbers = [match.span() for match in re.finditer(rb"\d+(?:\.\d+)?(?:e-?\d+)?", content)]
            if numbers:
                start, stop = rng.choice(numbers)
                content = content[:start] + rng.choice(NUMBERS).encode() + content[stop:]
    return content


@contextmanager
def only_typed_errors(content: object) -> Iterator[None]:
    """Names the content behind anything else than an error of the library."""
    try:
        yield
    except JitdnnError:
        pass
    except BaseException as error:
        error.add_note(f"from {content!r}"[:3000])
        raise


def damage(contents: tuple[bytes, ...], count: int, read: Callable[[bytes], object], seed: int = 0) -> None:
    """Read so many damaged contents: each gives a value or an error of the library."""
    rng = random.Random(seed)
    with jd.settings(load_limit="16 MiB"):
        for content in contents:
            read(content)  # whole, it is read
        for number in range(count):
            content = mutated(contents[number % len(contents)], rng, contents)
            with only_typed_errors(content):
                read(content)
