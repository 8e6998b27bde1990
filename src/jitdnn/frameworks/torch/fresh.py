"""Tensors for results in the shortest way that PyTorch has: its compiled graphs allocate by the same functions.

On Linux a tensor of more than 32 MiB is memory that no process has had, each time: the kernel clears it page by page
when it is first written to, which takes as long as writing it twice. So large results of a processor lie in memory that
stays with the process (arena.py). Where that has no place, or may not be seen, those of more than 32 MiB ask for pages
of 2 MiB, where the system gives these to who asks. Smaller ones come from the heap, which has its pages already, or
faults them in at its end: there large pages cost more than small ones (docs/gotchas.md).
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from jitdnn.frameworks.torch.arena import SMALLEST, in_arena

_guards: Any = getattr(getattr(torch._C, "_dynamo", None), "guards", None)

#: the attribute of what allocates on a GPU that does so on the current one
QUICK = "quick"
LARGE = 32 << 20
"""Bytes from which on a tensor asks for large pages: glibc never grows its heap for such blocks."""
_PAGE, _MADV_HUGEPAGE = 4096, 14


def _advise() -> Callable[[int, int, int], int] | None:
    """madvise(2), where the system gives large pages to who asks for them (and not to all, or nobody)."""
    try:
        given = Path("/sys/kernel/mm/transparent_hugepage/enabled").read_text()
        if sys.platform != "linux" or "[madvise]" not in given:
            return None
        found = ctypes.CDLL(None).madvise
    except (OSError, AttributeError):
        return None
    found.argtypes, found.restype = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int), ctypes.c_int
    return found


_madvise = _advise()


def in_large_pages(tensor: Tensor) -> Tensor:
    """A tensor that was just allocated, a large one of a processor with its memory asked for in large pages."""
    if _madvise is not None and tensor.is_cpu and tensor.numel() * tensor.element_size() >= LARGE:
        begin = -(-tensor.data_ptr() // _PAGE) * _PAGE
        size = tensor.data_ptr() + tensor.numel() * tensor.element_size() - begin
        _madvise(begin, size // _PAGE * _PAGE, _MADV_HUGEPAGE)  # advice: refused, it is as it was
    return tensor


def fresh(
    shape: Sequence[int], strides: Sequence[int], dtype: torch.dtype, device: torch.device
) -> Callable[[], Tensor]:
    """What makes a tensor of this form at each call, without values."""
    shape, strides = tuple(shape), tuple(strides)
    quick = getattr(_guards, f"_empty_strided_{device.type}", None)

    def made() -> Tensor:
        return torch.empty_strided(shape, strides, dtype=dtype, device=device)

    if quick is None:
        return made
    if device.type == "cpu":
        allocate, size = partial(quick, shape, strides, dtype), prod(shape) * dtype.itemsize
        if size < SMALLEST or not _is_dense(shape, strides):
            return allocate

        def of_the_arena() -> Tensor:
            found = in_arena(shape, strides, dtype, size)
            return in_large_pages(allocate()) if found is None else found

        return of_the_arena

    index = device.index or 0

    def on_its_device() -> Tensor:
        found: Tensor = quick(shape, strides, dtype)  # of the current GPU
        return found if found.get_device() == index else made()

    setattr(on_its_device, QUICK, partial(quick, shape, strides, dtype))
    return on_its_device


def without_data(form: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """A tensor without data as `torch.empty_like` gives it: dense, in the order of axes of another one, and of its type
    but for a `dtype` that is given.

    PyTorch makes these in Python where they have no data, and imports SymPy for the first of them: half a second.
    """
    if form.numel() and _is_dense(form.shape, form.stride()):
        return torch.empty_strided(form.shape, form.stride(), dtype=dtype or form.dtype, device="meta")
    return torch.empty_like(form, dtype=dtype, device="meta")


def _is_dense(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether elements lie side by side, each at a place of its own."""
    step = 1
    for stride, extent in sorted(zip(strides, shape, strict=True)):
        if extent != 1:
            if stride != step:
                return False
            step *= extent
    return True


def is_kept(form: Tensor, device: torch.device) -> bool:
    """Whether memory of results of this form stays with the process, so that PyTorch's kernels, too, should write
    there: what they allocate themselves they fault in anew."""
    return bool(device.type == "cpu" and form.numel() * form.element_size() >= SMALLEST)


def fresh_like(form: Tensor, device: torch.device) -> Callable[[], Tensor]:
    """The same of a tensor that may be without data; dense, in its order of axes, as `torch.empty_like` gives it."""
    like = without_data(form)
    return fresh(like.shape, like.stride(), like.dtype, device)
