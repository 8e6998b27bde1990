"""cuDNN's statuses as exceptions.

A function that would return a status other than success raises `CudnnError`, whose `status` is that code. Each family
of codes is also the error of this library that means the same, so that `except jitdnn.InvalidArgument` catches a bad
parameter.
"""

from __future__ import annotations

from typing import Any

from jitdnn.errors import (
    CompileError,
    DeviceError,
    InvalidArgument,
    InvalidType,
    JitdnnError,
    NotSupported,
)
from jitdnn.frameworks.cudnn_api.enums import cudnnStatus_t


class CudnnError(JitdnnError):
    """A status of cuDNN that is not success.

    `status` is the code, `category` its family (2000, 3000, ...), `function` the name of what was called, `message`
    what was wrong and what would do.
    """

    def __init__(self, status: int, function: str, message: str) -> None:
        Exception.__init__(self, message)
        self.status = cudnnStatus_t(status)
        self.function = function
        self.message = message
        self.reasons: dict[str, str] = {}

    @property
    def category(self) -> int:
        return int(self.status) // 1000 * 1000

    def __str__(self) -> str:
        return f"{self.function}: {self.status.name}: {self.message}"

    def __reduce__(self) -> Any:
        return type(self), (int(self.status), self.function, self.message)


class CudnnBadParam(CudnnError, InvalidArgument):
    """An argument that does not fit: codes 2000 to 2999."""


class CudnnNotSupported(CudnnError, NotSupported):
    """What is legal and not there: codes 3000 to 3999."""

    def __reduce__(self) -> Any:
        return CudnnError.__reduce__(self)


class CudnnExecutionFailed(CudnnError, DeviceError):
    """A device that failed, or is not where the memory is: codes 5000 to 5999."""


_CLASSES: dict[int, type[CudnnError]] = {2: CudnnBadParam, 3: CudnnNotSupported, 5: CudnnExecutionFailed}


def failure(status: cudnnStatus_t, function: str, message: str) -> CudnnError:
    """The error of a status, of the class of its family."""
    return _CLASSES.get(int(status) // 1000, CudnnError)(status, function, message)


class BadParam(InvalidArgument):
    """Raised inside of the functions: it becomes `CUDNN_STATUS_BAD_PARAM`."""


def translated(error: JitdnnError, function: str) -> CudnnError:
    """An error of the functions that do the work, as the status that cuDNN has for it.

    Types are held against the descriptors before anything is computed, so one that is refused later is legal and not
    there.
    """
    if isinstance(error, (NotSupported, InvalidType)):
        status = cudnnStatus_t.CUDNN_STATUS_NOT_SUPPORTED
    elif isinstance(error, InvalidArgument):
        status = cudnnStatus_t.CUDNN_STATUS_BAD_PARAM
    elif isinstance(error, CompileError):
        status = cudnnStatus_t.CUDNN_STATUS_INTERNAL_ERROR_COMPILATION_FAILED
    elif isinstance(error, DeviceError):
        status = cudnnStatus_t.CUDNN_STATUS_EXECUTION_FAILED
    else:
        status = cudnnStatus_t.CUDNN_STATUS_INTERNAL_ERROR
    return failure(status, function, str(error))
