"""A verdict of `bnuq check`, told: on a terminal, as Markdown, as JUnit XML, and as lines for the log of a CI."""

from bnuq.report.check.annotations import annotations
from bnuq.report.check.junit import junit
from bnuq.report.check.refused import refused_annotation, refused_junit, refused_markdown
from bnuq.report.check.terminal import check_markdown, print_verdict, verdict_parts

__all__ = [
    "annotations",
    "check_markdown",
    "junit",
    "print_verdict",
    "refused_annotation",
    "refused_junit",
    "refused_markdown",
    "verdict_parts",
]
