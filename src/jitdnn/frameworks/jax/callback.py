"""Calls of this library inside of JAX programs, on processors and on NVIDIA GPUs; batches of `vmap` are folded where
they can.

XLA is handed a function of C for each kind of call. Where launches on the processor are all that a call is, it replays
them without Python (`handlers.py`); else it is Python on the arrays where they lie (`python_handlers.py`): what Python
takes part in, and launches for the stream of a GPU (`gpu.py`). What is left is `jax.pure_callback`, on copies of the
host: empty arrays, a GPU without kernels, and everything where XLA's interface is not the one that these functions are
written for.
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
from jitdnn.devices.launch_list import LaunchList, Recorder
from jitdnn.errors import InvalidType, JitdnnError
from jitdnn.frameworks.jax import gpu, python_handlers
from jitdnn.frameworks.jax.gpu import Kind
from jitdnn.frameworks.jax.handlers import Handlers
from jitdnn.frameworks.jax.interface import missing
from jitdnn.locks import lock
from jitdnn.recorders import NotRecordable
from jitdnn.settings import Settings, current, in_force

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


def called(
    function: Function,
    result: tuple[Sequence[int], Any],
    arrays: Sequence[Any],
    folds: Sequence[bool],
    folds_result: bool,
    key: str,
) -> Any:
    """`function` of arrays, as part of JAX's program: it is given arrays of NumPy or of a GPU and writes one of the
    shape and type `result` to `out`, or returns it if that is None. `key` says what it computes, beside shapes and
    types.

    `folds` says of each array whether its first axis is that of images, each of which is computed alone,
    `folds_result` the same of the result: then a batch of `vmap` becomes more images. Else each entry of the batch is
    a call.
    """
    shape, dtype = tuple(result[0]), result[1]

    def of_batch(size: int, is_batched: Sequence[bool], *given: Any) -> Any:
        if folds_result and all(fold or not one for fold, one in zip(folds, is_batched, strict=True)):
            joined = [
                _joined(array, one, size) if fold else array
                for array, fold, one in zip(given, folds, is_batched, strict=True)
            ]
            wide = (size * shape[0], *shape[1:])
            found = called(function, (wide, dtype), joined, folds, folds_result, key)
            return found.reshape(size, *shape), True

        def each(batched: Sequence[Any]) -> Any:
            entries = iter(batched)
            chosen = [next(entries) if one else array for array, one in zip(given, is_batched, strict=True)]
            return called(function, (shape, dtype), chosen, folds, folds_result, key)

        return jax.lax.map(each, [a for a, one in zip(given, is_batched, strict=True) if one]), True

    call = jax.custom_batching.custom_vmap(_of_one(function, (shape, dtype), arrays, key))
    call.def_vmap(of_batch)
    return _spread(call(*arrays), _axes_of(arrays))


def alike(*arrays: Any) -> tuple[Any, ...]:
    """Arrays of a `shard_map`, each as one that differs along all axes of the mesh along which any of them does.

    The gradient of one that did not is then summed over those axes, by JAX.
    """
    return tuple(_spread(array, _axes_of(arrays)) for array in arrays)


def _axes_of(arrays: Sequence[Any]) -> frozenset[str]:
    """The axes of a mesh along which arrays differ, inside of `jax.shard_map`."""
    typeof: Any = getattr(jax, "typeof", None)  # not in JAX before 0.6, which does not tell them apart
    found: frozenset[str] = frozenset()
    for array in arrays if typeof is not None else ():
        kind = typeof(array)
        manual = getattr(kind, "manual_axis_type", None)
        found |= frozenset(getattr(kind, "vma", ()) if manual is None else manual.varying)
    return found


def _spread(array: Any, axes: frozenset[str]) -> Any:
    missing_axes = tuple(sorted(axes - _axes_of([array])))
    if not missing_axes:
        return array
    if hasattr(jax.lax, "pcast"):
        return jax.lax.pcast(array, missing_axes, to="varying")
    return jax.lax.pvary(array, missing_axes)


def _joined(array: Any, is_batched: bool, size: int) -> Any:
    """Images of all entries of a batch, one behind the other."""
    wide = array if is_batched else jax.numpy.broadcast_to(array, (size, *array.shape))
    return wide.reshape(size * wide.shape[1], *wide.shape[2:])


def _of_one(function: Function, result: Kind, arrays: Sequence[Any], key: str) -> Callable[..., Any]:
    """The call as a function of JAX's arrays, by whatever way each platform has."""
    kind = jax.ShapeDtypeStruct(*result)

    def by_python(*given: Any) -> Any:
        return jax.pure_callback(lambda *each: function(*map(np.asarray, each)), kind, *given)

    ways = {
        platform: (lambda *given, target=target: jax.ffi.ffi_call(target, kind)(*given))
        for platform, target in _targets_of(function, key, result, arrays).items()
    }
    if not ways:
        return by_python
    return lambda *given: jax.lax.platform_dependent(*given, default=by_python, **ways)


_handlers = Handlers()
_targets: dict[Any, dict[str, str]] = {}
_lock = lock()


def _targets_of(function: Function, key: str, result: Kind, arrays: Sequence[Any]) -> dict[str, str]:
    """By platform the names under which XLA knows functions of C that do this call.

    They depend on the shapes, so that JAX's own cache of compiled programs is right about them.
    """
    values = current()
    kinds = [(tuple(array.shape), np.dtype(array.dtype)) for array in arrays]
    has_gpu = jax.default_backend() == "gpu"
    known = (key, *kinds, result, values.serial, has_gpu)
    with _lock:
        if known not in _targets:
            _targets[known] = _made(function, key, kinds, result, values, has_gpu)
        return _targets[known]


def _made(
    function: Function, key: str, kinds: Sequence[Kind], result: Kind, values: Settings, has_gpu: bool
) -> dict[str, str]:
    reason = missing()
    if reason is None and 0 in (prod(shape) for shape, _ in (*kinds, result)):
        reason = "an array is empty"
    if reason is not None:
        log.fallback_once(f"jax {key}", f"{key} is a call of Python on copies in JAX's programs: {reason}")
        return {}
    digest = hashlib.sha256(repr((key, kinds, result)).encode()).hexdigest()[:24]
    count = sum(1 for names in _targets.values() if any(digest in name for name in names.values()))
    name = f"jitdnn_{digest}_{count}"
    found = {"cpu": _register(name, _on_processor(function, key, kinds, result, values), "cpu")}
    if has_gpu:
        address = _on_gpu(function, key, kinds, result, values)
        if address is not None:
            found["cuda"] = _register(f"{name}_cuda", address, "CUDA")
    return found


def _register(name: str, address: int, platform: str) -> str:
    capsule = jax.ffi.pycapsule(ctypes.cast(address, ctypes.c_void_p))
    jax.ffi.register_ffi_target(name, capsule, platform=platform)
    return name


def _on_processor(function: Function, key: str, kinds: Sequence[Kind], result: Kind, values: Settings) -> int:
    """The address of a handler for arrays in host memory."""
    try:
        return _handlers.add(_noted(function, kinds, result), len(kinds), 1)
    except (NotRecordable, JitdnnError) as error:
        run = _over_views(function, kinds, result, values)
        log.fallback_once(f"jax {key}", f"{key} is a call of Python in JAX's programs: {error}")
    return python_handlers.add(run, len(kinds), 1, has_stream=False)


def _noted(function: Function, kinds: Sequence[Kind], result: Kind) -> LaunchList:
    # arrays that nobody looks at while launches are noted
    inputs = [np.empty(shape, dtype) for shape, dtype in kinds]
    out = np.empty(*result)
    recorder = Recorder()
    for array in (*inputs, out):
        recorder.memory(array.ctypes.data, array.nbytes)
    with recorder:
        function(*inputs, out=out)
    launches = recorder.finish()
    if not len(launches):
        raise NotRecordable("Python computes it")
    return launches


def _over_views(
    function: Function, kinds: Sequence[Kind], result: Kind, values: Settings
) -> python_handlers.Run:
    described = [(*kind, prod(kind[0]) * np.dtype(kind[1]).itemsize) for kind in (*kinds, result)]

    def run(addresses: list[int], _: int) -> None:
        arrays = []
        for address, (shape, dtype, size) in zip(addresses, described, strict=True):
            memory: Any = (ctypes.c_char * size).from_address(address)
            arrays.append(np.frombuffer(memory, np.uint8).view(dtype).reshape(shape))
        for array in arrays[:-1]:
            array.flags.writeable = False
        with in_force(values):
            function(*arrays[:-1], out=arrays[-1])

    return run


def _on_gpu(
    function: Function, key: str, kinds: Sequence[Kind], result: Kind, values: Settings
) -> int | None:
    """The address of a handler for arrays on NVIDIA's GPUs; None where the host has to compute them."""
    reason = gpu.missing()
    if reason is None:
        try:
            call = gpu.GpuCall(function, kinds, result, values)
            return python_handlers.add(call.run, len(kinds), 1, has_stream=True)
        except JitdnnError as error:
            reason = str(error)
    log.fallback_once(
        f"jax gpu {key}", f"{key} is computed by the host in JAX's programs, on copies: {reason}"
    )
    return None


def checked(x: Any, name: str) -> Any:
    """An array of JAX, or what is traced as one. Raises InvalidType."""
    if not isinstance(x, (jax.Array, np.ndarray)):
        raise InvalidType(f"{name} is a {type(x).__name__}: it must be an array of JAX (jax.numpy.asarray)")
    return x
