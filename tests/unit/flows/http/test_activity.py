import msgspec
import pytest

from resurgam.core import flow_event as fe
from resurgam.core.errors import NotWanted, Postponed, StepNotCompleted, StepRejected
from resurgam.core.retry import RetryRule
from resurgam.flows.http.activity import CallActivity, Progress
from resurgam.flows.http.addresses import AddressRefused
from resurgam.flows.http.answer import Response
from resurgam.flows.http.message import HttpCall
from resurgam.flows.http.sending import Unreachable
from resurgam.flows.http.token import is_token
from resurgam.runtime.definitions.info import ActivityInfo, enter_activity

NOW = 1_000_000
SECRET = b"s" * 32
OK, BUSY = Response(status=200, body=b'{"a":1}'), Response(status=503)


class World:
    """A clock, a client with one answer, and what the store knows; `run` makes one attempt."""

    def __init__(self):
        self.at = NOW
        self.answer = OK
        self.sent = []
        self.error = None
        self.wanted = True
        self.server = "http://me:1"
        self.activity = CallActivity(self, self, self, lambda: 0.5)

    def now(self):
        return self.at

    async def send(self, outgoing, *, timeout, body_wanted=True):
        self.sent.append((outgoing, timeout, body_wanted))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer

    async def unhealthy(self, step_id):
        return self.error

    async def is_wanted(self, call):
        return self.wanted

    async def public_url(self):
        return self.server

    async def secret(self):
        return SECRET

    async def run(self, call, progress=None, *, attempt=1, redelivered=False):
        about = {"name": "resurgam.http", "entity_id": "run/7", "execution_id": "x", "workflow_id": "f", "queue": "q"}
        details = None if progress is None else msgspec.to_builtins(progress)
        enter_activity(_Attempt(ActivityInfo(**about, attempt=attempt, details=details, redelivered=redelivered)))
        return await self.activity.run(call)

    async def postponed(self, call, progress=None, **options):
        """Run an attempt that is postponed; return what it was, after how long, and the progress of the next one."""
        with pytest.raises(Postponed) as caught:
            await self.run(call, progress, **options)
        error = caught.value
        return error.failure.type, error.next_at - self.at, msgspec.json.decode(error.details, type=Progress)


class _Attempt:
    def __init__(self, info):
        self.info = info


def _call(**fields):
    rule = RetryRule(max_attempts=3, initial_interval=1, backoff=2, jitter=0)
    return HttpCall(
        **{"flow_id": "f", "step_id": "s", "receipt": "run/7", "url": "http://h:1/x", "retry": rule, **fields}
    )


ASYNC = _call(mode="async", deadline_ms=5000)


async def test_a_success_returns_its_outputs():
    world = World()

    assert await world.run(_call(timeout_ms=1500)) == {"a": 1}
    [(_, timeout, body_wanted)] = world.sent
    assert (timeout, body_wanted) == (1.5, True)


@pytest.mark.parametrize("answer", [BUSY, Unreachable("no connection")])
async def test_a_call_that_is_not_completed_is_repeated_by_the_policy_of_its_step(answer):
    world = World()
    world.answer = answer

    assert await world.postponed(_call()) == (fe.NOT_COMPLETED, 1000, Progress(calls=1))
    assert await world.postponed(_call(), Progress(calls=1)) == (fe.NOT_COMPLETED, 2000, Progress(calls=2))
    with pytest.raises(StepNotCompleted, match=r"step 's' \(h:1\) .* \(3 calls, no further attempt\)"):
        await world.run(_call(), Progress(calls=2))


async def test_every_attempt_has_the_same_receipt():
    world = World()
    world.answer = BUSY
    await world.postponed(_call())
    await world.postponed(_call(), Progress(calls=1))

    assert {sent.headers["Idempotency-Key"] for sent, *_ in world.sent} == {"run/7"}


async def test_a_service_may_ask_for_a_longer_pause_but_not_for_a_shorter_one():
    world = World()
    world.answer = Response(status=503, retry_after="30")
    assert (await world.postponed(_call()))[1] == 30_000

    world.answer = Response(status=503, retry_after="0")
    assert (await world.postponed(_call()))[1] == 1000


@pytest.mark.parametrize(
    ("answer", "why"),
    [
        (Response(status=404), "answered 404 Not Found"),
        (Response(status=200, body=b"[]"), "an array"),
        (AddressRefused("host 'h' is refused"), "was not called: host 'h' is refused"),
    ],
)
async def test_a_refusal_fails_for_good(answer, why):
    world = World()
    world.answer = answer

    with pytest.raises(StepRejected, match=why):
        await world.run(_call())


async def test_an_address_that_cannot_be_made_fails_for_good_and_is_not_called():
    world = World()

    with pytest.raises(StepRejected, match="needs argument 'id'"):
        await world.run(_call(url="http://h/{id}"))
    with pytest.raises(StepRejected, match="user or a password") as refused:
        await world.run(_call(url="http://user:secret@h/"))
    assert "secret" not in str(refused.value)
    assert not world.sent


async def test_an_accepted_call_waits_for_its_deadline():
    world = World()
    world.answer = Response(status=202)

    what, pause, progress = await world.postponed(ASYNC)

    assert (what, pause, progress) == (fe.ACKNOWLEDGED, 5000, Progress(calls=1, deadline=NOW + 5000))
    [(sent, _, body_wanted)] = world.sent
    address = sent.headers["Argyll-Webhook-URL"]
    assert address.startswith("http://me:1/webhook/f/s/7-")
    assert is_token(SECRET, "run/7", address.rpartition("/")[2])
    assert not body_wanted


async def test_an_accepted_call_is_not_repeated_before_its_deadline():
    world = World()
    accepted = Progress(calls=1, deadline=NOW + 1)

    what, pause, progress = await world.postponed(ASYNC, accepted, redelivered=True)

    assert (what, pause, progress) == (fe.ACKNOWLEDGED, 1, Progress(calls=1, deadline=NOW + 1, early=1))
    assert not world.sent


async def test_a_store_whose_clock_is_ahead_hands_an_accepted_call_out_only_a_few_times():
    """It says at once that the deadline has passed, which by the clock of the worker is an hour off; each time is recorded."""
    hour, looks = 3_600_000, 0
    world, progress = World(), Progress(calls=1, deadline=NOW + hour)
    while progress.deadline is not None:
        looks += 1
        _, pause, progress = await world.postponed(ASYNC, progress)
        world.at += max(0, pause - 2 * hour) if progress.deadline else 0

    assert looks < 10
    assert hour <= world.at - NOW < 3 * hour
    assert not world.sent


async def test_a_call_without_an_answer_at_its_deadline_is_repeated_later():
    world = World()

    assert await world.postponed(ASYNC, Progress(calls=1, deadline=NOW)) == (fe.NOT_COMPLETED, 1000, Progress(calls=1))
    assert not world.sent


async def test_a_call_without_an_answer_fails_if_no_attempt_is_left_or_its_flow_has_ended():
    world = World()
    with pytest.raises(StepNotCompleted, match="no answer to the webhook within 5 s"):
        await world.run(ASYNC, Progress(calls=3, deadline=NOW))

    world.wanted = False
    with pytest.raises(StepNotCompleted):
        await world.run(ASYNC, Progress(calls=1, deadline=NOW))
    assert not world.sent


@pytest.mark.parametrize(
    ("progress", "about"),
    [(Progress(calls=1), {}), (Progress(deferrals=1), {}), (None, {"redelivered": True}), (None, {"attempt": 2})],
)
async def test_an_async_step_that_is_not_needed_any_more_is_not_called_by_a_later_attempt(progress, about):
    world = World()
    world.wanted = False

    with pytest.raises(NotWanted):
        await world.run(ASYNC, progress, **about)

    assert not world.sent


async def test_an_async_call_without_a_server_for_its_answer_is_not_completed():
    world = World()
    world.server = None

    with pytest.raises(Postponed, match="start `resurgam serve`") as caught:
        await world.run(ASYNC)
    assert caught.value.failure.type == fe.NOT_COMPLETED


async def test_an_unhealthy_service_is_called_after_a_minute_at_the_latest():
    world = World()
    world.error = "connection refused"
    progress, waited = Progress(calls=1), 0
    while waited < 60_000:
        what, pause, progress = await world.postponed(_call(), progress)
        assert (what, progress.calls) == (fe.DEFERRED, 1)
        waited += pause

    assert waited == 60_000
    assert await world.run(_call(), progress) == {"a": 1}


async def test_a_service_that_is_well_again_is_called_at_once():
    world = World()
    world.error = ""
    what, pause, progress = await world.postponed(_call())
    world.error = None

    assert (what, pause) == (fe.DEFERRED, 1000)
    assert await world.run(_call(), progress) == {"a": 1}


@pytest.mark.parametrize("status", [202, 503])
async def test_no_secret_is_in_what_is_recorded(status):
    """A service that fails may send back what it was sent, as a page for whoever looks for the fault."""
    world = World()

    async def echo(outgoing, *, timeout, body_wanted=True):
        world.sent.append((outgoing, timeout, body_wanted))
        said = f"no, {outgoing.headers['Argyll-Webhook-URL']} does not answer"
        return Response(status=status, content_type="text/plain", body=said.encode())

    world.send = echo
    with pytest.raises(Postponed) as caught:
        await world.run(ASYNC)

    token = world.sent[0][0].headers["Argyll-Webhook-URL"].rpartition("/")[2]
    recorded = msgspec.json.encode([ASYNC, caught.value.failure, caught.value.details])
    assert token.partition("-")[2].encode() not in recorded
    assert ("(token) does not answer" in caught.value.failure.message) is (status == 503)
