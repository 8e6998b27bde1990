"""Sizes that kernels take as arguments, so that one compiled kernel serves several shapes.

A plan has all of its sizes as macros. Those that a family does not need at compile time become fields of a structure,
and the macro expands to the field: functions that use one take `const Sizes &sizes`, kernels have NUMBERS after beta
and make their `sizes` of them by SIZES.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jitdnn.devices.gpu import Source

OFFSETS = tuple(f"Y_{axis}" for axis in "NDHW") + tuple(f"W_{part}" for part in ("BASE", *"KCTRS"))
"""Strides of the output and of the filter, in elements; fields of any other name are `int`."""
_OFFSETS = frozenset((*OFFSETS, "W_IN", "W_OUT", "W_GROUP", "X_LOW", "X_HIGH"))


def with_arguments(source: Source, names: Sequence[str]) -> tuple[Source, tuple[int, ...]]:
    """The source with these macros as arguments, and their values, which every launch of it takes."""
    values = dict(source.defines)
    own = [name for name in names if name in values]
    fields = [(_type(name), name.lower()) for name in own]
    text = (
        f"struct Sizes {{ {' '.join(f'{kind} {name};' for kind, name in fields)} }};\n"
        f"#define NUMBERS {', '.join(f'i64 {name}_' for _, name in fields)}\n"
        f"#define SIZES {{{', '.join(f'({kind}){name}_' for kind, name in fields)}}}\n"
        + "".join(f"#define {name} (sizes.{name.lower()})\n" for name in own)
    )
    defines = tuple((name, value) for name, value in source.defines if name not in own)
    return replace(source, text=text + source.text, defines=defines), tuple(int(str(values[n])) for n in own)


def _type(name: str) -> str:
    return "INDEX" if name in _OFFSETS else "int"
