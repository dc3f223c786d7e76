"""The gate: is the uncertainty of a result worse than that of a baseline, by more than the errors of both explain?"""

from bnuq.gate.checking import check
from bnuq.gate.records import Comparison, Floor, Outcome, Pairing, Side, Verdict
from bnuq.gate.settings import Settings, Tolerance

__all__ = ["Comparison", "Floor", "Outcome", "Pairing", "Settings", "Side", "Tolerance", "Verdict", "check"]
