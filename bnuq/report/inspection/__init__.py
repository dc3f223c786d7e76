"""Reports inspections of a network."""

from bnuq.report.inspection.report import report

__all__ = ["report"]
