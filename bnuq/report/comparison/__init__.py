"""Several evaluations side by side: settings and estimates that differ. Nothing is judged."""

from bnuq.report.comparison.comparison_report import compared, report, summary

__all__ = ["compared", "report", "summary"]
