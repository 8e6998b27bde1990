"""Layers that are called with ever other sizes: images as they come, sentences, what a detector cuts out.

Each kind of call is compiled and measured, which takes as long as a thousand calls and pays where the kind comes again.
A layer that has met many is likely to meet as many more, each once: of those torch's kernel runs at once.
"""

from __future__ import annotations

from collections.abc import Hashable

from jitdnn import log
from jitdnn.retention import Recent

MOST = 16
"""Kinds of calls of one layer and direction that ours are tried for, besides those whose times are stored."""
REASON = "not measured: the layer has been called with many other kinds of operands"
_tried: Recent[Hashable, int] = Recent(16384)


def may_try(layer: Hashable, most: int | None = None) -> bool:
    """Whether ours are to be tried for one more kind of calls of a layer; if so, it is counted.

    `layer`: what tells the layer and the direction from others, and not its calls from each other.
    """
    most = MOST if most is None else most
    count = _tried.recall(layer) or 0
    if count >= most:
        log.fallback_once(
            ("torch variety",),
            f"a layer was called with more than {most} kinds of operands: from now on those of its calls that are new "
            'and have no stored times run by PyTorch\'s own kernel at once (measure="never": by ours)',
        )
        return False
    _tried.put(layer, count + 1)
    return True


def is_full(layer: Hashable) -> bool:
    """Whether a layer has met so many kinds that ours are tried for no more."""
    return (_tried.recall(layer) or 0) >= MOST


def forget() -> None:
    """Count anew."""
    _tried.clear()
