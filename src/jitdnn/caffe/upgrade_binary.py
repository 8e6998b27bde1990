"""Binary nets of any version with their weights, .caffemodel files, become V2: what upgrade_net_proto_binary does.

The definition is upgraded as a text would be. Weights are taken over byte for byte, in the shapes that they have there
(num, channels, height, width in old files), and so are layers that are in V2 already and fields that no schema here
knows. The file is written whole or not at all.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from jitdnn.caffe.blob_proto import Parts, field_parts, read_whole, write_parts
from jitdnn.caffe.schema import NetParameter, V1LayerParameter
from jitdnn.caffe.upgrade import upgrade_net
from jitdnn.caffe.wire import FIXED32, FIXED64, LENGTH, VARINT, Reader, decode, encode, key, prefixed, varint
from jitdnn.errors import InvalidArgument

_WHAT = "a model"
_LAYER, _LAYERS = (NetParameter.numbers[name] for name in ("layer", "layers"))
_V1_LAYER = V1LayerParameter.numbers["layer"]
#: where blobs stand in a layer of each syntax
_BLOBS = {"V2": 7, "V1": 6, "V0": 50}
_NAME = {"V2": 1, "V1": 4, "V0": 1}


def is_binary(path: Path) -> bool:
    """Whether a file is a binary message, and no text: by its suffix, or a byte that text does not have."""
    if path.suffix in (".caffemodel", ".binaryproto"):
        return True
    try:
        with path.open("rb") as file:
            return b"\0" in file.read(4096)
    except OSError:
        return False


def upgrade_binary(path: Path) -> tuple[NetParameter, Parts]:
    """Return the definition of a binary net in V2, and the bytes of a file of it with its weights.

    Raises InvalidArgument for a file that cannot be read or is no net, and what `upgrade_net` does.
    """
    content, reader = read_whole(path, _WHAT), Reader(str(path))
    net = decode(content, NetParameter, reader)
    if not net.layer and not net.layers:
        raise InvalidArgument(f"{path} has no layers: it is no net")
    upgraded = upgrade_net(net)
    rest: Parts = []
    blobs: dict[str, list[list[memoryview]]] = defaultdict(list)  # of layers in V1, by name, first come first
    given: list[memoryview] = []
    known = set(NetParameter.numbers.values())
    for number, kind, value, data in Reader(str(path)).fields(content):
        if kind == LENGTH and number == _LAYER:
            given.append(data)
        elif kind == LENGTH and number == _LAYERS:
            name, found = _weights(data, "V1", reader)
            blobs[name].append(found)
        elif number not in known:
            rest.append(_field(number, kind, value, data))
    plain = upgraded.copy()
    plain.clear("layer")
    parts: Parts = [encode(plain), *rest]
    same = list(zip(net.layer, given, strict=True))
    for layer in upgraded.layer:
        match = next((number for number, (before, _) in enumerate(same) if before == layer), None)
        if match is not None:
            parts += field_parts(_LAYER, [same.pop(match)[1]])
            continue
        fields: Parts = [encode(layer)]
        stored = blobs.get(layer.name) or []
        if not stored:  # in V2, and changed by the upgrade: its weights
            match = next((n for n, (before, _) in enumerate(same) if before.name == layer.name), None)
            stored = [] if match is None else [_weights(same.pop(match)[1], "V2", reader)[1]]
        for blob in stored.pop(0) if stored else ():
            fields += field_parts(_BLOBS["V2"], [blob])
        parts += field_parts(_LAYER, fields)
    return upgraded, parts


def write_upgraded(path: Path, out: Path) -> None:
    """Write a binary net of any version in V2, with its weights. Raises as `upgrade_binary`, and for an `out` that
    cannot be written."""
    write_parts(out, upgrade_binary(path)[1], _WHAT)


def _weights(data: memoryview, syntax: str, reader: Reader) -> tuple[str, list[memoryview]]:
    """The name of a layer and its blobs as they stand; of a layer in V0, which is inside of one in V1, that one's."""
    name, found = "", list[memoryview]()
    for number, kind, _, content in reader.fields(data):
        if kind != LENGTH:
            continue
        if number == _NAME[syntax]:
            name = reader.text(content, "the name of a layer")
        elif number == _BLOBS[syntax]:
            found.append(content)
        elif syntax == "V1" and number == _V1_LAYER:
            inner, more = _weights(content, "V0", reader)
            name, found = inner or name, [*found, *more]
    return name, found


def _field(number: int, kind: int, value: int, data: memoryview) -> bytes:
    """A field that nothing is known of, as it was."""
    if kind == VARINT:
        return key(number, kind) + varint(value)
    if kind == LENGTH:
        return prefixed(number, bytes(data))
    width = {FIXED32: 4, FIXED64: 8}[kind]
    return b"".join(key(number, kind) + bytes(data[at : at + width]) for at in range(0, len(data), width))
