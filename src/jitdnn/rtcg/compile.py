"""From traced modules to loaded machine code, through the disk cache."""

from __future__ import annotations

import ctypes
import functools
import hashlib
import itertools
import json
import mmap
import os
import re
import secrets
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding import ffi, newpassmanagers

from jitdnn import retention
from jitdnn.errors import CompileError
from jitdnn.locks import lock
from jitdnn.retention import Recent
from jitdnn.rtcg.builder import Module
from jitdnn.rtcg.cache import CodeCache, Origin
from jitdnn.rtcg.extents import Extents, Variant
from jitdnn.rtcg.isa import Isa, isa
from jitdnn.rtcg.recording import Generated, records
from jitdnn.rtcg.use import note_compiled, note_key
from jitdnn.settings import current

SCHEMA = 1  # raise when the meaning of a cached object changes without a change of any generator

# vmovmskps, vmovmskpd and vpmovmskb, from a register
_MOVES_SIGNS = re.compile(
    rb"(\xc5[\x78-\x7d\xf8-\xfd]|\xc4[\x01\x21\x41\x61\x81\xa1\xc1\xe1][\x78-\x7d\xf8-\xfd])[\x50\xd7][\xc0-\xff]",
    re.DOTALL,
)
# what has the instructions from vectors to mask registers: of 32 and 64 bits, of 8 and 16 bits
_MASK_FEATURES = ("avx512dq", "avx512bw")
# what LLVM's linker takes beside the code
_LINKED_BYTES = 40 << 10
_SECTIONS = 3  # instructions, constants, unwinding tables: each begins on a page of its own

# of memory that must be left for LLVM: twice what the largest kernels were seen to take
_ROOM = 64 << 20

# what a processor's code depends on, beside the files right in the package and in `kernels`; import contracts see to it
_FOLDERS = ("rtcg", "kernels/cpu", "kernels/formulas", "problems", "tensor")
_DEVICE_MODULES = ("__init__", "cpu", "quiet", "threads")

_lock = lock()
_numbers = itertools.count()
#: all libraries that there are, whoever keeps them
_loaded: weakref.WeakValueDictionary[str, Library] = weakref.WeakValueDictionary()
#: what is known of code that takes extents, by the key under which the disk has it
_variants: Recent[str, Variant] = Recent(1 << 14)


class _Kept:
    """Libraries that stay loaded though no plan needs them at the moment, for plans that will."""

    def __init__(self) -> None:
        self.libraries: Recent[str, Library] = Recent(1 << 30)  # bounded by their bytes

    def age(self) -> None:
        self.libraries.age()

    def halve(self) -> bool:
        return self.libraries.halve()


kept = _Kept()
retention.code.register(kept)


class Library:
    """Machine code loaded into this process; it stays loaded as long as this object lives.

    `key` is that of the code cache; None for code that is not kept.
    """

    key: str | None = None

    def __init__(self, code: bytes, key: str | None = None) -> None:
        self.key = key
        _require_room()
        size = len(code) + _SECTIONS * mmap.PAGESIZE + _LINKED_BYTES
        self._charge = retention.code.charge(size, current().code_limit)
        self._linker = _linker()
        self._name = f"code{next(_numbers)}"
        self._lookups: list[Any] = []
        weakref.finalize(self, self._dispose, self._lookups, self._name).atexit = False
        made = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
        try:
            self._tracker = made.link(self._linker, self._name)
        except RuntimeError as error:
            raise CompileError(f"LLVM cannot load compiled code: {str(error)[:2000]}") from error

    def address(self, name: str) -> int:
        """Where the function called ``name`` begins. The code is put in its place when the first is asked for."""
        found = ctypes.c_uint64()
        with ffi.OutputString() as message:
            # a tracker that is disposed of takes the code with it. llvmlite's own `lookup` hands one out, which is
            # garbage where a signal handler raises before anybody has it; an address is not
            tracker = ffi.lib.LLVMPY_LLJITLookup(
                self._linker, self._name.encode(), name.encode(), ctypes.byref(found), message
            )
            if not tracker:
                raise CompileError(f"the compiled code has no function {name!r}: {str(message)[:200]}")
            self._lookups.append(tracker)
        return found.value

    @staticmethod
    def _dispose(lookups: Sequence[Any], name: str) -> None:
        for tracker in lookups:
            llvm.orcjit.ResourceTracker(tracker, name, {}).close()


class _Unloaded(Library):
    """Code that was recorded and not compiled: its functions are nowhere."""

    def __init__(self) -> None:
        pass

    def address(self, name: str) -> int:
        return 0


@functools.cache
def _linker() -> llvm.LLJIT:
    """What loads code into this process, all of it: an engine for each kernel takes several times as long."""
    return llvm.create_lljit_compiler(_target_machine(isa("host")))


@functools.cache
def _initialize() -> None:
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()


@functools.cache
def _initialize_all() -> None:
    llvm.initialize_all_targets()
    llvm.initialize_all_asmprinters()


def _target_machine(isa: Isa, without: Sequence[str] = ()) -> llvm.TargetMachine:
    _initialize()
    if not isa.is_native:
        _initialize_all()
    target = llvm.Target.from_triple(isa.triple)
    features = ",".join([isa.features, *(f"-{feature}" for feature in without)])
    return target.create_target_machine(cpu=isa.cpu, features=features, opt=2, jit=isa.is_native)


def optimise(module: Module) -> tuple[llvm.ModuleRef, llvm.TargetMachine]:
    """Verify a traced module and run LLVM's passes on it.

    Each function is simplified once, as LLVM's -O1 does it. A kernel is already unrolled, vectorised and inlined as it
    was written, so that the passes over whole modules, and -O2's further ones, took as long again and gained next to
    nothing.
    """
    _require_room()
    machine = _target_machine(module.isa)
    try:
        # in a context of its own: types and constants live as long as their context
        code = llvm.parse_assembly(module.text, llvm.create_context())
        code.verify()
    except RuntimeError as error:
        raise CompileError(f"{module.name} is not valid LLVM IR: {str(error)[:2000]}") from error
    options = llvm.create_pipeline_tuning_options(speed_level=1)
    options.loop_unrolling = options.loop_vectorization = options.slp_vectorization = False
    passes = llvm.create_pass_builder(machine, options)
    inliner = llvm.create_new_module_pass_manager()
    inliner.add_always_inliner_pass()
    _run(inliner, code, passes)
    for function in code.functions:
        if not function.is_declaration:
            _run(passes.getFunctionPassManager(), function, passes)
    return code, machine


def moves_signs(code: bytes) -> bool:
    """Whether x86 code takes the signs of a vector's lanes as bits of an integer, by vmovmskps, -pd or vpmovmskb."""
    return _MOVES_SIGNS.search(code) is not None


def _emit(module: Module) -> tuple[llvm.ModuleRef, llvm.TargetMachine, bytes]:
    """The optimised module, who made machine code of it, and that code.

    LLVM 22 makes one vmovmsk of "vector to mask register" and "mask register to integer", and looks neither at the
    vector's number (vmovmsk reaches 16 of the 32: another one's signs are taken) nor at all further uses of the mask.
    So a module in which it did so is compiled without the instructions to mask registers.
    """
    code, machine = optimise(module)
    found = bytes(machine.emit_object(code))
    for count in range(1, len(_MASK_FEATURES) + 1):
        if module.isa.name != "avx512" or not moves_signs(found):
            break
        machine = _target_machine(module.isa, _MASK_FEATURES[:count])
        found = bytes(machine.emit_object(code))
    return code, machine, found


def _run(manager: Any, code: llvm.ValueRef, passes: llvm.PassBuilder) -> None:
    """Run a pass manager and free it, which takes as much memory as the code of several kernels.

    Where its class inherits `_dispose` from the wrong base, llvmlite never frees it.
    """
    try:
        manager.run(code, passes)
    finally:
        if type(manager)._dispose is ffi.ObjectRef._dispose:
            newpassmanagers.NewPassManager._dispose(manager)
            manager.detach()


def compile_object(module: Module) -> bytes:
    """The module as a relocatable object file for its instruction set (which need not be this machine's)."""
    return _emit(module)[2]


def assembly(module: Module) -> str:
    """The module as assembler text, to read or to test."""
    code, machine, _ = _emit(module)
    return str(machine.emit_assembly(code))


def _require_room() -> None:
    """Raise MemoryError unless there is memory for a compilation: LLVM ends the process when it finds none.

    A limit of the process (ulimit -v) is seen so. That of a container is not: there the system ends it.
    """
    private = {"flags": mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS} if hasattr(mmap, "MAP_PRIVATE") else {}
    try:
        mmap.mmap(-1, _ROOM, **private).close()  # never touched, so it costs microseconds
    except OSError as error:
        raise MemoryError(
            f"less than {_ROOM >> 20} MiB of memory are left, which compiling a kernel may need ({error.strerror})"
        ) from None


@functools.cache
def generator_fingerprint() -> str:
    """A hash of every source file that a processor's code depends on: another generator never meets this one's code.

    These are the layers up to the kernels, without those of other targets (GPUs' code is named by its whole text).
    Without sources (a package of byte code, or in an archive that cannot be listed) nothing tells generators apart, and
    each process has code of its own.
    """
    package = Path(__file__).resolve().parent.parent
    paths = [
        path for folder in ("", "kernels") for path in (package / folder).glob("*.py*") if path.is_file()
    ]
    paths += (path for name in _DEVICE_MODULES for path in (package / "devices").glob(f"{name}.py*"))
    for folder in _FOLDERS:
        paths += (path for path in (package / folder).rglob("*.py*") if "__pycache__" not in path.parts)
    digest = hashlib.sha256()
    for path in sorted(paths):
        content = path.read_bytes()
        digest.update(f"{str(path)[len(str(package)) :]} {len(content)}\n".encode())
        digest.update(content)
    return digest.hexdigest() if paths else secrets.token_hex(32)


def key_of(name: str, parameters: Any, isa: Isa) -> str:
    """The cache key of a kernel: everything that its code depends on."""
    versions = (llvmlite.__version__, llvm.llvm_version_info)
    parts = (SCHEMA, generator_fingerprint(), *versions, name, repr(parameters), repr(isa))
    return hashlib.sha256(repr(parts).encode()).hexdigest()


def origin(isa: Isa) -> Origin:
    """What code for an instruction set says of itself in the cache. It runs where this is the same."""
    features = hashlib.sha256(f"{isa.triple} {isa.features}".encode()).hexdigest()[:16]
    llvm_version = ".".join(map(str, llvm.llvm_version_info))
    compiler = (
        f"llvmlite {llvmlite.__version__}, LLVM {llvm_version}, generators {generator_fingerprint()[:16]}"
    )
    return Origin("cpu", f"{isa.name} {isa.cpu}, features {features}", compiler)


def load(name: str, parameters: Any, isa: Isa, generate: Callable[[Module], object]) -> Library:
    """The library that ``generate`` traces, from memory, from the disk cache, or compiled now.

    ``name`` and ``repr(parameters)`` must determine what ``generate`` does. Safe to call from several
    threads at once, and launches nothing. Inside of `recording()` it is traced and neither compiled nor loaded.

    Raises:
        CompileError: the generator made invalid code, or ``isa`` does not run on this machine.
    """
    made = records()
    if made is not None:
        module = Module(name, isa)
        generate(module)
        made.append(Generated(name, "ir", module.text, "asm", lambda: assembly(module)))
        return _Unloaded()
    if not isa.is_native:
        raise CompileError(f"code for {isa.name} ({isa.triple}) cannot be loaded on this machine")
    key = key_of(name, parameters, isa)
    library = _known(key)
    if library is not None:
        return library
    cache = CodeCache.default()
    code = cache.get(key)
    if code is None:
        _require_room()  # tracing is Python, which does not always say MemoryError either
        module = Module(name, isa)
        generate(module)
        code = compile_object(module)
        note_compiled(name)
        cache.put(key, code, origin(isa))
    return _loaded_from(code, key)


def load_for(
    name: str, parameters: Any, extents: Extents, isa: Isa, generate: Callable[[Module], object]
) -> tuple[Library, list[int]]:
    """As `load`, of code that takes ``extents`` when it runs; and the integers that it takes of these.

    What was compiled for other extents is taken where its guards hold. ``repr(parameters)`` has the extents' names,
    and with what ``generate`` asks of their values determines what it does.
    """
    made = records()
    if made is not None:
        module = Module(name, isa, extents)
        generate(module)
        made.append(Generated(name, "ir", module.text, "asm", lambda: assembly(module)))
        return _Unloaded(), [0] * len(extents.slots)
    family = key_of(name, (parameters, tuple(extents.values)), isa)
    numbered = (key_of(name, (family, number), isa) for number in itertools.count())
    for key in numbered:
        variant = _variant(key)
        if variant is None:
            break
        if variant.takes(extents.values):
            library = load_known(variant.key, isa)
            if library is not None:
                note_key(key)
                return library, variant.integers(extents.values)
    module = Module(name, isa, extents)
    _require_room()
    generate(module)
    guards = json.dumps(extents.noted())
    library = load(name, (family, guards), isa, lambda given: given.write_all(module.text))
    variant = Variant(str(library.key), *extents.noted())
    # another process may have written another one of this number meanwhile, which is then compiled once more
    CodeCache.default().put(key, variant.to_json(), origin(isa))
    _variants.put(key, variant)
    return library, variant.integers(extents.values)


def _variant(key: str) -> Variant | None:
    """What is known of the code for some extents under a key, from memory or from the disk."""
    variant = _variants.recall(key)
    if variant is None:
        content = CodeCache.default().get(key)
        variant = None if content is None else Variant.from_json(content)
        if variant is not None:
            _variants.put(key, variant)
    return variant


def load_known(key: str, isa: Isa) -> Library | None:
    """The library whose code is kept under a key (`Library.key`), from memory or from the disk; None if it is not."""
    if not isa.is_native:
        return None
    library = _known(key)
    if library is None:
        code = CodeCache.default().get(key)
        library = None if code is None else _loaded_from(code, key)
    return library


def _known(key: str) -> Library | None:
    with _lock:
        library = _loaded.get(key)
        if library is not None:
            if kept.libraries.recall(key) is None:
                kept.libraries.put(key, library)
            note_key(key)
        return library


def _loaded_from(code: bytes, key: str) -> Library:
    library = Library(code, key)
    with _lock:
        return kept.libraries.put(key, _loaded.setdefault(key, library))


# llvmlite lets one thread at a time into LLVM. A fork waits until none is inside: in the child nobody would come out.
_llvm_lock = getattr(getattr(llvm.ffi, "lib", None), "_lock", None)
if hasattr(os, "register_at_fork") and _llvm_lock is not None:
    os.register_at_fork(
        before=_llvm_lock.__enter__, after_in_parent=_llvm_lock.__exit__, after_in_child=_llvm_lock.__exit__
    )
