"""JUnit XML of a check: XML whatever the names, with a test case an estimate and counts that hold."""

from __future__ import annotations

from collections import Counter
from xml.etree import ElementTree

import pytest
import small_verdicts as made

from bnuq.studies.check.ci import junit


def suite_of(document: bytes) -> ElementTree.Element:
    root = ElementTree.fromstring(document)
    (suite,) = root
    assert (root.tag, suite.tag) == ("testsuites", "testsuite")
    counts = {key: suite.get(key) for key in ("tests", "failures", "errors", "skipped")}
    assert counts == {key: root.get(key) for key in counts}
    return suite


@pytest.mark.parametrize("name", made.ALL)
def test_every_verdict_is_xml_whose_counts_hold(name: str) -> None:
    verdict = made.ALL[name]
    suite = suite_of(junit(verdict))
    cases = suite.findall("testcase")
    assert len(cases) == int(suite.get("tests", "")) == verdict.gated + len(verdict.floors)
    assert len(suite.findall("testcase/failure")) == int(suite.get("failures", ""))
    assert len(suite.findall("testcase/skipped")) == int(suite.get("skipped", ""))
    assert suite.get("errors") == "0"
    failing = len(verdict.broken) + (0 if verdict.accepted is not None else len(verdict.failing))
    assert int(suite.get("failures", "")) == failing
    assert all(case.get("classname", "").startswith("bnuq.") and case.get("name") for case in cases)


def test_an_inconclusive_estimate_fails_where_it_is_asked_to_and_a_slope_has_a_name_of_its_own() -> None:
    (first, _) = suite_of(junit(made.ALL["inconclusive fails"])).iter("failure")
    assert first.get("type") == "inconclusive" and "3,400 examples and 128 samples would decide" in first.get(
        "message", ""
    )
    names = [case.get("name") for case in suite_of(junit(made.ALL["a history"])).iter("testcase")]
    assert names == ["accuracy", "brier", "aupr_out", "brier (slope)"]


def test_cases_are_named_by_their_address() -> None:
    suite = suite_of(junit(made.everything()))
    named = Counter((case.get("classname"), case.get("name")) for case in suite.findall("testcase"))
    assert max(named.values()) == 1
    for address in (
        ("bnuq.mcbn.sets.test", "pll"),
        ("bnuq.mcbn.ood.svhn.mutual_information", "auroc"),
        ("bnuq.mcbn.ood.svhn.mutual_information", "auroc >= 0.85"),
        ("bnuq.mcbn.normalized", "pll"),
    ):
        assert address in named


def test_a_failure_says_in_a_sentence_what_got_worse() -> None:
    suite = suite_of(junit(made.everything()))
    failure = suite.find("testcase[@classname='bnuq.mcbn.sets.test'][@name='pll']/failure")
    assert failure is not None and failure.get("type") == "regression"
    assert "predictive log-likelihood fell from −0.3010 to −0.3420 nats (−0.0410 ± 0.0090" in failure.get("message", "")
    assert "mcbn.sets.test.pll" in (failure.text or "")
    assert Counter(failure.get("type") for failure in suite.iter("failure")) == {"regression": 8, "requirement": 1}
    said = {one.get("name"): one.get("value") for one in suite.iter("property")}
    assert (said["current"], said["baseline"], said["current.seed"]) == ("/runs/now.h5", "/runs/base.h5", "1")
    assert suite.get("time") == "0.250"
    output = suite.findtext("system-out")
    assert output is not None and output.startswith("Worse:") and "[older-than-baseline]" in output


def test_an_accepted_regression_is_no_failure_and_is_told() -> None:
    skipped = [one.get("message", "") for one in suite_of(junit(made.accepted())).iter("skipped")]
    assert sum(text.startswith("Accepted: ") for text in skipped) == len(made.WORSE)


def test_names_out_of_a_file_stay_text() -> None:
    document = junit(made.hostile())
    assert {one.tag for one in ElementTree.fromstring(document).iter()} <= {
        "testsuites", "testsuite", "properties", "property", "testcase", "failure", "skipped", "system-out"
    }  # fmt: skip
    assert b"\x1b" not in document and b"\x00" not in document and b"<script" not in document
    assert "<script>alert(1)</script>" in "".join(ElementTree.fromstring(document).itertext())
