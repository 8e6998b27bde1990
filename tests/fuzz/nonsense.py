"""Arguments that make no sense."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from fuzz.draw import Draw


class _Raises:
    """An object whose every conversion fails."""

    def _fail(self, *_: Any) -> Any:
        raise RuntimeError("no")

    __index__ = __float__ = __int__ = __iter__ = __len__ = __bool__ = __eq__ = __repr__ = __str__ = _fail
    __hash__ = None  # type: ignore[assignment]


def _deep(depth: int) -> list[Any]:
    made: list[Any] = []
    for _ in range(depth):
        made = [made]
    return made


# made anew for each problem: some can be used once
_MAKERS: tuple[Callable[[], Any], ...] = (
    lambda: None, lambda: -1, lambda: 0, lambda: 2, lambda: 3, lambda: 7, lambda: True, lambda: False,
    lambda: 1.5, lambda: -0.0, lambda: float("nan"), lambda: float("inf"), lambda: -float("inf"), lambda: 1e300,
    lambda: 1e-320,
    lambda: 2**31, lambda: 2**63, lambda: -(2**63) - 1, lambda: 10**400, lambda: 10**9, lambda: 1 << 40, lambda: 1j,
    lambda: "", lambda: "nonsense", lambda: "NHWC", lambda: "f32", lambda: "\0", lambda: "3", lambda: b"bytes",
    lambda: bytearray(4),
    lambda: (), list, dict, lambda: set(), lambda: (1,), lambda: [1, 2], lambda: (1, 2, 3), lambda: (0, 0),
    lambda: (-1, -2),
    lambda: [[1, 2], [3]], lambda: ((1, 2), (3, 4)), lambda: (1.5, 2), lambda: (None, None), lambda: ("a", "b"),
    lambda: {"a": 1},
    lambda: frozenset((1, 2)), lambda: range(3), lambda: range(10**12), lambda: (n for n in range(3)),
    lambda: iter([1]), lambda: _deep(5000),
    lambda: np.float32(2.0), lambda: np.int64(2), lambda: np.float64("nan"), lambda: np.array(2),
    lambda: np.array([2, 2]), lambda: np.array(["x"]),
    lambda: np.zeros((2, 2)), lambda: np.zeros(0), lambda: np.array([object()]), lambda: np.datetime64("2020-01-01"),
    lambda: np.ones(3, np.complex64),
    lambda: np.ones((1,) * 12, np.float32), lambda: np.ma.masked_array([1.0], [True]), lambda: np.ones(4, ">f4"),
    lambda: memoryview(b"abcd"),
    lambda: object(), lambda: int, lambda: np.float32, lambda: len, lambda: (lambda x: x), lambda: Ellipsis,
    lambda: slice(1, 2), lambda: NotImplemented,
    lambda: _Raises(), lambda: (_Raises(),), lambda: Exception("x"),
)  # fmt: skip


def nonsense(draw: Draw) -> Any:
    """A value that hardly any argument may have."""
    return _MAKERS[draw.below(len(_MAKERS))]()


def spoil(args: list[Any], kwargs: dict[str, Any], draw: Draw) -> str | None:
    """Replaces an argument, or adds or takes one; what was done, in words."""
    names = list(kwargs)
    places = len(args) + len(names)
    if not places:
        return None
    chosen = draw.below(places)
    number = draw.below(len(_MAKERS))
    value = _MAKERS[number]()
    if chosen < len(args):
        old = args[chosen]
        if isinstance(old, (list, tuple)) and old and draw.chance(0.5):
            changed = list(old)
            changed[draw.below(len(old))] = value
            args[chosen] = type(old)(changed)
        else:
            args[chosen] = value
        return f"argument {chosen} nonsense {number}"
    name = names[chosen - len(args)]
    kwargs[name] = value
    return f"{name} nonsense {number}"
