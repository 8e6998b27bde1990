"""CUDA C++ to machine code by NVRTC, through the cache on disk. No GPU is needed."""

from __future__ import annotations

import functools
import re
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from jitdnn.devices.c_text import CText
from jitdnn.devices.gpu import Source, key_of, plain_prelude, read_text, source_key
from jitdnn.errors import CompileError, DeviceError
from jitdnn.locks import lock
from jitdnn.log import fallback_once
from jitdnn.rtcg.cache import CodeCache, Origin
from jitdnn.rtcg.missing import Missing, gathered
from jitdnn.rtcg.recording import Generated, records
from jitdnn.rtcg.use import note_compiled

refuses_spills = False
"""Whether registers that spill are an error, of a source that does not say so: tests set it, which compile with one
version of the compiler. Another one allocates registers otherwise, and a few bytes of a kernel that spills are nothing
beside another algorithm: there it is taken as it is, and the log says so."""
_SPILLED = re.compile(r"entry function '(\w+)'.*?(\d+) bytes spill stores", re.DOTALL)
_READ_IN_FLIGHT = re.compile(r"\(C7517\).*in function '(\w+)'")
"""What the assembler says where registers of `wgmma` are read before `wgmma.wait_group`: it adds a wait of its own, for
committed groups alone, and products that have just begun are in none."""
_SCHEMA = "2"  # raise when the meaning of a cached binary changes without a change of its text


@functools.cache
def prelude(dialect: str) -> str:
    names = {"plain": (), "cuda": ("instructions.cuh",), "hopper": ("instructions.cuh", "hopper.cuh")}[
        dialect
    ]
    return read_text("cuda/prelude", *names) + plain_prelude()


@functools.cache
def compiler_version() -> str:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}" if not int(status) else "nvrtc"


@functools.cache
def known_capabilities() -> tuple[int, ...]:
    """What NVRTC compiles for, 90 for compute capability 9.0; empty without NVRTC."""
    try:
        from cuda.bindings import nvrtc

        status, found = nvrtc.nvrtcGetSupportedArchs()
    except (ImportError, RuntimeError):
        return ()
    return () if int(status) else tuple(found)


def compiled(source: Source, arch: str) -> bytes:
    """The cubin of a source; inside of `recording()` its text is noted and nothing compiled.

    Inside of `gathering()` a source that no cache has is noted.
    """
    made = records()
    if made is not None:
        text = source.complete(prelude(source.dialect))
        made.append(Generated(source.name, "cuda", text, "ptx", lambda: ptx(source, arch)))
        return b""
    try:
        version = compiler_version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(no_compiler(error)) from None
    text = source.complete(prelude(source.dialect))
    key = _key(source, text, arch, version)
    code = CodeCache.default().get(key)
    missing = gathered()
    if code is None and missing is not None:
        is_generic = source.dialect == "plain"
        compiling = functools.partial(compiled, source, arch)
        missing.append(Missing(source.name, key, is_generic, compiling, len(text)))
        return b""
    if code is None:
        code = _kept(source.name, key, arch, version, lambda: _compile(source, text, arch))
    return code


def code_key(source: Source, arch: str) -> str:
    """What the cubin of a source is kept under in the cache."""
    version = compiler_version()
    return source.keys.get((arch, version)) or _key(
        source, source.complete(prelude(source.dialect)), arch, version
    )


def _key(source: Source, text: str, arch: str, version: str) -> str:
    more = ("keeps order",) if source.keeps_order else ()
    found = source_key(source, text, "cuda", arch, version, str(source.spills), *more, _SCHEMA)
    source.keys[arch, version] = found
    return found


def compiled_text(text: CText, arch: str) -> bytes:
    """The cubin of a user's text. Raises CompileError with NVRTC's log."""
    try:
        version = compiler_version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(no_compiler(error)) from None
    key = key_of("text", *text.parts, "cuda", arch, version, _SCHEMA)
    code = CodeCache.default().get(key)
    return code or _kept(text.name, key, arch, version, lambda: _compile_text(text, arch))


def _kept(name: str, key: str, arch: str, version: str, make: Callable[[], bytes]) -> bytes:
    """Code that is in no cache, compiled by one of the threads that want it; others go on beside."""
    cache = CodeCache.default()
    try:
        with _compiling.setdefault(key, lock()):
            code = cache.get(key)
            if code is None:
                code = make()
                note_compiled(name)
                cache.put(key, code, Origin("cuda", arch, version))
    finally:
        _compiling.pop(key, None)
    return code


_compiling: dict[str, threading.RLock] = {}


def no_compiler(error: Exception) -> str:
    return f"the cuda target needs NVRTC: pip install 'jitdnn[cuda]' brings it ({error})"


def ptx(source: Source, arch: str) -> str:
    """The PTX of a source. Raises CompileError, and DeviceError without NVRTC."""
    try:
        compiler_version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(no_compiler(error)) from None
    virtual = arch.replace("sm_", "compute_")
    with _program(source, source.complete(prelude(source.dialect)), virtual, ()) as (nvrtc, program, _):
        return _fetch(nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX, program).rstrip(b"\0").decode()


def _compile(source: Source, text: str, arch: str) -> bytes:
    # without NVRTC's own cache, which would keep what ours keeps, and forget what the assembler said
    options = ["--ptxas-options=-v", "--no-cache", *(["--ptxas-options=-O1"] if source.keeps_order else [])]
    with _program(source, text, arch, options) as (nvrtc, program, log):
        _refuse_reads_in_flight(source.name, arch, log)
        if not source.spills:
            _look_for_spills(source.name, arch, log)
        return _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)


def _refuse_reads_in_flight(name: str, arch: str, log: str) -> None:
    """CompileError for a kernel that the compiler lets read sums of products in flight: results may be wrong, and the
    planner takes another algorithm."""
    kernels = sorted(set(_READ_IN_FLIGHT.findall(log)))
    if kernels:
        raise CompileError(
            f"{name} for {arch} reads sums of products in flight in {', '.join(kernels)} (C7517), so that results may "
            f"be wrong: {compiler_version()} compiled it so"
        )


def _look_for_spills(name: str, arch: str, log: str) -> None:
    """Log which kernels spill registers, by what the assembler said; CompileError if `refuses_spills`."""
    spilled = {kernel: int(count) for kernel, count in _SPILLED.findall(log) if int(count)}
    if not spilled:
        return
    kernels = ", ".join(f"{count} bytes of registers in {kernel}" for kernel, count in spilled.items())
    words = f"{name} for {arch} spills {kernels}, which it does not declare"
    if refuses_spills:
        raise CompileError(words)
    fallback_once(
        (name, arch, kernels), f"{words}: {compiler_version()} compiled it so, and it may be a little slower"
    )


def _compile_text(text: CText, arch: str) -> bytes:
    options = (f"-arch={arch}", "--std=c++17", *text.options, "--no-cache")
    if any(option.startswith(("-std", "--std")) for option in text.options):
        options = tuple(option for option in options if option != "--std=c++17")
    with _nvrtc(text.name, arch, text.complete, text.file, options, text.headers) as (
        nvrtc,
        program,
        status,
        log,
    ):
        if int(status):
            raise text.failure(arch, log or status.name)
        return _fetch(nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN, program)


@contextmanager
def _program(source: Source, text: str, arch: str, more: Sequence[str]) -> Iterator[tuple[Any, Any, str]]:
    """NVRTC, a program that it compiled, and its log."""
    options = (f"-arch={arch}", "--std=c++17", "--diag-suppress=177", "-default-device", *more)
    with _nvrtc(source.name, arch, text, f"{source.name}.cu", options, ()) as (nvrtc, program, status, log):
        if int(status):
            raise CompileError(f"{source.name} does not compile for {arch} ({status.name}):\n{log}")
        yield nvrtc, program, log


@contextmanager
def _nvrtc(
    name: str, arch: str, text: str, file: str, options: Sequence[str], headers: Sequence[tuple[str, str]]
) -> Iterator[tuple[Any, Any, Any, str]]:
    """NVRTC, a program that it was given, what came of it, and its log."""
    from cuda.bindings import nvrtc

    names, contents = [header.encode() for header, _ in headers], [content.encode() for _, content in headers]
    status, program = nvrtc.nvrtcCreateProgram(text.encode(), file.encode(), len(names), contents, names)
    if int(status):
        raise CompileError(f"{name} for {arch}: NVRTC refuses to begin ({status.name})")
    try:
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
        log = _fetch(nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog, program).rstrip(b"\0")
        yield nvrtc, program, status, log.decode("utf-8", "replace")
    finally:
        nvrtc.nvrtcDestroyProgram(program)


def _fetch(measure: Callable[..., Any], fetch: Callable[..., Any], program: Any) -> bytes:
    """What NVRTC writes into a buffer of the size that it says."""
    status, size = measure(program)
    if int(status):
        return b""
    # a byte more: Python has but one object for all single spaces, and all would become what is written into it
    buffer = b" " * (size + 1)
    (status,) = fetch(program, buffer)
    return b"" if int(status) else buffer[:size]
