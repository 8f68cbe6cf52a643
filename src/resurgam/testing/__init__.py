"""Test workflows and flows: virtual time, replay of recorded histories, crashes at every point.

`resurgam.testing.contract` is the suite that every store must pass.
"""

from resurgam.testing.clock import ManualClock
from resurgam.testing.crash import Crashes, crash_everywhere
from resurgam.testing.environment import Environment
from resurgam.testing.flow_crash import crash_flow_everywhere
from resurgam.testing.recorded import Recorded, histories, recorded_histories
from resurgam.testing.replay import Report, replay
from resurgam.testing.simulation import Simulation

__all__ = [
    "Crashes",
    "Environment",
    "ManualClock",
    "Recorded",
    "Report",
    "Simulation",
    "crash_everywhere",
    "crash_flow_everywhere",
    "histories",
    "recorded_histories",
    "replay",
]
