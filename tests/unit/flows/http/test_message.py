import msgspec
from msgspec import Raw

from resurgam.core.retry import RetryRule
from resurgam.flows.http.message import DEFAULT_DEADLINE, DEFAULT_TIMEOUT, HttpCall

PLAIN = {"flow_id": "f", "step_id": "s", "receipt": "r/1", "url": "http://x/"}


def test_a_plain_call_is_recorded_without_its_defaults():
    written = msgspec.json.encode(HttpCall(**PLAIN))

    assert msgspec.json.decode(written) == PLAIN
    assert msgspec.json.decode(written, type=HttpCall).timeout_ms == DEFAULT_TIMEOUT


def test_arguments_are_recorded_as_they_are_written():
    call = HttpCall(
        **PLAIN, arguments={"amount": Raw(b"1.10")}, outputs=Raw(b'{"n":2}'), retry=RetryRule(max_attempts=1)
    )

    read = msgspec.json.decode(msgspec.json.encode(call), type=HttpCall)

    assert bytes(read.arguments["amount"]) == b"1.10"
    assert bytes(read.outputs) == b'{"n":2}'
    assert (read.retry.max_attempts, read.deadline_ms) == (1, DEFAULT_DEADLINE)
