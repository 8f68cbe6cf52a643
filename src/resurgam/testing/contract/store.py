"""The cases of all topics that a store must pass, as one class."""

from resurgam.testing.contract.activities import ActivityCases
from resurgam.testing.contract.archival import ArchivalCases
from resurgam.testing.contract.basics import BasicCases
from resurgam.testing.contract.children import ChildCases
from resurgam.testing.contract.covered import CoveredCases
from resurgam.testing.contract.creation import CreationCases
from resurgam.testing.contract.details import DetailsCases
from resurgam.testing.contract.eager_claims import EagerClaimCases
from resurgam.testing.contract.feed import FeedCases
from resurgam.testing.contract.fencing import FencingCases
from resurgam.testing.contract.forgetting import ForgettingCases
from resurgam.testing.contract.identity import IdentityCases
from resurgam.testing.contract.listing import ListingCases
from resurgam.testing.contract.live_workers import WorkerCases
from resurgam.testing.contract.messages import MessageCases
from resurgam.testing.contract.offering import OfferingCases
from resurgam.testing.contract.open_work import OpenWorkCases
from resurgam.testing.contract.ordering import OrderingCases
from resurgam.testing.contract.outside_answers import OutsideAnswerCases
from resurgam.testing.contract.pause import PauseCases
from resurgam.testing.contract.promises import PromiseCases
from resurgam.testing.contract.queries import QueryCases
from resurgam.testing.contract.recovery import RecoveryCases
from resurgam.testing.contract.removal import RemovalCases
from resurgam.testing.contract.retention import RetentionCases
from resurgam.testing.contract.signal_schemas import SignalSchemaCases
from resurgam.testing.contract.starts import StartCases
from resurgam.testing.contract.stored_values import ValueCases
from resurgam.testing.contract.succession import SuccessionCases
from resurgam.testing.contract.tags import TagCases
from resurgam.testing.contract.termination import TerminationCases
from resurgam.testing.contract.transfer import TransferCases
from resurgam.testing.contract.wakeups import WakeUpCases
from resurgam.testing.contract.watches import WatchCases


class StoreContract(
    BasicCases,
    CreationCases,
    TerminationCases,
    FencingCases,
    ForgettingCases,
    EagerClaimCases,
    CoveredCases,
    StartCases,
    WakeUpCases,
    ActivityCases,
    OutsideAnswerCases,
    RecoveryCases,
    RetentionCases,
    IdentityCases,
    ListingCases,
    TransferCases,
    RemovalCases,
    ArchivalCases,
    OfferingCases,
    OpenWorkCases,
    OrderingCases,
    PauseCases,
    PromiseCases,
    ChildCases,
    MessageCases,
    SuccessionCases,
    QueryCases,
    DetailsCases,
    SignalSchemaCases,
    TagCases,
    WatchCases,
    ValueCases,
    WorkerCases,
    FeedCases,
):
    """The guarantees of every store, verb by verb."""
