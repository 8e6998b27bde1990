"""Arguments that are no arrays: what each kind of them may be, and what it becomes.

A function says of each argument, in one line, of which kind it is (`Argument`). The kind takes whatever a caller
passed and returns it in the one form that the rest of the library knows, numbers as int and float, sequences as
tuples, or raises an error of this package that names the argument, the value and what would do. Nothing is allocated
by the size of an argument, nothing is iterated beyond the few numbers that can be meant, and whatever a caller's
object raises when it is looked at becomes such an error.
"""

from __future__ import annotations

import math
import operator
import reprlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

import numpy as np

from jitdnn.errors import InvalidArgument, InvalidShape, JitdnnError

#: numbers that a sequence may have: as many as a tensor has dimensions
MOST_NUMBERS: Final = 8
#: of numbers along an axis (strides, windows, padding): indices of kernels, sums and products of some, stay below 2^63
MOST: Final = (1 << 31) - 1
#: of extents; `TensorDescriptor` says how many elements there may be together
MOST_EXTENT: Final = 1 << 47
#: of what 64 bits hold
MOST_INDEX: Final = (1 << 63) - 1
_SHOWN: Final = 200
#: of names
MOST_CHARACTERS: Final = 200

_TEXTS: Final = (str, bytes, bytearray, memoryview)
_NUMBER_KINDS: Final = "biufV"  # of NumPy's dtypes: "V" is how bfloat16 says what it is


class _Short(reprlib.Repr):
    def __init__(self) -> None:
        super().__init__()
        self.maxstring = self.maxother = self.maxlong = 100
        self.maxtuple = self.maxlist = MOST_NUMBERS
        self.maxlevel = 3

    def repr_int(self, x: int, level: int) -> str:
        # the digits of a long one take time that grows with their square, and Python refuses to print them
        return super().repr_int(x, level) if x.bit_length() < 2000 else f"a number of {x.bit_length()} bits"

    def repr_bytes(self, x: bytes, level: int) -> str:
        return repr(x) if len(x) <= self.maxstring else f"{len(x)} bytes"

    repr_bytearray = repr_bytes


_short = _Short()


def shown(value: object) -> str:
    """A value for an error message: its repr, shortened; its type if it has none that can be had."""
    try:
        text = _short.repr(value)
    except Exception:
        text = f"a {type(value).__name__}"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


def integer_number(value: Any, name: str, least: int | None = None, most: int = MOST) -> int:
    """An integer of Python or NumPy, or a tensor of one without dimensions, from `least` to `most` as an int.

    `least` is -`most` if None. True and False are none. Raises InvalidArgument.
    """
    number = _index(value)
    if number is None:
        raise InvalidArgument(f"{name} is {shown(value)}: only integers will do")
    return _within(number, name, least, most)


def _within(number: int, name: str, least: int | None, most: int) -> int:
    if least is not None and number < least:
        raise InvalidArgument(f"{name} is {shown(number)}: it must be at least {least}")
    if not -most <= number <= most:
        raise InvalidArgument(
            f"{name} is {shown(number)}: it must be at most {most}" + " in size" * (number < 0)
        )
    return number


def _index(value: Any) -> int | None:
    """An integer as an int; None for anything else."""
    if type(value) is int:
        return value
    try:
        if isinstance(value, (bool, np.bool_)) or _is_truth(value):
            return None
        return int(operator.index(value))
    except Exception:
        return None


def _is_truth(value: Any) -> bool:
    return str(getattr(value, "dtype", "")) in ("bool", "torch.bool")


def _entries(
    value: Any, name: str, error: type[JitdnnError], most: int = MOST_NUMBERS
) -> tuple[Any, ...] | None:
    """The entries of a sequence or of an array of one axis or more; None for what is neither.

    Sets, dictionaries and what can be iterated only once have no order, or would be another argument the next time.
    """
    if type(value) is tuple or type(value) is list:
        found = tuple(value[: most + 1])
    else:
        try:
            is_array = hasattr(type(value), "tolist") and getattr(value, "ndim", 1) > 0
            if not is_array and not isinstance(value, Sequence):
                return None
            if isinstance(value, _TEXTS):
                raise error(f"{name} is {shown(value)}: it must be numbers, not text or bytes")
            found = tuple(islice(iter(value), most + 1))
        except JitdnnError:
            raise
        except Exception:
            return None
    if len(found) > most:
        raise error(f"{name} is {shown(value)}: it must have 1 to {most} numbers")
    return found


def integer_numbers(
    values: Any, name: str, least: int | None = None, most: int = MOST, count: int = MOST_NUMBERS
) -> tuple[int, ...]:
    """A sequence of integers, at most `count`, as a tuple of int. Raises InvalidArgument."""
    entries = _entries(values, name, InvalidArgument, count)
    if entries is None:
        raise InvalidArgument(f"{name} is {shown(values)}: only a sequence of integers will do")
    return tuple(integer_number(entry, name, least, most) for entry in entries)


def one_or_each(
    value: Any, name: str, least: int | None = None, most: int = MOST, count: int = MOST_NUMBERS
) -> int | tuple[int, ...]:
    """An integer as an int, or a sequence of them, at most `count`, as a tuple of int."""
    if _entries(value, name, InvalidArgument, count) is None:
        return integer_number(value, name, least, most)
    return integer_numbers(value, name, least, most, count)


def per_axis(value: Any, rank: int, name: str, least: int = 1, most: int = MOST) -> tuple[int, ...]:
    """An integer, or one for each axis, as a tuple of `rank` numbers from `least` to `most`."""
    if type(value) is tuple and len(value) == rank and _are_within(value, least, most):
        return value  # of another problem: plans make many from each other
    numbers = one_or_each(value, name, least, most)
    if isinstance(numbers, int):
        return (numbers,) * rank
    if len(numbers) != rank:
        raise InvalidArgument(
            f"{name} has {len(numbers)} numbers for {rank} spatial axes: give one, or {rank}"
        )
    return numbers


def _are_within(values: tuple[Any, ...], least: int, most: int) -> bool:
    """Whether all are plain integers from `least` to `most`."""
    for value in values:  # noqa: SIM110  # a generator takes twice as long
        if type(value) is not int or not least <= value <= most:
            return False
    return True


def padding(value: Any, name: str = "padding") -> int | tuple[int | tuple[int, int], ...]:
    """An integer, or for each axis one or a pair (before, after), none of them negative."""
    entries = _entries(value, name, InvalidArgument)
    if entries is None:
        return _not_cropped(value, name)
    found: list[int | tuple[int, int]] = []
    for entry in entries:
        pair = _entries(entry, name, InvalidArgument)
        if pair is None:
            found.append(_not_cropped(entry, name))
        elif len(pair) != 2:
            raise InvalidArgument(
                f"{name} entry {shown(entry)} is neither a number nor a (before, after) pair"
            )
        else:
            found.append((_not_cropped(pair[0], name), _not_cropped(pair[1], name)))
    return tuple(found)


def _not_cropped(value: Any, name: str) -> int:
    number = integer_number(value, name)
    if number < 0:
        raise InvalidArgument(f"{name} is {number}: it must not be negative; crop the input instead")
    return number


def padding_pairs(value: Any, rank: int) -> tuple[tuple[int, int], ...]:
    """Padding as (before, after) pairs, one an axis: from a scalar, one number an axis, or such pairs."""
    if type(value) is tuple and len(value) == rank and all(
        type(pair) is tuple and len(pair) == 2 and _are_within(pair, 0, MOST) for pair in value
    ):  # fmt: skip
        return value
    numbers = padding(value, "padding")
    entries = (numbers,) * rank if isinstance(numbers, int) else numbers
    if len(entries) != rank:
        raise InvalidArgument(
            f"padding has {len(entries)} entries for {rank} spatial axes: give one number, "
            f"or {rank} numbers or (before, after) pairs"
        )
    return tuple((entry, entry) if isinstance(entry, int) else entry for entry in entries)


def shape(value: Any, name: str = "shape") -> tuple[int, ...]:
    """The extents of a tensor, 1 to 8 numbers of 0 or more, as a tuple of int. Raises InvalidShape."""
    entries = _entries(value, name, InvalidShape)
    if entries is None or not entries:
        raise InvalidShape(f"{name} is {shown(value)}: it must be a sequence of integers, 1 to 8 extents")
    extents = [_index(entry) for entry in entries]
    if None in extents:
        raise InvalidShape(f"{name} is {shown(value)}: it must be a sequence of integers")
    for extent in extents:
        assert extent is not None
        if not 0 <= extent <= MOST_EXTENT:
            raise InvalidShape(f"{name} is {shown(value)}: every extent must be from 0 to {MOST_EXTENT}")
    return tuple(extent for extent in extents if extent is not None)


def real_number(
    value: Any,
    name: str,
    least: float = -math.inf,
    most: float = math.inf,
    finite: bool = False,
    error: type[JitdnnError] = InvalidArgument,
) -> float:
    """A real number of Python or NumPy, or a tensor of one without dimensions, from `least` to `most` as a float.

    Infinities and NaN are numbers unless it must be `finite`, or has bounds, between which NaN is not. Raises
    `error` for what is no number, InvalidArgument for one out of range.
    """
    number = _real(value, name, error)
    if finite and not math.isfinite(number):
        raise InvalidArgument(f"{name} is {number}: it must be a finite number")
    if (least, most) != (-math.inf, math.inf) and not least <= number <= most:
        wanted = f"at least {least:g}" if most == math.inf else f"from {least:g} to {most:g}"
        raise InvalidArgument(f"{name} is {number}: it must be a number {wanted}")
    return number


def _real(value: Any, name: str, error: type[JitdnnError] = InvalidArgument) -> float:
    if type(value) is float:
        return value
    try:
        dtype: Any = getattr(value, "dtype", None)
        is_number = not isinstance(value, (*_TEXTS, complex)) and getattr(value, "ndim", 0) == 0
        if dtype is not None:
            is_number = (
                is_number and getattr(dtype, "kind", "f") in _NUMBER_KINDS and "complex" not in str(dtype)
            )
        if is_number:
            return float(value)
    except OverflowError:
        raise InvalidArgument(f"{name} is {shown(value)}: it must be a number that float64 holds") from None
    except Exception:  # whatever the caller's object raises
        is_number = False
    raise error(f"{name} is {shown(value)}: it must be a number")


def real_numbers(value: Any, name: str) -> float | tuple[float, ...]:
    """A real number as a float, or a sequence of them, at most 8, as a tuple of float."""
    entries = _entries(value, name, InvalidArgument)
    return _real(value, name) if entries is None else tuple(_real(entry, name) for entry in entries)


def check_choice(value: object, choices: Sequence[str], name: str) -> None:
    """`value` is one of `choices`, or InvalidArgument listing them."""
    if not isinstance(value, str) or str.__str__(value) not in choices:
        raise InvalidArgument(f"{name} is {shown(value)}: it must be one of {', '.join(map(repr, choices))}")


def text(value: Any, name: str, most: int = MOST_CHARACTERS) -> str:
    """Text of at most `most` characters, as a str. Raises InvalidArgument."""
    if not isinstance(value, str):
        raise InvalidArgument(f"{name} is {shown(value)}: it must be text")
    if len(value) > most:
        raise InvalidArgument(f"{name} is {shown(value)}: it must have at most {most} characters")
    try:
        value.encode()
    except UnicodeError:
        raise InvalidArgument(
            f"{name} is {shown(value)}: it has characters that no text is stored with"
        ) from None
    return value if type(value) is str else str.__str__(value)


def flag(value: Any, name: str) -> bool:
    """True or False, also of NumPy or as 1 or 0. Raises InvalidArgument."""
    if value is True or value is False:
        return value
    try:
        if isinstance(value, np.bool_) or (_is_truth(value) and getattr(value, "ndim", 1) == 0):
            return bool(value)
    except Exception:
        pass
    else:
        number = _index(value)
        if number in (0, 1):
            return bool(number)
    raise InvalidArgument(f"{name} is {shown(value)}: it must be True or False")


def index_dtype(value: Any, name: str, choices: Sequence[str], default: str = "i64") -> str | None:
    """The type of indices that a caller wants: None for False, `default` for True, or one of `choices` by name."""
    if value is False:
        return None
    if isinstance(value, str):
        check_choice(value, choices, name)
        return value
    try:
        return default if flag(value, name) else None
    except InvalidArgument:
        raise InvalidArgument(
            f"{name} is {shown(value)}: it must be True, False or one of {', '.join(map(repr, choices))}"
        ) from None


def sequence(value: Any, name: str, most: int | None = None) -> tuple[Any, ...]:
    """A list or tuple, or what can be iterated as one, of at most `most` things, as a tuple. Raises InvalidArgument."""
    if type(value) is not tuple:
        try:
            if isinstance(value, _TEXTS):
                raise TypeError
            value = tuple(value if most is None else islice(iter(value), most + 1))
        except MemoryError:
            raise
        except Exception:
            raise InvalidArgument(f"{name} is {shown(value)}: it must be a list or tuple") from None
    if most is not None and len(value) > most:
        raise InvalidArgument(f"{name} is {shown(value)}: it must have at most {most} entries")
    found: tuple[Any, ...] = value
    return found


def callback(value: Any, name: str) -> None:
    """Raise InvalidArgument unless it is None or can be called."""
    if value is not None and not callable(value):
        raise InvalidArgument(f"{name} is {shown(value)}: it must be a function, or None")


def is_hashable(value: Any) -> bool:
    """Tell whether a value can be told from others in a dictionary."""
    try:
        hash(value)
    except Exception:
        return False
    return True


def as_key(value: Any) -> Any:
    """A list of numbers, or of lists of them, as the tuple that it stands for; anything else as it is."""
    if type(value) is list and len(value) <= MOST_NUMBERS:
        return tuple([tuple(e) if type(e) is list and len(e) <= MOST_NUMBERS else e for e in value])
    return value


@dataclass(frozen=True, slots=True)
class Argument:
    """An argument of a function: its name in messages, and its kind. `settled(value)` is its value in the form that is
    known inside, or raises."""

    name: str
    settle: Callable[[Any, str], Any]

    def settled(self, value: Any) -> Any:
        return self.settle(value, self.name)


def integer(name: str, least: int | None = None, most: int = MOST) -> Argument:
    """An integer."""
    return Argument(name, lambda value, name: integer_number(value, name, least, most))


def numbers(name: str, least: int | None = None, most: int = MOST) -> Argument:
    """An integer, or one for each axis."""
    return Argument(name, lambda value, name: one_or_each(value, name, least, most))


def pads(name: str = "padding") -> Argument:
    """An integer, or for each axis one or a pair of them."""
    return Argument(name, padding)


def extents(name: str) -> Argument:
    """The shape of a tensor."""
    return Argument(name, shape)


def real(name: str, least: float = -math.inf, most: float = math.inf, finite: bool = True) -> Argument:
    """A real number."""
    return Argument(name, lambda value, name: real_number(value, name, least, most, finite))


def word(name: str, choices: Iterable[str]) -> Argument:
    """One of some words."""
    known = tuple(choices)

    def settle(value: Any, name: str) -> Any:
        check_choice(value, known, name)
        return str.__str__(value)

    return Argument(name, settle)


def yes(name: str) -> Argument:
    """True or False."""
    return Argument(name, flag)


def optional(argument: Argument) -> Argument:
    """The same, or None."""
    return Argument(
        argument.name, lambda value, name: None if value is None else argument.settle(value, name)
    )


def settled_before(name: str) -> Argument:
    """What the function makes itself, of arguments that it has settled."""
    return Argument(name, lambda value, name: value)


def _layout(value: Any, name: str) -> Any:
    if value is not None and not (isinstance(value, str) and len(value) <= MOST_NUMBERS):
        raise InvalidArgument(f"{name} is {shown(value)}: use nchw or nhwc, or None")
    return value


LAYOUT: Final = Argument("layout", _layout)
"""Names of layouts, or None; whether one fits the number of dimensions is known when it meets an array."""
