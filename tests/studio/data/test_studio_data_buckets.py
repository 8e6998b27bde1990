"""Buckets as sources, from a server on this machine that speaks as much of S3's protocol as is needed."""

from __future__ import annotations

import io
import pickle
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

import numpy as np
import pytest
from PIL import Image

from jitdnn.errors import InvalidArgument, NotSupported
from jitdnn.studio.data import Options, creation, open_dataset
from jitdnn.studio.data.buckets import Bucket, checked, is_address
from jitdnn.studio.data.scan import scan
from jitdnn.studio.data.sources import list_source
from jitdnn.studio.store import Store

#: objects that a page of a listing has
PAGE = 7


class Served(BaseHTTPRequestHandler):
    """ListObjectsV2, GET, and nothing else; `objects` of one bucket by their keys."""

    objects: dict[str, bytes]

    def do_GET(self) -> None:
        address = urlsplit(self.path)
        bucket, _, key = unquote(address.path).lstrip("/").partition("/")
        query = {name: values[0] for name, values in parse_qs(address.query).items()}
        if bucket != "pictures":
            return self._answer(404, b"<Error><Code>NoSuchBucket</Code><Message>none</Message></Error>")
        if "list-type" in query:
            return self._answer(200, self._listed(query))
        if key not in self.objects:
            return self._answer(404, b"<Error><Code>NoSuchKey</Code><Message>none</Message></Error>")
        return self._answer(200, self.objects[key])

    def _listed(self, query: dict[str, str]) -> bytes:
        prefix = query.get("prefix", "")
        keys = sorted(key for key in self.objects if key.startswith(prefix))
        start = int(query.get("continuation-token", "0"))
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(self.objects[key])}</Size>"
            f'<LastModified>2026-01-01T00:00:00.000Z</LastModified><ETag>"{key.__hash__()}"</ETag></Contents>'
            for key in keys[start : start + PAGE]
        )
        more = (
            f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>"
            if start + PAGE < len(keys)
            else ""
        )
        return f'<?xml version="1.0"?><ListBucketResult>{rows}{more}</ListBucketResult>'.encode()

    def _answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.send_header("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT")
        self.send_header("etag", '"x"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *told: Any) -> None:
        pass


@pytest.fixture
def objects(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, bytes]]:
    """What the bucket `pictures` holds, which is served meanwhile."""
    pytest.importorskip("obstore", reason="obstore, which reads buckets, is not installed")
    handler = type("Handler", (Served,), {"objects": {}})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    for name in ("AWS_PROFILE", "AWS_SESSION_TOKEN", "HTTP_PROXY", "http_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ALLOW_HTTP", "true")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_REGION", "us-east-1")
    yield handler.objects  # type: ignore[attr-defined]
    server.shutdown()
    server.server_close()


def png(value: int) -> bytes:
    file = io.BytesIO()
    Image.fromarray(np.full((8, 8), value, np.uint8)).save(file, "PNG")
    return file.getvalue()


def test_a_data_set_from_a_bucket(objects: dict[str, bytes], tmp_path: Path) -> None:
    """Its names and values are those of the objects, whatever is in them; what lies beside is not read."""
    names = [f"{label}/{number}.png" for label in ("no", "yes") for number in range(12)]
    names += ["no/ä b+c.png", "yes/100%.png", "yes/a&b=c.png", "no/#1?.png"]
    for number, name in enumerate(names):
        objects[f"some/where/{name}"] = png(number)
    objects["some/where/yes/.hidden.png"] = objects["some/where/__MACOSX/x.png"] = png(99)
    objects["some/where/notes.txt"] = b"x"
    objects["some/wherever/no/1.png"] = png(99)
    objects["some/where/no/broken.png"] = b"no picture"
    found = scan("s3://pictures/some/where/", Options(8, 8, grey=True))
    assert (found["kind"], found["total"]) == ("a bucket", len(names) + 1)
    assert found["counts"] == {"no": 15, "yes": 14}
    assert [name for name, _ in found["broken"]] == ["no/broken.png"]
    store = Store(tmp_path / "home")
    made = creation.create(store, "Far", "s3://pictures/some/where", Options(8, 8, grey=True))
    row = store.one("dataset", made)
    assert row is not None
    dataset = open_dataset(store.home, row)
    pixels = {int(image[0, 0, 0]) for part in dataset.parts for image in dataset.images(part)}
    assert pixels == set(range(len(names)))
    again = pickle.loads(pickle.dumps(Bucket("s3://pictures/some/where")))
    assert again.read("no/3.png") == png(3)


def test_a_table_in_a_bucket(objects: dict[str, bytes]) -> None:
    rows = [f"{number}.png,{'ab'[number % 2]}" for number in range(20)]
    objects["t/labels.csv"] = "\n".join(["file,label", *rows]).encode()
    objects.update({f"t/{number}.png": png(number) for number in range(20)})
    listing = list_source("s3://pictures/t", Options(8, 8))
    assert (listing.classes, len(listing.entries)) == (["a", "b"], 20)


def test_what_cannot_be_read_says_why(objects: dict[str, bytes], monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InvalidArgument, match="holds nothing"):
        list_source("s3://pictures/none", Options())
    with pytest.raises(InvalidArgument, match="cannot be listed"):
        list_source("s3://another", Options())
    objects["x/large.png"] = bytes(1000)
    monkeypatch.setattr("jitdnn.studio.data.buckets.MEMBER_BYTES", 999)
    with pytest.raises(InvalidArgument, match="more than 999 bytes"):
        Bucket("s3://pictures/x").read("large.png")
    with pytest.raises(InvalidArgument, match="cannot be fetched"):
        Bucket("s3://pictures/x").read("other.png")
    monkeypatch.setattr("jitdnn.studio.data.buckets.MOST_FOLDER_FILES", 0)
    with pytest.raises(InvalidArgument, match="more than 0 files"):
        Bucket("s3://pictures/x").names()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("http://x.org/a", "no address that is read"),
        ("file:///etc", "no address that is read"),
        ("s3://", "no address that is read"),
        ("s3:///etc", "no address that is read"),
        ("s3://user:pass@host/a", "no address that is read"),
        ("S3://bucket", "no address that is read"),
        (f"s3://b2/{'x' * 3000}", "no address that is read"),
        ("s3://bucket/../x", "names no folder"),
        ("s3://bucket/a?x=1", "names no folder"),
        ("s3://bucket/a\nb", "no address that is read|names no folder"),
        ("s3://bucket/a.zip", "is one file"),
        ("gs://bucket/a/b.NPZ", "is one file"),
    ],
)
def test_other_addresses_are_refused(text: str, said: str) -> None:
    assert is_address(text)
    with pytest.raises(InvalidArgument, match=said):
        checked(text)
    with pytest.raises(InvalidArgument, match=said):
        list_source(text, Options())


def test_addresses_and_paths() -> None:
    assert checked(" s3://bucket//a/b/ ") == "s3://bucket/a/b"
    assert not any(is_address(path) for path in ("/a/b", "~/x", "C:/x", "s3:/a", "package:data/x.npz"))


def test_without_obstore_it_is_said_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore", None)
    with pytest.raises(NotSupported, match=r"jitdnn\[s3\].*or fetch the files"):
        list_source("s3://bucket/a", Options())
