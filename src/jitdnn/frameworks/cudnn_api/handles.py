"""Handles and streams, versions, error strings, and the message callback."""

from __future__ import annotations

from typing import Any

from jitdnn.arguments import callback, shown, text
from jitdnn.frameworks.cudnn_api.enums import cudnnErrQueryMode_t, cudnnMathType_t, cudnnStatus_t
from jitdnn.frameworks.cudnn_api.objects import choice, number
from jitdnn.frameworks.cudnn_api.registry import api, last_message
from jitdnn.frameworks.cudnn_api.status import BadParam
from jitdnn.handle import Handle, find_device
from jitdnn.retention import Recent

#: the version whose interface this is, 9.28.1, as cuDNN counts
VERSION = 92801
_PROPERTIES = (VERSION // 10000, VERSION // 100 % 100, VERSION % 100)
_MATH = {
    cudnnMathType_t.CUDNN_TENSOR_OP_MATH: "tf32",
    cudnnMathType_t.CUDNN_TENSOR_OP_MATH_ALLOW_CONVERSION: "fp16",
    cudnnMathType_t.CUDNN_FMA_MATH: "fp32",
}
_MOST_CHOICES = 4096


class cudnnHandle:
    """What `cudnnCreate` gives: the stream, and a `jitdnn.Handle` for each kind of arithmetic that calls allow.

    `device` is `cpu`, `cuda`, `cuda:1`, ...; without one calls run where their arrays are, and queries that have none
    are answered for the device of the settings.
    """

    def __init__(self, device: str | None = None) -> None:
        self.device = device
        self.stream: Any = None
        self.is_destroyed = False
        self._handles: dict[str | None, Handle] = {}
        #: convolutions that were asked for, by what their descriptors say
        self.asked: Recent[tuple[Any, ...], Any] = Recent(_MOST_CHOICES)

    def __repr__(self) -> str:
        return f"<cudnnHandle {'destroyed' if self.is_destroyed else f'on stream {self.stream}'}>"

    def use(self, stream: Any) -> None:
        self.stream = stream
        self._handles.clear()
        self.asked.clear()

    def handle(self, math: cudnnMathType_t = cudnnMathType_t.CUDNN_DEFAULT_MATH) -> Handle:
        """The handle that runs calls of this arithmetic; the default one is what the settings say."""
        mode = _MATH.get(math)
        found = self._handles.get(mode)
        if found is None:
            settings: dict[str, object] = {} if mode is None else {"math": mode}
            found = self._handles[mode] = Handle(self.device, self.stream, **settings)
        return found


def inner(handle: Any) -> Handle:
    """The handle that runs the calls of one of cuDNN's. Raises BadParam."""
    return checked(handle).handle()


def checked(handle: Any) -> cudnnHandle:
    """A handle that was not destroyed. Raises BadParam."""
    if not isinstance(handle, cudnnHandle):
        raise BadParam(f"handle is {shown(handle)}: it must be what cudnnCreate gave")
    if handle.is_destroyed:
        raise BadParam("handle is destroyed: create another one")
    return handle


@api
def cudnnCreate(device: str | None = None) -> cudnnHandle:
    """Return a new handle, for a device by its name (`cpu`, `cuda:1`) or for wherever arrays are."""
    if device is not None:
        find_device(text(device, "device"))
    return cudnnHandle(device)


@api
def cudnnDestroy(handle: Any) -> None:
    """Destroy a handle, and free the scratch memory that it keeps."""
    known = checked(handle)
    for own in known._handles.values():
        own.trim()
    known._handles.clear()
    known.is_destroyed = True


@api
def cudnnSetStream(handle: Any, streamId: Any) -> None:
    """Have the calls of a handle run on a stream: a number, an object of PyTorch or CuPy, or None for the default."""
    checked(handle).use(None if isinstance(streamId, int) and not streamId else streamId)


@api
def cudnnGetStream(handle: Any) -> Any:
    """Return the stream of a handle, None for the default one."""
    return checked(handle).stream


@api
def cudnnGetVersion() -> int:
    """Return the version of cuDNN whose interface this is: 92801 for 9.28.1."""
    return VERSION


@api
def cudnnGetMaxDeviceVersion() -> int:
    """Return the newest compute capability that kernels are written for, times 10: 900 for 9.0."""
    return 900


@api
def cudnnGetCudartVersion() -> int:
    """Return 0: no CUDA runtime is linked, kernels go through the driver."""
    return 0


@api
def cudnnGetProperty(type: int) -> int:
    """Return the major (0), minor (1) or patch (2) number of the version."""
    return _PROPERTIES[number(type, "type", 0, 2)]


@api
def cudnnGetErrorString(status: int) -> str:
    """Return the name of a status."""
    return choice(cudnnStatus_t, status, "status").name


@api
def cudnnGetLastErrorString(max_size: int = 1024) -> str:
    """Return what the last call in this thread that failed said, of at most so many characters; empty if none did."""
    return last_message()[: number(max_size, "max_size")]


@api
def cudnnQueryRuntimeError(handle: Any, mode: int) -> cudnnStatus_t:
    """Return success: kernels report nothing later, what fails raises where it is found."""
    checked(handle)
    choice(cudnnErrQueryMode_t, mode, "mode")
    return cudnnStatus_t.CUDNN_STATUS_SUCCESS


_called_back: list[tuple[int, Any, Any]] = [(0, None, None)]


@api
def cudnnSetCallback(mask: int, udata: Any, fptr: Any) -> None:
    """Keep what is to be called with messages. None are sent: use the setting `log`, and `logging`."""
    callback(fptr, "fptr")
    _called_back[0] = (number(mask, "mask"), udata, fptr)


@api
def cudnnGetCallback() -> tuple[int, Any, Any]:
    """Return (mask, udata, fptr) as they were set."""
    return _called_back[0]


@api
def cudnnGraphVersionCheck() -> None:
    """Do nothing: there is one library, of one version."""


@api
def cudnnOpsVersionCheck() -> None:
    """Do nothing: there is one library, of one version."""


@api
def cudnnCnnVersionCheck() -> None:
    """Do nothing: there is one library, of one version."""


@api
def cudnnAdvVersionCheck() -> None:
    """Do nothing: there is one library, of one version."""
