"""From the text of a CUDA kernel to a shared library for this CPU.

The preprocessed text is compiled in a namespace of its own, with what C++ lacks replaced: kernels become functions that
are exported behind it, shared arrays static ones.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from jitdnn.devices.gpu import Source, plain_prelude
from jitdnn.errors import CompileError, DeviceError

HERE = Path(__file__).parent
COMPILER = shutil.which("g++")
_CHECKS = "alignment,bounds,shift-exponent,signed-integer-overflow,integer-divide-by-zero"
_OPTIONS = (
    "-std=c++17", "-march=native", "-fno-strict-aliasing", "-fPIC", "-g1", f"-I{HERE}",
)  # fmt: skip
# most kernels of tests run for less time than optimising them takes; a frame larger than its stack shall meet the page
# before it
_KERNEL_OPTIONS = (
    "-O0", "-fstack-clash-protection", "-fvisibility=hidden", "-ffp-contract=off", "-w", f"-fsanitize={_CHECKS}",
)  # fmt: skip

_RACE_OPTIONS = ("-fsanitize=thread", "--param", "tsan-instrument-func-entry-exit=0")

_SIZES = {
    "i8": 1, "u8": 1, "char": 1, "bool": 1, "i16": 2, "u16": 2, "f16": 2, "bf16": 2, "short": 2, "i32": 4, "u32": 4,
    "f32": 4, "int": 4, "unsigned": 4, "float": 4, "i64": 8, "u64": 8, "f64": 8, "double": 8,
}  # fmt: skip
_ALIGNED = (
    r"(?:__attribute__\s*\(\(\s*aligned\s*\((?P<attribute>[^()]*)\)\s*\)\)|alignas\s*\((?P<alignas>[^()]*)\))"
)
_DYNAMIC = re.compile(
    r"\bextern\b(?P<before>[^;{}]*?)\b__shared__\b(?P<type>[^;{}]*?)(?P<name>\w+)\s*\[\s*\]\s*;"
)
_STATIC = re.compile(
    rf"\b__shared__\s+(?P<type>{'|'.join(_SIZES)})\s+(?P<name>\w+)\s*(?P<extents>(?:\[[^][]*\]\s*)+);"
)
_BALANCED = r"\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)"
_KERNEL = re.compile(
    rf'(?:\bextern\s*"C"\s*)?(?P<words>(?:\b(?:__global__|static|void|__launch_bounds__\s*{_BALANCED})\s*)+)'
    r"(?P<name>\b\w+)\s*\("
)


def missing() -> str | None:
    """What this machine lacks for the emulated device, in words; None if nothing."""
    return None if COMPILER and shutil.which("objcopy") else "the emulated CUDA device needs g++ and objcopy"


def built_source(source: Source, arch: str, finds_races: bool = False) -> Path:
    """The shared library of a source, which calls races.h at each load and store, or not. Raises CompileError."""
    plain = '#line 1 "gpu/prelude"\n' + plain_prelude()
    text = source.complete(f'{plain}\n#line 1 "{source.name}"')
    capability = re.sub(r"\D", "", arch)
    options = (
        *_OPTIONS,
        *_KERNEL_OPTIONS,
        f"-DEMULATION_ARCH={capability}0",
        *_RACE_OPTIONS[: 3 * finds_races],
    )
    headers = '#include "cuda.h"\n' + '#include "hopper.h"\n' * (source.dialect == "hopper")
    return _built(source.name, f"{headers}namespace {{\n{text}\n", options)


@functools.cache
def built_runtime() -> Path:
    return _built("runtime", (HERE / "runtime.cpp").read_text(), (*_OPTIONS, "-O3"))


def _built(name: str, text: str, options: Sequence[str]) -> Path:
    """The shared library of a text, from the cache if it is there."""
    if reason := missing():
        raise DeviceError(reason)
    key = hashlib.sha256("\0".join([text, *options, _machine(), _headers()]).encode()).hexdigest()[:24]
    folder = _folder()
    path = folder / f"{name}-{key}.so"
    if path.exists():
        os.utime(path)
        return path
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        stem = Path(scratch) / name
        source, compiled, linked = (str(stem.with_suffix(suffix)) for suffix in (".cpp", ".o", ".so"))
        Path(source).write_text(text)
        if name != "runtime":
            text = _run(name, [str(COMPILER), *options, "-E", source])
            Path(source).write_text(_as_cpp(text))
        # in steps: static arrays get a section of their own, and linking must not know of the sanitizer, whose
        # functions the runtime has
        _run(name, [str(COMPILER), *options, "-c", source, "-o", compiled])
        if name != "runtime":
            _run(name, ["objcopy", "--rename-section", ".bss=shared_arrays", compiled])
        _run(name, [str(COMPILER), "-shared", compiled, "-o", linked])
        Path(linked).rename(path)
    return path


@functools.cache
def _folder() -> Path:
    """Where shared libraries are kept; those that nobody has used for two days go."""
    folder = Path(tempfile.gettempdir()) / f"jitdnn-emulation-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    for path in folder.glob("*.so"):
        with suppress(OSError):  # another process may be as fast
            if path.stat().st_mtime < time.time() - 2 * 86400:
                path.unlink()
    return folder


def _run(name: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise CompileError(f"{name} does not compile with g++:\n{done.stderr[:8000]}")
    return done.stdout


def _as_cpp(text: str) -> str:
    """Preprocessed CUDA C++ as C++, and behind it what Python finds of its kernels."""
    kernels: dict[str, str] = {}
    alignments: list[int] = []

    def kernel(found: re.Match[str]) -> str:
        if "__global__" not in found["words"]:
            return found[0]
        bounds = re.search(rf"__launch_bounds__\s*({_BALANCED})", found["words"])
        kernels[found["name"]] = bounds[1][1:-1] if bounds else "0"
        return f"static void {found['name']}(" + "\n" * found[0].count("\n")

    def dynamic(found: re.Match[str]) -> str:
        """C++ has no array whose size is found at launch, but pointers."""
        words = found["before"] + found["type"]
        kind = re.sub(_ALIGNED, "", words).strip()
        declared = re.search(_ALIGNED, words)
        given = (declared["attribute"] or declared["alignas"]).strip() if declared else ""
        alignments.append(
            int(given) if given.isdigit() else 16 if given else _SIZES.get(kind.split()[-1], 16)
        )
        pointer = (
            f"static {kind} *const &{found['name']} = ({kind} *const &)emulation::emulation_dynamic_shared;"
        )
        return pointer + "\n" * found[0].count("\n")

    def static(found: re.Match[str]) -> str:
        """Aligned as it is declared and no better: never to 16 bytes."""
        kind, name = found["type"], found["name"]
        return (
            f"static __attribute__((used, aligned(16))) struct {{ {kind} gap; {kind} array{found['extents']}; }}"
            f" emulation_{name}; auto &{name} = emulation_{name}.array;"
        )

    text = _KERNEL.sub(kernel, text)
    text = _STATIC.sub(static, _DYNAMIC.sub(dynamic, text))
    text = re.sub(r"\b__shared__\b", "static __attribute__((used))", text)
    exports = "\n".join(f"EMULATION_EXPORT({name}, {bounds})" for name, bounds in kernels.items())
    return (
        f'{text}\n}}\n#include "exports.h"\nEMULATION_ALIGNMENT({min(alignments, default=128)})\n{exports}\n'
    )


@functools.cache
def _headers() -> str:
    return "".join(path.read_text() for path in sorted([*HERE.glob("*.h"), HERE / "build.py"]))


@functools.cache
def _machine() -> str:
    """The compiler and the instructions of this machine."""
    version = subprocess.run([str(COMPILER), "--version"], capture_output=True, text=True, check=True).stdout
    try:
        flags = re.search(r"^(?:flags|Features)\s*:.*$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    except OSError:
        flags = None
    return version + (flags[0] if flags else "")
