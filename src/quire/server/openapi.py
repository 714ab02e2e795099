"""The OpenAPI document and a page that shows it, made from the endpoints and their types.

The schemas are those of the msgspec types that validate requests and define replies, so the
document always matches the server.
"""

from __future__ import annotations

import html
import json
import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from quire.server.http.error_forms import OVERLOADED, MessagesErrorResponse, OllamaErrorResponse
from quire.server.http.problems import ErrorResponse
from quire.version import __version__

if TYPE_CHECKING:
    from quire.server.endpoint import Endpoint

_REF = "#/components/schemas/{name}"
_ERRORS = {
    "openai": ErrorResponse, "messages": MessagesErrorResponse, "ollama": OllamaErrorResponse,
}  # fmt: skip
_STATUS_TEXTS = {
    200: "OK", 400: "The request is invalid", 401: "The API key is missing or wrong",
    403: "Not a model that requests may delete",
    404: "No such model or stored response", 408: "The body took too long",
    409: "The model has requests", 413: "The body is too large",
    415: "The body is not JSON", 500: "The engine failed on this request",
    504: "The call took longer than its timeout",
    503: "Not now: try again after Retry-After seconds",
    OVERLOADED: "Not now: try again after Retry-After seconds",
}  # fmt: skip


def openapi_document(endpoints: Sequence[Endpoint], has_auth: bool) -> dict[str, Any]:
    """The document, version 3.1."""
    types: list[Any] = [*_ERRORS.values()]
    for endpoint in endpoints:
        types += (*endpoint.request, *endpoint.response, *endpoint.stream)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    for schema in components.values():
        if schema.get("additionalProperties") is False:
            del schema["additionalProperties"]  # unknown fields are ignored, and named in a header
        for field in schema.get("properties", {}).values():
            field.pop("contentEncoding", None)  # forms have bytes as they are
    by_type = {id(kind): schema for kind, schema in zip(types, schemas, strict=True)}
    paths: dict[str, Any] = {}
    for endpoint in endpoints:
        methods = paths.setdefault(endpoint.path, {})
        methods[endpoint.method.lower()] = _operation(endpoint, by_type)
    document: dict[str, Any] = {
        "openapi": "3.1.0",
        "info": {
            "title": "Quire",
            "version": __version__,
            "description": "OpenAI-compatible inference server.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }
    if has_auth:
        document["components"]["securitySchemes"] = {
            "bearer": {"type": "http", "scheme": "bearer"},
            "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
        }
        document["security"] = [{"bearer": []}, {"header": []}]
    return document


def _schema(kinds: tuple[Any, ...], by_type: dict[int, Any]) -> dict[str, Any]:
    schemas = [by_type[id(one)] for one in kinds]
    return schemas[0] if len(schemas) == 1 else {"anyOf": schemas}


def _operation(endpoint: Endpoint, by_type: dict[int, Any]) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "summary": (endpoint.handler.__doc__ or "").strip().splitlines()[0],
        "operationId": f"{endpoint.handler.__name__}_{endpoint.method.lower()}",
        "tags": [endpoint.tag],
        "responses": _responses(endpoint, by_type),
    }
    if parameters := _parameters(endpoint):
        operation["parameters"] = parameters
    if endpoint.request:
        media = "multipart/form-data" if endpoint.takes == "form" else "application/json"
        operation["requestBody"] = {
            "required": True,
            "content": {media: {"schema": _schema(endpoint.request, by_type)}},
        }
    return operation


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string"}}
        for name in re.findall(r"\{(\w+)\}", endpoint.path)
    ]
    if endpoint.query is not None:
        for field in msgspec.structs.fields(endpoint.query):
            schema = msgspec.json.schema(field.type)
            parameters.append({"name": field.name, "in": "query", "schema": schema})
    return parameters


def _responses(endpoint: Endpoint, by_type: dict[int, Any]) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "string"}
    if endpoint.response:
        schema = _schema(endpoint.response, by_type)
    content: dict[str, Any] = {endpoint.media: {"schema": schema}} if endpoint.media else {}
    content |= {media: {"schema": {"type": "string"}} for media in endpoint.texts}
    if endpoint.stream:
        document = {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": _schema(endpoint.stream, by_type),
        }
        data: Any = {"anyOf": [{"const": "[DONE]"}, document]}
        if endpoint.has_named_events:
            data = {"anyOf": [document]}
        events = {"type": "object", "properties": {"data": data}, "required": ["data"]}
        if endpoint.form == "ollama":  # lines, each a document
            content["application/x-ndjson"] = {"schema": document}
        else:
            content["text/event-stream"] = {"schema": events}
    responses = {"200": {"description": _STATUS_TEXTS[200], "content": content}}
    error = {"application/json": {"schema": _schema((_ERRORS[endpoint.form],), by_type)}}
    for status in (*endpoint.statuses, 401, OVERLOADED if endpoint.form == "messages" else 503):
        body = content if status == 503 and endpoint.can_be_unwell else error
        responses[str(status)] = {"description": _STATUS_TEXTS[status], "content": body}
    return responses


def docs_page(document: dict[str, Any]) -> bytes:
    """A page of plain HTML: operations first, then every schema."""
    parts = [_PAGE_HEAD, f"<h1>Quire {html.escape(__version__)}</h1>"]
    parts.append('<p>OpenAI-compatible HTTP API; machine-readable: <a href="openapi.json">')
    parts.append("openapi.json</a>.</p>")
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            parts.append(_docs_operation(path, method, operation))
    parts.append("<h2>Schemas</h2>")
    for name, schema in sorted(document["components"]["schemas"].items()):
        text = html.escape(json.dumps(schema, indent=2))
        parts.append(
            f'<details id="{html.escape(name)}"><summary>{html.escape(name)}</summary>'
            f"<pre>{text}</pre></details>"
        )
    parts.append("</body></html>")
    return "\n".join(parts).encode()


def _docs_operation(path: str, method: str, operation: dict[str, Any]) -> str:
    title = f"<code>{method.upper()} {html.escape(path)}</code>"
    lines = [f"<details><summary>{title} {html.escape(operation['summary'])}</summary><ul>"]
    for parameter in operation.get("parameters", []):
        lines.append(f"<li>{parameter['in']}: {html.escape(parameter['name'])}</li>")
    for media, body in operation.get("requestBody", {}).get("content", {}).items():
        lines.append(f"<li>body: {media} {_docs_schema(body['schema'])}</li>")
    for status, response in operation["responses"].items():
        shown = [
            f"{html.escape(media)} {_docs_schema(content['schema'])}"
            for media, content in response["content"].items()
        ]
        text = html.escape(response["description"])
        lines.append(f"<li>{status} {text}: {', '.join(shown)}</li>")
    lines.append("</ul></details>")
    return "\n".join(lines)


def _docs_schema(schema: dict[str, Any]) -> str:
    if all("$ref" in choice for choice in schema.get("anyOf", [{}])):
        return " or ".join(map(_docs_schema, schema["anyOf"]))
    for choice in schema.get("properties", {}).get("data", {}).get("anyOf", []):
        schema = choice.get("contentSchema", schema)
    reference = schema.get("$ref") or schema.get("items", {}).get("$ref")
    if reference is None:
        return html.escape(str(schema.get("type", "")))
    name = html.escape(reference.rpartition("/")[2])
    return f'<a href="#{name}">{name}</a>'


_PAGE_HEAD = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><title>Quire API</title>
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; margin: 2rem auto; max-width: 60rem; padding: 0 1rem; }
summary { cursor: pointer; padding: .25rem 0; }
pre { overflow-x: auto; padding: 1rem; border: 1px solid; border-radius: .5rem; }
</style></head><body>"""
