"""The report of `bnuq check`, and what CI services take: JUnit XML, and lines for a log."""

from bnuq.report.check.ci import annotations, junit
from bnuq.report.check.report import report

__all__ = ["annotations", "junit", "report"]
