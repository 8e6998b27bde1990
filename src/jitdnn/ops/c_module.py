"""Text in the language of a GPU, compiled and launched: functions by name with typed arguments, and constants."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from jitdnn import targets
from jitdnn.arguments import MOST, integer_number, one_or_each, shown, text
from jitdnn.devices.c_signature import Parameter, parameters, signatures
from jitdnn.devices.c_text import (
    CText,
    define_text,
    settled_defines,
    settled_headers,
    settled_name,
    settled_options,
)
from jitdnn.devices.gpu import MOST_GROUPS, GpuDevice, LocalMemory
from jitdnn.errors import CompileError, DeviceError, InvalidArgument, InvalidShape, InvalidType, NotSupported
from jitdnn.handle import Handle, settled_handle
from jitdnn.locks import lock
from jitdnn.ops.c_arguments import Given, given_argument
from jitdnn.ops.gpu_call import GpuCall, where
from jitdnn.tensor import borrow, numpy_dtype

_FILE = re.compile(r"[^\w.-]")


class CModule:
    """Compiled CUDA C++ or OpenCL C on one device; `module["name"]` is one of its functions."""

    def __init__(
        self, source: str, name: str, device: GpuDevice, defines: Any, headers: Any, include_folders: Any, options: Any
    ) -> None:  # fmt: skip
        target = targets.find(device.target)
        if target is None or target.texts is None:
            having = ", ".join(known.name for known in targets.registered() if known.texts is not None)
            raise NotSupported(f"text is not compiled for the target {device.target}: use cpu, {having}")
        compiler = target.texts()
        file = f"{_FILE.sub('_', name)}{compiler.SUFFIX}"
        self.name, self.device = name, device
        self._compiler = compiler
        self._text = CText(
            name, file, source, settled_defines(defines), settled_headers(source, headers, include_folders),
            settled_options(options),
        )  # fmt: skip
        self._built = compiler.build(device, self._text)
        self.language: str = self._built.language
        self._signatures = signatures(source, self.language, dict(self._text.defines))
        self._lock = lock()
        #: how often constants that are compiled in were changed
        self.version = 0
        self._values: dict[str, np.ndarray[Any, Any]] = {}
        #: streams that launches were given to since a constant was written
        self.streams: set[Any] = set()

    def __repr__(self) -> str:
        return f"<module {self.name} for {where(self.device.device_id)}>"

    @property
    def functions(self) -> tuple[str, ...]:
        """The names of the text's functions that can be launched."""
        return tuple(self._signatures) or self._built.functions

    def __getitem__(self, name: str) -> CFunction:
        """The function called `name`, with the parameters that the text declares. Raises CompileError if there is
        none.
        """
        return self.function(name)

    def function(self, name: str, takes: str | Sequence[str] | None = None) -> CFunction:
        """The function called `name`; `takes` declares its parameters where they cannot be read from the text.

        That is a list as C writes it, `"const float *x, float a, int n"`, or its parts. Names in namespaces are written
        `space::name`. Raises CompileError if there is no such function, InvalidArgument for what is no parameter.
        """
        name = text(name, "name")
        symbol = self._built.resolved(name)
        if takes is not None:
            joined = takes if isinstance(takes, str) else ", ".join(text(part, "takes") for part in takes)
            return CFunction(self, name, symbol, parameters(joined, self.language, dict(self._text.defines)))
        declared = self._signatures.get(name, self._signatures.get(name.rpartition("::")[2]))
        if declared is None:
            raise CompileError(
                f"what {name} takes cannot be read from the text of {self.name}: declare it, "
                f'module.function({name!r}, "const float *x, int n")'
            )
        return CFunction(self, name, symbol, declared)

    def constant(
        self, name: str, values: Any = None, dtype: Any = None, handle: Handle | None = None
    ) -> np.ndarray[Any, Any]:
        """Set a constant of the text to `values`, if they are given, and return what it is.

        In CUDA it is a variable `__constant__ float name[n]` (or `__device__`): it takes effect for launches that
        follow, after those that were made; at most its bytes are written, from the first on. In OpenCL constants are
        compiled in: `name` is that of a define, as in `__constant float weights[] = name;`, and the text is compiled
        once more. `dtype`: of the variable, where the text does not say it.

        Raises InvalidArgument for a name that the text does not have, InvalidType and InvalidShape for values that do
        not fit.
        """
        settled_name(name)
        if self.language == "cuda":
            return self._variable(name, values, dtype, settled_handle(handle))
        return self._define(name, values, dtype)

    def _variable(self, name: str, values: Any, dtype: Any, handle: Handle) -> np.ndarray[Any, Any]:
        found = self._built.symbol(name)
        if found is None:
            raise InvalidArgument(
                f"{self.name} has no constant {name}: declare it, __constant__ float {name}[4]"
            )
        pointer, size = found
        kind = self._dtype_of(name, dtype)
        runner = handle.at(self.device.device_id)
        stream = self.device.default_stream if runner.gpu_stream is None else runner.gpu_stream
        for other in tuple(self.streams):
            if other != stream:
                self.device.order(stream, other)
        if values is not None:
            array = _as_values(name, values, kind)
            if array.nbytes > size:
                raise InvalidShape(
                    f"{name} has {size} bytes, and the values {array.nbytes}: give at most as many"
                )
            self.device.write(pointer, array, stream)
            self.streams = set()
        if size % kind.itemsize:
            raise InvalidType(f"{name} has {size} bytes, which are no whole number of {kind}: give its dtype")
        result = np.empty(size // kind.itemsize, kind)
        self.device.read(result, pointer, stream)
        return result

    def _dtype_of(self, name: str, dtype: Any) -> np.dtype[Any]:
        if dtype is not None:
            try:
                return np.dtype(numpy_dtype(dtype) if isinstance(dtype, str) else dtype)
            except (InvalidType, TypeError):
                raise InvalidType(f"dtype {shown(dtype)} of {name} is none of NumPy") from None
        pattern = rf"\b__(?:constant|device|managed)__\s+((?:\w+\s+)+?){name}\s*[\[;=]"
        declared = re.search(pattern, self._text.text)
        if declared:
            (parameter,) = parameters(f"{declared[1]} {name}", self.language, dict(self._text.defines))
            if parameter.dtype is not None:
                return numpy_dtype(parameter.dtype)
        raise InvalidType(f"the type of {name} cannot be read from the text of {self.name}: give its dtype")

    def _define(self, name: str, values: Any, dtype: Any) -> np.ndarray[Any, Any]:
        defines = dict(self._text.defines)
        if values is None:
            if name not in self._values:
                raise InvalidArgument(
                    f"{self.name} was given no values of {name}: in OpenCL C they are compiled in"
                )
            return self._values[name].copy()
        if name not in defines and not re.search(rf"\b{name}\b", self._text.text):
            raise InvalidArgument(
                f"the text of {self.name} does not use {name}: declare __constant float weights[] = {name};"
            )
        kind = None if dtype is None else self._dtype_of(name, dtype)
        array = np.array(values, kind)
        if array.dtype == np.float64 and not isinstance(values, np.ndarray) and kind is None:
            array = array.astype(np.float32)  # Python's numbers: f32, as in an expression of arrays of f32
        defines[name] = define_text(name, array if array.ndim else array[()])
        with self._lock:
            changed = replace(self._text, defines=tuple(sorted(defines.items())))
            self._built = self._compiler.build(self.device, changed)
            self._text, self.version = changed, self.version + 1
            self._values[name] = array
        return array.copy()

    def loaded(self, symbol: str, name: str) -> Any:
        """The function of the code that is in force, ready to launch; errors call it `name`."""
        return self._built.function(symbol, name)

    def launched(self, stream: Any) -> None:
        """Note that a stream runs this code."""
        self.streams.add(stream)
        self._built.keep(stream)


class CFunction:
    """`function(*arguments, grid=..., block=...)` launches it.

    `parameters` says what it takes. An array (of any library, on the module's device) goes where the text has a
    pointer, as the address of its first element: its dtype must be what the pointer is to, strides are not looked at.
    Numbers of Python and NumPy go where it has numbers of C, if their values fit; sequences of numbers as vectors
    (`float4`); structures as NumPy's (`np.void`, `bytes`). An integer where it has a pointer is an address, None the
    null pointer.
    """

    def __init__(self, module: CModule, name: str, symbol: str, declared: tuple[Parameter, ...]) -> None:
        self.module, self.name, self.parameters = module, name, declared
        self._symbol = symbol
        self._loaded: Any = None
        self._version = -1
        self._given = tuple(one for one in declared if one.kind != "local")
        self._locals = tuple(one for one in declared if one.kind == "local")

    def __repr__(self) -> str:
        return f"<function {self.name}({', '.join(one.text for one in self.parameters)})>"

    def __call__(
        self,
        *arguments: Any,
        grid: int | Sequence[int] | None = None,
        block: int | Sequence[int] | None = None,
        shared: int | Sequence[int] = 0,
        global_size: int | Sequence[int] | None = None,
        local_size: int | Sequence[int] | None = None,
        uses: Sequence[Any] = (),
        handle: Handle | None = None,
    ) -> None:
        """Launch the function on the handle's stream, or that of the arrays, and return.

        `grid` thread blocks of `block` threads, each along one to three axes. On OpenCL `global_size` work items in
        groups of `local_size` may be given in their place. `shared`: bytes of shared memory: of `extern __shared__`,
        or of the `__local` pointers of OpenCL, one number for each. `uses`: arrays that the function reaches by
        addresses in memory or in structures, which are ordered as those that it is given.

        Raises InvalidType and InvalidArgument that name the parameter, DeviceError for arrays elsewhere.
        """
        if len(arguments) != len(self._given):
            takes = ", ".join(one.text for one in self._given)
            raise InvalidArgument(
                f"{self.name} takes {len(self._given)} arguments ({takes}), got {len(arguments)}"
            )
        handle = settled_handle(handle)
        device = self.module.device
        device_id = device.device_id
        given = [
            given_argument(self.name, parameter, argument, device_id)
            for parameter, argument in zip(self._given, arguments, strict=True)
        ]
        reached = [borrow(x, False, "uses") for x in uses]
        for array in reached:
            if array.device_id != device_id:
                raise DeviceError(
                    f"uses has an array on {where(array.device_id)}: the module is for {where(device_id)}"
                )
        if self.module.language == "opencl":
            launch = self._opencl_sizes(grid, block, global_size, local_size)
        else:
            if global_size is not None or local_size is not None:
                raise InvalidArgument("global_size and local_size are of OpenCL: give grid and block")
            launch = (_axes(grid, "grid", MOST_GROUPS), self._block(block))
        runner = handle.at(device_id)
        bytes_shared = self._shared(shared)
        inputs = [one.array for one in given if one.array is not None and not one.writes]
        written = [*(one.array for one in given if one.array is not None and one.writes), *reached]
        everything = [*inputs, *written]
        call = GpuCall(handle, runner, [array.library for array in everything])
        stream = call.stream(handle, inputs, written)
        if not runner.launches:
            return
        self._launch(stream, given, launch, bytes_shared)
        self.module.launched(stream)
        call.after(handle, stream, everything)

    def _launch(self, stream: Any, given: Sequence[Given], launch: Any, shared: tuple[int, ...]) -> None:
        names = [one.name for one in self.parameters]
        room, values = iter(shared), iter(given)
        each = [
            LocalMemory(next(room)) if one.kind == "local" else next(values).value for one in self.parameters
        ]
        self._current()(stream, each, names, *launch, next(room, 0))

    def _current(self) -> Any:
        version = self.module.version
        if self._version != version:
            self._loaded, self._version = self.module.loaded(self._symbol, self.name), version
        return self._loaded

    def _block(self, block: int | Sequence[int] | None) -> tuple[int, int, int]:
        most = self.module.device.max_threads
        sizes = _axes(block, "block", (most, most, most))
        if math.prod(sizes) > most:
            raise InvalidArgument(
                f"block is {sizes}, {math.prod(sizes)} threads: {self.module.device.name} runs at most {most} together"
            )
        return sizes

    def _opencl_sizes(self, grid: Any, block: Any, whole: Any, group: Any) -> tuple[tuple[int, ...], Any]:
        """The work items along each axis, and those of a group, None for what the driver likes."""
        if whole is None:
            if group is not None:
                raise InvalidArgument("local_size goes with global_size: give both, or grid and block")
            blocks, threads = _axes(grid, "grid", MOST_GROUPS), self._block(block)
            return tuple(b * t for b, t in zip(blocks, threads, strict=True)), threads
        if grid is not None or block is not None:
            raise InvalidArgument("grid and block, or global_size and local_size: give one of the two")
        sizes = _axes(whole, "global_size", (MOST, MOST, MOST))
        if group is None:
            return sizes, None
        groups = self._block(group)
        if any(size % part for size, part in zip(sizes, groups, strict=True)):
            raise InvalidArgument(
                f"global_size is {sizes}: it must be whole multiples of local_size {groups}"
            )
        return sizes, groups

    def _shared(self, shared: int | Sequence[int]) -> tuple[int, ...]:
        """Bytes of shared memory, for each parameter that takes some."""
        device, wanted = self.module.device, len(self._locals)
        if self.module.language == "opencl":
            sizes = one_or_each(shared, "shared", 0, MOST, max(wanted, 1))
            each = (sizes,) if isinstance(sizes, int) else tuple(sizes)
            if wanted == 0 and each != (0,):
                raise InvalidArgument(
                    f"shared is {shared}: {self.name} has no __local pointer among its parameters"
                )
            if wanted and (len(each) != wanted or 0 in each):
                names = ", ".join(one.text for one in self._locals)
                raise InvalidArgument(f"shared is {shown(shared)}: give the bytes of each of {names}")
            if sum(each) > device.shared_bytes:
                raise InvalidArgument(
                    f"shared is {shown(shared)}: the device has {device.shared_bytes} bytes"
                )
            return each if wanted else ()
        return (integer_number(shared, "shared", 0, device.shared_bytes),)


def _axes(given: Any, name: str, most: tuple[int, int, int]) -> tuple[int, int, int]:
    """Sizes along three axes. Raises InvalidArgument."""
    if given is None:
        raise InvalidArgument(f"{name} is not given: say how many there are, along one to three axes")
    sizes = one_or_each(given, name, 1, MOST, 3)
    each = (sizes,) if isinstance(sizes, int) else sizes
    if not each:
        raise InvalidArgument(f"{name} is (): it must have one to three numbers")
    for size, limit in zip(each, most, strict=False):
        if size > limit:
            raise InvalidArgument(f"{name} is {shown(given)}: at most {most} are possible along the axes")
    return (*each, *(1,) * (3 - len(each)))  # type: ignore[return-value]


def _as_values(name: str, values: Any, kind: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Values of a constant in its own type. Raises InvalidType."""
    if isinstance(values, np.ndarray):
        if values.dtype != kind:
            raise InvalidType(f"{name} is of {kind}, and the values of {values.dtype}: convert them")
        return np.ascontiguousarray(values)
    try:
        array = np.asarray(values)
        converted = array.astype(kind)
    except (TypeError, ValueError, OverflowError):
        raise InvalidType(f"{name} is {shown(values)}: it must be numbers") from None
    if kind.kind in "iu" and not np.array_equal(converted, array):
        raise InvalidType(f"{name} is {shown(values)}: the variable is of {kind}, which cannot hold that")
    return converted


def check_language(source: str, target: str) -> None:
    """Raise CompileError for text in a language that a target's compiler does not take, as far as that is plain to
    see.
    """
    is_cuda = re.search(r"\b__global__\b", source) is not None
    is_opencl = re.search(r"\b(?:__kernel|kernel\s+void)\b", source) is not None
    is_c = (
        is_cuda
        or is_opencl
        or re.search(r"^\s*(?:#\s*(?:include|define)|(?:\w+\s+)+\**\w+\s*\([^)]*\)\s*\{)", source, re.M)
    )
    is_llvm = (
        re.search(r"^\s*(?:define|declare|target|source_filename)\b|^\s*[@%!]", source, re.M) is not None
    )
    if target == "cpu" and is_c and not re.search(r"^\s*(?:define|declare)\b", source, re.M):
        language, device = (
            ("CUDA C++", "cuda") if is_cuda else ("OpenCL C", "opencl") if is_opencl else ("C", "cuda")
        )
        raise CompileError(
            f"source is {language}, and on the cpu modules are LLVM IR, or a function that traces it: for a GPU say "
            f"which, jd.module(source, device={device!r})"
        )
    if target == "cuda" and is_opencl and not is_cuda:
        raise CompileError(
            "source is OpenCL C, and the module is for cuda: write __global__ functions of CUDA C++"
        )
    if target == "opencl" and is_cuda and not is_opencl:
        raise CompileError(
            "source is CUDA C++, and the module is for opencl: write __kernel functions of OpenCL C"
        )
    if target != "cpu" and is_llvm and not is_c:
        raise CompileError(
            f"source is LLVM IR, which modules take on the cpu alone: this one is for {target}"
        )
