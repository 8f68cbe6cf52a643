"""What a worker says when something in it fails."""

import asyncio

import pytest

from resurgam.errors import StoreError
from resurgam.worker.tasks import Tasks, log_failure


@pytest.mark.parametrize(("error", "traceback"), [(StoreError("a.db: full: make room"), False), (KeyError("x"), True)])
async def test_an_error_of_the_store_is_one_line_and_any_other_has_its_traceback(caplog, error, traceback):
    async def fail() -> None:
        raise error

    log_failure("claiming failed", error)
    await asyncio.wait([Tasks().spawn(fail(), "news")])

    said = [f"claiming failed: {error}", f"a task of the worker (news) failed: {error}"]
    assert caplog.messages == said
    assert [bool(record.exc_info) for record in caplog.records] == [traceback] * 2
