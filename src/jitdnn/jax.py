"""JAX with this library's kernels, in host memory.

    import jitdnn.jax as jj

    y = jax.jit(lambda x, w: jj.conv(x, w, padding=1))(x, w)
    gradients = jax.grad(lambda w: jj.conv(x, w, padding=1).sum())(w)

The functions take and return arrays of JAX and may be used in `jit`, `grad` (reverse mode) and `vmap`. They are calls
of the host in JAX's program (`jax.pure_callback`): what is on a GPU is copied there and back.
"""

from __future__ import annotations

from importlib.util import find_spec

from jitdnn.errors import InvalidArgument

if find_spec("jax") is None:
    raise InvalidArgument('JAX is not installed: pip install "jitdnn[jax]"')

from jitdnn.frameworks.jax.convolution import conv, conv_transpose
from jitdnn.frameworks.jax.pooling import avg_pool, lrn, max_pool

__all__ = ["avg_pool", "conv", "conv_transpose", "lrn", "max_pool"]
