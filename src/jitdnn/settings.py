"""Every setting of the library in one table: name, environment variable, default, meaning.

The process default is read from the environment once, at first use. `settings(...)` overrides it for a `with`
block of the running thread or task (a new thread starts from the process default, as for every context
variable):

    with jitdnn.settings(workspace_limit="64 MiB", threads=1):
        y = jitdnn.conv(x, w)
"""

from __future__ import annotations

import itertools
import os
import sys
import weakref
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from jitdnn import targets
from jitdnn.arguments import shown
from jitdnn.errors import InvalidArgument
from jitdnn.host_memory import host_memory
from jitdnn.locks import lock
from jitdnn.retention import Recent
from jitdnn.sizes import format_bytes as format_bytes
from jitdnn.sizes import parse_bytes as parse_bytes
from jitdnn.sizes import whole

_MOST_DIGITS: Final = 40
MOST_THREADS: Final = 4096


def available_cores() -> int:
    """Cores that this process may run on."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _default_cache_dir() -> Path:
    try:
        if sys.platform == "darwin":
            base = Path.home() / "Library" / "Caches"
        elif sys.platform == "win32":
            base = Path(os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")
        else:
            base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        import tempfile  # what it brings along is needed by nobody else

        # a user without a name or a home, as in containers; a folder there that is not this user's own is not used
        user = os.geteuid() if hasattr(os, "geteuid") else "user"
        return Path(tempfile.gettempdir()) / f"jitdnn-{user}"
    return base / "jitdnn"


def flag(value: object) -> bool:
    """The value of a switch. Raises InvalidArgument, without its name."""
    if isinstance(value, bool):
        return value
    text = str(value).strip().lower() if isinstance(value, (str, int)) else ""
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise InvalidArgument("must be one of 1, true, yes, on, 0, false, no, off")


def _one_of(*accepted: str) -> Callable[[object], str]:
    def parse(value: object) -> str:
        if isinstance(value, str) and value.strip().lower() in accepted:
            return value.strip().lower()
        raise InvalidArgument(f"must be one of {', '.join(accepted)}")

    return parse


def _target(value: object) -> str:
    return _one_of(*targets.names())(value)  # of those that are registered by now


def _count(value: object) -> int:
    number = _digits(value) if isinstance(value, str) else whole(value)
    if number is None or not 1 <= number <= MOST_THREADS:
        raise InvalidArgument(f"must be an integer, 1 or more, at most {MOST_THREADS}")
    return number


def _count_or_none(value: object) -> int | None:
    if value is None or (isinstance(value, str) and value.strip().lower() == "none"):
        return None
    number = _digits(value) if isinstance(value, str) else whole(value)
    if number is None or not 0 <= number <= MOST_THREADS:
        raise InvalidArgument(f"must be an integer, 0 or more, at most {MOST_THREADS}, or none")
    return number


def _digits(text: str) -> int | None:
    """The number of a text of decimal digits, None for other text or more digits than any number here has."""
    text = text.strip()
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def _size(value: object) -> int:
    size = parse_bytes(value)
    if size is None:
        raise InvalidArgument("must be a size such as 1 GiB: unlimited is not accepted here")
    return size


def _path(value: object) -> Path:
    try:
        if isinstance(value, (str, os.PathLike)):
            text = os.fspath(value)
            if isinstance(text, str) and text and "\0" not in text:
                return Path(text).expanduser()
    except Exception:  # of an object that is no path after all, or of a home that there is not
        pass
    raise InvalidArgument("must be the path of a folder")


def _optional_path(value: object) -> Path | None:
    return None if value is None or value == "" else _path(value)


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table. `parse` takes the text of the variable or the value that is given in Python."""

    name: str
    parse: Callable[[object], Any]
    default: Callable[[], Any]
    doc: str

    @property
    def variable(self) -> str:
        return f"JITDNN_{self.name.upper()}"


TABLE: Final[tuple[Setting, ...]] = (
    Setting(
        "workspace_limit",
        parse_bytes,
        lambda: None,
        "Largest workspace, in bytes, that a call may use: a size, `0` for none, `none` for no limit.",
    ),
    Setting(
        "total_workspace",
        parse_bytes,
        lambda: None,
        "Largest workspace of all streams together, in bytes, divided among them by what their convolutions gain.",
    ),
    Setting(
        "division",
        _one_of("power_of_two", "all", "undivided"),
        lambda: "power_of_two",
        "Sizes of the parts into which a convolution is divided whose fastest algorithm needs more workspace than "
        "allowed: `power_of_two`, `all`, or `undivided` to use a slower algorithm instead.",
    ),
    Setting(
        "division_axes",
        _one_of("any", "batch"),
        lambda: "any",
        "What is divided then: `any` for images, groups, channels and space, `batch` for images alone.",
    ),
    Setting(
        "vendor",
        _one_of("off", "also", "only"),
        lambda: "off",
        "Use of NVIDIA's cuDNN, where it is installed: `off`, `also` to choose among its algorithms and ours, `only` "
        "to choose among its own.",
    ),
    Setting(
        "math",
        _one_of("fp32", "fp64", "tf32", "bf16", "fp16"),
        lambda: "fp32",
        "Lowest precision in which float32 data may be computed: `fp32`, `fp64`, `tf32`, `bf16`, `fp16`. Modes below "
        "fp32 need hardware support.",
    ),
    Setting(
        "accuracy",
        _one_of("standard", "elementwise", "strict"),
        lambda: "standard",
        "Error that is allowed. `standard`: 5e-6 in fp32, or that of a plain sum. `strict`: only that of a plain sum. "
        "It excludes algorithms by which a NaN or an infinity of an input reaches results that do not read it, and "
        "those that multiply f32 as two halves (Hopper GPUs), in which numbers 2^16 times smaller than the largest of "
        "their tensor lose accuracy. `elementwise`: as `strict`, but f32 may be multiplied as three numbers of bf16, "
        "in which numbers down to 2^122 times smaller than the largest keep their bits: the error of each result is "
        "relative to its own terms, in 1.5 times as long. For inputs of 8-bit floating point, `standard` allows the "
        "rounding error of the inputs, the others that of the result.",
    ),
    Setting(
        "deterministic",
        flag,
        lambda: False,
        "Only algorithms that give bit-identical results from run to run on one device.",
    ),
    Setting(
        "threads",
        _count,
        available_cores,
        "Threads of a CPU kernel. The default is the number of cores that this process may run on.",
    ),
    Setting(
        "thread_pool",
        _one_of("auto", "own", "openmp"),
        lambda: "auto",
        "Whose threads these are. `auto`: PyTorch's from the moment that it is imported, else our own. `own`: always "
        "our own. `openmp`: as `auto`, with a warning where PyTorch's are not available.",
    ),
    Setting(
        "choice",
        _one_of("get", "find", "model"),
        lambda: "get",
        "How an algorithm is chosen. `get`: from stored times and the cost model. `find`: by measuring first. "
        "`model`: by the cost model alone, so that the choice does not change with what was measured meanwhile.",
    ),
    Setting(
        "compile",
        _one_of("wait", "background"),
        lambda: "wait",
        "What a call on an NVIDIA GPU does whose kernel is not compiled yet. `wait`: wait for it. `background`: "
        "compile it in the background, and meanwhile run the fastest algorithm whose code is there.",
    ),
    Setting(
        "target",
        _target,
        lambda: "cpu",
        f"Target of plans that are made without arrays: {', '.join(f'`{name}`' for name in targets.BUILT_IN)}. "
        "A call runs on the device of its arrays.",
    ),
    Setting(
        "cpu",
        _one_of("host", "avx512", "avx2", "neon", "plain"),
        lambda: "host",
        "Instruction set of CPU kernels: `host` for the best that this machine has, or `avx512`, `avx2`, `neon`, "
        "`plain`.",
    ),
    Setting(
        "cache_dir",
        _path,
        _default_cache_dir,
        "Folder of the code cache and the tuning store. The default is `jitdnn` in the user's cache folder.",
    ),
    Setting(
        "device_file",
        _optional_path,
        lambda: None,
        "JSON file with facts of processors and GPUs, used in place of those that are read and measured: "
        "docs/devices.md.",
    ),
    Setting("cache", flag, lambda: True, "Keep compiled kernels and measured times on disk."),
    Setting(
        "keep_plans",
        flag,
        lambda: True,
        "Keep plans of CPU and CUDA on disk beside the compiled kernels, so that the next process need not choose "
        "algorithms.",
    ),
    Setting(
        "cache_limit",
        _size,
        lambda: 2**30,
        "Most bytes of compiled kernels on disk; the least recently used go first.",
    ),
    Setting(
        "store_limit",
        _size,
        lambda: 2**28,
        "Most bytes of measured times on disk; the least recently used go first.",
    ),
    Setting(
        "plans_limit",
        _count,
        lambda: 4096,
        "Most plans that a handle keeps, and most kinds of calls that it remembers.",
    ),
    Setting(
        "code_limit",
        _size,
        lambda: 2**28,
        "Most bytes of machine code that this process keeps loaded, including the loader's own; plans go with their "
        "code.",
    ),
    Setting(
        "scratch_limit",
        _size,
        lambda: 2**30,
        "Most bytes of workspace that a handle keeps between calls; more than that is freed after the call.",
    ),
    Setting(
        "load_limit",
        parse_bytes,
        host_memory,
        "Most bytes that the arrays of one file (`.npz`, `.npy`, snapshot, ONNX), or one blob of a net, may take: a "
        "size, or `none`. The default is the memory that this process may use.",
    ),
    Setting(
        "data_processes",
        _count_or_none,
        lambda: None,
        "Processes that decode the images of a Caffe net's data layer, beside its threads: a number, `0` for none, "
        "`none` for one per core (16 at most) where the net waits for images and there are 4 cores or more.",
    ),
    Setting(
        "log",
        _one_of("off", "warning", "info", "debug"),
        lambda: "warning",
        "What is logged: `off` nothing, `warning` fallbacks, `info` also the choice of an algorithm, `debug` also "
        "every run.",
    ),
    Setting(
        "progress",
        flag,
        lambda: True,
        "Report progress where the first calls of a PyTorch model take more than two seconds for compiling and "
        "measuring kernels: a line that is updated on a terminal, occasional log lines elsewhere.",
    ),
)
_ROWS: Final = {row.name: row for row in TABLE}


@dataclass(frozen=True, slots=True, weakref_slot=True)
class Settings:
    """A full set of values; `TABLE` says what each means, `current()` gives those in force."""

    workspace_limit: int | None
    total_workspace: int | None
    division: str
    division_axes: str
    vendor: str
    math: str
    accuracy: str
    deterministic: bool
    threads: int
    thread_pool: str
    choice: str
    compile: str
    target: str
    cpu: str
    cache_dir: Path
    device_file: Path | None
    cache: bool
    keep_plans: bool
    cache_limit: int
    store_limit: int
    plans_limit: int
    code_limit: int
    scratch_limit: int
    load_limit: int | None
    data_processes: int | None
    log: str
    progress: bool
    #: of values in use, equal if and only if they are: a key for caches of plans that costs nothing to hash
    serial: int = field(default=-1, compare=False, repr=False)


# one that is in nobody's hands and comes again after so many others has another serial
_interned: Recent[Settings, Settings] = Recent(1024)
_alive: weakref.WeakValueDictionary[Settings, Settings] = weakref.WeakValueDictionary()
_serials = itertools.count()
_intern_lock = lock()


def _intern(values: Settings) -> Settings:
    known = _interned.get(values)
    if known is None:
        # two threads must neither give equal values two serials nor both drop a generation
        with _intern_lock:
            known = _interned.recall(values)
            if known is None:
                known = _alive.get(values)
                if known is None:
                    # the key is another object than the value, which it must not keep alive
                    known = _alive[values] = replace(values, serial=next(_serials))
                _interned.put(values, known)
    return known


def _parsed(row: Setting, value: object, origin: str) -> Any:
    try:
        return row.parse(value)
    except InvalidArgument as error:
        raise InvalidArgument(f"{origin}={shown(value)}: {error}") from None


def from_environment(environ: Mapping[str, str]) -> Settings:
    """Return the defaults with the JITDNN_* variables of `environ` applied; an empty one counts as unset.

    Raises InvalidArgument that names the variable, its value and what it accepts.
    """
    values = {}
    for row in TABLE:
        text = environ.get(row.variable, "")
        values[row.name] = _parsed(row, text, row.variable) if text else row.default()
    return _intern(Settings(**values))


def misspelt(environ: Mapping[str, str]) -> list[str]:
    """Of each variable of `environ` that looks like one of a setting and is none: what was probably meant."""
    known = [row.variable for row in TABLE]
    unknown = [name for name in environ if name.startswith("JITDNN_") and name not in known]
    if not unknown:
        return []
    import difflib  # which few processes need

    # what differs more are variables of the studio, of tests, and JITDNN_DISABLE
    near = {name: difflib.get_close_matches(name[:64], known, n=1, cutoff=0.82) for name in unknown}
    return [
        f"{name} in the environment is no setting: is {meant[0]} meant?"
        for name, meant in near.items()
        if meant
    ]


_override: ContextVar[Settings | None] = ContextVar("jitdnn_settings", default=None)
_process_default: Settings | None = None
IN_FORCE: tuple[ContextVar[Settings | None], dict[str, Any], str] = _override, globals(), "_process_default"
"""Where `current` looks: a variable of the context, and if that is None a name among others. For generated code."""


def current() -> Settings:
    """Return the settings in force here: of the innermost `with settings(...)`, else of the process."""
    global _process_default
    values = _override.get()
    if values is not None:
        return values
    if _process_default is None:
        _process_default = from_environment(os.environ)
        for line in misspelt(os.environ):
            from jitdnn.log import tell  # which reads settings

            tell(line)
    return _process_default


def check_bytes(what: str, size: int, error: type[InvalidArgument] = InvalidArgument) -> None:
    """Raises `error` if `size` bytes are more than the setting `load_limit` allows; `what` begins the message."""
    most = current().load_limit
    if most is not None and size > most:
        raise error(
            f"{what} takes {size:,} bytes, and the setting load_limit (the memory that this process may use, if it is "
            f"not set) allows {most:,}"
        )


def override(base: Settings, **overrides: object) -> Settings:
    """Return `base` with some values replaced. Raises InvalidArgument for an unknown name or a bad value."""
    values = {}
    for name, value in overrides.items():
        row = _ROWS.get(name)
        if row is None:
            raise InvalidArgument(f"{shown(name)} is no setting: there are {', '.join(_ROWS)}")
        values[name] = _parsed(row, value, name)
    return _intern(replace(base, **values))


@contextmanager
def in_force(values: Settings) -> Iterator[None]:
    """Have these settings, all of them, in a `with` block of this thread or task: those of another thread, for one."""
    token = _override.set(values)
    try:
        yield
    finally:
        _override.reset(token)


@contextmanager
def settings(**overrides: object) -> Iterator[Settings]:
    """Override settings inside of a `with` block of this thread or task; `TABLE` has names and values.

    Text is accepted wherever the environment variable would take it (`workspace_limit="64 MiB"`). Blocks
    nest, and the block's settings are what `as` gives.
    """
    token = _override.set(override(current(), **overrides))
    try:
        yield current()
    finally:
        _override.reset(token)


def table_markdown() -> str:
    """Return the table of settings as Markdown, for the documentation."""
    rows = ["| setting | environment variable | default | meaning |", "| --- | --- | --- | --- |"]
    rows += [f"| `{row.name}` | `{row.variable}` | {_default_text(row)} | {row.doc} |" for row in TABLE]
    return "\n".join(rows) + "\n"


def _default_text(row: Setting) -> str:
    """Return the default for the table, which must not depend on the machine that writes it."""
    if row.default in (available_cores, _default_cache_dir, host_memory):
        return "of the machine"
    value = row.default()
    if value is None:
        return "not set" if row.parse is _optional_path else "`none`"
    if isinstance(value, bool):
        return f"`{int(value)}`"
    return f"`{format_bytes(value)}`" if row.parse is _size else f"`{value}`"


assert [row.name for row in TABLE] == [f.name for f in fields(Settings)][:-1], (
    "one field a row, in the table's order"
)


class _CallableModule(ModuleType):
    """`jitdnn.settings` is this module and also the function of its name, `with jitdnn.settings(...)`."""

    __call__ = staticmethod(settings)


sys.modules[__name__].__class__ = _CallableModule
