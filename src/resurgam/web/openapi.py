"""The OpenAPI document, made of the table of routes and of the types that its rows name."""

import re
from collections.abc import Iterable, Mapping
from http import HTTPStatus
from typing import Any, Final

import msgspec

from resurgam.web.problems import MEDIA_TYPE, ProblemDetails, title_of
from resurgam.web.routing import Endpoint
from resurgam.web.version import VERSION

_REF: Final = "#/components/schemas/{name}"
_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_JSON_ONLY: Final = {413: "The body is too large.", 415: "The body is not `application/json`."}
_ALWAYS: Final = {
    400: "The request is malformed; `field` names the part.",
    500: "The server failed; its log says why.",
    503: "The store is unavailable, or the server is about to stop; try again.",
}
_GUARDED: Final = {
    401: "No API key was sent, or it is unknown or revoked.",
    403: "The key has a lower role; without keys, the request comes from another site or host.",
}
_LOCATION: Final = {"description": "Where it is.", "required": True, "schema": {"type": "string", "pattern": "^/"}}
_DESCRIPTION: Final = """\
Durable workflows and goal flows over HTTP.

Ids in paths are percent-encoded; a slash in an id is `%2F`. Times are RFC 3339, durations are seconds. Lists have pages:
pass the `cursor` of one to get the next. Every refusal is `application/problem+json` with a `code` that stays the same over
versions, a `detail` for people and, for a bad request, the `field`.

Roles: *read* sees everything, *operate* also starts and controls, *admin* also changes the catalog of steps."""


def document(endpoints: Iterable[Endpoint], *, keys: bool = True) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes; without *keys*, callers need none."""
    rows = list(endpoints)
    types = _types(rows)
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = _PARAMETER.sub(r"{\1}", row.path)
        paths.setdefault(path, {})[row.method.lower()] = _operation(row, schema_of, keys=keys)
    _link(paths, rows)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Resurgam", "version": VERSION, "description": _DESCRIPTION},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "key": {"type": "http", "scheme": "bearer", "description": "resurgam keys create NAME --role read"}
            },
        },
    }


def _types(rows: Iterable[Endpoint]) -> list[Any]:
    found: dict[int, Any] = {id(ProblemDetails): ProblemDetails}
    for row in rows:
        for one in (row.body, *row.answers.values()):
            if one is not None:
                found[id(one)] = one
    return list(found.values())


def _operation(row: Endpoint, schema_of: Mapping[int, Any], *, keys: bool) -> dict[str, Any]:
    said = [row.description] if row.description else []
    if row.role is not None:
        said.append(f"Needs the role *{row.role}*.")
    operation: dict[str, Any] = {
        "operationId": _operation_id(row),
        "tags": [re.findall(r"\w+", row.path)[0]],
        "summary": row.summary,
        "description": "\n\n".join(said),
        "parameters": [*_path_parameters(row), *_query_parameters(row)],
        "responses": _responses(row, schema_of),
        "security": [{"key": []}] if keys and row.role is not None else [],
    }
    if row.role is not None:
        operation["x-role"] = str(row.role)
    if row.body is not None:
        content = {"schema": schema_of[id(row.body)]}
        if row.example is not None:
            content["example"] = row.example
        operation["requestBody"] = {"required": not row.optional, "content": {"application/json": content}}
    return operation


def _operation_id(row: Endpoint) -> str:
    return "_".join((row.method.lower(), *re.findall(r"\w+", row.path)))


def _link(paths: Mapping[str, Any], rows: Iterable[Endpoint]) -> None:
    """Say for each operation on an id which answer has that id: the one that created it."""
    for row in rows:
        created_by, below, _ = row.path.partition("/{id}")
        created = paths.get(created_by, {}).get("post", {}).get("responses", {}).get("201")
        if below and created is not None:
            field = "id" if created_by == "/steps" else "entity_id"
            link = {"operationId": _operation_id(row), "parameters": {"id": f"$response.body#/{field}"}}
            created.setdefault("links", {})[_operation_id(row)] = link


def _responses(row: Endpoint, schema_of: Mapping[int, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for number, (status, kind) in enumerate(row.answers.items()):
        found[str(status)] = _response(row, kind, schema_of, row.reply if number == 0 else None)
        if status == HTTPStatus.CREATED:
            found[str(status)]["headers"] = {"Location": _LOCATION}
    reasons = {**_ALWAYS, **(_GUARDED if row.role else {}), **(_JSON_ONLY if row.body else {}), **row.refusals}
    for status, reason in sorted(reasons.items()):
        content = {MEDIA_TYPE: {"schema": schema_of[id(ProblemDetails)]}}
        found[str(status)] = {"description": f"{title_of(status)}. {reason}", "content": content}
    return found


def _response(row: Endpoint, kind: Any, schema_of: Mapping[int, Any], example: Any) -> dict[str, Any]:
    if kind is None:
        return {"description": "Done; without a body."}
    content = {"schema": schema_of[id(kind)]}
    if row.media_type == "text/event-stream":
        content = {"schema": _event_of(schema_of[id(kind)])}
    if example is not None:
        content["example"] = example
    said = (getattr(kind, "__doc__", None) or "Done.").partition("\n")[0]
    return {"description": said, "content": {row.media_type: content}}


def _event_of(data: Any) -> dict[str, Any]:
    """Return the schema of one event of a stream, whose data is JSON."""
    text = {"type": "string"}
    encoded = {"type": "string", "contentMediaType": "application/json", "contentSchema": data}
    return {"type": "object", "properties": {"id": text, "event": text, "data": encoded}, "required": ["id", "data"]}


def _path_parameters(row: Endpoint) -> list[dict[str, Any]]:
    found = []
    for match in _PARAMETER.finditer(row.path):
        name = match.group(1)
        schema: dict[str, Any] = {"type": "string", "minLength": 1, "pattern": r"^[^\x00]+$"}
        if name in row.path_examples:
            schema["examples"] = [row.path_examples[name]]
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _query_parameters(row: Endpoint) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    _, components = msgspec.json.schema_components([row.query], ref_template="{name}")
    own = components[row.query.__name__]
    found = []
    for name, given in own["properties"].items():
        schema = _without_null(_inlined(given, components))
        described = {"description": schema.pop("description")} if "description" in schema else {}
        found.append({"name": name, "in": "query", "required": name in own.get("required", ()), "schema": schema})
        found[-1] |= described
    return found


def _inlined(schema: Any, components: Mapping[str, Any]) -> Any:
    """Return a schema with the types that it refers to in their place."""
    if isinstance(schema, dict):
        if "$ref" in schema:
            return _inlined(components[schema["$ref"]], components)
        return {key: _inlined(value, components) for key, value in schema.items()}
    return [_inlined(one, components) for one in schema] if isinstance(schema, list) else schema


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of a parameter that may be left out: it is never sent as null."""
    schema = {key: value for key, value in schema.items() if key != "default" or value is not None}
    kinds = [one for one in schema.pop("anyOf", []) if one != {"type": "null"}]
    return schema | (kinds[0] if len(kinds) == 1 else {"anyOf": kinds}) if kinds else schema
