"""The report of a monitor: the answer first, and nothing that is not known."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import made_up_monitor
import numpy as np
import pytest
from report_text import rendered

from bnuq.studies.monitor.record import read_baseline, read_stream, write
from bnuq.studies.monitor.view import findings, pictures_of, report


def text(record, width: int = 100) -> str:
    return rendered(report, record, width=width, full=True)


def said(record) -> str:
    return " ".join(report(record).summary)


def test_of_a_batch_that_does_not_differ_nothing_is_to_be_done():
    (text,) = report(made_up_monitor.quiet()).summary
    assert text.startswith("Nothing to do, no change was found: a difference of this size") and " 31 % of" in text
    assert " in 100 % of cases." in said(replace(made_up_monitor.quiet(), p_value=1.0))
    after_an_alarm = said(replace(made_up_monitor.alarmed(), p_value=0.31))
    assert "These examples alone show no change" in after_an_alarm and "Nothing to do" not in after_an_alarm


def test_an_alarm_names_the_layers_the_scores_and_the_batch():
    shown = said(made_up_monitor.alarmed())
    assert "in at most 0.05 % of cases. First check how its examples were prepared" in shown
    assert "All 2 layers differ, most `bn1`: means by 3.2, variances by 1.5 times" in shown
    one = replace(made_up_monitor.alarmed(), blocks=made_up_monitor.alarmed().blocks[:1])
    assert "Layer `bn1` differs: means by 3.2, variances by 1.5 times" in said(one)
    assert "Predictions also differ, in energy: do not rely on them" in shown
    assert "Alarm: after batch 2 of the stream (tuesday) the evidence of a change was 120; an alarm needs 100." in shown
    assert "[reference-trained-on]" in text(made_up_monitor.alarmed())


def test_layers_that_differ_only_together_are_no_single_ones():
    codes = [finding.code for finding in findings(replace(made_up_monitor.many_layers(), p_value=0.002))]
    assert codes == ["batch-unlike", "layers-together", "scores-alike", "no-alarm"]


def test_a_first_batch_that_differs_is_told_from_the_stream():
    first = replace(made_up_monitor.quiet(), p_value=0.0005, p_values=np.array([0.0005]), e_values=np.array([25.0]))
    assert "No alarm yet for the stream, of which all batches count together: after 1 batch the evidence" in said(first)
    assert "Until then judge each batch alone, and give later ones the same `--stream FILE`." in said(first)
    screen = rendered(report, first, width=80)
    assert "(1/`--level`) in at most 1 %" in screen and "\n outputs" in screen  # evidence, and what the least p is of


def test_of_many_layers_those_that_differ_most_are_shown():
    shown = text(made_up_monitor.many_layers())
    assert "Layers, the 24 of 40 that differ most" in shown
    assert "stage.39.bn" in shown and "stage.5.bn" not in shown


@pytest.mark.parametrize("width", [60, 80, 120])
def test_no_line_is_wider_than_the_terminal(width):
    for make in made_up_monitor.ALL.values():
        assert max(map(len, text(make(), width).splitlines())) <= width


def test_pictures_are_of_layers_and_of_a_stream_that_has_several_of_them(tmp_path: Path):
    assert [picture.kind for picture in pictures_of(made_up_monitor.quiet())] == [("shift",)]
    pictures = list(pictures_of(made_up_monitor.alarmed()))
    assert [picture.kind for picture in pictures] == [("shift",), ("stream",)]
    for picture in pictures:
        picture.draw(tmp_path / f"{picture.kind[0]}.svg")
        assert (tmp_path / f"{picture.kind[0]}.svg").read_text(encoding="utf-8").startswith("<?xml")


@pytest.mark.parametrize(("make", "read"), [("baseline", read_baseline), ("stream", read_stream)])
def test_a_baseline_and_a_stream_come_back_from_their_files(make, read, tmp_path):
    record = getattr(made_up_monitor, make)()
    write(record, tmp_path / "x.h5")
    found = read(tmp_path / "x.h5")
    assert np.array_equal(found.bag, record.bag) and found.provenance == record.provenance
    if make == "baseline":
        assert (found.digest, found.starts, found.layers) == (record.digest, [0, 3], [0])
    else:
        assert (found.names, found.alarm) == (record.names, None)
