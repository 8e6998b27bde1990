"""Calls of this library inside of JAX programs, by `jax.pure_callback`; batches of `vmap` are folded where they can."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from jitdnn.errors import InvalidType

Array = np.ndarray[Any, Any]


def called(
    function: Callable[..., Array],
    result: tuple[Sequence[int], Any],
    arrays: Sequence[Any],
    folds: Sequence[bool],
    folds_result: bool,
) -> Any:
    """`function` of arrays, as part of JAX's program: it is given NumPy arrays and returns one of the shape and type
    `result`.

    `folds` says of each array whether its first axis is that of images, each of which is computed alone,
    `folds_result` the same of the result: then a batch of `vmap` becomes more images. Else each entry of the batch is
    a call.
    """
    ranks = tuple(array.ndim for array in arrays)

    def run(*given: Any) -> Array:
        hosts = [np.asarray(array) for array in given]
        extra = hosts[0].ndim - ranks[0]
        if not extra:
            return function(*hosts)
        return _batched(function, hosts, ranks, extra, folds, folds_result)

    shape, dtype = result
    return jax.pure_callback(
        run, jax.ShapeDtypeStruct(tuple(shape), dtype), *arrays, vmap_method="expand_dims"
    )


def _batched(
    function: Callable[..., Array],
    given: Sequence[Array],
    ranks: Sequence[int],
    extra: int,
    folds: Sequence[bool],
    folds_result: bool,
) -> Array:
    """`given` have `extra` axes in front, which are 1 where an array is the same for the whole batch."""
    lead = np.broadcast_shapes(*(array.shape[:extra] for array in given))
    same = [array.shape[:extra] == (1,) * extra for array in given]
    if folds_result and all(fold or is_same for fold, is_same in zip(folds, same, strict=True)):
        joined = []
        for array, fold in zip(given, folds, strict=True):
            if fold:
                wide = np.broadcast_to(array, (*lead, *array.shape[extra:]))
                joined.append(wide.reshape(-1, *wide.shape[extra + 1 :]))
            else:
                joined.append(array.reshape(array.shape[extra:]))
        found = function(*joined)
        return found.reshape(*lead, found.shape[0] // prod(lead), *found.shape[1:])
    wide_arrays = [np.broadcast_to(array, (*lead, *array.shape[extra:])) for array in given]
    each = [function(*(array[place] for array in wide_arrays)) for place in np.ndindex(*lead)]
    return np.stack(each).reshape(*lead, *each[0].shape)


def checked(x: Any, name: str) -> Any:
    """An array of JAX, or what is traced as one. Raises InvalidType."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise InvalidType(f"{name} is a {type(x).__name__}: it must be an array of JAX (jax.numpy.asarray)")
    return x
