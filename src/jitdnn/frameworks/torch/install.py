"""Ours in the place of torch's own kernels for a whole process: `install()`, and back again with `uninstall()`.

The kernels of `aten::convolution` and `aten::convolution_backward` are replaced on the processor and on GPUs.
Everything above them (autograd, autocast, vmap, compilation) stays torch's, and so do the models.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from jitdnn.errors import NotSupported
from jitdnn.frameworks.torch import convolution as kernels
from jitdnn.frameworks.torch.options import CALLS, Options
from jitdnn.frameworks.torch.stock import KEYS, originals
from jitdnn.locks import lock

aten = torch.ops.aten
_REPLACED = {
    "convolution": aten.convolution.default,
    "convolution_backward": aten.convolution_backward.default,
}
_lock = lock()
_library: torch.library.Library | None = None


def install(**options: Any) -> None:
    """Run every convolution of this process by ours where that is faster: eager or compiled, forward and backward.

    `options` are those of `jitdnn.torch.convert`. Called again, the new options hold. Raises NotSupported where torch
    does not hand out its own kernels (`torch.library.get_kernel`, since 2.9), InvalidArgument for unknown options.
    """
    global _library
    own = Options.of(**options)
    text = str(replace(own, measure=CALLS) if own.measure == "first" else own)
    if not hasattr(torch.library, "get_kernel"):
        raise NotSupported(
            f"PyTorch {torch.__version__} has no torch.library.get_kernel, by which its own kernels stay within reach: "
            "use jitdnn.torch.convert or jitdnn.torch.use, or PyTorch 2.9 or later"
        )
    uninstall()
    with _lock:
        for device, key in KEYS.items():
            for name, function in _REPLACED.items():
                originals[function, device] = torch.library.get_kernel(f"aten::{name}", key)
        library = torch.library.Library("aten", "IMPL")
        with _overriding():
            for key in KEYS.values():
                library.impl("convolution", _forward(text), key, allow_override=True)
                library.impl("convolution_backward", _backward(text), key, allow_override=True)
        _library = library


def uninstall() -> None:
    """Give torch its own kernels back; nothing happens where they are there."""
    global _library
    with _lock:
        if _library is not None:
            _library._destroy()
            _library = None
            originals.clear()


def is_installed() -> bool:
    """Whether the kernels of torch's convolutions are ours now."""
    return _library is not None


@contextmanager
def _overriding() -> Iterator[None]:
    """Without the one warning that a kernel stands in the place of another: that is what is asked for here."""
    with warnings.catch_warnings():
        warnings.filterwarnings(
            "ignore",
            r"Warning only once for all operators,\s+other operators may also be overridden\.\s+"
            r"Overriding a previously registered kernel for the same operator and the same dispatch key",
            UserWarning,
        )
        yield


def _forward(options: str) -> Any:
    forward: Any = kernels.forward

    def convolution(*arguments: Any) -> Any:
        return forward(*arguments, options)

    return convolution


def _backward(options: str) -> Any:
    backward: Any = kernels.backward

    def convolution_backward(dy: Any, x: Any, w: Any, bias_sizes: Any, *arguments: Any) -> Any:
        found = backward(dy, x, w, *arguments, options)
        return tuple(
            grad if is_wanted else None for grad, is_wanted in zip(found, arguments[-1], strict=True)
        )

    return convolution_backward
