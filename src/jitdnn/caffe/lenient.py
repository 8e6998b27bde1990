"""A lenient reading of nets from web pages and slides: what they damage is repaired, and every repair is listed.

    typographic quotation marks, other blanks (no-break, zero width) and signs of minus become those of a program's text
    a layer that begins inside of another one, and the end of the text, close what is open
    a layer without a type gets that of its only *_param
    a bottom that is the name of a layer, and no blob, becomes the first top of that layer
    layers of data that name no source become Input layers, if the caller gives their shapes

Nothing else is guessed: whatever is wrong beside these is an error, as in a strict reading.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from jitdnn.caffe.message import Message
from jitdnn.caffe.obstacles import CAFFE_TYPES, FORKS
from jitdnn.caffe.prototxt import Parser
from jitdnn.caffe.schema import V1_TYPES, LayerParameter, NetParameter, V1LayerParameter
from jitdnn.caffe.schema_layers import BlobShape, InputParameter
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.errors import InvalidArgument

# what word processors make of ASCII characters
_CHARACTERS = {
    '"': ("“”„‟″«»", "typographic quotation marks"),
    "'": ("‘’‚‛′", "typographic quotation marks"),
    " ": ("\u00a0\u1680" + "".join(map(chr, range(0x2000, 0x200B))) + "\u202f\u205f\u3000", "other blanks"),
    "": ("\u200b\u200c\u200d\u2060\u00ad\ufeff", "characters that cannot be seen"),
    "-": ("−‐‑‒–—", "typographic dashes"),
}  # fmt: skip
_REPLACED = {ord(old): new for new, (olds, _) in _CHARACTERS.items() for old in olds}
_WHAT = {old: what for olds, what in _CHARACTERS.values() for old in olds}
_LINE_ENDS = re.compile("[\u2028\u2029\x85]|\r\n?")
_ODD = re.compile("[" + "".join(map(chr, _REPLACED)) + "]")

# types by the message of their own; where several types have it, the first one that Caffe had
_TYPES = {kind.lower() + "_param": kind for fork in FORKS.values() for kind in fork}
_TYPES |= {kind.lower() + "_param": kind for kind in CAFFE_TYPES} | {"norm_param": "Normalize"}
# messages that say nothing of the type, or do not say which of two it is
_NO_TYPE = {"transform_param", "loss_param", "recurrent_param", "softmax_param"}
_SOURCES = {"Data": "data_param", "ImageData": "image_data_param", "HDF5Data": "hdf5_data_param"}

Shapes = Mapping[str, Sequence[int]]


class Repair(NamedTuple):
    """What was changed, and in which line of the text."""

    line: int
    what: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.what}"


class Imported(NamedTuple):
    """A net in V2 syntax, and what had to be repaired for it."""

    net: NetParameter
    repairs: list[Repair]


def import_net(text: str, inputs: Shapes | None = None, file: str = "") -> Imported:
    """Read a net leniently. `inputs` has shapes of tops of layers of data that name no source; `file` is for errors.

    Raises ParseError (with the text as it was repaired) and InvalidArgument for what none of the repairs mends.
    """
    net, repairs = repaired(text, file)
    _replace_data(net, inputs or {}, repairs)
    return Imported(net, sorted(repairs, key=lambda repair: repair.line))


def repaired(text: str, file: str = "") -> Imported:
    """Read a net leniently, whatever its layers of data name as their sources; errors are as for `import_net`."""
    repairs: list[Repair] = []
    parser = _LenientParser(_plain(text, repairs), file)
    net = parser.parse(NetParameter)
    repairs += parser.repairs
    for old in net.layers:
        _infer_type(old, repairs)
    for layer in net.layer:
        _infer_type(layer, repairs)
    net = upgrade_net(net)
    _resolve_bottoms(net, repairs)
    return Imported(net, sorted(repairs, key=lambda repair: repair.line))


def _plain(text: str, repairs: list[Repair]) -> str:
    """The text with ASCII characters in the place of odd ones, those in comments too."""
    text = _LINE_ENDS.sub("\n", text.removeprefix("\ufeff"))
    for number, line in enumerate(text.split("\n"), 1):
        found: dict[str, str] = {}
        for character in _ODD.findall(line):
            found.setdefault(_WHAT[character], f"U+{ord(character):04X}")
        for what, first in found.items():
            repairs.append(Repair(number, f"{what} ({first}) replaced"))
    return text.translate(_REPLACED)


class _LenientParser(Parser):
    """Closes what is open where a layer begins inside of another one, or the text ends."""

    def __init__(self, text: str, file: str) -> None:
        self.repairs: list[Repair] = []
        super().__init__(text, file)

    def is_left_out(self, message: Message, closing: str, path: str) -> bool:
        if not closing:
            return False
        is_layer = (
            self.token.kind == "word"
            and self.token.text in ("layer", "layers")
            and self.token.text not in message.fields
        )
        if not is_layer and self.token.kind != "end":
            return False
        opened = message.position.line if message.position else 1
        before = "before the next layer" if is_layer else "at the end"
        line = self.position(self.token.start).line
        self.repairs.append(Repair(line, f"{closing} of {path} (opened in line {opened}) added {before}"))
        return True


def _infer_type(layer: LayerParameter | V1LayerParameter, repairs: list[Repair]) -> None:
    is_old = isinstance(layer, V1LayerParameter)
    if layer.type not in ("", "NONE") or (is_old and layer.has("layer")):
        return
    messages = [
        field.name
        for field, _ in layer.present()
        if field.name.endswith("_param") and field.message is not None and field.name not in _NO_TYPE
    ]
    if len(messages) != 1:
        return
    kind = _TYPES.get(messages[0].replace("_", "").removesuffix("param") + "_param")
    names = {new: old for old, (_, new) in V1_TYPES.items()}
    if kind is None or (is_old and kind not in names):
        return
    layer.type = names[kind] if is_old else kind
    where = layer.position.line if layer.position else 1
    repairs.append(Repair(where, f"layer {layer.name!r} has no type: {kind}, as it has {messages[0]}"))


def _resolve_bottoms(net: NetParameter, repairs: list[Repair]) -> None:
    """Bottoms that no layer before makes, and that are the name of one before, become its first top."""
    made: set[str] = set()
    tops: dict[str, str] = {}
    for layer in net.layer:
        for index, name in enumerate(layer.bottom):
            if name not in made and name in tops:
                layer.bottom[index] = tops[name]
                place = layer.positions.get("bottom", layer.position)
                what = f"bottom {name!r} of layer {layer.name!r} is the name of a layer: its first top {tops[name]!r}"
                repairs.append(Repair(place.line if place else 1, what))
        made.update(layer.top)
        if layer.top:
            tops[layer.name] = layer.top[0]


def _replace_data(net: NetParameter, shapes: Shapes, repairs: list[Repair]) -> None:
    """Layers of data without a source become Input layers of the shapes that are given."""
    read = {name for layer in net.layer for name in layer.bottom}
    used: set[str] = set()
    for layer in net.layer:
        holder = _SOURCES.get(layer.type)
        if holder is None or getattr(layer, holder).source:
            continue
        wanted = [top for top in layer.top if top in read or top in shapes]
        if not wanted or not shapes.keys() >= set(wanted):
            names = ", ".join(repr(name) for name in wanted or layer.top)
            raise InvalidArgument(
                f"layer {layer.name!r} ({layer.type}){layer.where()} names no source of data: give one in the text, "
                f"or the shapes of {names} (inputs), and it becomes an Input layer"
            ).at(layer.place())
        where = layer.position.line if layer.position else 1
        what = f"layer {layer.name!r} ({layer.type}) names no source: an Input layer of the shapes that were given"
        dropped = [top for top in layer.top if top not in wanted]
        if dropped:
            what += f", without {', '.join(map(repr, dropped))}, which nothing reads"
        repairs.append(Repair(where, what))
        layer.type, layer.top = "Input", wanted
        layer.clear(holder)
        layer.clear("transform_param")
        layer.input_param = InputParameter(shape=[BlobShape(dim=list(shapes[top])) for top in wanted])
        used.update(wanted)
    left = shapes.keys() - used
    if left:
        raise InvalidArgument(
            f"shapes are given for {', '.join(map(repr, sorted(left)))}, which no layer of data without a source makes"
        )
