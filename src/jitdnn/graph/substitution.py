"""Functions of a user's in which this package's public functions take operands.

A function is made anew from its code with other globals: where they, or its closure, hold the package, one of its
public functions or a kernel of `jd.elementwise`, they hold its twin of `primitives.py`, and the user's own functions
that it calls by name are made anew in turn. Nothing of the user's is changed, so other threads go on calling it. What a
function reaches otherwise, as an attribute of an object, stays what it is, and refuses operands.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any

import jitdnn
from jitdnn.graph import primitives
from jitdnn.ops.elementwise import ElementwiseKernel

_PACKAGE = jitdnn.__name__


@functools.cache
def _twins() -> dict[int, Any]:
    """By the identity of a public function its twin."""
    return {id(getattr(jitdnn, name)): getattr(primitives, name) for name in primitives.TRACED}


class Substitution:
    """One function made anew, with all that it calls by name."""

    def __init__(self) -> None:
        self._made: dict[int, Any] = {}

    def function(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """The twin of a function, a method, a partial of one or an object that is called; of others itself."""
        found = self._value(function)
        if found is function and not isinstance(function, (type, types.FunctionType)):
            call = inspect.getattr_static(type(function), "__call__", None)
            if isinstance(call, types.FunctionType) and not _is_ours(call):
                found = self._method(call, function)
        result: Callable[..., Any] = found
        return result

    def _value(self, held: Any) -> Any:
        if held is jitdnn:
            return primitives
        twin = _twins().get(id(held))
        if twin is not None:
            return twin
        if isinstance(held, ElementwiseKernel):
            return primitives.ElementwiseOperands(held)
        if isinstance(held, functools.partial):
            return functools.partial(self._value(held.func), *held.args, **held.keywords)
        if isinstance(held, types.MethodType) and isinstance(held.__func__, types.FunctionType):
            return self._method(held.__func__, held.__self__)
        if isinstance(held, types.FunctionType) and not _is_ours(held):
            return self._function(held)
        return held

    def _method(self, function: types.FunctionType, owner: Any) -> Any:
        return functools.partial(self._function(function), owner) if not _is_ours(function) else function

    def _function(self, function: types.FunctionType) -> Any:
        found = self._made.get(id(function))
        if found is not None:
            return found
        cells = tuple(types.CellType() for _ in function.__closure__ or ())
        names = _names(function.__code__)
        made = types.FunctionType(
            function.__code__, {}, function.__name__, function.__defaults__, cells or None
        )
        made.__kwdefaults__ = function.__kwdefaults__
        self._made[id(function)] = made  # before what it calls, which may be itself
        given = function.__globals__
        made.__globals__.update(given)
        made.__globals__.update({name: self._value(given[name]) for name in names if name in given})
        for cell, other in zip(cells, function.__closure__ or (), strict=True):
            try:
                cell.cell_contents = self._value(other.cell_contents)
            except ValueError:  # nothing is in it yet
                continue
        return made


def _names(code: types.CodeType) -> set[str]:
    """The names that a function's code, and that of the functions inside of it, looks up."""
    found = set(code.co_names)
    for constant in code.co_consts:
        if isinstance(constant, types.CodeType):
            found |= _names(constant)
    return found


def _is_ours(function: types.FunctionType) -> bool:
    module = function.__globals__.get("__name__", "")
    return module == _PACKAGE or str(module).startswith(f"{_PACKAGE}.")
