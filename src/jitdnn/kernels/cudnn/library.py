"""The cuDNN library of this machine: where it is, its functions, what their failures mean, and its handles.

It is opened when something is first asked of it, and stays open. One that is in the process already is taken, whoever
brought it there; then the wheels of the user's environment, then the system's. cuDNN 8 and 9 have the same functions.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import os
import re
import sys
import threading
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from jitdnn.devices.cuda_driver import current, relaxed
from jitdnn.errors import DeviceError

OLDEST = 8
MISSING = "cuDNN is not installed: pip install nvidia-cudnn-cu13"
_NAMES = ("cudnn64_9.dll", "cudnn64_8.dll") if sys.platform == "win32" else ("libcudnn.so.9", "libcudnn.so.8")
_FOLDERS = ("lib", "bin", "lib64")
_WORDS = 1024  # most bytes of the library's own account of a failure

_OBJECT = ctypes.c_void_p
_NUMBER = ctypes.c_int
_NUMBERS = ctypes.POINTER(ctypes.c_int)
_PLACE = ctypes.POINTER(ctypes.c_void_p)
_SIZE = ctypes.POINTER(ctypes.c_size_t)
# handle, alpha, two inputs, the convolution, algorithm, workspace and its bytes, beta, the result; tensors as
# descriptor and pointer
_RUN = (
    _OBJECT, _OBJECT, _OBJECT, _OBJECT, _OBJECT, _OBJECT, _OBJECT, _NUMBER, _OBJECT, ctypes.c_size_t, _OBJECT, _OBJECT,
    _OBJECT,
)  # fmt: skip
_ASK = (_OBJECT, _OBJECT, _OBJECT, _OBJECT, _OBJECT, _NUMBER, _SIZE)

#: the result of every function that is used, then its arguments
PROTOTYPES: dict[str, tuple[Any, ...]] = {
    "cudnnGetVersion": (ctypes.c_size_t,),
    "cudnnGetErrorString": (ctypes.c_char_p, _NUMBER),
    "cudnnGetLastErrorString": (None, _OBJECT, ctypes.c_size_t),  # from 9.0 on
    "cudnnCreate": (_NUMBER, _PLACE),
    "cudnnSetStream": (_NUMBER, _OBJECT, _OBJECT),
    "cudnnCreateTensorDescriptor": (_NUMBER, _PLACE),
    "cudnnSetTensorNdDescriptor": (_NUMBER, _OBJECT, _NUMBER, _NUMBER, _NUMBERS, _NUMBERS),
    "cudnnDestroyTensorDescriptor": (_NUMBER, _OBJECT),
    "cudnnCreateFilterDescriptor": (_NUMBER, _PLACE),
    "cudnnSetFilterNdDescriptor": (_NUMBER, _OBJECT, _NUMBER, _NUMBER, _NUMBER, _NUMBERS),
    "cudnnDestroyFilterDescriptor": (_NUMBER, _OBJECT),
    "cudnnCreateConvolutionDescriptor": (_NUMBER, _PLACE),
    "cudnnSetConvolutionNdDescriptor": (
        _NUMBER, _OBJECT, _NUMBER, _NUMBERS, _NUMBERS, _NUMBERS, _NUMBER, _NUMBER,
    ),
    "cudnnSetConvolutionGroupCount": (_NUMBER, _OBJECT, _NUMBER),
    "cudnnSetConvolutionMathType": (_NUMBER, _OBJECT, _NUMBER),
    "cudnnDestroyConvolutionDescriptor": (_NUMBER, _OBJECT),
    "cudnnGetConvolutionForwardWorkspaceSize": (_NUMBER, *_ASK),
    "cudnnGetConvolutionBackwardDataWorkspaceSize": (_NUMBER, *_ASK),
    "cudnnGetConvolutionBackwardFilterWorkspaceSize": (_NUMBER, *_ASK),
    "cudnnConvolutionForward": (_NUMBER, *_RUN),
    "cudnnConvolutionBackwardData": (_NUMBER, *_RUN),
    "cudnnConvolutionBackwardFilter": (_NUMBER, *_RUN),
}  # fmt: skip
_OPTIONAL = ("cudnnGetLastErrorString",)


class Library:
    """The functions of an opened cuDNN, with their types declared. Raises DeviceError if it is too old."""

    def __init__(self, functions: Any, path: str) -> None:
        self.path = path
        self._functions: dict[str, Any] = {}
        for name, (result, *arguments) in PROTOTYPES.items():
            try:
                function = getattr(functions, name)
            except AttributeError:
                if name in _OPTIONAL:
                    continue
                raise DeviceError(f"{path} has no {name}: it is not cuDNN {OLDEST} or later") from None
            function.restype, function.argtypes = result, tuple(arguments)
            self._functions[name] = function
        self.version = int(self["cudnnGetVersion"]())
        if _major(self.version) < OLDEST:
            raise DeviceError(f"cuDNN {self.words} in {path} is too old: {OLDEST}.0 or later is needed")

    def __getitem__(self, name: str) -> Any:
        return self._functions[name]

    @property
    def words(self) -> str:
        """The version as people write it: 9.19.0."""
        # 8.9.7 is 8907, and 9.19.0 is 91900
        unit = 10000 if _major(self.version) >= 9 else 1000
        return f"{self.version // unit}.{self.version % unit // 100}.{self.version % 100}"

    def made(self, kind: str) -> ctypes.c_void_p:
        """A new object of the library: its handle, or one of the descriptors."""
        place = ctypes.c_void_p()
        self.check(f"cudnnCreate{kind}", "", ctypes.byref(place))
        return place

    def check(self, name: str, doing: str, *arguments: Any) -> None:
        """Call a function. Raises DeviceError with the library's words if it fails."""
        status = self._functions[name](*arguments)
        if status:
            raise self.failure(status, name, doing)

    def failure(self, status: int, name: str, doing: str) -> DeviceError:
        """The error that says what failed, where and why, as far as the library tells."""
        where = f" for {doing}" if doing else ""
        return DeviceError(f"cuDNN {self.words}: {name}{where}: {self.reason(status)}")

    def reason(self, status: int) -> str:
        """The name of a status, and what the library says of the last failure in this thread."""
        name = (self["cudnnGetErrorString"](status) or b"?").decode(errors="replace")
        last = self._functions.get("cudnnGetLastErrorString")
        if last is None:
            return name
        text = ctypes.create_string_buffer(_WORDS)
        last(text, _WORDS)
        more = " ".join(text.value.decode(errors="replace").split())
        return f"{name} ({more})" if more else name


def _major(version: int) -> int:
    return version // 10000 if version >= 90000 else version // 1000


def library() -> Library:
    """The cuDNN of this machine. Raises DeviceError, saying what is missing."""
    found = _found()
    if isinstance(found, str):
        raise DeviceError(found)
    return found


def missing() -> str | None:
    """Why there is no cuDNN to use, in one line; None where there is one."""
    found = _found()
    return found if isinstance(found, str) else None


@functools.cache
def _found() -> Library | str:
    """The first library that can be opened and is not too old, or why there is none."""
    reason = MISSING
    for place in _places():
        with contextlib.suppress(OSError):
            functions = ctypes.CDLL(place)
            try:
                return Library(functions, place)
            except DeviceError as error:
                reason = str(error)
    return reason


def _places() -> Iterator[str]:
    """Where cuDNN may be, the best place first: paths, and names that the system's loader searches."""
    yield from _loaded()
    for folder in _folders():
        for name in _NAMES:
            if (folder / name).is_file():
                yield str(folder / name)
    yield from _NAMES
    with contextlib.suppress(Exception):  # it raises errors of its own, which change with its versions
        from cuda.pathfinder import load_nvidia_dynamic_lib

        path = load_nvidia_dynamic_lib("cudnn").abs_path
        if path:
            yield path


def _loaded() -> list[str]:
    """The cuDNN that this process has in memory, where the system tells: PyTorch brings its own, for one."""
    try:
        maps = Path("/proc/self/maps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    return sorted(set(re.findall(r"/\S.*/libcudnn\.so[.\d]*$", maps, re.MULTILINE)))


def _folders() -> Iterator[Path]:
    """Those of wheels, of PyTorch (which is not imported), of the variables that name an installation, and of conda."""
    for package, inside in (("nvidia", "cudnn"), ("torch", "")):
        with contextlib.suppress(ImportError, ValueError):
            spec = find_spec(package)
            for place in (spec.submodule_search_locations or ()) if spec else ():
                for folder in _FOLDERS:
                    yield Path(place) / inside / folder
    for variable in ("CUDNN_HOME", "CUDNN_PATH", "CONDA_PREFIX"):
        if os.environ.get(variable):
            for folder in _FOLDERS:
                yield Path(os.environ[variable]) / folder


class _Handles:
    """Those of one thread, by library and the number of the GPU."""

    def __init__(self) -> None:
        self.by_place: dict[tuple[Library, int], Handle] = {}

    def __del__(self) -> None:
        # to destroy one waits for the GPU, and may fail when the process ends: the next thread gets it
        try:
            for place, handle in self.by_place.items():
                _idle.setdefault(place, []).append(handle)
        except Exception:
            return  # when Python ends, names may be gone


class Handle:
    """cuDNN's state for one GPU, which one thread at a time may use, and the stream that it was given."""

    __slots__ = ("_library", "_stream", "pointer")

    def __init__(self, owner: Library, index: int) -> None:
        self._library = owner
        with current(index), relaxed():
            self.pointer = owner.made("")
        self._stream = 0

    def on(self, stream: int) -> ctypes.c_void_p:
        """The handle, for work on this stream."""
        if stream != self._stream:
            self._library.check("cudnnSetStream", "", self.pointer, stream)
            self._stream = stream
        return self.pointer


#: handles of threads that have ended
_idle: dict[tuple[Library, int], list[Handle]] = {}
_thread = threading.local()


def handle(owner: Library, index: int) -> Handle:
    """This thread's handle of a GPU, made when it is first asked for."""
    try:
        mine = _thread.handles.by_place
    except AttributeError:
        _thread.handles = _Handles()
        mine = _thread.handles.by_place
    place = owner, index
    found: Handle | None = mine.get(place)
    if found is None:
        try:
            # list.pop is atomic: no two threads get the same one
            found = _idle.get(place, []).pop()
        except IndexError:
            found = Handle(owner, index)
        mine[place] = found
    return found
