"""`--outputs`: the same classifier gives the same figures, whatever form its outputs have."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
import small_run
import torch

from bnuq import metrics

FORMS = '''"""The tiny network of small_run, with outputs of several forms."""

import torch
from net import net as logits_of
from torch import nn


class Net(nn.Module):
    def __init__(self, form):
        super().__init__()
        self.body, self.form = logits_of(), form

    def forward(self, x):
        z = self.body(x)
        return FORMS[self.form](z, z[:, 1] - z[:, 0])


FORMS = {
    "logits": lambda z, d: z,
    "probabilities": lambda z, d: z.softmax(1),
    "log_probabilities": lambda z, d: z.log_softmax(1),
    "nested": lambda z, d: {"features": -z, "logits": z},
    "ambiguous": lambda z, d: {"a": z, "b": z},
    "sigmoids": lambda z, d: z.sigmoid(),
    "two": lambda z, d: torch.stack([torch.zeros_like(d), d], 1),
    "one": lambda z, d: d,
    "sigmoid": lambda z, d: d.sigmoid(),
}


def net(form):
    return Net(form)
'''


@pytest.fixture
def evaluated(cli, small):
    """Calls `bnuq evaluate` of the network in one form, on labels of so many classes; the JSON, or the message."""
    (small / "forms.py").write_text(FORMS)
    state = torch.load(small / "model.pt")
    torch.save({f"body.{name}": value for name, value in state.items()}, small / "model.pt")
    for name in ("train", "test"):
        with np.load(small / f"{name}.npz") as file:
            points = dict(file)
        np.savez(small / f"{name}2.npz", x=points["x"], y=np.minimum(points["y"], 1))

    def call(form: str, *options: str | Path, classes: int = 3, command: str = "evaluate"):
        text = small_run.RUN if command == "evaluate" else (small / "run.toml").read_text()
        text = text.replace('"net.py:net"', f'"forms.py:net"\narch_args = {{form = "{form}"}}')
        if classes == 2:
            text = text.replace("train.npz", "train2.npz").replace("test.npz", "test2.npz")
        (small / "form.toml").write_text(text)
        done = cli(command, "form.toml", "--json", *("--method", "mcbn") if command == "evaluate" else (), *options)
        return json.loads(done.out) if done.code == 0 else (done.code, done.message)

    return call


def values(summary: dict, *, without_logits: bool = False) -> dict[str, float]:
    """Every value of every method, by its place; `without_logits`, those that probabilities suffice for."""

    def walk(part, place=""):
        if isinstance(part, dict):
            for key, inner in part.items():
                yield from walk(inner, f"{place}.{key}")
        elif place.endswith(".value"):
            yield place, part

    found = dict(walk(summary["methods"]))
    if not without_logits:
        return found
    return {place: value for place, value in found.items() if not re.search(r"(dropout|mc).*(max_logit|energy)", place)}


def test_probabilities_and_their_logarithms_have_the_figures_of_the_logits(evaluated):
    expected = values(evaluated("logits"), without_logits=True)
    ranked = (*metrics.SELECTIVE, "ece_adaptive", "mce")
    of_points = [place for place in expected if ".ood." not in place and not any(name in place for name in ranked)]
    for form in ("probabilities", "log_probabilities"):
        found = values(evaluated(form, "--outputs", form))
        assert len(expected) > 100 and found == pytest.approx(expected, abs=2e-3)  # of ranks: 1 of 3000 pairs
        assert [found[at] for at in of_points] == pytest.approx([expected[at] for at in of_points], abs=1e-5)


@pytest.mark.nightly
def test_the_outputs_are_recorded_and_repeated(evaluated, cli):
    first = evaluated("one", "--outputs", "binary", "-o", "first.h5", classes=2)
    done = cli("evaluate", "--from", "first.h5", "-o", "again.h5", "--json", "--trust-code")
    assert values(json.loads(done.out)) == values(first)
    assert cli("check", "again.h5", "first.h5").code == 0


@pytest.mark.parametrize(
    ("form", "options", "classes", "message"),
    [
        (
            "probabilities",
            (),
            3,
            r"look like the probabilities of a softmax: .*: --outputs probabilities, or outputs =",
        ),
        ("sigmoids", (), 3, r"ends in a sigmoid: .* Remove the last sigmoid .* --outputs multilabel"),
        ("sigmoids", ("--outputs", "probabilities"), 3, r"of an example sum to values from .* expected 1"),
        (
            "logits",
            ("--outputs", "probabilities"),
            3,
            r"gives values from -.*; expected numbers from 0 to 1\. .* logits",
        ),
        ("logits", ("--outputs", "log_probabilities"), 3, r"expected numbers of at most 0"),
        ("logits", ("--outputs", "binary"), 3, r"gives \(3, 3\); expected one logit per example"),
        ("one", (), 2, r"one output .* all 0 or 1: .*--outputs binary .*--outputs probabilities .*--task regression"),
        ("one", ("--outputs", "probabilities"), 2, r"expected numbers from 0 to 1\. .*--outputs binary"),
        ("sigmoid", ("--outputs", "binary"), 2, r"ends in a sigmoid: .*: --outputs probabilities"),
        ("ambiguous", (), 3, r"^the network's output is a dict with the keys 'a', 'b'; expected one tensor"),
        ("logits", ("--outputs", "odds"), 3, r"--outputs is odds; expected .* binary"),
    ],
)
def test_outputs_that_are_not_what_was_said_are_an_error_that_names_the_option(
    evaluated, form, options, classes, message, small
):
    code, text = evaluated(form, *options, classes=classes)
    assert code == 2
    assert re.search(message, text), text
    assert not list(small.glob("*.h5"))
