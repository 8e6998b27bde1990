"""The studio's operations as tools of the Model Context Protocol, against the application in this process."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("fastapi", reason="the extra jitdnn[studio] is not installed")
pytest.importorskip("httpx2")

from fastapi.testclient import TestClient

import studio_trained
from jitdnn.studio.client import Client, Refused
from jitdnn.studio.tools import VERSIONS, Tools
from jitdnn.studio.web.app import make_app
from jitdnn.studio.work.inspector import Inspector


class Direct(Client):
    """A client whose requests go to the application itself."""

    def __init__(self, client: TestClient) -> None:
        self.address, self._client = "http://studio", client

    def request(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> tuple[str, bytes]:
        answer = self._client.request(method, path, json=body)
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.text)
        return answer.headers.get("content-type", ""), answer.content

    def get(self, path: str, **query: Any) -> Any:
        return json.loads(self.request("GET", path)[1])

    def send(self, path: str, files: Sequence[tuple[str, str, bytes]]) -> Any:
        answer = self._client.post(path, files=[(field, (name, content)) for field, name, content in files])
        if answer.status_code >= 400:
            raise Refused(answer.status_code, answer.text)
        return answer.json()


@pytest.fixture(scope="module")
def tools() -> Iterator[Tools]:
    async def inspect(self, function, *arguments, seconds=None):  # type: ignore[no-untyped-def]
        return function(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Inspector, "inspect", inspect)
        with TestClient(make_app(studio_trained.digits().home, serve_queue=False)) as client:
            yield Tools(Direct(client))


def ask(tools: Tools, method: str, **params: Any) -> Any:
    answer = tools.answer({"jsonrpc": "2.0", "id": 7, "method": method, "params": params})
    assert answer is not None
    assert answer["id"] == 7
    return answer.get("result") or answer["error"]


def call(tools: Tools, name: str, **words: Any) -> Any:
    return ask(tools, "tools/call", name=name, arguments=words)


def test_a_session_of_lines(tools: Tools) -> None:
    lines = [
        {"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": {"protocolVersion": VERSIONS[-1]}},
        {"jsonrpc": "2.0", "method": "notifications/initialized"},
        {"jsonrpc": "2.0", "id": "two", "method": "ping"},
        {"jsonrpc": "2.0", "id": 3, "method": "tools/list"},
        {"jsonrpc": "2.0", "id": 4, "method": "resources/list"},
    ]
    out = io.StringIO()
    tools.serve([*map(json.dumps, lines), "", "{no json", "7", '[{"id": 9, "method": "ping"}]'], out)
    answers = [json.loads(line) for line in out.getvalue().splitlines()]
    assert [each["id"] for each in answers[:4]] == [1, "two", 3, 4]
    assert answers[0]["result"]["protocolVersion"] == VERSIONS[-1]
    assert answers[0]["result"]["capabilities"] == {"tools": {}}
    assert answers[3]["error"]["code"] == -32601
    assert [each["error"]["code"] for each in answers[4:6]] == [-32700, -32600]
    assert answers[6] == [{"jsonrpc": "2.0", "id": 9, "result": {}}]
    assert ask(tools, "initialize", protocolVersion="1999-01-01")["protocolVersion"] == VERSIONS[0]


def test_each_operation_is_a_tool_that_says_what_it_takes(tools: Tools) -> None:
    listed = {each["name"]: each for each in ask(tools, "tools/list")["tools"]}
    assert {"list_datasets", "list_runs", "read_run", "create_run", "check", "plan", "import_net"} <= set(
        listed
    )
    assert len(listed) > 60
    for each in listed.values():
        schema = each["inputSchema"]
        assert schema["type"] == "object"
        assert set(schema["required"]) <= set(schema["properties"]), each["name"]
        text = json.dumps(schema)
        assert "#/components" not in text
        assert all(name.partition('"')[0] in schema["$defs"] for name in text.split("#/$defs/")[1:])
        assert each["description"]
    assert listed["list_runs"]["annotations"]["readOnlyHint"]


def test_calls_answer_as_the_studio_does(tools: Tools, tmp_path: Path) -> None:
    (found,) = call(tools, "list_runs", count=5)["content"]
    assert 1 in [row["id"] for row in json.loads(found["text"])]  # others are those of other tests
    code = tmp_path / "net.py"
    code.write_text("m = Sequential([Conv2D(4, 3), Flatten(), Dense(10)])")
    imported = json.loads(call(tools, "import_net", file=str(code))["content"][0]["text"])
    assert imported["ok"]
    checked = json.loads(call(tools, "check", dataset=1, net=imported["text"])["content"][0]["text"])
    assert checked["ok"], checked
    picture = call(tools, "units_png", number=1, layer="conv1", unit=[0, 1], steps=2)["content"][0]
    assert (picture["type"], picture["mimeType"]) == ("image", "image/png")


def test_refusals_are_told_to_the_model(tools: Tools, tmp_path: Path) -> None:
    for name, words, told in (
        ("read_run", {"number": 99}, "99"),
        ("read_run", {}, "number is needed"),
        ("read_run", {"number": 1, "colour": "red"}, "colour"),
        ("import_net", {"file": str(tmp_path / "none.onnx")}, "No such file"),
        ("create_run", {"dataset": 1}, "net"),
    ):
        answer = call(tools, name, **words)
        assert answer["isError"], name
        assert told in answer["content"][0]["text"]
    assert ask(tools, "tools/call", name="no_such_tool")["code"] == -32602
