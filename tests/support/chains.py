"""Chains of activities on an engine whose server dies and comes back meanwhile."""

import asyncio
from collections import Counter

from resurgam import Context, Engine, Registry
from support.limits import HANGS

WORKFLOWS = 20
STEPS = 15


class Run:
    """Chains of activities, and how often each activity was run."""

    def __init__(self):
        self.registry = Registry()
        self.runs = Counter()
        self.steps = 0
        self._grown = asyncio.Event()

        @self.registry.activity
        async def step(name: str, number: int) -> int:
            self.runs[name, number] += 1
            self.steps += 1
            self._grown.set()
            await asyncio.sleep(0)
            return number + 1

        @self.registry.workflow
        async def chain(ctx: Context, name: str) -> int:
            number = 0
            while number < STEPS:
                number = await ctx.activity(step, name, number)
            return number

        self.chain = chain

    async def more(self, steps):
        """Wait until so many more activities have run."""
        wanted = self.steps + steps
        while self.steps < wanted and self.steps < WORKFLOWS * STEPS:
            self._grown.clear()
            await self._grown.wait()

    async def through(self, url, disturb):
        """Run all chains; call *disturb* a few times meanwhile."""
        async with asyncio.timeout(HANGS), Engine(url, registry=self.registry) as engine:
            handles = [await engine.start(self.chain, f"n{n}", id=f"n{n}") for n in range(WORKFLOWS)]
            results = asyncio.gather(*(handle.result() for handle in handles))
            for _ in range(disturb.times):
                await self.more(30)
                await asyncio.to_thread(disturb)
            assert await results == [STEPS] * WORKFLOWS
            for handle in handles:
                history = await handle.history()
                assert [event.seq for event in history] == list(range(1, len(history) + 1))
                assert sum(event.type == "activity_completed" for event in history) == STEPS


class Restart:
    """Kill a server, or halt it in another way, and start it again."""

    times = 3

    def __init__(self, server, halt="kill"):
        self._server = server
        self._halt = halt

    def __call__(self):
        getattr(self._server, self._halt)()
        self._server.start()


class Kill:
    """Kill a server; a replica takes over."""

    times = 1

    def __init__(self, server):
        self._server = server

    def __call__(self):
        self._server.kill()
