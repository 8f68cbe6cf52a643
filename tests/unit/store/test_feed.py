"""Bad input to the feed of a store."""

import pytest

from resurgam.errors import StoreError
from resurgam.runtime.system import SystemClock
from resurgam.store.open import open_store
from resurgam.store.records import FeedQuery


@pytest.mark.parametrize("url", ["memory://", "sqlite://"])
@pytest.mark.parametrize("cursor", ["x", "-1", "9" * 30, "\u0663"])
async def test_a_cursor_of_another_form_is_refused_by_an_error_that_names_it(url, cursor):
    store = open_store(url, SystemClock(), name="reader", lease=1000)

    with pytest.raises(StoreError, match=f"cursor must be one that a feed of this store returned, got '{cursor}'"):
        await store.feed.read(FeedQuery(after=cursor))

    await store.close()


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_without_room_is_refused(limit):
    with pytest.raises(ValueError, match=f"limit must be at least 1, got {limit}"):
        FeedQuery(limit=limit)
