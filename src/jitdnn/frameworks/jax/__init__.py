"""JAX's arrays and transformations over this library's kernels; `jitdnn.jax` is the public name of it."""

from __future__ import annotations
