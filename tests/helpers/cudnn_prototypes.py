"""The functions of cuDNN 9.28's legacy headers: names, and kinds and names of their arguments, in order.

Kinds: h handle, d descriptor, i int or enumeration, z size_t, Q unsigned long long, f float, g double, I array of
int on the
host, s a number that is passed by its address, p memory of the device, or another address; with > what is written
on the host:
these are results, >I arrays, >perf what a query says of algorithms, >s a number, >c text.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple


class Argument(NamedTuple):
    kind: str
    name: str


def read() -> dict[str, list[Argument]]:
    """Every function by its name."""
    found = {}
    for line in Path(__file__).with_suffix(".txt").read_text(encoding="utf-8").splitlines():
        if not line.startswith("#"):
            name, _, rest = line.rstrip(")").partition("(")
            found[name] = [Argument(*one.split()) for one in rest.split(", ") if one]
    return found
