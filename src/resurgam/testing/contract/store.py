"""The cases of all topics that a store must pass, as one class."""

from resurgam.testing.contract.accepting import AcceptingCases
from resurgam.testing.contract.activities import ActivityCases
from resurgam.testing.contract.asking import AskingCases
from resurgam.testing.contract.basics import BasicCases
from resurgam.testing.contract.beginning import BeginningCases
from resurgam.testing.contract.children import ChildCases
from resurgam.testing.contract.details import DetailsCases
from resurgam.testing.contract.ending import EndingCases
from resurgam.testing.contract.feed import FeedCases
from resurgam.testing.contract.fencing import FencingCases
from resurgam.testing.contract.forgetting import ForgettingCases
from resurgam.testing.contract.handing import HandingCases
from resurgam.testing.contract.identity import IdentityCases
from resurgam.testing.contract.listing import ListingCases
from resurgam.testing.contract.live_workers import WorkerCases
from resurgam.testing.contract.moving import MovingCases
from resurgam.testing.contract.offering import OfferingCases
from resurgam.testing.contract.open_work import OpenWorkCases
from resurgam.testing.contract.ordering import OrderingCases
from resurgam.testing.contract.pausing import PausingCases
from resurgam.testing.contract.promising import PromisingCases
from resurgam.testing.contract.recovery import RecoveryCases
from resurgam.testing.contract.retention import RetentionCases
from resurgam.testing.contract.sending import SendingCases
from resurgam.testing.contract.stored_values import ValueCases
from resurgam.testing.contract.succeeding import SucceedingCases
from resurgam.testing.contract.waiting import WaitingCases
from resurgam.testing.contract.wakeups import WakeUpCases


class StoreContract(
    BasicCases,
    BeginningCases,
    EndingCases,
    FencingCases,
    ForgettingCases,
    HandingCases,
    WakeUpCases,
    ActivityCases,
    RecoveryCases,
    RetentionCases,
    IdentityCases,
    ListingCases,
    MovingCases,
    OfferingCases,
    OpenWorkCases,
    OrderingCases,
    PausingCases,
    PromisingCases,
    ChildCases,
    SendingCases,
    SucceedingCases,
    AskingCases,
    DetailsCases,
    AcceptingCases,
    WaitingCases,
    ValueCases,
    WorkerCases,
    FeedCases,
):
    """The guarantees of every store, verb by verb."""
