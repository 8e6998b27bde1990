"""From traced modules to loaded machine code, through the disk cache."""

from __future__ import annotations

import functools
import hashlib
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import llvmlite.binding as llvm

from jitdnn.errors import CompileError
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.cache import CodeCache, note_compiled
from jitdnn.rtcg.isa import Isa

SCHEMA = 1  # raise when the meaning of a cached object changes without a change of any generator

_lock = threading.Lock()
_loaded: dict[str, Library] = {}


class Library:
    """Machine code loaded into this process; it stays loaded as long as this object lives."""

    def __init__(self, code: bytes, machine: llvm.TargetMachine) -> None:
        self._engine = llvm.create_mcjit_compiler(llvm.parse_assembly(""), machine)
        self._engine.add_object_file(llvm.ObjectFileRef.from_data(code))
        self._engine.finalize_object()

    def address(self, name: str) -> int:
        """Where the function called ``name`` begins."""
        found = int(self._engine.get_function_address(name))
        if not found:
            raise CompileError(f"the compiled code has no function {name!r}")
        return found


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target_machine(isa: Isa) -> llvm.TargetMachine:
    _initialize()
    if not isa.is_native:
        _initialize_all()
    target = llvm.Target.from_triple(isa.triple)
    return target.create_target_machine(cpu=isa.cpu, features=isa.features, opt=2, jit=isa.is_native)


def optimise(module: Module) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Verify a traced module and run LLVM's passes on it.

    The loop transformations of LLVM are off: a kernel is already unrolled and vectorised as it was written.
    """
    machine = _target_machine(module.isa)
    try:
        code = llvm.parse_assembly(module.text)
        code.verify()
    except RuntimeError as error:
        raise CompileError(f"{module.name} is not valid LLVM IR: {error}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    passes.getModulePassManager().run(code, passes)
    return code, machine


def compile_object(module: Module) -> bytes:
    """The module as a relocatable object file for its instruction set (which need not be this machine's)."""
    code, machine = optimise(module)
    return bytes(machine.emit_object(code))


def assembly(module: Module) -> str:
    """The module as assembler text, to read or to test."""
    code, machine = optimise(module)
    return str(machine.emit_assembly(code))


@functools.cache
def generator_fingerprint() -> str:
    """A hash of every source file that generates code: a changed generator never meets its old code."""
    package = Path(__file__).resolve().parent.parent
    digest = hashlib.sha256()
    for folder in ("rtcg", "kernels", "devices"):
        for path in sorted((package / folder).rglob("*.py")):
            digest.update(path.name.encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()


def key_of(name: str, parameters: Any, isa: Isa) -> str:
    """The cache key of a kernel: everything that its code depends on."""
    parts = (SCHEMA, generator_fingerprint(), llvm.llvm_version_info, name, repr(parameters), repr(isa))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def load(name: str, parameters: Any, isa: Isa, generate: Callable[[Module], None]) -> Library:
    """The library that ``generate`` traces, from memory, from the disk cache, or compiled now.

    ``name`` and ``repr(parameters)`` must determine what ``generate`` does. Safe to call from several
    threads at once, and launches nothing.

    Raises:
        CompileError: the generator made invalid code, or ``isa`` does not run on this machine.
    """
    if not isa.is_native:
        raise CompileError(f"code for {isa.name} ({isa.triple}) cannot be loaded on this machine")
    key = key_of(name, parameters, isa)
    with _lock:
        if key in _loaded:
            return _loaded[key]
    cache = CodeCache.default()
    code = cache.get(key)
    if code is None:
        module = Module(name, isa)
        generate(module)
        code = compile_object(module)
        note_compiled()
        cache.put(key, code)
    library = Library(code, _target_machine(isa))
    with _lock:
        return _loaded.setdefault(key, library)
