"""How an operator `torch.ops.jitdnn.*` is made: schema, kernels, shapes, gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.library import Library

from jitdnn.frameworks.torch.stock import KEYS

library = Library("jitdnn", "DEF")


def define(
    schema: str,
    kernel: Callable[..., Any],
    fake: Callable[..., Any],
    save: Callable[..., None] | None = None,
    gradient: Callable[..., Any] | None = None,
) -> Any:
    """Define an operator and return it.

    `kernel` runs it on processors and GPUs alike, `fake` gives tensors of the result's form from those that have no
    data. `save(ctx, inputs, output)` keeps what `gradient(ctx, *grads)` needs; without them it has no derivative.
    """
    name = schema.partition("(")[0]
    library.define(schema)
    for key in KEYS.values():
        library.impl(name, kernel, key)
    full = f"jitdnn::{name}"
    torch.library.register_fake(full, fake, lib=library)
    if gradient is not None:
        torch.library.register_autograd(full, gradient, setup_context=save, lib=library)
    return getattr(torch.ops.jitdnn, name).default
