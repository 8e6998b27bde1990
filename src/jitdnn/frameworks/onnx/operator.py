"""What an operator of ONNX is here: a function of arrays, and its signature is the declaration.

    def leaky_relu(x, /, *, alpha=0.01): ...

Positional parameters are the operator's inputs in ONNX's order (None for one that is left out), keywords its
attributes with ONNX's defaults. An attribute that the signature does not name is refused before anything
runs. A keyword `site` asks for the place of the call in the graph. The result is an array, or a tuple of them
in the order of the outputs.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from jitdnn.errors import NotSupported

Array = np.ndarray[Any, Any]
Function = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Site:
    """Where an operator is called: the version of the operator set, and which outputs somebody reads."""

    operator: str
    name: str
    version: int
    wanted: tuple[bool, ...]

    def wants(self, output: int) -> bool:
        """True if the output at this position has a name in the graph."""
        return output < len(self.wanted) and self.wanted[output]

    def refuse(self, reason: str) -> NotSupported:
        """The error for what this operator is asked to do and cannot."""
        return NotSupported(f"{self.operator}: {reason}")


@dataclass(frozen=True, slots=True)
class Operator:
    """A function with what its signature declares."""

    function: Function
    attributes: frozenset[str]
    required: frozenset[str]
    least: int
    most: int | None
    takes_site: bool

    @classmethod
    def of(cls, function: Function) -> Operator:
        """Read the signature of `function`."""
        attributes: frozenset[str] = frozenset()
        required: frozenset[str] = frozenset()
        least = most = 0
        variadic = False
        for parameter in inspect.signature(function).parameters.values():
            if parameter.kind is inspect.Parameter.VAR_POSITIONAL:
                variadic = True
            elif parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                attributes |= {parameter.name}
                if parameter.default is inspect.Parameter.empty:
                    required |= {parameter.name}
            else:
                most += 1
                least += parameter.default is inspect.Parameter.empty
        takes_site = "site" in attributes
        site = frozenset({"site"})
        most_inputs = None if variadic else most
        return cls(function, attributes - site, required - site, least, most_inputs, takes_site)

    def check(self, site: Site, inputs: Sequence[str], attributes: Collection[str]) -> None:
        """Refuse attributes and inputs that the function does not take. Raises NotSupported."""
        for name in attributes:
            if name not in self.attributes:
                known = ", ".join(sorted(self.attributes)) or "none"
                raise site.refuse(f"attribute {name!r} is not covered (those covered: {known})")
        missing = sorted(self.required.difference(attributes))
        if missing:
            raise site.refuse(f"attributes {missing} are missing")
        if len(inputs) < self.least or (self.most is not None and len(inputs) > self.most):
            most = "any number" if self.most is None else self.most
            raise site.refuse(f"{len(inputs)} inputs are not covered ({self.least} to {most} are)")


def table(**functions: Function) -> dict[str, Operator]:
    """Operators by name."""
    return {name: Operator.of(function) for name, function in functions.items()}
