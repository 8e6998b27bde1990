"""Calls of this library inside of JAX programs; batches of `vmap` are folded where they can.

Where launches on one thread are all that a call is, XLA is handed a function of C that replays them (`handlers.py`),
once for each kind of call. What runs on several threads, whose workers Python wakes, what Python takes part in, and
what `vmap` makes of a call, is `jax.pure_callback`.
"""

from __future__ import annotations

import ctypes
import hashlib
from collections.abc import Callable, Sequence
from math import prod
from typing import Any

import jax
import numpy as np

from jitdnn import log
from jitdnn.devices.launch_list import Recorder
from jitdnn.errors import InvalidType, JitdnnError
from jitdnn.frameworks.jax.handlers import Handlers, missing
from jitdnn.locks import lock
from jitdnn.recorders import NotRecordable
from jitdnn.settings import current

Array = np.ndarray[Any, Any]


def called(
    function: Callable[..., Array],
    result: tuple[Sequence[int], Any],
    arrays: Sequence[Any],
    folds: Sequence[bool],
    folds_result: bool,
    key: str,
) -> Any:
    """`function` of arrays, as part of JAX's program: it is given NumPy arrays and returns one of the shape and type
    `result`, in `out` if it is given that. `key` says what it computes, beside shapes and types.

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

    shape, dtype = tuple(result[0]), result[1]

    def by_python(*given: Any) -> Any:
        return jax.pure_callback(run, jax.ShapeDtypeStruct(shape, dtype), *given, vmap_method="expand_dims")

    target = _target(function, key, (shape, dtype), arrays)
    if target is None:
        return by_python(*arrays)

    def by_xla(*given: Any) -> Any:
        return jax.ffi.ffi_call(target, jax.ShapeDtypeStruct(shape, dtype))(*given)

    def of_batch(size: int, is_batched: Sequence[bool], *given: Any) -> Any:
        expanded = [one if batched else one[None] for one, batched in zip(given, is_batched, strict=True)]
        wide = jax.ShapeDtypeStruct((size, *shape), dtype)
        return jax.pure_callback(run, wide, *expanded, vmap_method="expand_dims"), True

    direct = jax.custom_batching.custom_vmap(by_xla)
    direct.def_vmap(of_batch)
    return jax.lax.platform_dependent(*arrays, cpu=direct, default=by_python)


_handlers = Handlers()
_targets: dict[Any, str | None] = {}
_lock = lock()


def _target(
    function: Callable[..., Array], key: str, result: tuple[tuple[int, ...], Any], arrays: Sequence[Any]
) -> str | None:
    """The name under which XLA knows a function of C that does this call; None where there is none.

    It depends on the shapes, so that JAX's own cache of compiled programs is right about it.
    """
    values = current()
    kinds = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    known = (key, *kinds, result, values.serial)
    with _lock:
        if known not in _targets:
            _targets[known] = _made(function, key, kinds, result)
        return _targets[known]


def _made(
    function: Callable[..., Array],
    key: str,
    kinds: Sequence[tuple[tuple[int, ...], Any]],
    result: tuple[tuple[int, ...], Any],
) -> str | None:
    reason = missing()
    sizes = [prod(shape) for shape, _ in (*kinds, result)]
    if reason is None and 0 in sizes:
        reason = "an array is empty"
    if reason is None:
        # what nobody looks at while launches are noted
        inputs = [np.empty(shape, dtype) for shape, dtype in kinds]
        out = np.empty(*result)
        recorder = Recorder()
        for array in (*inputs, out):
            recorder.memory(array.ctypes.data, array.nbytes)
        try:
            with recorder:
                function(*inputs, out=out)
            launches = recorder.finish()
            if launches.threads > 1:
                reason = f"it runs on {launches.threads} threads"
            elif not len(launches):
                reason = "Python computes it"
        except (NotRecordable, JitdnnError) as error:
            reason = str(error)
    if reason is not None:
        log.fallback_once(f"jax {key}", f"{key} is a call of Python in JAX's programs: {reason}")
        return None
    address = _handlers.add(launches, len(inputs), 1)
    digest = hashlib.sha256(repr((key, kinds, result)).encode()).hexdigest()[:24]
    name = f"jitdnn_{digest}_{sum(1 for one in _targets.values() if one and one.startswith(f'jitdnn_{digest}_'))}"
    jax.ffi.register_ffi_target(
        name, jax.ffi.pycapsule(ctypes.cast(address, ctypes.c_void_p)), platform="cpu"
    )
    return name


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
