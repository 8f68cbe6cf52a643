import httpx2
import msgspec
import pytest
from msgspec import Raw

from resurgam.flows.http.call import fill, outgoing, url_problem, webhook_url
from resurgam.flows.http.message import HttpCall


def _raw(**values):
    return {name: Raw(msgspec.json.encode(value)) for name, value in values.items()}


def _call(**fields):
    return HttpCall(**{"flow_id": "f", "step_id": "s", "receipt": "run/7", "url": "http://h/x", **fields})


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("a b", "a%20b"),
        ("a/b", "a%2Fb"),
        ("a?b#c", "a%3Fb%23c"),
        ("../..", "..%2F.."),
        ("x\r\nHost: evil", "x%0D%0AHost%3A%20evil"),
        ("@evil", "%40evil"),
        ("\\", "%5C"),
        ("%2e%2e", "%252e%252e"),
        ("ü", "%C3%BC"),
        (1.5, "1.5"),
        (True, "true"),
        ({"a": [1]}, "%7B%22a%22%3A%5B1%5D%7D"),
    ],
)
def test_an_argument_stays_within_its_segment_of_the_path(value, written):
    assert fill("http://h:1/a/{x}/b", _raw(x=value)) == f"http://h:1/a/{written}/b"
    assert fill("http://h/?q={x}&r=1", _raw(x=value)) == f"http://h/?q={written}&r=1"


@pytest.mark.parametrize(
    ("template", "values"),
    [
        ("http://h/{x}/b", {"x": ".."}),
        ("http://h/{x}/b", {"x": "."}),
        ("http://h/users/{x}", {"x": ""}),
        ("http://h/{x}{y}/b", {"x": ".", "y": "."}),
        ("http://h/%2e{x}/b", {"x": "."}),
        ("http://h/.{x}", {"x": ""}),
    ],
)
def test_arguments_that_change_the_path_are_refused(template, values):
    with pytest.raises(ValueError, match="would change the path"):
        fill(template, _raw(**values))


def test_an_empty_argument_may_stand_in_a_query():
    assert fill("http://h/?q={x}", _raw(x="")) == "http://h/?q="


def test_a_missing_argument_is_named():
    with pytest.raises(ValueError, match="needs argument 'id'"):
        fill("http://h/{id}", {})


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("ftp://h/", "must begin with http"),
        ("h/x", "must begin with http"),
        ("file:///etc/passwd", "must begin with http"),
        ("http://user:secret@h/", "user or a password"),
        ("http://good\\@evil/", "backslash"),
        ("http://h/a b", "spaces"),
        ("http://h/\n", "control"),
        ("http://{host}/x", "parameters in its host"),
        ("http://h{x}:80/x", "parameters in its host"),
        ("http:///x", "must have a host"),
        ("http://h:99999/x", "must have a host"),
        ("http://h:x/", "must have a host"),
        ("http://::1/", "must have a host"),
    ],
)
def test_addresses_that_no_step_can_have_are_refused_without_showing_them(url, why):
    problem = url_problem(url)

    assert problem is not None
    assert why in problem
    assert "secret" not in problem
    with pytest.raises(ValueError, match="the address"):
        fill(url, _raw(host="evil", x="evil"))


@pytest.mark.parametrize("url", ["http://h", "HTTPS://h:443/a?b=c#d", "http://[::1]:80/x", "http://10.0.0.1/{x}"])
def test_ordinary_addresses_are_accepted(url):
    assert url_problem(url) is None


def test_a_call_carries_the_ids_of_its_flow_step_and_item():
    sent = outgoing(_call(arguments=_raw(a=1)))

    assert sent.method == "POST"
    assert sent.body == b'{"a":1}'
    assert sent.headers["Argyll-Flow-ID"] == "f"
    assert sent.headers["Argyll-Step-ID"] == "s"
    assert sent.headers["Argyll-Receipt-Token"] == sent.headers["Idempotency-Key"] == "run/7"
    assert sent.headers["Content-Type"] == "application/json"
    assert "Argyll-Webhook-URL" not in sent.headers


def test_an_async_step_gets_the_address_for_its_answer_in_a_header_and_where_it_asks_for_it():
    call = _call(mode="async", arguments=_raw(a=1), webhook_arguments=("reply_to",), flow_id="a/b", step_id="s")
    address = webhook_url("http://me:1/", call, "7-ab")

    sent = outgoing(call, address)

    assert address == "http://me:1/webhook/a%2Fb/s/7-ab"
    assert sent.headers["Argyll-Webhook-URL"] == address
    assert msgspec.json.decode(sent.body) == {"a": 1, "reply_to": address}


@pytest.mark.parametrize(("flow_id", "segment"), [(".", "%2E"), ("..", "%2E%2E"), ("a..", "a.."), ("%2e", "%252e")])
def test_clients_keep_the_address_for_an_answer_as_it_is(flow_id, segment):
    address = webhook_url("http://me:1", _call(mode="async", flow_id=flow_id, step_id="s"), "7-ab")

    assert address == str(httpx2.URL(address)) == f"http://me:1/webhook/{segment}/s/7-ab"


def test_a_get_has_its_arguments_in_the_address_only():
    sent = outgoing(_call(method="GET", url="http://h/{a}", arguments=_raw(a=1)))

    assert (sent.url, sent.body) == ("http://h/1", None)
    assert "Content-Type" not in sent.headers


def test_a_compensation_gets_input_and_output_and_a_key_of_its_own():
    call = _call(mode="compensate", url="http://h/{id}/{a}", arguments=_raw(id=1, a=2), outputs=Raw(b'{"id":"x"}'))

    sent = outgoing(call)

    assert sent.url == "http://h/x/2"
    assert msgspec.json.decode(sent.body) == {"input": {"id": 1, "a": 2}, "output": {"id": "x"}}
    assert sent.headers["Argyll-Receipt-Token"] == "run/7"
    assert sent.headers["Idempotency-Key"] == "run/7/compensate"


def test_an_id_cannot_begin_another_header():
    sent = outgoing(_call(flow_id="x\r\nArgyll-Step-ID: other ü"))

    assert sent.headers["Argyll-Flow-ID"] == "x%0D%0AArgyll-Step-ID:%20other%20%C3%BC"
