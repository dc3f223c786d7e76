"""The report of `bnuq check`, and what CI services take: JUnit XML, and lines for a log."""

from bnuq.report.check.check_report import report
from bnuq.report.check.ci import annotations, junit

__all__ = ["annotations", "junit", "report"]
