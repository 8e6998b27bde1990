"""XLA's interface for functions of C (`XLA_FFI_Handler` of `xla/ffi/api/c_api.h`), which jaxlib declares in a header
that it brings: whether it is the one that this package is written for, and where in its structures things lie.

Versions 0.3 and 0.4 differ in names, and in what was added behind the ends of structures.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Final

import jax

#: bytes from the begin of a call's frame, of a buffer, of the metadata that a handler fills in
EXTENSION, API, CONTEXT, STAGE, ARGUMENTS, RESULTS = 8, 16, 24, 32, 72, 112
BUFFER_DATA: Final = 24
EXTENSION_TYPE, METADATA = 8, 24  # of an extension
METADATA_MAJOR, METADATA_MINOR, METADATA_TRAITS = 24, 28, 32
#: of the table of functions
API_ERROR_CREATE, API_STREAM_GET = 48, 80
#: the type of the extension by which XLA asks for metadata, and the stage in which a handler works
ASKS_METADATA, EXECUTE = 1, 3
INTERNAL_ERROR: Final = 13

_VERSIONS = ("3", "4")
_RENAMED = (("XLA_FFI_InternalExtension_Type", "XLA_FFI_Extension_Type"),
            ("XLA_FFI_InternalExtension", "XLA_FFI_Extension_Base"),
            ("XLA_FFI_InvokeContext", "XLA_FFI_ExecutionContext"),
            ("XLA_FFI_Error_GetDetails", "XLA_FFI_Error_GetMessage"))  # fmt: skip
#: the structures, without spaces, whose offsets are written out below
_STRUCTURES = {
    "XLA_FFI_Extension_Base": "size_tstruct_size;XLA_FFI_Extension_Typetype;structXLA_FFI_Extension_Base*next;",
    "XLA_FFI_Api_Version": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;intmajor_version;intminor_version;"
    ),
    "XLA_FFI_Buffer": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;XLA_FFI_DataTypedtype;void*data;int64_trank;"
        "int64_t*dims;"
    ),
    "XLA_FFI_Args": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;int64_tsize;XLA_FFI_ArgType*types;void**args;"
    ),
    "XLA_FFI_Rets": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;int64_tsize;XLA_FFI_RetType*types;void**rets;"
    ),
    "XLA_FFI_Metadata": (
        "size_tstruct_size;XLA_FFI_Api_Versionapi_version;XLA_FFI_Handler_Traitstraits;XLA_FFI_TypeIdstate_type_id;"
    ),
    "XLA_FFI_Metadata_Extension": "XLA_FFI_Extension_Baseextension_base;XLA_FFI_Metadata*metadata;",
    "XLA_FFI_Error_Create_Args": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;constchar*message;XLA_FFI_Error_Codeerrc;"
    ),
    "XLA_FFI_Stream_Get_Args": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;XLA_FFI_ExecutionContext*ctx;void*stream;"
    ),
    "XLA_FFI_CallFrame": (
        "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;constXLA_FFI_Api*api;XLA_FFI_ExecutionContext*ctx;"
        "XLA_FFI_ExecutionStagestage;XLA_FFI_Argsargs;XLA_FFI_Retsrets;XLA_FFI_Attrsattrs;XLA_FFI_Future*future;"
    ),
}
#: how the table of functions begins
_API = (
    "size_tstruct_size;XLA_FFI_Extension_Base*extension_start;XLA_FFI_Api_Versionapi_version;"
    "constXLA_FFI_InternalApi*internal_api;"
) + "".join(
    f"_XLA_FFI_API_STRUCT_FIELD(XLA_FFI_{name});"
    for name in ("Error_Create", "Error_GetMessage", "Error_Destroy", "Handler_Register", "Stream_Get")
)


def missing() -> str | None:
    """Why XLA of this jaxlib cannot be handed functions of C, in one line; None where it can."""
    try:
        return _difference(_header())
    except (AttributeError, OSError):
        return "jaxlib brings no header of its interface for functions of C"


def minor() -> int:
    """The minor version that handlers say; `missing()` is None."""
    return int(_version(_header())[1])


def _header() -> str:
    return (Path(jax.ffi.include_dir()) / "xla" / "ffi" / "api" / "c_api.h").read_text("utf-8")


@cache
def _version(header: str) -> tuple[str, str]:
    """Major and minor, empty where the header has none."""
    found = (re.search(rf"#define XLA_FFI_API_{part} (\d+)", header) for part in ("MAJOR", "MINOR"))
    major, minor = (one[1] if one else "" for one in found)
    return major, minor


@cache
def _difference(header: str) -> str | None:
    plain = re.sub(r"//[^\n]*", "", header)
    for new, old in _RENAMED:
        plain = plain.replace(new, old)
    major, minor = _version(header)
    if major != "0" or minor not in _VERSIONS:
        return f"the interface is {major}.{minor}, and the code is for 0.3 and 0.4"
    for name, fields in _STRUCTURES.items():
        if _fields(plain, name) != fields:
            return f"{name} of the interface is another one than the code is for"
    if not (_fields(plain, "XLA_FFI_Api") or "").startswith(_API):
        return "the functions of the interface are in another order than the code is for"
    numbers = (
        r"XLA_FFI_Extension_Metadata = 1\b",
        r"ExecutionStage_EXECUTE = 3\b",
        r"Error_Code_INTERNAL = 13\b",
    )
    if not all(re.search(number, plain) for number in numbers):
        return "the interface has other numbers than the code is for"
    return None


def _fields(plain: str, name: str) -> str | None:
    found = re.search(rf"struct {name} {{(.*?)}}", plain, re.DOTALL)
    return None if found is None else re.sub(r"\s", "", found[1])
