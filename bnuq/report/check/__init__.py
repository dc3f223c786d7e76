"""The report of `bnuq check`, and what CI services take: JUnit XML, and lines for a log."""

from bnuq.report.check.annotations import annotations
from bnuq.report.check.junit import junit
from bnuq.report.check.refused import refused, refused_annotation, refused_junit
from bnuq.report.check.report import report

__all__ = ["annotations", "junit", "refused", "refused_annotation", "refused_junit", "report"]
