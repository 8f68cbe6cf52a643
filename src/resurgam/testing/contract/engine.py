"""The end-to-end cases of all topics, as one class.

The cases are numbered E01 to E45. Left out here are

- E18 (a changed workflow): divergence has a suite of its own, over the runtime and without a store;
- E37 (changing the age at which instances are removed): it is an option of each engine;
- E20 (context propagators) and E41 to E45 (spans): neither exists yet;
- E21 (a limit on the length of a history): there is none.

E25 (heartbeats from within an activity) is more than one case here, `engine_heartbeats`: leases are renewed by the
worker, heartbeat or not, which ``test_a_long_activity_keeps_its_lease`` covers.
"""

from resurgam.testing.contract.engine_accepting import EngineAcceptingCases
from resurgam.testing.contract.engine_activities import EngineActivityCases
from resurgam.testing.contract.engine_adopting import EngineAdoptingCases
from resurgam.testing.contract.engine_basics import EngineBasicCases
from resurgam.testing.contract.engine_children import EngineChildCases
from resurgam.testing.contract.engine_closing import EngineClosingCases
from resurgam.testing.contract.engine_continuing import EngineContinuingCases
from resurgam.testing.contract.engine_halting import EngineHaltingCases
from resurgam.testing.contract.engine_handlers import EngineHandlerCases
from resurgam.testing.contract.engine_heartbeats import EngineHeartbeatCases
from resurgam.testing.contract.engine_identity import EngineIdentityCases
from resurgam.testing.contract.engine_mail import EngineMailCases
from resurgam.testing.contract.engine_messages import EngineMessageCases
from resurgam.testing.contract.engine_operations import EngineOperationCases
from resurgam.testing.contract.engine_processes import EngineProcessCases
from resurgam.testing.contract.engine_promises import EnginePromiseCases
from resurgam.testing.contract.engine_queries import EngineQueryCases
from resurgam.testing.contract.engine_races import EngineRaceCases
from resurgam.testing.contract.engine_retention import EngineRetentionCases
from resurgam.testing.contract.engine_retries import EngineRetryCases
from resurgam.testing.contract.engine_sagas import EngineSagaCases
from resurgam.testing.contract.engine_signals import EngineSignalCases
from resurgam.testing.contract.engine_timeouts import EngineTimeoutCases
from resurgam.testing.contract.engine_timers import EngineTimerCases
from resurgam.testing.contract.engine_update_stages import EngineUpdateStageCases
from resurgam.testing.contract.engine_updates import EngineUpdateCases
from resurgam.testing.contract.engine_workers import EngineWorkerCases


class EngineContract(
    EngineBasicCases,
    EngineOperationCases,
    EngineActivityCases,
    EngineHeartbeatCases,
    EngineProcessCases,
    EngineTimerCases,
    EngineSignalCases,
    EngineAcceptingCases,
    EngineMailCases,
    EngineHandlerCases,
    EngineUpdateCases,
    EngineUpdateStageCases,
    EnginePromiseCases,
    EngineQueryCases,
    EngineMessageCases,
    EngineSagaCases,
    EngineWorkerCases,
    EngineChildCases,
    EngineClosingCases,
    EngineRetryCases,
    EngineRetentionCases,
    EngineTimeoutCases,
    EngineContinuingCases,
    EngineHaltingCases,
    EngineAdoptingCases,
    EngineRaceCases,
    EngineIdentityCases,
):
    """What every store promises, seen from a program."""
