"""Kernels written as ordinary Python that traces to LLVM IR.

A Python ``for`` unrolls; ``for i in k.range(n)`` is a run-time loop whose body is traced once;
``with k.when(condition)`` is a branch; ``acc += a * b`` on a register is an update in place. Values carry
their LLVM type, so one kernel serves every element type and vector width.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import llvmlite.ir as ir

from jitdnn.rtcg.extents import Extents
from jitdnn.rtcg.isa import Isa
from jitdnn.rtcg.pointers import Pointer
from jitdnn.rtcg.types import (
    ELEMENTS,
    INT,
    INT32,
    POINTER,
)
from jitdnn.rtcg.values import Emitter, Register, Value

FunctionKind = Literal["", "inline", "aliasing"]

__all__ = ["Builder", "Function", "Module", "Pointer", "Register", "Value"]


class Function:
    """A function of the module that traced code may call."""

    def __init__(self, node: ir.Function, takes_arguments: bool = False) -> None:
        self.node, self.takes_arguments = node, takes_arguments


class Module:
    """One unit of compilation: functions traced for one instruction set.

    With ``extents`` it takes those from the argument block, which every function hands on to those that it calls.
    """

    def __init__(self, name: str, isa: Isa, extents: Extents | None = None) -> None:
        self.ir = ir.Module(name)
        self.ir.triple = isa.triple
        self.name, self.isa, self.extents = name, isa, extents
        self._raw: str | None = None

    def write(self, text: str) -> None:
        """Make LLVM IR written by hand the whole of this module."""
        self._raw = f'target triple = "{self.isa.triple}"\n{text}'

    def write_all(self, text: str) -> None:
        """Make LLVM IR that names its target already, as `text` of a module does, the whole of this one."""
        self._raw = text

    @property
    def text(self) -> str:
        """The module as LLVM IR."""
        return str(self.ir) if self._raw is None else self._raw

    @contextlib.contextmanager
    def task(self, name: str) -> Iterator[tuple[Builder, Pointer, Value, Value]]:
        """Trace ``void name(i64* args, i64 task, i64 thread)``: yields (k, args, task, thread)."""
        with self.function(name, args="i64", task=None, thread=None) as (k, (args, task, thread), _):
            yield k, args, task, thread

    @contextlib.contextmanager
    def function(
        self, name: str, kind: FunctionKind = "", /, **parameters: str | None
    ) -> Iterator[tuple[Builder, list[Any], Function]]:
        """Trace a function; a parameter is a pointer to the named element type, or an integer if None.

        Yields the builder, the parameters in order, and the function, to call it from others. An "inline"
        one is always merged into its callers. Distinct pointer parameters must not overlap where one is
        written, unless the function is "aliasing"; only there does ``Builder.barrier`` hold for loads
        through them.
        """
        # a task has the argument block, and the others get it behind their own parameters
        takes_arguments = self.extents is not None and "args" not in parameters
        types = [INT if dtype is None else POINTER for dtype in parameters.values()]
        types += [POINTER] * takes_arguments
        node = ir.Function(self.ir, ir.FunctionType(ir.VoidType(), types), name)
        node.attributes.add("nounwind")
        node.attributes.add("alwaysinline" if kind == "inline" else "noinline")
        if kind == "inline":
            node.linkage = "internal"
        k = Builder(self, node)
        values: list[Any] = []
        if self.extents is not None:
            k.arguments = self.extents, node.args[-1 if takes_arguments else list(parameters).index("args")]
        if takes_arguments:
            node.args[-1].name = "arguments"
        for argument, (label, dtype) in zip(node.args, parameters.items(), strict=False):
            argument.name = label
            if dtype is None:
                values.append(Value(k, argument))
            else:
                if kind != "aliasing":
                    argument.add_attribute("noalias")
                values.append(Pointer(k, argument, dtype))
        yield k, values, Function(node, takes_arguments)
        k.b.ret_void()


class Builder(Emitter):
    """Traces the body of one function, with pointers and calls. Customarily called ``k``."""

    def __init__(self, module: Module, node: ir.Function) -> None:
        super().__init__(module.ir, node, module.isa)
        self.module = module

    def call(self, function: Function, *arguments: int | Value | Pointer) -> None:
        values = [a.v if isinstance(a, Pointer) else self.index(a) for a in arguments]
        if function.takes_arguments and self.arguments is not None:
            values.append(self.arguments[1])
        self.b.call(function.node, values)

    def local(self, dtype: str, count: int) -> Pointer:
        """``count`` elements on the stack, aligned to 64 bytes. Keep them few."""
        with self.b.goto_entry_block():
            slot = self.b.alloca(Pointer(self, None, dtype).element, size=INT32(count))
            slot.align = 64
            slot.type = POINTER  # llvmlite makes it a pointer to one element, which takes no vector
        return Pointer(self, slot, dtype)

    def pointer(self, args: Pointer, slot: int | Value, dtype: str) -> Pointer:
        """The pointer in a slot of the argument block, as one to elements of ``dtype``."""
        at = (args + slot).v
        return Pointer(self, self.b.load(at, typ=POINTER, align=8), dtype)

    def number(self, args: Pointer, slot: int, dtype: str) -> Value:
        """The double in a slot of the argument block, rounded to ``dtype``."""
        at = (args + slot).v
        return self.convert(Value(self, self.b.load(at, typ=ELEMENTS["f64"], align=8)), dtype)
