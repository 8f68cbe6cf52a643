"""Let activities complete in an order that a seed decides."""

import asyncio
import inspect
import random
from collections.abc import Callable
from typing import Any


class Order:
    """Hold back activities before they run, and let them go one at a time."""

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._waiting: list[asyncio.Future[None]] = []

    @property
    def waiting(self) -> int:
        """How many activities are held back."""
        return len(self._waiting)

    def release(self) -> bool:
        """Let one of the activities go; return whether there was any."""
        if not self._waiting:
            return False
        self._waiting.pop(self._chance.randrange(len(self._waiting))).set_result(None)
        return True

    def hold(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that waits for its turn, and then calls *function* on the event loop."""

        async def held(*args: object, **kwargs: object) -> object:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            try:
                await turn
            finally:
                if turn in self._waiting:
                    self._waiting.remove(turn)
            result = function(*args, **kwargs)
            return await result if inspect.isawaitable(result) else result

        return held
