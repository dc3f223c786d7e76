"""Reports inspections of a network."""

from bnuq.report.inspection.inspection_report import report

__all__ = ["report"]
