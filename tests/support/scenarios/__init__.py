"""Small workflows, one or two for each verb, with the messages sent to them: what the crash sweep runs and kills.

Everything that takes time in them takes minutes, longer than the leases of a killed engine live.
"""

from support.scenarios import crossing, families, verbs
from support.scenarios.table import SCENARIOS, Scenario, registry

__all__ = ["SCENARIOS", "Scenario", "crossing", "families", "registry", "verbs"]
