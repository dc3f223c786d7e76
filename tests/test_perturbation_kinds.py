"""What the list of perturbations promises to the texts and names that are made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bnuq.perturbations import KINDS, Perturbation, PerturbationKind, change_of, kind_and_size, perturbation

PAGES = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("size", [0.1, 1e-05, 8 / 255, 3.0, 1e20])
def test_a_perturbation_is_read_back_from_its_text_and_from_the_name_of_its_set(
    kind: PerturbationKind, size: float
) -> None:
    change = Perturbation(kind, size)
    assert perturbation(str(change)) == change == perturbation(change_of(change.set_name))
    assert kind_and_size(change.set_name) == (kind.name, size)


def test_another_set_or_text_is_no_perturbation() -> None:
    names = "test", "svhn", "test+fgsm", "test+fgsm:x", "test+fgsm:0.1 "
    assert [kind_and_size(name) for name in names] == [None] * 5
    assert [perturbation(text) for text in ("", "fgsm", "fgsm:0", "fgsm:1e999", "salt:0.1")] == [None] * 5


def test_the_page_has_a_row_for_every_kind() -> None:
    rows = re.findall(r"^\| `(\w+):(.)` \|", (PAGES / "perturbations.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, kind.symbol) for name, kind in KINDS.items()]
