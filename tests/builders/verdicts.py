"""The findings of an evaluation, found by their code."""

from __future__ import annotations

from typing import Any

from bnuq.findings import Finding, sentence
from bnuq.records.evaluation import Result
from bnuq.report.evaluation_findings import findings
from bnuq.report.evaluation_sentences import SENTENCES


def codes(result: Result) -> list[str]:
    """Of every finding, in reading order."""
    return [finding.code for finding in findings(result)]


def verdict(result: Result, start: str, **values: Any) -> Finding:
    """The only finding whose code starts so and that has these values; it has a sentence."""
    matching = [
        finding
        for finding in findings(result)
        if finding.code.startswith(start) and values.items() <= {key: finding.values.get(key) for key in values}.items()
    ]
    [finding] = matching
    assert said(finding).endswith(".")
    return finding


def said(finding: Finding) -> str:
    """Its sentence."""
    return sentence(finding, SENTENCES)
