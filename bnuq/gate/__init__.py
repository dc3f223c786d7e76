"""The gate: is the uncertainty of a result worse than that of a baseline, by more than the errors of both explain?"""

from bnuq.gate.checking import check
from bnuq.gate.records import CheckVerdict, EstimateComparison, Floor, Outcome, Pairing, Side, summary
from bnuq.gate.settings import GateSettings, Tolerance
