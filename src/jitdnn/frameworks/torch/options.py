"""How converted calls run: settings of this library, and whether torch's own kernels are measured beside ours.

Operators of PyTorch take numbers, text and tensors, so the options of a call travel as text, `measure=never;threads=1`,
and are parsed once for each text.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch

from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.handle import Handle
from jitdnn.retention import Recent
from jitdnn.settings import flag

MEASURE = ("first", "kernels", "host", "both", "never")
CALLS = "calls"
"""In the place of "first" where kernels of single calls are all that is chosen (install.py)."""
SETTINGS = (
    "workspace_limit",
    "total_workspace",
    "division",
    "division_axes",
    "math",
    "accuracy",
    "deterministic",
    "threads",
    "choice",
    "vendor",
)


@dataclass(frozen=True)
class Options:
    """The options of converted calls.

    `measure`: "first" measures ours beside torch's own at the first call of each kind, unless a stored time decides,
    and uses the faster; so do "kernels", "host" and "both", of calls on a GPU by the GPU's time alone, whatever the
    host needs to enqueue them, by the host's alone, and by the sum of the two; "never" takes ours wherever it does not
    refuse. `settings`: settings of this library by name, as text; `threads` is torch's number where it is not given.
    """

    measure: str = "first"
    settings: tuple[tuple[str, str], ...] = ()

    @staticmethod
    def of(measure: str = "first", **settings: Any) -> Options:
        """Check and keep options. Raises InvalidArgument for an unknown name, or a value that does not fit;
        NotSupported for `memory_limit`, which is for models."""
        if measure not in (*MEASURE, CALLS):
            raise InvalidArgument(f"measure is {shown(measure)}: it must be one of {', '.join(MEASURE)}")
        if "memory_limit" in settings:
            raise NotSupported(
                "memory_limit bounds the training step of a model, which single calls do not know: "
                "jitdnn.torch.convert(model, memory_limit=...) takes it, and the options of torch.compile with "
                'backend="jitdnn"'
            )
        for name in settings:
            if name not in SETTINGS:
                raise InvalidArgument(
                    f"there is no option {shown(name)}: there are measure, {', '.join(SETTINGS)}"
                )
        Handle(**settings)  # raises now rather than at the first call
        return Options(measure, tuple(sorted((name, str(value)) for name, value in settings.items())))

    def __str__(self) -> str:
        words = [] if self.measure == "first" else [("measure", self.measure)]
        return ";".join(f"{name}={value}" for name, value in (*words, *self.settings))


@lru_cache(1024)
def parse(text: str) -> Options:
    """The options that a text says. Raises InvalidArgument for text that says none."""
    words: dict[str, str] = {}
    for word in filter(None, text.split(";")):
        name, equals, value = word.partition("=")
        if not equals:
            raise InvalidArgument(
                f"the options are {shown(text)}: they must be name=value, divided by semicolons"
            )
        words[name] = value
    return Options.of(words.pop("measure", "first"), **words)


@lru_cache(1024)
def counting(text: str, measure: str = "first") -> str:
    """Options that measure, by another of the times that are taken; others as they are."""
    own = parse(text)
    return text if own.measure == "never" else str(replace(own, measure=measure))


def canonical(text: str) -> str:
    """What options tell of calls whose times are stored: which of these count is none of it."""
    return counting(text)


_handles: Recent[tuple[Any, str, int], Handle] = Recent(256)


def handle_of(text: str, device: str = "cpu") -> Handle:
    """The handle of calls with these options on as many threads as torch uses now: one for the whole process."""
    own = parse(text).settings
    key = (own, device, torch.get_num_threads())
    found = _handles.get(key)
    if found is None:
        settings: dict[str, Any] = {"threads": key[2]}
        settings.update(own)
        found = _handles.put(key, Handle(**settings))
    return found


def is_disabled() -> bool:
    """Whether the environment turns all of this off: `JITDNN_DISABLE=1`. Raises InvalidArgument for no switch."""
    text = os.environ.get("JITDNN_DISABLE", "")
    try:
        return text not in ("", "0") and (text == "1" or flag(text))
    except InvalidArgument as error:
        raise InvalidArgument(f"JITDNN_DISABLE={shown(text)}: {error}") from None
