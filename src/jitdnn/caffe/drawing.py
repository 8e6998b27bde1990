"""A net drawn as SVG: its layers in ranks from the data down, without any other program.

ranks      a layer stands one rank below the lowest of those that it reads; layers in place stand in the box of the
           layer whose blob they change
routes     an edge over several ranks goes through places of its own in those between, so that it crosses no box
order      within a rank by the mean place of the neighbours above and below, in turns (the barycentric method of
           Sugiyama, Tagawa and Toda, 1981)
places     boxes move towards their neighbours as far as those beside them let them
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from operator import itemgetter

from jitdnn.caffe.prototxt import to_text
from jitdnn.caffe.schema import LayerParameter, NetParameter

_ROW, _LINE, _GAP, _RANK = (
    24,
    16,
    18,
    44,
)  # heights of a layer and of its text; between boxes, and between ranks
_CHARACTER, _MARGIN = 7.0, 14.0  # of the text
_SWEEPS = 12
_KINDS = {
    "product": (
        "Convolution",
        "Deconvolution",
        "DepthwiseConvolution",
        "InnerProduct",
        "Embed",
        "LSTM",
        "RNN",
    ),
    "pooling": ("Pooling", "SPP", "Interp", "Upsample"),
    "activation": ("ReLU", "PReLU", "ELU", "Sigmoid", "TanH", "Swish", "ReLU6", "Dropout", "BNLL", "AbsVal"),
    "normalization": ("BatchNorm", "Scale", "Bias", "LRN", "MVN", "Normalize"),
    "data": (
        "Data",
        "Input",
        "ImageData",
        "HDF5Data",
        "DummyData",
        "MemoryData",
        "WindowData",
        "Parameter",
    ),
}
_KIND_OF = {name: kind for kind, names in _KINDS.items() for name in names}
_COLOURS = {
    "product": "#cfe3ff",
    "pooling": "#ffe0b8",
    "activation": "#d9f2d0",
    "normalization": "#efe3ff",
    "data": "#e4e4e4",
    "loss": "#ffd6d6",
    "other": "#f7f3d0",
}


@dataclass(frozen=True)
class DrawnLayer:
    """A layer's box: its left upper corner, its extents, and its lines of text; `kind` groups types for colours."""

    layer: LayerParameter
    kind: str
    x: float
    y: float
    width: float
    height: float
    lines: Sequence[str]

    @property
    def line_places(self) -> list[float]:
        """Where the lines stand: y of each."""
        return [self.y + number * _LINE for number in range(1, len(self.lines) + 1)]


@dataclass(frozen=True)
class Drawing:
    """A drawn net: extents, boxes in the order of ranks, and edges as the `d` of paths."""

    width: float
    height: float
    layers: Sequence[DrawnLayer]
    edges: Sequence[str]


@dataclass
class _Box:
    """A layer with those in place behind it, or, without layers, a place on the route of an edge."""

    layers: list[LayerParameter] = field(default_factory=list)
    lines: list[Sequence[str]] = field(default_factory=list)  # of each layer
    rank: int = 0
    x: float = 0.0
    above: list[_Box] = field(default_factory=list)
    below: list[_Box] = field(default_factory=list)

    @property
    def width(self) -> float:
        longest = max((len(line) for lines in self.lines for line in lines), default=0)
        return longest * _CHARACTER + _MARGIN if self.layers else 6.0

    @property
    def height(self) -> int:
        return sum(map(_height, self.lines))


def draw(
    net: NetParameter,
    lines_of: Callable[[LayerParameter], Sequence[str]] | None = None,
    left: float = 0.0,
    top: float = 0.0,
) -> Drawing:
    """Lay out a net (in V2 syntax, with the layers of one phase) from (left, top) on; `lines_of` gives the text of a
    layer's box, in the place of its name, type and sizes in one line."""
    boxes = _boxes(net, lines_of or (lambda layer: [label(layer)]))
    ranks = _ranked(boxes)
    for sweep in range(_SWEEPS):
        _order(ranks, down=sweep % 2 == 0)
    _place(ranks)
    spans, height = [], top
    for rank in ranks:
        end = height + max((box.height for box in rank), default=0)
        spans.append((height, end))
        height = end + _RANK
    first = min((box.x - box.width / 2 for rank in ranks for box in rank), default=0.0)
    last = max((box.x + box.width / 2 for rank in ranks for box in rank), default=0.0)
    for rank in ranks:
        for box in rank:
            box.x += left - first
    edges = [_edge(box, other, spans) for rank in ranks for box in rank for other in box.below]
    layers = [layer for rank in ranks for box in rank for layer in _drawn(box, spans[box.rank][0])]
    return Drawing(last - first, max(0.0, height - _RANK - top), layers, edges)


def svg_text(net: NetParameter) -> str:
    """Draw a net (in V2 syntax, with the layers of one phase): an SVG file's text."""
    drawing = draw(net, left=20, top=50)
    width, height = max(drawing.width, len(net.name) * 9.0) + 40, drawing.height + 50 + _RANK
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="sans-serif" font-size="12">',
        f'<rect width="{width:.0f}" height="{height:.0f}" fill="white"/>',
        f'<text x="20" y="28" font-size="16">{escape(net.name or "net")}</text>',
        *(f'<path d="{way}" fill="none" stroke="#707070"/>' for way in drawing.edges),
    ]
    for box in drawing.layers:
        middle = box.x + box.width / 2
        parts += [
            f'<g><title>{escape(to_text(box.layer))}</title><rect x="{box.x:.1f}" y="{box.y:.1f}" '
            f'width="{box.width:.1f}" height="{box.height:.0f}" rx="4" fill="{_COLOURS[box.kind]}" stroke="#606060"/>',
            *(
                f'<text x="{middle:.1f}" y="{y:.1f}" text-anchor="middle">{escape(line)}</text>'
                for y, line in zip(box.line_places, box.lines, strict=True)
            ),
            "</g>",
        ]
    return "\n".join([*parts, "</svg>", ""])


def _height(lines: Sequence[str]) -> int:
    return _ROW + _LINE * (len(lines) - 1)


def label(layer: LayerParameter) -> str:
    """A layer in one line: its name, type and sizes."""
    name, kind = layer.name or layer.type, layer.type
    text = name if name == kind else f"{name}  {kind}"
    facts = ""
    if layer.has("convolution_param"):
        of = layer.convolution_param
        size = of.kernel_size or [of.kernel_h, of.kernel_w]
        facts = f"  {of.num_output}, {'x'.join(map(str, size))}"
        stride = of.stride or ([of.stride_h, of.stride_w] if of.has("stride_h") else [1])
        facts += f" / {'x'.join(map(str, stride))}" if set(stride) != {1} else ""
    elif layer.has("inner_product_param"):
        facts = f"  {layer.inner_product_param.num_output}"
    elif layer.has("pooling_param"):
        pool = layer.pooling_param
        size_text = (
            "all" if pool.global_pooling else str(pool.kernel_size or f"{pool.kernel_h}x{pool.kernel_w}")
        )
        facts = f"  {pool.pool} {size_text} / {pool.stride_h or pool.stride}"
    whole = text + facts
    return whole if len(whole) <= 60 else whole[:57] + "..."


def _boxes(net: NetParameter, lines_of: Callable[[LayerParameter], Sequence[str]]) -> list[_Box]:
    """The boxes, joined; layers in place in that of the layer before."""
    makers: dict[str, _Box] = {}
    boxes: list[_Box] = []
    for layer in net.layer:
        sources = [makers[name] for name in layer.bottom if name in makers]
        is_in_place = len(layer.bottom) == len(layer.top) == 1 and layer.bottom == layer.top
        if is_in_place and sources and not sources[0].below:
            sources[0].layers.append(layer)
            sources[0].lines.append(lines_of(layer))
            continue
        box = _Box([layer], [lines_of(layer)])
        boxes.append(box)
        for above in {id(source): source for source in sources}.values():
            box.above.append(above)
            above.below.append(box)
        makers.update(dict.fromkeys(layer.top, box))
    return boxes


def _ranked(boxes: list[_Box]) -> list[list[_Box]]:
    """The boxes by rank, with places on the routes of long edges."""
    for box in boxes:  # in the order of the net, so those above have theirs
        box.rank = 1 + max((above.rank for above in box.above), default=-1)
    for box in boxes:
        if not box.above and box.below:  # what nothing comes before stands close to its readers
            box.rank = max(0, min(below.rank for below in box.below) - 1)
    ranks: list[list[_Box]] = [[] for _ in range(1 + max((box.rank for box in boxes), default=-1))]
    for box in boxes:
        ranks[box.rank].append(box)
    for box in boxes:
        for index, below in enumerate(box.below):
            last = box
            for rank in range(box.rank + 1, below.rank):
                step = _Box(rank=rank, above=[last])
                ranks[rank].append(step)
                if last is box:
                    box.below[index] = step
                else:
                    last.below = [step]
                last = step
            if last is not box:
                last.below = [below]
                below.above[below.above.index(box)] = last
    return ranks


def _order(ranks: list[list[_Box]], down: bool) -> None:
    for rank in ranks if down else reversed(ranks):
        places = {id(box): float(place) for other in ranks for place, box in enumerate(other)}
        means = {}
        for box in rank:
            neighbours = box.above if down else box.below
            near = [places[id(other)] for other in neighbours]
            means[id(box)] = sum(near) / len(near) if near else places[id(box)]
        rank[:] = [box for _, box in sorted(((means[id(box)], box) for box in rank), key=itemgetter(0))]


def _place(ranks: list[list[_Box]]) -> None:
    for rank in ranks:
        x = 0.0
        for box in rank:
            box.x = x + box.width / 2
            x += box.width + _GAP
    for sweep in range(_SWEEPS):
        for rank in ranks if sweep % 2 == 0 else reversed(ranks):
            wanted = []
            for box in rank:
                near = sorted(other.x for other in (box.above + box.below))
                middle = (near[(len(near) - 1) // 2] + near[len(near) // 2]) / 2 if near else box.x
                wanted.append(middle)
            _settle(rank, wanted)


def _settle(rank: list[_Box], wanted: Iterable[float]) -> None:
    """Put the boxes as near to their wanted places as their order lets them: runs that push each other share the
    mean of what they want."""
    runs: list[tuple[float, float, int]] = []  # the sum of wanted places of the first box, its weight, boxes
    offsets: list[float] = []
    at = 0.0
    for index, (box, place) in enumerate(zip(rank, wanted, strict=True)):
        if index:
            at += (rank[index - 1].width + box.width) / 2 + _GAP
        offsets.append(at)
        total, weight, count = place - at, 1.0, 1
        while runs and runs[-1][0] / runs[-1][1] > total / weight:
            before = runs.pop()
            total, weight, count = total + before[0], weight + before[1], count + before[2]
        runs.append((total, weight, count))
    index = 0
    for total, weight, count in runs:
        for _ in range(count):
            rank[index].x = total / weight + offsets[index]
            index += 1


def _edge(box: _Box, other: _Box, spans: list[tuple[float, float]]) -> str:
    """A curve between two ranks, and the straight way through the rank where a route goes on."""
    top, bottom = spans[box.rank]
    start, end = top + box.height if box.layers else bottom, spans[other.rank][0]
    middle = (start + end) / 2
    way = f"M{box.x:.1f} {start:.1f}C{box.x:.1f} {middle:.1f} {other.x:.1f} {middle:.1f} {other.x:.1f} {end:.1f}"
    if not other.layers:
        way += f"V{spans[other.rank][1]:.1f}"
    return way


def _drawn(box: _Box, top: float) -> list[DrawnLayer]:
    found, y = [], top
    for layer, lines in zip(box.layers, box.lines, strict=True):
        kind = "loss" if "Loss" in layer.type else _KIND_OF.get(layer.type, "other")
        found.append(DrawnLayer(layer, kind, box.x - box.width / 2, y, box.width, _height(lines), lines))
        y += found[-1].height
    return found
