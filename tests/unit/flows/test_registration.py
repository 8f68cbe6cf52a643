"""Changes of the catalog: which are recorded, which are refused, and that the log gives the same catalog."""

import random

import msgspec
import pytest
from msgspec import Raw

from resurgam.core import flow_event as fe
from resurgam.core import lifecycle
from resurgam.core.errors import AlreadyExists, CorruptHistory, DefinitionError, NotFound
from resurgam.core.outcome import Entry
from resurgam.core.state import Status
from resurgam.flows import registration
from resurgam.flows.catalog import Catalog
from resurgam.flows.catalog_brain import CATALOG_TOPIC, CatalogBrain
from support.flow_steps import step

STARTED = fe.CatalogStarted(
    seq=1,
    at=5,
    name="catalog",
    queue=fe.CATALOG_QUEUE,
    entity_id="catalog",
    execution_id="e",
    run_id="run",
    tree_id="run",
)


def registered(text: str, id: str = "") -> fe.StepRegistered:
    return fe.StepRegistered(id=id, step=Raw(msgspec.json.encode(step(text))))


def updated(text: str) -> fe.StepUpdated:
    return fe.StepUpdated(step=Raw(msgspec.json.encode(step(text))))


def load(*log):
    return CatalogBrain().load("catalog", (STARTED, *log), signal_schemas={})


def entries(*requests):
    return [Entry(number, request) for number, request in enumerate(requests, 1)]


def test_requests_are_recorded_in_their_order_with_the_id_of_each():
    live = load()

    outcome = live.advance(entries(registered("a: > x", "first"), registered("b: x > y", "second")), 9)

    assert [(entry.type, entry.seq, entry.at, entry.id) for entry in outcome.events] == [
        ("step_registered", 2, 9, "first"),
        ("step_registered", 3, 9, "second"),
    ]
    assert (outcome.consumed, outcome.status, outcome.deactivated) == ((1, 2), Status.RUNNING, False)
    assert [*live.catalog.steps] == ["a", "b"]


@pytest.mark.parametrize(
    "request_",
    [
        pytest.param(registered("a: > z"), id="another definition under a known id"),
        pytest.param(registered("b: x > w"), id="a cycle"),
        pytest.param(updated("unknown: > x"), id="an update of what is not there"),
        pytest.param(fe.StepUnregistered(step_id="unknown"), id="a removal of what is not there"),
        pytest.param(registered("a: w > x"), id="what is there already"),
        pytest.param(lifecycle.SignalReceived(name="go", id="1"), id="a signal"),
    ],
)
def test_a_refused_request_is_consumed_without_an_entry_and_its_client_is_told_to_look(request_):
    live = load(msgspec.structs.replace(registered("a: w > x"), seq=2, at=6))

    outcome = live.advance(entries(request_), 9)

    assert (outcome.events, outcome.consumed) == ((), (1,))
    assert [one.topic for one in outcome.publications] == [CATALOG_TOPIC]
    assert [*live.catalog.steps] == ["a"]


def test_the_catalog_says_nothing_when_nothing_was_asked():
    assert load().advance([], 9).publications == ()


def test_an_entry_is_never_older_than_the_one_before():
    assert load().advance(entries(registered("a: > x")), 1).events[0].at == 5


def test_a_pause_and_its_end_are_recorded():
    live = load()

    outcome = live.advance(entries(lifecycle.WorkflowPaused(), lifecycle.WorkflowResumed()), 9)

    assert [entry.type for entry in outcome.events] == ["workflow_paused", "workflow_resumed"]
    assert not load(*outcome.events).paused
    assert load(outcome.events[0]).paused


def test_a_terminated_catalog_records_nothing_but_its_end():
    outcome = load(lifecycle.WorkflowTerminated(seq=2, at=6)).advance(entries(registered("a: > x")), 9)

    assert [entry.type for entry in outcome.events] == ["workflow_deactivated"]
    assert (outcome.consumed, outcome.status, outcome.deactivated) == ((1,), Status.TERMINATED, True)


def test_a_log_of_another_kind_is_corrupt():
    with pytest.raises(CorruptHistory, match="the first entry of the catalog is catalog_started, got step_registered"):
        CatalogBrain().load("catalog", [registered("a: > x")], signal_schemas={})


def test_the_catalog_answers_no_query():
    with pytest.raises(NotFound, match="the catalog answers no query, got 'all'"):
        CatalogBrain().answer((STARTED,), "all", Raw(b"[]"))


def test_a_request_is_judged_by_the_catalog_that_is_there():
    catalog = Catalog([step("a: > x")])

    assert registration.decide(catalog, registered("a: > x")) is None
    assert registration.decide(catalog, updated("a: > x")) is None
    with pytest.raises(AlreadyExists, match="step 'a' is registered with another definition"):
        registration.decide(catalog, registered("a: > y"))
    with pytest.raises(NotFound, match="there is no step 'b' in the catalog to update"):
        registration.decide(catalog, updated("b: > y"))
    with pytest.raises(DefinitionError, match="needs its own output"):
        registration.decide(Catalog([step("a: y > x")]), registered("b: x > y"))


@pytest.mark.parametrize("seed", range(20))
def test_folding_the_log_in_any_pieces_gives_the_catalog_that_the_brain_has(seed):
    """As clients do: each reads the tail after what it has kept."""
    chance, live, log, kept = random.Random(seed), load(), [], Catalog()
    texts = ["a: > x", "a: w > x", "b: x > y", "b: > y", "c: y > z", "c: x y > z"]
    for _ in range(30):
        requests = []
        for _ in range(chance.randrange(4)):
            text = chance.choice(texts)
            kinds = [registered(text), updated(text), fe.StepUnregistered(step_id=text[0])]
            requests.append(chance.choice(kinds))
        recorded = live.advance(entries(*requests), 9).events
        log += recorded
        kept = registration.fold(kept, recorded)
        assert kept.steps == live.catalog.steps == load(*log).catalog.steps
        for name in "wxyz":
            assert kept.providers(name) == live.catalog.providers(name)
            assert kept.consumers(name) == live.catalog.consumers(name)
            assert kept.users(name) == live.catalog.users(name)


def requested(entity_id: str) -> fe.EntityDeletionRequested:
    return fe.EntityDeletionRequested(id=f"request {entity_id}", entity_id=entity_id, by="ada@host")


def deleted(entity_id: str) -> fe.EntityDeleted:
    return fe.EntityDeleted(id=f"end {entity_id}", entity_id=entity_id, executions=1)


def test_deletions_are_recorded_and_change_no_step():
    live = load(msgspec.structs.replace(registered("a: > x"), seq=2, at=6))

    outcome = live.advance(entries(requested("o-1"), deleted("o-1")), 9)

    assert [entry.type for entry in outcome.events] == ["entity_deletion_requested", "entity_deleted"]
    assert [*live.catalog.steps] == ["a"]


def test_entries_about_deletions_are_forgotten_once_another_entry_follows():
    """The last entry of the log stays, because its number is read from there."""
    live = load()

    first = live.advance(entries(requested("o-1"), deleted("o-1"), requested("o-2")), 9)
    second = live.advance(entries(registered("a: > x")), 10)
    third = live.advance(entries(registered("b: > y")), 11)

    assert [one.seq for one in first.forgotten] == [2, 3]
    assert [one.seq for one in second.forgotten] == [4]
    assert third.forgotten == ()


def test_an_entry_about_a_deletion_that_another_process_recorded_is_forgotten_too():
    live = load(msgspec.structs.replace(deleted("o-1"), seq=7, at=6))

    outcome = live.advance(entries(deleted("o-2")), 9)

    assert [entry.seq for entry in outcome.events] == [8]
    assert [one.seq for one in outcome.forgotten] == [7]
