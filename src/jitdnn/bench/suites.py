"""Lists of problems with names: the ones that come with the package, text files and CSV files.

A text suite has a line for each problem, `network:layer*count problem string`, for example

    resnet18:l1_3x3_64*4 conv_fwd n128 c64 h56 w56 k64 r3 s3 stride1 pad1 f32 nchw

where `count` (1 if absent) says how often the network has it; lines that start with `#` are comments, and a
line without a label is a problem on its own. A CSV suite has the columns of `COLUMNS`, two-dimensional
problems with d = t = 1; names that start with `convT_` are transposed convolutions, written as the forward
convolution whose data gradient they are."""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from jitdnn import limits
from jitdnn.errors import InvalidArgument, InvalidType, ParseError
from jitdnn.problems import parse
from jitdnn.problems.convolution import DIRECTIONS, Convolution
from jitdnn.problems.problem import Problem
from jitdnn.tensor import DTYPES

COLUMNS = [
    "suite",
    "name",
    "n",
    "c",
    "d",
    "h",
    "w",
    "k",
    "t",
    "r",
    "s",
    "pad_d",
    "pad_h",
    "pad_w",
    "stride_d",
    "stride_h",
    "stride_w",
    "dil_d",
    "dil_h",
    "dil_w",
    "groups",
    "count",
]
_LABEL = re.compile(r"(?P<network>[^\s:]+):(?P<name>[^\s*]+)(?:\*(?P<count>[0-9]{1,9}))?\s+(?P<problem>.+)")


@dataclass(frozen=True, slots=True)
class Layer:
    """A problem, the network it belongs to ("" for none), its name there and how often it occurs."""

    problem: Problem
    network: str = ""
    name: str = ""
    count: int = 1

    @property
    def label(self) -> str:
        """`network:name`, or the problem itself where it has no name."""
        return f"{self.network}:{self.name}" if self.name else str(self.problem)

    def with_batch(self, n: int) -> Layer:
        """The same layer for `n` images. Raises InvalidArgument unless it is a convolution of packed
        tensors."""
        problem = self.problem
        if not isinstance(problem, Convolution):
            raise InvalidArgument(f"{problem}: another batch can be given to convolutions only")
        layout = _common_layout(problem)
        if layout is None:
            raise InvalidArgument(
                f"{problem}: another batch can be given to packed tensors of one layout only"
            )
        other = Convolution.make(
            problem.direction, (n, *problem.x.shape[1:]), problem.w.shape, problem.stride, problem.padding,
            problem.dilation, problem.groups, problem.mode, problem.dtype, layout,
        )  # fmt: skip
        return replace(self, problem=other)

    def stored(self, dtype: str | None = None, layout: str | None = None) -> Layer:
        """The same layer with packed tensors of another element type or memory order; other problems as they are."""
        problem = self.problem
        if not isinstance(problem, Convolution) or (dtype is None and layout is None):
            return self
        other = Convolution.make(
            problem.direction, problem.x.shape, problem.w.shape, problem.stride, problem.padding, problem.dilation,
            problem.groups, problem.mode, dtype or problem.dtype, layout or _common_layout(problem) or "nchw",
        )  # fmt: skip
        return replace(self, problem=other)

    def limited(self, images: int | None = None, size: int | None = None) -> Layer | None:
        """The same layer with as many images as it has, but at most `images`, and so few that its operands take at
        most `size` bytes together; None if they take more even for one. Raises as `with_batch` does."""
        problem = self.problem
        if not isinstance(problem, Convolution) or problem.n == 0:
            return self
        n = problem.n if images is None else min(problem.n, images)
        if size is not None:
            item = DTYPES[problem.dtype]
            an_image = item * (problem.x.size + problem.y.size) // problem.n
            n = min(n, (size - item * problem.w.size) // max(1, an_image))
        if n < 1:
            return None
        return self if n == problem.n else self.with_batch(n)

    def towards(self, direction: str) -> Layer:
        """The same layer in another direction, as its network has it: the forward pass of a transposed
        convolution is the data gradient of a plain one, and the other way round."""
        if not isinstance(self.problem, Convolution):
            raise InvalidArgument(f"{self.problem}: only a convolution has directions")
        if direction not in DIRECTIONS:
            raise InvalidArgument(f"direction {direction!r}: there are {', '.join(DIRECTIONS)} and all")
        if self.name.startswith("convT_"):
            direction = transposed_direction(direction)
        return replace(self, problem=replace(self.problem, direction=direction))


def _common_layout(problem: Convolution) -> str | None:
    """The memory order in which all tensors are packed, None if there is none.

    Where extents are 1 a tensor is packed in both, and only the others tell.
    """
    tensors = (problem.x, problem.w, problem.y)
    return next((layout for layout in ("nchw", "nhwc") if all(t.is_packed(layout) for t in tensors)), None)


def transposed_direction(direction: str) -> str:
    """The direction of a plain convolution that is this one of the transposed convolution, and the other way round."""
    return {"fwd": "bwd_data", "bwd_data": "fwd"}.get(direction, direction)


def built_in() -> dict[str, tuple[Layer, ...]]:
    """The suites of the package by name: whole files (`classic`) and each network in them (`resnet18`).

    A layer that several files list belongs to its network once.
    """
    found: dict[str, tuple[Layer, ...]] = {}
    networks: dict[str, dict[str, Layer]] = {}
    for entry in sorted(resources.files("jitdnn.bench").joinpath("suites").iterdir(), key=lambda e: e.name):
        layers = tuple(read_text(entry.read_text(encoding="utf-8"), entry.name))
        found[entry.name.removesuffix(".txt")] = layers
        for layer in layers:
            networks.setdefault(layer.network, {}).setdefault(layer.label, layer)
    return found | {network: tuple(layers.values()) for network, layers in networks.items()}


def load(name: str) -> tuple[Layer, ...]:
    """A suite by the name of a built-in one or the path of a .txt or .csv file.

    Raises InvalidArgument for a name that is neither, ParseError with the line for a file that is not a
    suite."""
    path = Path(name)
    if path.suffix in (".csv", ".txt"):
        try:
            text = limits.read_bounded(path, limits.SUITE_BYTES, "a suite").decode("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else None
            raise InvalidArgument(f"suite {name}: {reason or error}") from None
        layers = tuple((read_csv if path.suffix == ".csv" else read_text)(text, name))
    else:
        suites = built_in()
        if name not in suites:
            raise InvalidArgument(
                f"{name!r} is no suite: give a .txt or .csv file or one of {', '.join(sorted(suites))}"
            )
        layers = suites[name]
    if not layers:
        raise InvalidArgument(f"suite {name} has no problems")
    return layers


def read_text(text: str, origin: str = "suite") -> Iterator[Layer]:
    """The layers of a text suite. Raises ParseError that names `origin` and the line."""
    for number, line in enumerate(text.splitlines(), start=1):
        content = line.strip()
        if not content or content.startswith("#"):
            continue
        label = _LABEL.fullmatch(content)
        try:
            if label is None:
                yield Layer(parse(content))
            else:
                yield Layer(
                    parse(label["problem"]), label["network"], label["name"], int(label["count"] or 1)
                )
        except (InvalidArgument, InvalidType) as error:
            raise _at(error, origin, text, number, line) from None


def read_csv(text: str, origin: str = "suite") -> Iterator[Layer]:
    """The layers of a CSV suite. Raises ParseError that names `origin` and the line."""
    lines = text.splitlines()
    reader = csv.DictReader(lines)
    try:
        missing = [column for column in COLUMNS if column not in (reader.fieldnames or ())]
        if missing:
            raise ParseError(f"{origin}: the first line lacks the columns {', '.join(missing)}", text)
        for row in reader:
            try:
                yield _from_row(row)
            except (ValueError, TypeError) as error:
                raise _at(error, origin, text, reader.line_num, lines[reader.line_num - 1]) from None
    except csv.Error as error:  # a field that is too long, a null character
        raise ParseError(f"{origin}: {error}", text, max(reader.line_num, 1)) from None


def _from_row(row: dict[str, str]) -> Layer:
    def triple(stem: str, letters: str) -> list[int]:
        return [int(row[stem + letter]) for letter in letters]

    extents, taps = triple("", "dhw"), triple("", "trs")
    # 2-D rows say d = t = 1, 1-D rows h = r = 1 as well
    rank = next((3 - axis for axis in range(2) if (extents[axis], taps[axis]) != (1, 1)), 1)
    stride, padding, dilation = (triple(stem, "dhw")[-rank:] for stem in ("stride_", "pad_", "dil_"))
    c, k, groups = int(row["c"]), int(row["k"]), int(row["groups"])
    if groups < 1 or c % groups:
        raise InvalidArgument(f"groups={groups} does not divide c={c}")
    problem = Convolution.make(
        "fwd", (int(row["n"]), c, *extents[-rank:]), (k, c // groups, *taps[-rank:]),
        stride, padding, dilation, groups,
    )  # fmt: skip
    return Layer(problem, row["suite"], row["name"], int(row["count"]))


def _at(error: Exception, origin: str, text: str, number: int, line: str) -> ParseError:
    message = error.message if isinstance(error, ParseError) else str(error)
    column = error.column if isinstance(error, ParseError) else 1
    if isinstance(error, ParseError) and error.text:
        column += max(0, line.find(error.text))
    return ParseError(f"{origin}: {message}", text, number, column)


def towards_each(layers: Sequence[Layer], direction: str) -> list[Layer]:
    """The layers in a direction, in all of them for "all", or as they are for "given"."""
    if direction == "given":
        return list(layers)
    directions = DIRECTIONS if direction == "all" else (direction,)
    return [layer.towards(each) for each in directions for layer in layers]


def unique(layers: Sequence[Layer]) -> list[Layer]:
    """Each different problem once, under its first name, counted as often as all of them together."""
    counts: dict[Problem, int] = {}
    for layer in layers:
        counts[layer.problem] = counts.get(layer.problem, 0) + layer.count
    firsts = {layer.problem: layer for layer in reversed(layers)}
    return [replace(firsts[problem], count=count) for problem, count in counts.items()]
