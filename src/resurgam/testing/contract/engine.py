"""The end-to-end cases of all topics, as one class.

The cases are numbered E01 to E45. Left out here are

- E10 to E17, E39, E44 (children) and E38, E40 (continue-as-new): neither exists yet;
- E18 (a changed workflow): divergence has a suite of its own, over the runtime and without a store;
- E19, E35 to E37 (removing instances, one by one or by age): the engine has no such verb, and ``purge`` is part of
  `StoreContract`;
- E20 (context propagators) and E41 to E43, E45 (spans): neither exists yet;
- E21 (a limit on the length of a history): there is none;
- E25 (heartbeats from within an activity): leases are renewed by the worker, which
  ``test_a_long_activity_keeps_its_lease`` covers.
"""

from resurgam.testing.contract.engine_activities import EngineActivityCases
from resurgam.testing.contract.engine_basics import EngineBasicCases
from resurgam.testing.contract.engine_operations import EngineOperationCases
from resurgam.testing.contract.engine_processes import EngineProcessCases
from resurgam.testing.contract.engine_signals import EngineSignalCases
from resurgam.testing.contract.engine_timers import EngineTimerCases
from resurgam.testing.contract.engine_workers import EngineWorkerCases


class EngineContract(
    EngineBasicCases,
    EngineOperationCases,
    EngineActivityCases,
    EngineProcessCases,
    EngineTimerCases,
    EngineSignalCases,
    EngineWorkerCases,
):
    """What every store promises, seen from a program."""
