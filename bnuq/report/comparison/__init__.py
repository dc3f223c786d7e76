"""Several evaluations side by side: settings that differ, and every estimate of all. Nothing is judged."""

from bnuq.report.comparison.report import report, summary
from bnuq.report.comparison.settings import compared

__all__ = ["compared", "report", "summary"]
