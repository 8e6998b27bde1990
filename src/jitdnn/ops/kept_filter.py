"""Filters that a caller keeps: what algorithms prepare of a filter is made once and used by every later call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from jitdnn.handle import Handle
from jitdnn.locks import lock
from jitdnn.planner.plan import Plan
from jitdnn.recorders import recorder_here
from jitdnn.retention import Recent
from jitdnn.tensor import Array, borrow

_ALIGNMENT = 64


class _Prepared(NamedTuple):
    """A filter as the kernels of a plan read it."""

    plan: Plan
    memory: np.ndarray[Any, Any]  # keeps alive what lies at the pointer
    pointer: int


class KeptFilter:
    """A filter that is prepared once: transformed, or packed, as the fastest algorithm reads it.

        w = jd.KeptFilter(weights)
        for x in batches:
            y = jd.conv(x, w, padding=1)

    It goes wherever `jd.conv`, `jd.conv_backward_data` and `jd.conv_transpose` take w, and `jd.matmul` takes b; one of
    a list of weights where `jd.rnn`, `jd.lstm` and `jd.gru` take such a list, of which one layer's are prepared. The
    first call for a problem chooses an algorithm without counting its work on the filter, lets it prepare the filter,
    and keeps the result here; every later call of that kind uses it. Calls with other shapes, or in another direction,
    keep theirs beside it, as many as fit into the setting `scratch_limit`; those that were not used for longest are
    prepared again.
    Where the fastest algorithm prepares nothing, nothing is kept and the filter is read as ever.

    The filter must not change between calls, or `update` must be called after it did. This object refers to the
    caller's array and keeps it alive. It may be shared by threads.

    `w`: any array that the functions take, or a list or tuple of such. Raises InvalidType for anything else.
    """

    def __init__(self, w: Any) -> None:
        self._w = tuple(w) if isinstance(w, (list, tuple)) else w
        self._arrays()  # refused now rather than at the first call
        self._prepared: Recent[str, _Prepared] = Recent(1 << 30)  # bounded by their bytes
        self._lock = lock()

    @property
    def w(self) -> Any:
        """The filter as it was given."""
        return self._w

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, for all kinds of calls together; the filter itself does not count."""
        with self._lock:
            return sum(prepared.memory.nbytes - _ALIGNMENT for _, prepared in self._all())

    def update(self) -> None:
        """Prepare everything that is kept anew, after the values of the filter have changed in place.

        Calls that other threads have begun may still use the old values.
        """
        with self._lock:
            anew = [(key, self._prepare(prepared.plan)) for key, prepared in self._all()]
            self._prepared.clear()
            for key, prepared in anew:
                self._prepared.put(key, prepared)

    def _all(self) -> list[tuple[str, _Prepared]]:
        return [*self._prepared.old.items(), *self._prepared.young.items()]

    def forget(self) -> None:
        """Free what is kept. Calls that follow prepare the filter again."""
        with self._lock:
            self._prepared.clear()

    def __repr__(self) -> str:
        of = ", ".join(f"{w.descriptor.dtype} {w.descriptor.shape}" for w in self._arrays())
        return f"<KeptFilter {of}, {self.nbytes} bytes kept>"

    def _arrays(self) -> list[Array]:
        if not isinstance(self._w, tuple):
            return [borrow(self._w, False, "w")]
        return [borrow(w, False, f"w[{place}]") for place, w in enumerate(self._w)]

    def run(
        self, handle: Handle, plan: Plan, pointers: list[int], alpha: float = 1.0, beta: float = 0.0
    ) -> None:
        """Run a plan of a request that keeps its filter; `pointers` as for `Handle.run`, w's included."""
        if plan.kept is None:
            handle.run(plan, pointers, alpha, beta)
            return
        prepared = self._prepared.get(plan.kept_key)
        if prepared is None:
            with self._lock:
                prepared = self._prepared.recall(plan.kept_key)
                if prepared is None:
                    prepared = self._prepare(plan)
                    young = sum(other.memory.nbytes for other in self._prepared.young.values())
                    if 2 * (young + prepared.memory.nbytes) > handle.settings.scratch_limit:
                        self._prepared.age()
                    self._prepared.put(plan.kept_key, prepared)
        recorder = recorder_here()
        if recorder is not None:
            recorder.constant(prepared.pointer, plan.kept.bytes, prepared.memory)
            with recorder.passing([pointers[place] for place in plan.problem.filters]):
                handle.run(plan, pointers, alpha, beta, prepared.pointer)
            return
        handle.run(plan, pointers, alpha, beta, prepared.pointer)

    def _prepare(self, plan: Plan) -> _Prepared:
        assert plan.kept is not None
        memory = np.empty(plan.kept.bytes + _ALIGNMENT, np.uint8)
        pointer = memory.ctypes.data + -memory.ctypes.data % _ALIGNMENT
        operands = len(plan.problem.operands) + (len(plan.epilogue.operands) if plan.epilogue else 0)
        pointers = [0] * operands  # the others are not touched
        for place, array in zip(plan.problem.filters, self._arrays(), strict=True):
            pointers[place] = array.pointer
        plan.run.keep(None, pointers, pointer)
        return _Prepared(plan, memory, pointer)
