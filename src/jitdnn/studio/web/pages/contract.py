"""The contract of the REST API as a page, from the application's own OpenAPI; nothing is fetched from elsewhere."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from jitdnn.studio import texts
from jitdnn.studio.web.context import Link, Route, page

router = APIRouter(route_class=Route)
NAVIGATION = (Link(90, "/api", "api", texts.mark("API"), phone=False),)
_ORDER = ("get", "post", "put", "patch", "delete")


@router.get("/api", include_in_schema=False)
def api_page(request: Request) -> Response:
    return page(request, "api.html", groups=groups(request.app.openapi()))


def groups(contract: dict[str, Any]) -> dict[str, list[dict[str, Any]]]:
    """Operations by the first part of their path; each with its parameters, fields of its body, and answers."""
    found: dict[str, list[dict[str, Any]]] = {}
    for path, methods in sorted(contract["paths"].items()):
        for method in sorted(methods, key=_ORDER.index):
            about = methods[method]
            body = next(iter(about.get("requestBody", {}).get("content", {}).items()), None)
            group = path.removeprefix("/api/").split("/")[0].split(".")[0]
            found.setdefault(group, []).append(
                {
                    "method": method.upper(),
                    "path": path,
                    "about": about.get("description") or about.get("summary", ""),
                    "parameters": [
                        _named(p["name"], p["schema"], p.get("required"), p["in"])
                        for p in about.get("parameters", ())
                    ],
                    "body": body[0] if body else "",
                    "fields": _fields(contract, body[1]["schema"]) if body else [],
                }
            )
    return found


def _fields(contract: dict[str, Any], schema: dict[str, Any]) -> list[dict[str, Any]]:
    known = _resolved(contract, schema)
    required = known.get("required", ())
    fields = []
    for name, about in known.get("properties", {}).items():
        fields.append(_named(name, about, name in required, ""))
        inner = _resolved(contract, about)
        if inner is not about:
            fields += [
                _named(f"{name}.{each['name']}", each, each["required"], "")
                for each in _fields(contract, about)
            ]
    return fields


def _resolved(contract: dict[str, Any], schema: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in schema:
        return schema
    known: dict[str, Any] = contract["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return known


def _named(name: str, schema: dict[str, Any], is_required: bool | None, where: str) -> dict[str, Any]:
    return {
        "name": name,
        "kind": schema.get("kind") or _kind(schema),
        "required": bool(is_required),
        "where": where,
        "default": schema.get("default"),
        "about": schema.get("about") or schema.get("description", ""),
    }


def _kind(schema: dict[str, Any]) -> str:
    if "anyOf" in schema:
        return " or ".join(_kind(each) for each in schema["anyOf"] if each.get("type") != "null")
    if "enum" in schema:
        return " or ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"{_kind(schema.get('items', {}))} list"
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    kind = str(schema.get("type", "any"))
    low, high = (schema.get(name) for name in ("minimum", "maximum"))
    return f"{kind}, {low} to {high}" if low is not None and high is not None and abs(high) < 1e9 else kind
