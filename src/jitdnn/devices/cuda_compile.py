"""CUDA C++ to machine code by NVRTC, through the cache on disk. No GPU is needed."""

from __future__ import annotations

import functools
import io
import re
import threading

from jitdnn.devices.gpu import Source, read_text, source_key
from jitdnn.errors import CompileError, DeviceError
from jitdnn.rtcg.cache import CodeCache

_SCHEMA = "1"  # raise when the meaning of a cached binary changes without a change of its text


@functools.cache
def prelude(dialect: str) -> str:
    plain = "#define HAS_F64 1\n" + read_text("jitdnn.kernels.gpu", "plain.h")
    return plain if dialect == "plain" else read_text("jitdnn.kernels.cuda", "instructions.cuh") + plain


@functools.cache
def compiler_version() -> str:
    from cuda.bindings import nvrtc

    status, major, minor = nvrtc.nvrtcVersion()
    return f"nvrtc {major}.{minor}" if not int(status) else "nvrtc"


def compiled(source: Source, arch: str) -> bytes:
    try:
        version = compiler_version()
    except (ImportError, RuntimeError) as error:
        raise DeviceError(no_compiler(error)) from None
    text = source.complete(prelude(source.dialect))
    key = source_key(source, text, "cuda", arch, version, str(source.spills), _SCHEMA)
    cache = CodeCache.default()
    code = cache.get(key)
    if code is None:
        # threads that want the same kernel compile it once; others go on beside
        with _compiling.setdefault(key, threading.Lock()):
            code = cache.get(key)
            if code is None:
                code = _compile(source, text, arch)
                cache.put(key, code)
        _compiling.pop(key, None)
    return code


_compiling: dict[str, threading.Lock] = {}


def no_compiler(error: Exception) -> str:
    return f"the cuda target needs NVRTC: pip install 'jitdnn[cuda]' brings it ({error})"


def _compile(source: Source, text: str, arch: str) -> bytes:
    from cuda.core import Program, ProgramOptions

    options = ProgramOptions(
        name=f"{source.name}.cu", arch=arch, std="c++17", ptxas_options="-v", diag_suppress=177
    )
    log = io.StringIO()
    try:
        code: bytes = Program(text, "c++", options).compile("cubin", logs=log).code
    except Exception as error:
        raise CompileError(f"{source.name} does not compile for {arch}: {error}\n{log.getvalue()}") from None
    spilled = [int(n) for n in re.findall(r"(\d+) bytes spill stores", log.getvalue())]
    if any(spilled) and not source.spills:
        raise CompileError(
            f"{source.name} for {arch} spills {max(spilled)} bytes of registers, which it does not declare"
        )
    return code
