"""Raw code of one's own, compiled and launched: CUDA C++ and OpenCL C on GPUs; on processors LLVM IR, or Python that
traces it, on the library's threads."""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, cast

from jitdnn.arguments import MOST_INDEX, integer_number, shown, text
from jitdnn.devices.cpu import CpuDevice
from jitdnn.devices.cpu_kernel import launch
from jitdnn.devices.gpu import GpuDevice
from jitdnn.errors import CompileError, InvalidArgument, InvalidType, JitdnnError
from jitdnn.handle import Handle, find_device, settled_handle
from jitdnn.ops.c_module import CModule, check_language
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.compile import Library, load
from jitdnn.tensor import borrow

_MOST_CHARACTERS = 1 << 28
Source = str | Callable[[Module], None]


def module(
    source: Source,
    name: str = "user",
    handle: Handle | None = None,
    *,
    device: str | None = None,
    defines: Mapping[str, Any] | None = None,
    headers: Mapping[str, str] | None = None,
    include_folders: Any = None,
    options: Sequence[str] = (),
) -> RawModule | CModule:
    """Compile raw source for the device that `device` names (`cuda`, `cuda:1`, `opencl`), or that of the handle in
    force.

    On a GPU `source` is text in its own language, with `__global__` functions of CUDA C++ or `__kernel` functions of
    OpenCL C:

        module = jd.module(text, device="cuda", defines={"N": 16})
        module["axpy"](2.5, x, y, n, grid=-(-n // 256), block=256)
        module.constant("weights", [0.25, 0.5, 0.25])

    `defines`: what names stand for: text, numbers, arrays (as initializers), or None. `headers`: texts that the source
    includes, by the names that it writes; those in `include_folders` are found by theirs. `options`: the compiler's
    own, `("--use_fast_math",)` for one. Functions are launched on the handle's stream; see `CFunction`.

    On the cpu it is LLVM IR as text, that defines `void f(ptr args, i64 task, i64 thread)` for each function to
    launch, or a function that gets a `jitdnn.rtcg.builder.Module` and traces its tasks:

        def axpy(module):
            with module.task("axpy") as (k, args, task, thread):
                x, y = k.pointer(args, 0, "f32"), k.pointer(args, 1, "f32")
                ...

    Compiled code is kept in the code cache. Raises CompileError for code that is not valid, with the compiler's words
    and the lines that they name; NotSupported on targets that take no raw source; InvalidArgument for options that
    the cpu does not have.

    The code is trusted: nothing checks where it reads and writes.
    """
    handle = settled_handle(handle)
    where = handle.device if device is None else find_device(text(device, "device"))
    named = text(name, "name")
    if not isinstance(source, str) and not callable(source):
        raise InvalidArgument(
            f"source is {shown(source)}: it must be text in the device's language, or on the cpu a function that "
            "traces it"
        )
    if isinstance(source, str):
        check_language(text(source, "source", _MOST_CHARACTERS), where.target)
    if where.target != "cpu":
        if not isinstance(source, str):
            raise InvalidArgument(f"source is {shown(source)}: modules for {where.target} are text")
        gpu = cast(GpuDevice, where)
        return CModule(source, named, gpu, defines, headers, include_folders, options)
    if defines or headers or include_folders or options:
        raise InvalidArgument(
            "defines, headers, include_folders and options are of C: on the cpu modules are LLVM IR"
        )
    isa = cast(CpuDevice, where).isa
    made = Module(named, isa)
    if isinstance(source, str):
        made.write(source)
    else:
        _traced(source, made)
    code = made.text
    digest = hashlib.sha256(code.encode()).hexdigest()
    return RawModule(name, load(f"module {name}", digest, isa, lambda module: module.write_all(code)))


def _traced(source: Callable[[Module], None], made: Module) -> None:
    try:
        source(made)
    except JitdnnError:
        raise
    except Exception as error:
        raise CompileError(
            f"{shown(source)} does not trace a module: it raised {type(error).__name__}: {shown(str(error))}"
        ) from error


class RawModule:
    """Compiled code; `module["name"]` is one of its functions."""

    def __init__(self, name: str, library: Library) -> None:
        self.name, self._library = name, library

    def __repr__(self) -> str:
        return f"<raw module {self.name}>"

    def __getitem__(self, name: str) -> RawFunction:
        """The function called `name`. Raises CompileError if there is none."""
        return RawFunction(name, self._library)


class RawFunction:
    """`function(*arguments, tasks=n)` calls f(args, task, thread) for every task from 0 to n - 1, on many threads.

    `args` is a block of 8-byte slots, one for each argument: the address of an array's first element (of any dtype
    and strides), an integer as i64, a real number as a double.
    """

    def __init__(self, name: str, library: Library) -> None:
        self.name, self._library = name, library
        self._address = library.address(name)

    def __repr__(self) -> str:
        return f"<raw function {self.name}>"

    def __call__(self, *arguments: Any, tasks: int = 1, handle: Handle | None = None) -> None:
        """Run all tasks and wait for them. Raises InvalidType for what is no array or number."""
        tasks = integer_number(tasks, "tasks", 0, MOST_INDEX)
        handle = settled_handle(handle)
        block, kept, anchors = b"", [], []
        for number, argument in enumerate(arguments):
            if isinstance(argument, bool):
                raise InvalidType(
                    f"argument {number} is {argument}: pass an array, an integer or a real number"
                )
            if isinstance(argument, int):
                block += struct.pack("q", integer_number(argument, f"argument {number}", most=MOST_INDEX))
            elif isinstance(argument, float):
                block += struct.pack("d", argument)
            else:
                kept.append(borrow(argument, False, f"argument {number}"))
                anchors.append((number, kept[-1].pointer))
                block += struct.pack("q", kept[-1].pointer)
        launch(self._library, [(self._address, tasks)], block, handle.device.threads, anchors)
