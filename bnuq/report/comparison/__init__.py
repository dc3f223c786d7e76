"""Several evaluations side by side: settings and estimates that differ. Nothing is judged."""

from bnuq.report.comparison.comparison_report import report, summary
from bnuq.report.comparison.settings import compared

__all__ = ["compared", "report", "summary"]
