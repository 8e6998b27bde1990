"""What a function of C text is handed for its parameters: addresses of arrays, numbers of C as bytes."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np

from jitdnn.arguments import shown
from jitdnn.devices.c_signature import Parameter
from jitdnn.devices.gpu import Argument
from jitdnn.errors import DeviceError, InvalidArgument, InvalidType
from jitdnn.ops.gpu_call import where
from jitdnn.tensor import Array, DeviceId, borrow, dtype_name, numpy_dtype


class Given(NamedTuple):
    """An address or the bytes of a value; the array that has it, and whether the function may write there."""

    value: Argument
    array: Array | None = None
    writes: bool = False


def given_argument(function: str, parameter: Parameter, argument: Any, device_id: DeviceId) -> Given:
    """What is handed over. Raises InvalidType, InvalidArgument and DeviceError that name the parameter."""
    name = f"{parameter.name} of {function}"
    if parameter.kind == "array":
        return _address(name, parameter, argument, device_id)
    if parameter.kind == "number":
        assert parameter.dtype is not None
        return Given(_number(name, parameter.text, parameter.dtype, argument))
    if parameter.kind == "vector":
        return Given(_vector(name, parameter, argument))
    return Given(_structure(name, parameter, argument))


def _address(name: str, parameter: Parameter, argument: Any, device_id: DeviceId) -> Given:
    if argument is None:
        return Given(0)
    if isinstance(argument, (bool, np.bool_, float, np.floating)):
        raise InvalidType(f"{name} is {shown(argument)}: it is `{parameter.text}`, pass an array")
    if isinstance(argument, (int, np.integer)):
        if not 0 <= int(argument) < 1 << 64:
            raise InvalidArgument(f"{name} is {shown(argument)}: an address has 64 bits")
        return Given(int(argument))
    array = borrow(argument, False, name)
    if array.device_id != device_id:
        raise DeviceError(
            f"{name} is on {where(array.device_id)}, and the module is for {where(device_id)}: jitdnn.to_device "
            "moves it"
        )
    if parameter.dtype is not None and array.descriptor.dtype != parameter.dtype:
        raise InvalidType(
            f"{name} has elements of {array.descriptor.dtype}, and it is `{parameter.text}`: {parameter.dtype} will do"
        )
    if array.is_readonly and not parameter.is_const:
        raise InvalidArgument(
            f"{name} is read-only, and it is `{parameter.text}`: a const pointer would take it"
        )
    return Given(array.pointer, array, not parameter.is_const)


def _number(name: str, said: str, dtype: str, argument: Any) -> bytes:
    kind = numpy_dtype(dtype)
    value = argument[()] if isinstance(argument, np.ndarray) and argument.ndim == 0 else argument
    is_truth = isinstance(value, (bool, np.bool_))
    if dtype == "bool":
        if is_truth or (isinstance(value, (int, np.integer)) and value in (0, 1)):
            return bytes((int(value),))
        raise InvalidType(f"{name} is {shown(argument)}: it is `{said}`, pass True or False")
    if not is_truth and isinstance(value, (int, np.integer)):
        number = int(value)
        if kind.kind in "iu":
            limits = np.iinfo(kind)
            if not limits.min <= number <= limits.max:
                raise InvalidArgument(
                    f"{name} is {shown(argument)}: it is `{said}`, from {limits.min} to {limits.max}"
                )
            return number.to_bytes(kind.itemsize, "little", signed=kind.kind == "i")
        return _real(name, said, kind, number)
    is_real = isinstance(value, (float, np.floating)) or dtype_name(getattr(value, "dtype", kind)) in (
        "bf16",
    )
    if (
        not is_truth
        and is_real
        and kind.kind not in "iu"
        and np.ndim(value) == 0
        and not isinstance(value, str)
    ):
        return _real(name, said, kind, value)
    wanted = "an integer" if kind.kind in "iu" else "a number"
    raise InvalidType(f"{name} is {shown(argument)}: it is `{said}`, pass {wanted}")


def _real(name: str, said: str, kind: np.dtype[Any], value: Any) -> bytes:
    try:
        number = float(value)
        with np.errstate(over="ignore"):
            made = np.asarray(number).astype(kind)
    except (OverflowError, TypeError, ValueError):
        made, number = None, math.inf
    if made is None or (math.isinf(float(made)) and not math.isinf(number)):
        raise InvalidArgument(f"{name} is {shown(value)}: it is `{said}`, which does not reach that far")
    return made.tobytes()


def _vector(name: str, parameter: Parameter, argument: Any) -> bytes:
    assert parameter.dtype is not None
    try:
        numbers = list(argument[:17])
    except (TypeError, IndexError, KeyError):
        numbers = []
    if len(numbers) != parameter.lanes:
        raise InvalidType(
            f"{name} is {shown(argument)}: it is `{parameter.text}`, pass {parameter.lanes} numbers"
        )
    lanes = [_number(name, parameter.text, parameter.dtype, number) for number in numbers]
    return b"".join(lanes) + bytes(len(lanes[0])) * (parameter.stored - parameter.lanes)


def _structure(name: str, parameter: Parameter, argument: Any) -> bytes:
    if isinstance(argument, (bytes, bytearray)) and argument:
        return bytes(argument)
    is_one = isinstance(argument, np.generic) or (isinstance(argument, np.ndarray) and argument.ndim == 0)
    if is_one and not argument.dtype.hasobject and argument.dtype.kind not in "SU":
        return bytes(argument.tobytes())
    raise InvalidType(
        f"{name} is {shown(argument)}: it is `{parameter.text}`, of which the size is not known: pass an element of a "
        "structured NumPy array (dtype with align=True), a NumPy scalar or bytes"
    )
