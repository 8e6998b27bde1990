"""A model of ONNX as a function of arrays, with a look at what runs for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from jitdnn import files
from jitdnn.errors import InvalidArgument, InvalidShape, InvalidType
from jitdnn.frameworks.onnx.backend import Backend, Prepared
from jitdnn.graph.engine import Engine
from jitdnn.graph.explain import explained, host_seconds, timed, trace_events
from jitdnn.graph.options import engine_options
from jitdnn.graph.taken import OnGpu

_MOST_FITTING = 256


class Model:
    """A model that is ready to run; `jitdnn.onnx.load` makes it. Threads may share it.

    `inputs` are the names of those that must be given, `outputs` those of the results. For each kind of inputs, their
    shapes and types, the first run prepares a plan, which later runs use: at most `jitdnn.graph.engine.MOST_PLANS` are
    kept.
    """

    def __init__(self, prepared: Prepared) -> None:
        self._prepared = prepared
        self._fitting: set[tuple[str, tuple[int, ...], np.dtype[Any]]] = set()  # kinds that were found to fit
        self._declared = {value.name: _declared(value.type) for value in prepared.declared}
        self.inputs = prepared.inputs
        self.outputs = prepared.outputs

    def __repr__(self) -> str:
        return f"<Model of ONNX: {', '.join(self.inputs)} -> {', '.join(self.outputs)}>"

    @property
    def declared(self) -> dict[str, tuple[np.dtype[Any] | None, tuple[int | str, ...] | None]]:
        """The type and shape of each input as the model says them; names, or "?", stand for any extent, and None for
        what it does not say."""
        return dict(self._declared)

    def run(self, inputs: Any) -> tuple[Any, ...]:
        """Return the outputs in the model's order, in memory of their own: NumPy arrays, or, where an input is on the
        GPU that the model was loaded for, arrays there, made by the library of the first that is.

        `inputs`: arrays in the order of `inputs`, or a dictionary of them by name; values that the model has itself may
        be given, too. On a GPU they are copied there, or read where they are (PyTorch, CuPy, JAX, DLPack). Raises
        InvalidArgument for inputs that are missing, unknown or do not fit, DeviceError for one on another device,
        NotSupported where an operator does not cover what it is given.
        """
        return self._prepared.run_named(self._named(inputs))

    def prepare(self, inputs: Any) -> None:
        """Make the plan for inputs of this kind, so that the first run does not."""
        self._look(inputs)

    def explain(self, inputs: Any, *, measure: bool = True) -> str:
        """What runs for inputs of this kind, as text: a row for each kernel with the nodes of the model that it stands
        for, its algorithm and its share of the time, what the host runs and why, and what was not fused and why.

        With `measure` the times are the least that each kernel took in a few runs; else they are estimated.
        """
        engine, given = self._look(inputs)
        return explained(engine, given, measure)

    def profile(self, inputs: Any, path: str | PathLike[str] | None = None) -> list[dict[str, Any]]:
        """Run a few times, timing every kernel, and return the events of a Chrome trace (chrome://tracing, Perfetto):
        each kernel with the least time that it took, one after the other.

        `path`: of a file that they are written to as JSON. Raises InvalidArgument if it cannot be written.
        """
        engine, given = self._look(inputs)
        events = trace_events(timed(engine, given))
        if path is not None:
            text = json.dumps({"traceEvents": events, "displayTimeUnit": "ms"})
            try:
                files.write_whole(Path(path), lambda stream: stream.write(text.encode()))
            except OSError as error:
                raise InvalidArgument(f"{path} cannot be written: {error.strerror or error}") from error
        return events

    def host_time(self, inputs: Any) -> float:
        """Seconds that a run for inputs of this kind takes beside its kernels and what NumPy computes: the least of 200
        runs of the same kernels, as many tasks of them, that return at once. 0 where no plan is made."""
        return host_seconds(lambda: self._look(inputs))

    def _look(self, inputs: Any) -> tuple[Engine, Mapping[str, Any]]:
        given = self._named(inputs)
        engine = self._prepared.engine(given)
        engine.prepared(given)
        return engine, given

    def _check(self, name: str, array: np.ndarray[Any, Any] | OnGpu) -> None:
        dtype, dims = self._declared.get(name, (None, None))
        if dtype is not None and array.dtype != dtype:
            raise InvalidType(f"input {name!r} is {array.dtype}: the model takes {dtype}")
        if dims is not None and (
            len(dims) != array.ndim
            or any(type(d) is int and d != n for d, n in zip(dims, array.shape, strict=True))
        ):
            raise InvalidShape(f"input {name!r} has shape {array.shape}: the model takes {_text(dims)}")
        if len(self._fitting) >= _MOST_FITTING:
            self._fitting.clear()
        self._fitting.add((name, array.shape, array.dtype))

    def _named(self, inputs: Any) -> dict[str, Any]:
        given = self._prepared.named(inputs)
        for name, array in given.items():
            if isinstance(array, (np.ndarray, OnGpu)):
                if (name, array.shape, array.dtype) not in self._fitting:
                    self._check(name, array)
            elif self._declared.get(name, (None, None))[0] is not None:
                what = "a sequence of arrays" if isinstance(array, list) else "None"
                raise InvalidType(f"input {name!r} is {what}: the model takes one array (numpy.asarray)")
        return given


def _declared(kind: onnx.TypeProto) -> tuple[np.dtype[Any] | None, tuple[int | str, ...] | None]:
    """The type and extents of an input as the model says them; a name stands for any extent, None for all there are."""
    if not kind.HasField("tensor_type") or not kind.tensor_type.elem_type:
        return None, None
    dtype = np.dtype(onnx.helper.tensor_dtype_to_np_dtype(kind.tensor_type.elem_type))
    if not kind.tensor_type.HasField("shape"):
        return dtype, None
    dims = kind.tensor_type.shape.dim
    # some exporters write -1 or 0 where any extent will do
    return dtype, tuple(dim.dim_value if dim.dim_value > 0 else dim.dim_param or "?" for dim in dims)


def _text(dims: tuple[int | str, ...]) -> str:
    return f"({', '.join(map(str, dims))})"


def load(
    path: str | PathLike[str],
    *,
    threads: int | None = None,
    device: str | None = None,
    math: str | None = None,
    dtype: Any = None,
) -> Model:
    """Return the model in a file, ready to run. Tensors that it keeps in other files of its folder are mapped into
    memory, so that a model may be larger than 2 GiB; they must not change as long as the model is used. The file itself
    is kept open: it may be removed or replaced, but not written to in place before inputs of all kinds were run.

    `device`: a GPU by its name, `cuda:0`, on which its kernels run; what that has none for is computed by the host, as
    `Model.explain` says. `threads`: how many its kernels on the processor use, instead of the setting `threads`.
    `math`: the least arithmetic for float32, as the setting says it: `tf32` allows the matrix units of a GPU. `dtype`:
    float16 or bfloat16, in which everything float32 between inputs and outputs is stored, and products are taken; sums
    stay in float32.

    Raises InvalidArgument for a file that cannot be read, is no valid model or is beyond the limits for files
    (docs/loading.md), NotSupported for operators and attributes that are not covered, DeviceError for a GPU that is not
    there.
    """
    return prepare(path, threads=threads, device=device, math=math, dtype=dtype)


def prepare(
    model: onnx.ModelProto | str | PathLike[str],
    *,
    threads: int | None = None,
    device: str | None = None,
    math: str | None = None,
    dtype: Any = None,
) -> Model:
    """Return a model, ready to run: one that is in memory, or the path of its file. Arguments and errors are those of
    `load`."""
    if not isinstance(model, (onnx.ModelProto, str, PathLike)):
        raise InvalidType(
            f"the model is {type(model).__name__}: it must be an onnx.ModelProto, or the path of a file"
        )
    options = engine_options(device, threads, math, dtype)
    prepared = Backend.prepare(model)
    prepared.settings = options
    return Model(prepared)


__all__ = ["Model", "load", "prepare"]
