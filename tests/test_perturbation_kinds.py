"""What the list of perturbations promises to the texts and names that are made from it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bnuq.perturbations import ALL, FAMILIES, KINDS, Perturbation, change_in, change_of, perturbation

PAGES = Path(__file__).resolve().parent.parent / "docs"


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("size", [0.1, 1e-05, 8 / 255, 3.0, 1e20])
def test_a_perturbation_is_read_back_from_its_text_and_from_the_name_of_its_set(kind, size):
    change = Perturbation(kind, size)
    low, high = kind.limits
    if not low <= size <= high:
        with pytest.raises(ValueError, match=f"{kind.name}:{kind.size} with a number"):
            perturbation(str(change))
        return
    assert perturbation(str(change)) == change == perturbation(change_of(change.set_name))
    found = change_in(change.set_name)
    assert found is not None and (found.kind, found.size, found.is_severity) == (kind.name, size, False)


@pytest.mark.parametrize("name", FAMILIES)
def test_severities_are_read_back_and_grow_stronger(name: str) -> None:
    kind = KINDS[name]
    for severity in range(1, 6):
        change = perturbation(f"{name}@{severity}")
        assert change == Perturbation(kind, severity, is_severity=True) and change.set_name == f"test+{name}@{severity}"
        found = change_in(change.set_name)
        assert found is not None and (found.family, found.strength) == (name, severity)
    for scale in kind.severities:
        strengths = [kind.strength(Perturbation(kind, s, is_severity=True).constants(scale)[0]) for s in range(1, 6)]
        assert strengths == sorted(strengths) and strengths[0] > 0
        assert all(kind.limits[0] <= Perturbation(kind, s, True).constants(scale)[0] for s in range(1, 6))


def test_ones_own_function_is_named_by_its_file_and_its_set_by_itself() -> None:
    change = perturbation("folder/noise.py:fog_2@2.5")
    assert (change.code, change.set_name, str(change)) == (
        "folder/noise.py:fog_2", "test+fog_2@2.5", "folder/noise.py:fog_2@2.5",
    )  # fmt: skip
    found = change_in(change.set_name)
    assert found is not None and (found.family, found.strength, found.axis) == ("fog_2", 2.5, "severity")
    assert perturbation(f"{ALL}@3").kind.name == ALL


def test_another_set_or_text_is_no_perturbation() -> None:
    names = "test", "svhn", "test+fgsm", "test+fgsm:x", "test+fgsm:0.1 ", "test+jpeg@", "test+@3"
    assert [change_in(name) for name in names] == [None] * len(names)
    texts = {
        "": "KIND:SIZE or KIND@SEVERITY", "fgsm": "fgsm:EPSILON with a number above 0", "salt:0.1": "KIND:SIZE or",
        "fgsm:0": "in units of the input", "fgsm:1e999": "above 0", "jpeg:200": "from 1 to 100, such as jpeg:15",
        "impulse:2": "up to 1", "jpeg@6": "a severity of 1, 2, 3, 4 or 5, or a size: jpeg:QUALITY", "fgsm@1": "one of",
        "jpeg@0": "severity of 1 to 5", "all@7": "a severity of 1, 2, 3, 4 or 5", "a.py:jpeg@1": "another name than",
        "a.py:b@inf": "severity of 1 to 5",
    }  # fmt: skip
    for text, expected in texts.items():
        with pytest.raises(ValueError, match=expected):
            perturbation(text)


def test_the_page_has_a_row_for_every_kind() -> None:
    rows = re.findall(r"^\| `(\w+):(.)` \|", (PAGES / "shift.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert rows == [(name, kind.symbol) for name, kind in KINDS.items() if name != "pgd"]
