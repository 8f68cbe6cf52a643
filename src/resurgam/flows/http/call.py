"""Make the request of a call: its address, headers and body. Pure."""

import re
from collections.abc import Mapping
from typing import Final
from urllib.parse import quote, unquote

import msgspec
from msgspec import Raw

from resurgam.flows.http.message import HttpCall

_PARAMETER: Final = re.compile(r"\{([^{}]*)\}")
_PARTS: Final = re.compile(r"(https?://)([^/?#]*)([^?#]*)(\?[^#]*)?(?:#.*)?", re.IGNORECASE)
_SERVER: Final = re.compile(r"(?:\[[\w:.%]+\]|[^\[\]:]+)(?::(\d{1,5}))?", re.ASCII)
_VISIBLE: Final = "".join(map(chr, range(0x21, 0x7F))).replace("%", "")
"""What a header may hold; the rest of an id is percent-encoded, so that an id cannot begin another header."""
_fields: Final = msgspec.json.Decoder(dict[str, Raw]).decode


class Outgoing(msgspec.Struct, frozen=True, kw_only=True):
    """A request, ready to be sent."""

    method: str
    url: str
    headers: dict[str, str]
    body: bytes | None = None


def url_problem(template: str) -> str | None:
    """Return why no step can have this address, as the rest of a sentence; None if it can."""
    parts = _PARTS.fullmatch(template)
    if parts is None:
        return "must begin with http:// or https://"
    if re.search(r"[\x00-\x20\x7f\\]", template):
        return "must not contain spaces, control characters or backslashes"
    authority = parts[2]
    if "@" in authority:
        return "must not contain a user or a password: it is recorded, and shown to everyone who may list steps"
    if "{" in authority or "}" in authority:
        return "must not have parameters in its host: arguments choose a resource, not a server"
    server = _SERVER.fullmatch(authority)
    if server is None or int(server[1] or 0) > 65535:
        return "must have a host, and a port below 65536 if any"
    return None


def host_of(template: str) -> str:
    """Return the host and port of an address, without anything else that it may hold; empty if it is none."""
    parts = _PARTS.fullmatch(template)
    return "" if parts is None else parts[2].rpartition("@")[2]


def fill(template: str, arguments: Mapping[str, Raw]) -> str:
    """Return an address with its parameters replaced by escaped arguments; raise ``ValueError`` if that is no address.

    An argument stays within the segment of the path, or the part of the query, in which its parameter stands.
    """
    problem = url_problem(template)
    if problem is not None:
        raise ValueError(f"the address {problem}")
    parts = _PARTS.fullmatch(template)
    assert parts is not None
    path = "/".join(_segment(segment, arguments) for segment in parts[3].split("/"))
    query = _PARAMETER.sub(lambda found: _escaped(found[1], arguments), parts[4] or "")
    return f"{parts[1]}{parts[2]}{path}{query}"


def _segment(template: str, arguments: Mapping[str, Raw]) -> str:
    names = _PARAMETER.findall(template)
    if not names:
        return template
    filled = _PARAMETER.sub(lambda found: _escaped(found[1], arguments), template)
    # A server resolves "." and ".."; an empty segment often means a whole collection.
    if unquote(filled) in {"", ".", ".."}:
        raise ValueError(f"argument {names[0]!r} is empty or made of dots, and would change the path of the address")
    return filled


def _escaped(name: str, arguments: Mapping[str, Raw]) -> str:
    if name not in arguments:
        raise ValueError(f"the address needs argument {name!r}, which this call does not have")
    written = bytes(arguments[name])
    return quote(msgspec.json.decode(written) if written.startswith(b'"') else written.decode(), safe="")


def outgoing(call: HttpCall, webhook_url: str = "") -> Outgoing:
    """Return the request of a call; an async step gets the address for its answer."""
    headers = {
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "User-Agent": "resurgam",
        "Idempotency-Key": _visible(call.receipt),
        "Argyll-Flow-ID": _visible(call.flow_id),
        "Argyll-Step-ID": _visible(call.step_id),
        "Argyll-Receipt-Token": _visible(call.receipt),
    }
    arguments = call.arguments
    if webhook_url:
        headers["Argyll-Webhook-URL"] = webhook_url
        arguments = arguments | dict.fromkeys(call.webhook_arguments, Raw(msgspec.json.encode(webhook_url)))
    known, content = arguments, msgspec.json.encode(arguments)
    if call.mode == "compensate":
        # Another request than the call that it undoes: a service keeps answers by this key.
        headers["Idempotency-Key"] += "/compensate"
        known = arguments | _outputs(call.outputs)
        content = msgspec.json.encode({"input": arguments, "output": call.outputs})
    url = fill(call.url, known)
    if call.method == "GET":
        return Outgoing(method=call.method, url=url, headers=headers)
    headers["Content-Type"] = "application/json"
    return Outgoing(method=call.method, url=url, headers=headers, body=content)


def _outputs(written: Raw) -> dict[str, Raw]:
    return _fields(written) if bytes(written).startswith(b"{") else {}


def webhook_url(public_url: str, call: HttpCall, token: str) -> str:
    """Return the address to which an async step sends its answer."""
    flow, step = _one_segment(call.flow_id), _one_segment(call.step_id)
    return f"{public_url.rstrip('/')}/webhook/{flow}/{step}/{token}"


def _one_segment(text: str) -> str:
    """Return an id as a segment of a path. One of dots is encoded too: clients resolve "." and ".." before they send."""
    return text.replace(".", "%2E") if text in {".", ".."} else quote(text, safe="")


def _visible(text: str) -> str:
    return quote(text, safe=_VISIBLE)
