"""Where the files named in a net or solver are looked for.

`package:models/lenet.prototxt` is a file shipped inside of this package. An absolute path is itself. A
relative path is looked for from the working directory, as Caffe does, then from the folder of the file that
names it. Paths in Caffe's own files start from the root of its checkout, examples/mnist/lenet.prototxt: where such a
file lies in examples, models, data or python, they are looked for from there, too.
"""

from __future__ import annotations

from os import PathLike
from pathlib import Path, PurePosixPath

from jitdnn.errors import InvalidArgument
from jitdnn.limits import shortened

PACKAGE = Path(__file__).resolve().parent.parent
_PREFIX = "package:"
_CAFFE_FOLDERS = {"examples", "models", "data", "python", "matlab"}
_ROOTS = {"models": PACKAGE / "caffe" / "models", "data": PACKAGE / "data"}


def find(name: str | PathLike[str], base: Path | None = None) -> Path:
    """Return the existing file or folder that `name` means; `base` is the folder of the file that names it.

    Raises InvalidArgument with every place that was tried.
    """
    tried: list[Path] = []
    for path in _candidates(name, base):
        try:
            is_there = path.exists()
        except (
            OSError,
            ValueError,
        ) as error:  # a name that is too long, a folder that may not be looked into
            raise InvalidArgument(f"{shortened(str(name))} cannot be looked for: {error}") from error
        if is_there:
            return path
        tried.append(path)
    message = f"{str(name)!r} does not exist (looked for {' and '.join(str(path) for path in tried)})"
    if str(name).startswith(_PREFIX):
        shipped = sorted(
            f"package:{root}/{path.name}" for root, folder in _ROOTS.items() for path in folder.glob("*.*")
        )
        message += f"; shipped are {', '.join(shipped)}"
    raise InvalidArgument(message)


def _candidates(name: str | PathLike[str], base: Path | None) -> list[Path]:
    text = str(name)
    if text.startswith(_PREFIX):
        root, _, rest = text.removeprefix(_PREFIX).partition("/")
        if root not in _ROOTS or not rest:
            raise InvalidArgument(
                f"{text!r}: a shipped file is named package:models/FILE or package:data/FILE"
            )
        inside = PurePosixPath(rest)
        if inside.is_absolute() or ".." in inside.parts:
            raise InvalidArgument(f"{text!r} leads out of the files that are shipped")
        return [_ROOTS[root] / inside]
    try:
        path = Path(text).expanduser()
    except RuntimeError as error:  # ~NAME, and there is nobody of that name
        raise InvalidArgument(f"{shortened(text)}: {error}") from None
    if path.is_absolute() or base is None or base.resolve() == Path.cwd():
        return [path.absolute()]
    return [path.absolute(), base.resolve() / path, *_from_root(path, base.resolve())]


def _from_root(path: Path, base: Path) -> list[Path]:
    """The path from the root of the checkout of Caffe that `base` is in, if both are of the folders that it has."""
    if not path.parts or path.parts[0] not in _CAFFE_FOLDERS:
        return []
    places = [index for index, part in enumerate(base.parts) if part in _CAFFE_FOLDERS]
    return [Path(*base.parts[: places[-1]]) / path] if places else []
