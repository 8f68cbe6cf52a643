"""An answer finds its work item although the item moves on meanwhile."""

from collections.abc import Sequence
from typing import Any

import pytest

from resurgam.core.errors import StoreError
from resurgam.flows import HttpStep
from resurgam.store import records as r
from support.engines import CACHES, Engines
from support.services import FakeServices, address_in, answers, service, serving
from support.stores import STORES

PAY = HttpStep("pay", service("pay"), inputs=["amount"], outputs=["receipt"], asynchronous=True)


class Moving:
    """A store in which an activity is at its next attempt whenever it is answered, *times* times."""

    def __init__(self, store: Any, times: int) -> None:
        self._store, self._left = store, times
        self.answers = 0

    def __getattr__(self, verb: str) -> Any:
        return getattr(self._store, verb)

    async def complete_activities(self, parts: Sequence[r.ActivityResult]) -> Sequence[r.Accepted | r.Refused]:
        self.answers += 1
        if self._left:
            self._left -= 1
            return [r.Refused(reason="the activity is at another attempt")]
        return await self._store.complete_activities(parts)  # type: ignore[no-any-return]


@pytest.mark.parametrize(("times", "counts"), [(3, True), (100, False)])
async def test_an_answer_is_given_again_at_the_next_attempt_and_not_for_ever(times: int, counts: bool) -> None:
    services = FakeServices(pay=answers(202))
    async with serving(Engines(STORES["memory"], CACHES["cached"]), services, PAY) as env:
        await env.start_flow(["pay"], {"amount": 7}, id="flow")
        webhooks = env.engine._client().webhooks
        webhooks._store = moving = Moving(env.engine.store, times)  # type: ignore[assignment]
        if not counts:
            with pytest.raises(StoreError, match="send its answer again"):
                await webhooks.complete(*address_in(services.calls[0]), {"receipt": "r"})
        else:
            assert await webhooks.complete(*address_in(services.calls[0]), {"receipt": "r"})
            assert moving.answers == 4
            assert await env.finish(env.handle("flow").result()) == {"receipt": "r"}
