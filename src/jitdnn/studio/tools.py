"""The studio as tools for language models: a server of the Model Context Protocol on standard input and output.

    jitdnn studio mcp          # as the command of a server in a program that speaks the protocol

There is a tool for each operation of the REST interface, made from its OpenAPI, so each page has its tools, with the
same checks; files are named by paths of this machine. Messages are JSON-RPC 2.0, one a line
(modelcontextprotocol.io/specification, transport "stdio"); it needs no package.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TextIO
from urllib.parse import quote, urlencode

from jitdnn import __version__
from jitdnn.errors import JitdnnError
from jitdnn.limits import IMAGE_BYTES
from jitdnn.studio.client import Client

Message = dict[str, Any]
#: of the protocol, the newest first
VERSIONS: Final = ("2025-06-18", "2025-03-26", "2024-11-05")
_METHODS: Final = ("get", "post", "put", "patch", "delete")
#: bytes of a text that a model is given
_MOST_TEXT: Final = 200_000
_PARSE, _REQUEST, _METHOD, _PARAMETERS = -32700, -32600, -32601, -32602
_ABOUT: Final = (
    "Data sets, trainings and trained nets of a jitdnn studio. Begin with list_datasets and list_runs; create_run "
    "queues a training of a prototxt, and check says before whether it fits; read_run says how far one is."
)


class Tools:
    """What answers the messages of one program."""

    def __init__(self, client: Client) -> None:
        """Reads the contract of the studio. Raises what the client does where it cannot be reached."""
        self._client = client
        self._operations: dict[str, Message] = {}
        self.tools: list[Message] = []
        contract = client.get("/api/openapi.json")
        for path, methods in sorted(contract["paths"].items()):
            for method in (each for each in _METHODS if each in methods):
                about = methods[method]
                if path.endswith("/events") or path.startswith("/api/gateway"):
                    continue  # endless streams, and what workers ask
                self._add(contract, path, method, about)

    def serve(self, lines: Iterable[str], out: TextIO) -> None:
        """Answer messages, one a line, until there are no more."""
        for line in lines:
            if not line.strip():
                continue
            try:
                message = json.loads(line)
            except ValueError:
                answer: Any = _refusal(None, _PARSE, "the line is no JSON")
            else:
                several = message if isinstance(message, list) else [message]
                answers = [found for each in several if (found := self.answer(each)) is not None]
                answer = answers if isinstance(message, list) else next(iter(answers), None)
            if answer:
                out.write(json.dumps(answer, ensure_ascii=False) + "\n")
                out.flush()

    def answer(self, message: Any) -> Message | None:
        """The answer to a message, None for one that wants none."""
        if not isinstance(message, dict) or not isinstance(message.get("method"), str):
            return _refusal(None, _REQUEST, "a message has a method")
        if "id" not in message:
            return None
        number, given = message["id"], message.get("params") or {}
        if not isinstance(given, dict):
            return _refusal(number, _PARAMETERS, "params is no object")
        match message["method"]:
            case "initialize":
                asked = given.get("protocolVersion")
                result: Message = {
                    "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
                    "capabilities": {"tools": {}},
                    "serverInfo": {"name": "jitdnn-studio", "version": __version__},
                    "instructions": _ABOUT,
                }
            case "ping":
                result = {}
            case "tools/list":
                result = {"tools": self.tools}
            case "tools/call":
                name, words = given.get("name"), given.get("arguments") or {}
                if not isinstance(name, str) or name not in self._operations or not isinstance(words, dict):
                    return _refusal(number, _PARAMETERS, f"there is no tool {str(name)[:100]!r}")
                result = self.call(name, words)
            case other:
                return _refusal(number, _METHOD, f"there is no method {other[:100]!r}")
        return {"jsonrpc": "2.0", "id": number, "result": result}

    def call(self, name: str, words: Mapping[str, Any]) -> Message:
        """What a tool gives: `content`, and `isError` where the studio refused, with what it said."""
        try:
            return {"content": [self._asked(self._operations[name], words)], "isError": False}
        except (JitdnnError, OSError, ValueError) as error:
            return {"content": [_text(str(error))], "isError": True}

    def _asked(self, operation: Message, words: Mapping[str, Any]) -> Message:
        known = {*operation["path_names"], *operation["query"], *operation["body"], *operation["files"]}
        if unknown := [word for word in words if word not in known]:
            raise ValueError(
                f"there is no argument {unknown[0]!r}: there are {', '.join(sorted(known)) or 'none'}"
            )
        path = operation["path"]
        for word in operation["path_names"]:
            if word not in words:
                raise ValueError(f"{word} is needed")
            path = path.replace("{" + word + "}", quote(str(words[word]), safe=""))
            path = path.replace("{" + word + ":path}", quote(str(words[word])))
        query = {word: _plain(words[word]) for word in operation["query"] if words.get(word) is not None}
        path += f"?{urlencode(query, doseq=True)}" if query else ""
        if operation["files"]:
            files = [
                (word, Path(file).name, Path(file).expanduser().read_bytes())
                for word in operation["files"]
                for file in _several(words.get(word))
            ]
            return _text(json.dumps(self._client.send(path, files), ensure_ascii=False))
        body = {word: words[word] for word in operation["body"] if word in words}
        kind, content = self._client.request(
            operation["method"], path, body if operation["has_body"] else None
        )
        return _content(kind, content, self._client.address + path)

    def _add(self, contract: Message, path: str, method: str, about: Message) -> None:
        kinds = about.get("requestBody", {}).get("content", {})
        form = _resolved(contract, kinds.get("multipart/form-data", {}).get("schema", {}))
        body = _resolved(contract, kinds.get("application/json", {}).get("schema", {}))
        parameters = [each for each in about.get("parameters", ()) if each["in"] in ("path", "query")]
        properties = {
            each["name"]: {"description": each.get("description", ""), **each["schema"]}
            for each in parameters
        }
        required = [each["name"] for each in parameters if each.get("required")]
        for name, field in form.get("properties", {}).items():
            one = {"type": "string", "description": "path of a file of this machine"}
            properties[name] = {"type": "array", "items": one} if field.get("type") == "array" else one
        properties |= body.get("properties", {})
        required += [*form.get("required", ()), *body.get("required", ())]
        name = re.sub(r"\W+", "_", about.get("summary", path).lower()).strip("_")
        while name in self._operations:
            name = f"{name}_{method}"
        self._operations[name] = {
            "path": path, "method": method.upper(), "has_body": bool(body), "body": list(body.get("properties", ())),
            "files": list(form.get("properties", ())),
            "path_names": [p["name"] for p in parameters if p["in"] == "path"],
            "query": [p["name"] for p in parameters if p["in"] == "query"],
        }  # fmt: skip
        schema: Message = {"type": "object", "properties": properties, "required": required}
        if held := _definitions(contract, schema):
            schema["$defs"] = held
        self.tools.append(
            {
                "name": name,
                "description": about.get("description") or about.get("summary", ""),
                "inputSchema": json.loads(json.dumps(schema).replace("#/components/schemas/", "#/$defs/")),
                "annotations": {"readOnlyHint": method == "get", "destructiveHint": method == "delete"},
            }
        )


def _content(kind: str, content: bytes, address: str) -> Message:
    """An answer as a model is given it: text, or a picture."""
    if kind.startswith("image/") and len(content) <= IMAGE_BYTES:
        return {
            "type": "image",
            "data": base64.b64encode(content).decode(),
            "mimeType": kind.partition(";")[0],
        }
    if not kind.startswith(("application/json", "text/")) and content:
        raise ValueError(
            f"it is a file, {kind}, of {len(content):,} bytes: fetch {address}, or `jitdnn studio export`"
        )
    if len(content) > _MOST_TEXT:
        raise ValueError(
            f"the answer has {len(content):,} bytes, more than {_MOST_TEXT:,}: ask for less of it"
        )
    return _text(content.decode("utf-8", "replace") or "done")


def _text(text: str) -> Message:
    return {"type": "text", "text": text}


def _plain(value: Any) -> Any:
    """A value in an address: true and false as they are written there."""
    if isinstance(value, bool):
        return str(value).lower()
    return [_plain(each) for each in value] if isinstance(value, list) else value


def _several(value: Any) -> list[str]:
    if value is None:
        return []
    return [str(each) for each in value] if isinstance(value, list) else [str(value)]


def _resolved(contract: Message, schema: Message) -> Message:
    if "$ref" not in schema:
        return schema
    found: Message = contract["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return found


def _definitions(contract: Message, schema: Message) -> Message:
    """The schemas that one names, and those that these name."""
    found: Message = {}
    waiting = [json.dumps(schema)]
    while waiting:
        for name in re.findall(r'"#/components/schemas/([^"]+)"', waiting.pop()):
            if name not in found:
                found[name] = contract["components"]["schemas"][name]
                waiting.append(json.dumps(found[name]))
    return found


def _refusal(number: Any, code: int, text: str) -> Message:
    return {"jsonrpc": "2.0", "id": number, "error": {"code": code, "message": text}}
