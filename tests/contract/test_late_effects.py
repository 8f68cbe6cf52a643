"""The contract of stores, on a store whose effects on other instances arrive after the commit."""

from contextlib import asynccontextmanager

from resurgam.testing.contract import LEASE, StoreContract
from support.late_effects import LateEffectsStore


class TestLateEffects(StoreContract):
    @asynccontextmanager
    async def open_store(self, clock):
        yield LateEffectsStore(clock, lease=LEASE)
