"""The generated code of kernels as text: inside of `recording()` they are traced and neither compiled nor loaded."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Generated:
    """One module or source.

    `form`: "ir" (LLVM IR), "cuda" or "opencl" (C). `machine_form` names what `machine` makes of it: "asm" or "ptx", and
    "" where the driver keeps that to itself.
    """

    name: str
    form: str
    text: str
    machine_form: str
    machine: Callable[[], str]


_records: ContextVar[list[Generated] | None] = ContextVar("jitdnn_recording", default=None)


@contextmanager
def recording() -> Iterator[list[Generated]]:
    """Collect what this thread or task generates. Kernels that are built meanwhile cannot be called."""
    made: list[Generated] = []
    token = _records.set(made)
    try:
        yield made
    finally:
        _records.reset(token)


@contextmanager
def compiling() -> Iterator[None]:
    """Compile also inside of `recording()`: what is run meanwhile, such as the probe of the processor's speed."""
    token = _records.set(None)
    try:
        yield
    finally:
        _records.reset(token)


def records() -> list[Generated] | None:
    """Where generated code is to be added in place of being compiled; None: it is to be compiled."""
    return _records.get()
