"""The OpenAPI document, made of the table of routes and of the types that its rows name."""

import re
from collections.abc import Iterable
from typing import Any, Final

import msgspec

from resurgam.web.problems import MEDIA_TYPE, ProblemDetails
from resurgam.web.routing import Endpoint
from resurgam.web.version import VERSION

_PARAMETER: Final = re.compile(r"\{(\w+)(?::\w+)?\}")
_ALWAYS: Final = (400, 401, 403, 500)


def document(endpoints: Iterable[Endpoint]) -> dict[str, Any]:
    """Return the OpenAPI 3.1 document of these routes."""
    rows = list(endpoints)
    types = _types(rows)
    schemas, components = msgspec.json.schema_components(types, ref_template="#/components/schemas/{name}")
    schema_of = dict(zip(map(id, types), schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for row in rows:
        path = _PARAMETER.sub(r"{\1}", row.path)
        paths.setdefault(path, {})[row.method.lower()] = _operation(row, schema_of)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Resurgam", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
        "security": [{"key": []}, {}],
    }


def _types(rows: Iterable[Endpoint]) -> list[Any]:
    found: dict[int, Any] = {id(ProblemDetails): ProblemDetails}
    for row in rows:
        for one in (row.body, *row.answers.values()):
            if one is not None:
                found[id(one)] = one
    return list(found.values())


def _operation(row: Endpoint, schema_of: dict[int, Any]) -> dict[str, Any]:
    names = (row.method.lower(), *re.findall(r"\w+", row.path))
    operation: dict[str, Any] = {
        "operationId": "_".join(names),
        "summary": row.summary,
        "parameters": [*_path_parameters(row), *_query_parameters(row)],
        "responses": {str(status): _response(row, kind, schema_of) for status, kind in row.answers.items()},
    }
    if row.body is not None:
        content = {"application/json": {"schema": schema_of[id(row.body)]}}
        operation["requestBody"] = {"required": True, "content": content}
    statuses = {*_ALWAYS, *row.refusals, *((413, 415) if row.body is not None else ())}
    problem = {"content": {MEDIA_TYPE: {"schema": schema_of[id(ProblemDetails)]}}}
    operation["responses"] |= {str(status): {"description": "refused", **problem} for status in sorted(statuses)}
    return operation


def _response(row: Endpoint, kind: Any, schema_of: dict[int, Any]) -> dict[str, Any]:
    if kind is None:
        return {"description": "done"}
    return {"description": "done", "content": {row.media_type: {"schema": schema_of[id(kind)]}}}


def _path_parameters(row: Endpoint) -> list[dict[str, Any]]:
    names = [match.group(1) for match in _PARAMETER.finditer(row.path)]
    schema = {"type": "string", "minLength": 1}
    return [{"name": name, "in": "path", "required": True, "schema": schema} for name in names]


def _query_parameters(row: Endpoint) -> list[dict[str, Any]]:
    if row.query is None:
        return []
    _, components = msgspec.json.schema_components([row.query])
    properties = components[row.query.__name__]["properties"]
    required = components[row.query.__name__].get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": schema}
        for name, schema in properties.items()
    ]
