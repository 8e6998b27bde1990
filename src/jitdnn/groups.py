"""What the library needs of processes that work together: jitdnn.distributed makes one of torch.distributed.

Nothing here imports a framework: a group is an object with these methods.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

#: how numbers of gradients travel between processes: as they are, or rounded to bfloat16
WIRES = ("f32", "bf16")


class Work(Protocol):
    """Something that was started and not waited for."""

    def wait(self) -> None:
        """Return when it is done; on a GPU, when calls on the stream that started it come after it. Raises
        ProcessGroupError if another process has gone."""


class Group(Protocol):
    """Processes that make the same calls in the same order. `rank` is this one's number of `size`.

    Arrays are NumPy's, or DeviceArrays on this process's GPU, packed, and stay where they are: nothing is copied to be
    sent. Every method raises ProcessGroupError if another process has gone, and returns the same on all.
    """

    @property
    def rank(self) -> int: ...

    @property
    def size(self) -> int: ...

    def sum(self, array: Any) -> None:
        """Replace the array by the sum over all processes."""

    def start_sum(self, array: Any, wire: str = "f32") -> Work:
        """Begin to do so, and return at once; `wire` is one of WIRES, for arrays of float32."""

    def start_scatter(self, array: Any, wire: str = "f32") -> Work:
        """Begin to sum one part of the array in each process: of `size` equal parts that of its rank. What becomes of
        the others is not said."""

    def gather_parts(self, array: Any) -> None:
        """Fill the array: of its `size` equal parts each process gives that of its rank."""

    def broadcast(self, array: Any) -> None:
        """Replace the array by that of rank 0."""

    def broadcast_all(self, arrays: Iterable[Any]) -> None:
        """The same for many arrays, which are dense in any order of their axes, in few messages."""

    def gather(self, data: bytes) -> list[bytes]:
        """What each process gave, by rank."""

    def share(self, data: bytes) -> bytes:
        """What rank 0 gave."""


def gather_rows(group: Group, rows: NDArray[Any]) -> NDArray[Any]:
    """The rows of all processes, one below the other, in the order of the ranks; all but the first extent agree."""
    packed = np.ascontiguousarray(rows)
    parts = group.gather(packed.tobytes())
    each = [np.frombuffer(part, rows.dtype).reshape(-1, *rows.shape[1:]) for part in parts]
    return np.concatenate(each)
