"""Histories are read from the store or from the archive, also while a run moves between them."""

from types import SimpleNamespace

from resurgam.archive.inspector import ArchiveInspector
from resurgam.core import event as events

LOG = [events.WorkflowCompleted(seq=1)]


class Moving:
    """An inspector of a store into which a run is brought back between two looks."""

    def __init__(self):
        self.looks = []

    async def history(self, execution, **options):
        self.looks.append(options)
        return LOG if len(self.looks) > 1 else []

    async def get(self, entity_id, run_id=None, *, execution_id=None):
        return SimpleNamespace(entity_id=entity_id, archived=None)


async def test_a_history_that_is_brought_back_between_two_looks_is_found():
    inspector = Moving()
    execution = SimpleNamespace(entity_id="o-1", execution_id="x")

    assert await ArchiveInspector(inspector, None).history(execution, last=3) == LOG
    assert inspector.looks == [{"last": 3, "forgotten": False, "after": 0, "limit": None}] * 2
