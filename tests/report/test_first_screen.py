"""What a terminal shows first: decisions and one table, on 36 lines whatever ran."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import get_args

import at_night
import pytest
from cut_sets import write_samples
from eight_results import EIGHT, broken, everything, gain, multilabel, quickstart, scored, unlabelled
from report_text import rendered

from bnuq.cli.evaluate import answering
from bnuq.cli.output import Printing
from bnuq.config import Options, resolve
from bnuq.findings import warnings
from bnuq.methods import Source, method_named
from bnuq.progress import Advance, silent
from bnuq.records.evaluation import Result
from bnuq.records.summary import summary
from bnuq.report.evaluation import report
from bnuq.report.evaluation_tables import SOURCES
from bnuq.report.first_screen import answer
from bnuq.workflows.evaluate import evaluate

LINES, FULL = 36, 400
ABBREVIATIONS = re.compile(r"\b(PLL|ECE|AUROC|MI|CRPS|RMSE|AURC|OOD|MCBN|ID)\b")


@pytest.mark.parametrize("make", at_night.but({quickstart, gain, broken, scored}, (*EIGHT, everything)))
def test_the_first_screen_has_36_lines_and_says_each_decision_once(
    make: Callable[[Path], Result], tmp_path: Path
) -> None:
    result = replace(make(tmp_path), path=Path("out.h5"))
    made, lines = report(result), rendered(report, result, width=80).splitlines()
    assert len(lines) <= LINES, "\n".join(lines)
    assert all(len(line) <= 80 for line in lines)
    assert lines[-1].startswith("  bnuq report out.h5 --full")
    decisions = summary(result)["decisions"]
    assert 0 < len(decisions) <= 3
    assert [each["text"] for each in decisions] == [*made.summary[: len(decisions)]]
    shown = " ".join(" ".join(lines).split())
    together = shown.replace(" ", "")  # a long path is broken at the end of a line
    assert all(together.count(text.replace(" ", "")) == 1 for text in made.summary)
    sentences = [part for text in made.summary for part in text.split(". ")]
    assert len(sentences) == len({*sentences})
    assert not any(ABBREVIATIONS.search(text) for text in made.summary)
    for name in {method_named(name).plain.name for name in result.methods}:
        assert any(line.startswith((f" {name} ", f" ≈ {name} ")) for line in lines)
    assert all(f"[{each.code}]" in shown for each in warnings(result.findings) if each.code not in made.said)
    assert "standard error" in shown.lower(), "errors, or where they are"
    assert all(f"{sign}: " in shown for sign in "†≈" if f"{sign} " in shown.replace(f"{sign}: ", ""))
    assert not (warnings(result.findings) and "match the training" in shown)
    assert make is not gain or "Use mcdo with 8 samples" in shown
    assert ("All numbers are" in shown) == (make in (broken, multilabel, unlabelled, scored))
    assert len(rendered(report, result, width=80, full=True).splitlines()) <= FULL or make is everything


@pytest.mark.nightly
def test_the_screens_in_docs_are_current() -> None:
    """Up to numbers, whose last digits depend on the processor; in a process whose defaults are those of users."""
    root = Path(__file__).parents[2]
    path = os.pathsep.join(map(str, (root, root / "docs", root / "tests" / "builders")))
    code = "import make_screens; print(make_screens.page(), end='')"
    done = subprocess.run(
        [sys.executable, "-c", code], env=os.environ | {"PYTHONPATH": path}, capture_output=True, check=True
    )
    written = (root / "docs" / "measured" / "screens.md").read_bytes()
    made, kept = (re.sub(r"[\W\d]+", " ", text.decode()) for text in (done.stdout, written))
    assert made == kept


def test_the_first_answer_is_known_before_samples_are_drawn_and_in_the_numbers_of_the_table(tmp_path: Path) -> None:
    said: list[str] = []
    titles: list[str] = []

    @contextmanager
    def noting(title: str, total: int) -> Iterator[Advance]:
        titles.append(title)
        with silent(title, total) as advance:
            yield advance

    place = write_samples(tmp_path / "sample_configs", points=60)
    run = resolve("quickstart.toml", Options(samples=8, out=tmp_path / "out.h5", device="cpu"), folder=place)
    result = evaluate(run, progress=noting, answer=lambda *known: said.append(f"{len(titles)} {answer(*known)}"))
    (text,) = said
    at, plain, divided, following = re.split(r" (?=deterministic: )|\n", text)
    assert not any("samples" in title for title in titles[: int(at)]) and any("samples" in title for title in titles)
    estimates = result.methods["deterministic"].sets["test"].estimates
    assert f"accuracy {estimates['accuracy'].value:.3f}, predictive" in plain
    assert re.match(r"deterministic\+temperature \(logits / [\d.]+\): accuracy", divided)
    assert re.match(r"Next: samples of mcbn, mcdo and mcbn\+mcdo\.", following)


@pytest.mark.parametrize(("given", "says"), [({}, True), ({"quiet": True}, False), ({"json": True}, False)])
def test_only_a_terminal_is_answered_first(
    given: dict[str, bool], says: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with answering(Printing()) as say:
        assert say is None
    monkeypatch.setattr("bnuq.cli.evaluate.stdout", lambda: sys.stderr)
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with answering(Printing(**given)) as say:
        assert (say is not None) is says
        if say is not None:
            say({}, ["mcbn"], 90.0)
    erased = "Next: samples of mcbn, about 2 min of passes.\n\x1b[1F\x1b[J"
    assert capsys.readouterr().err == erased * says


def test_the_legend_has_words_for_every_source_of_samples() -> None:
    assert {*get_args(Source)} - {"file"} == SOURCES.keys()  # what a file's samples differ by, its user knows
