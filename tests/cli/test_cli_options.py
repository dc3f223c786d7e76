"""Every option comes from the section that checks it: its help, its default, its bounds, and what it takes."""

from __future__ import annotations

import inspect
import itertools
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

from bnuq.cli import data, evaluate, methods, metrics, report
from bnuq.cli.derived import option
from bnuq.cli.output import Printing
from bnuq.config import Options, read_run_file, resolve
from bnuq.config.effects import without_effect
from bnuq.config.runfile import section_from
from bnuq.config.schema import (
    DataSection,
    GivenOptions,
    InspectSection,
    ModelSection,
    PreciseBnSection,
    RecordedOptions,
    SamplingSection,
    ScoreSection,
    ScoringSection,
    Section,
    SweepSection,
    extra_of,
)
from bnuq.errors import RequestError
from bnuq.studies.check import command as check
from bnuq.studies.inspect import command as inspection
from bnuq.studies.precise_bn import command as precise_bn
from bnuq.studies.score import command as score
from bnuq.studies.sweep import command as sweep

COMMANDS = {
    "evaluate": evaluate, "score": score, "sweep-batch-size": sweep, "inspect": inspection, "precise-bn": precise_bn,
    "check": check, "report": report, "data": data, "metrics": metrics, "methods": methods,
}  # fmt: skip
SECTIONS = [
    ModelSection, DataSection, SamplingSection, ScoreSection, ScoringSection, SweepSection, InspectSection,
    PreciseBnSection, GivenOptions, Printing,
]  # fmt: skip


def written(module: Any) -> list[str]:
    """The parameters that a command's function is written with."""
    source = inspect.getsource(module)
    body = source[source.index("def command(") :]
    return re.findall(r"^    (\w+): ", body[: body.index(") -> None:")], flags=re.MULTILINE)


@pytest.mark.parametrize("name", COMMANDS)
def test_no_command_is_written_with_more_than_12_parameters(name: str) -> None:
    assert len(written(COMMANDS[name])) <= 12


@pytest.mark.parametrize("width", [80, 120])
@pytest.mark.parametrize("name", ["", *COMMANDS])
def test_help_comes_in_panels_as_wide_as_the_terminal_with_nothing_cut_off(cli, monkeypatch, name, width):
    monkeypatch.setenv("COLUMNS", str(width))
    lines = cli(*name.split(), "--help", "all").out.splitlines()
    assert lines[0].startswith("Usage: bnuq")
    assert max(map(len, lines)) <= width
    panels = [line.split(" ─")[0] for line in lines if line.endswith("──")]
    if name:
        assert next(panel for panel in panels if panel != "Arguments") == "Common options"
    cut = [line for line in lines if "…" in line and "16,32,…,2048" not in line]
    assert not cut and len(panels) == len(set(panels))


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        ("sweep-batch-size", "--criterion elbo|pll|auroc "),
        ("evaluate", "--device auto|cpu|cuda "),
        ("evaluate", "--fit crps|pll "),
        ("evaluate", "--mutual-information NAME "),
        ("report", "--format svg|png "),
        ("", "Monte Carlo Batch Normalization (MCBN)"),
        ("", "evidence lower bound (ELBO)"),
    ],
)
def test_help_shows_values_that_fit_and_spells_out_abbreviations(cli: Any, command: str, shown: str) -> None:
    assert shown in " ".join(cli(*command.split(), "--help", "all").out.split())


def test_help_goes_to_a_stream_of_ascii_without_question_marks_for_lines(cli: Any, monkeypatch: Any) -> None:
    import io
    import sys

    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    monkeypatch.setattr(sys, "stdout", stream)
    assert cli("precise-bn", "--help").code == 0
    stream.flush()
    shown = stream.buffer.getvalue().decode()  # type: ignore
    assert "Common options ---" in shown and "?" not in shown


@pytest.mark.parametrize("section", SECTIONS, ids=lambda section: section.__name__)
def test_every_option_has_a_help_of_whole_sentences(section: type[Section]) -> None:
    helped = [setting for setting in msgspec.structs.fields(section) if "panel" in extra_of(setting.type)]
    assert helped
    assert all(str(option(section, setting.name).help).endswith(".") for setting in helped)


@pytest.mark.parametrize(
    ("command", "name", "default"),
    [
        ("evaluate", "--samples", "64"),
        ("evaluate", "--seed", "0"),
        ("evaluate", "--mc-error", "0.02"),
        ("evaluate", "--max-samples", "1024"),
        ("evaluate", "--layers", "all"),
        ("evaluate", "--pll", "mixture"),
        ("evaluate", "--out", "MODEL.bnuq.h5"),
        ("sweep-batch-size", "--samples", "20"),
        ("sweep-batch-size", "--kl-weight", "1"),
        ("sweep-batch-size", "--draw-sets", "5"),
        ("sweep-batch-size", "--out", "MODEL.sweep.h5"),
        ("inspect", "--samples", "16"),
        ("inspect", "--points", "10000"),
        ("precise-bn", "--estimator", "population"),
    ],
)
def test_help_shows_the_default(cli: Any, command: str, name: str, default: str) -> None:
    shown = " ".join(cli(command, "--help", "all").out.split())
    after = shown[re.search(rf"{name} [A-Z]", shown).start() :]  # type: ignore
    assert after.partition("[default: ")[2].partition("]")[0] == default


NUMBERS = [
    "0x10", "１２", "٣", "1_000", "1e3", "1.0", "null", "true", "", " ", "nan", "inf", "1" + "0" * 30, "9" * 5000,
]  # fmt: skip


@pytest.fixture
def run_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The working folder holds a run file and nothing else: options are refused before anything is read."""
    monkeypatch.chdir(tmp_path)
    Path("run.toml").write_text('[model]\ncheckpoint = "model.pt"\n')


@pytest.mark.parametrize(
    ("name", "text"),
    [  # every text with one option, and two of them with every option
        *(("-T", text) for text in NUMBERS),
        *itertools.product(["--limit", "--seed", "-b", "--bank", "--chunk-size", "--max-samples"], ["1_000", ""]),
    ],
    ids=ascii,
)
@pytest.mark.usefixtures("run_file")
def test_a_whole_number_is_one_of_ascii_digits_within_its_bounds(cli: Any, name: str, text: str) -> None:
    done = cli("evaluate", "run.toml", name, text)
    long = {"-T": "--samples", "-b": "--batch-size"}.get(name, name)
    shown = f'"{text}"' if not text.strip() else text[:70]
    assert done.code == 2 and done.message.startswith(f"{long} is {shown}")
    assert "; expected a whole number" in done.message and len(done.message) < 200


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(("--tau", text) for text in ["nan", "-inf", "0x1p3", "１.５", "1_0", "null", "", "few"]),
        *itertools.product(["--kl-weight", "--prior-precision"], ["nan", "１.５"]),
    ],
    ids=ascii,
)
@pytest.mark.usefixtures("run_file")
def test_a_number_is_one_of_ascii_digits_within_its_bounds(cli: Any, name: str, text: str) -> None:
    done = cli("sweep-batch-size", "run.toml", f"{name}={text}")
    shown = text or '""'
    assert done.code == 2 and done.message.startswith(f"{name} is {shown}; expected a number")


@pytest.mark.parametrize(
    ("command", "name", "text", "expected"),
    [
        ("sweep-batch-size", "--batch-sizes", "32,few", "whole numbers from 1 to 10^12, such as 32,128,512."),
        ("sweep-batch-size", "--batch-sizes", "32,", "whole numbers from 1 to 10^12, such as 32,128,512."),
        ("sweep-batch-size", "--batch-sizes", "１６,32", "whole numbers from 1 to 10^12, such as 32,128,512."),
        ("sweep-batch-size", "--draw-sets", "1", "a whole number of at least 2."),
        ("sweep-batch-size", "--train-points", "0", "a whole number of at least 1."),
        ("sweep-batch-size", "--prior", "none", "unit, gaussian, weight_decay, flat or gamma."),
        ("sweep-batch-size", "--prior-mean", "1", "a finite mean and a variance above 0, such as 0,1."),
        ("sweep-batch-size", "--prior-mean", "nan,1", "a finite mean and a variance above 0, such as 0,1."),
        ("sweep-batch-size", "--prior-mean", "0,0", "a finite mean and a variance above 0, such as 0,1."),
        ("sweep-batch-size", "--prior-deviation", "a,1", "a finite mean and a variance above 0, such as 0,1."),
        ("sweep-batch-size", "--criterion", "rmse", "elbo, pll or auroc."),
        ("inspect", "--points", "7", "a whole number of at least 8."),
        ("inspect", "--draws", "10^9", "a whole number."),
        ("inspect", "--input-shape", "3,0", "whole numbers, such as 3,32,32."),
    ],
)
@pytest.mark.usefixtures("run_file")
def test_a_bad_setting_is_shown_as_it_was_typed(cli: Any, command: str, name: str, text: str, expected: str) -> None:
    done = cli(command, "run.toml", name, text)
    assert (done.code, done.message) == (2, f"{name} is {text}; expected {expected}")


@pytest.mark.parametrize(
    ("given", "key", "value"),
    [
        ({"batch_size": 0}, "sampling.batch_size", "0"),
        ({"seed": -1}, "sampling.seed", "-1"),
        ({"max_samples": 8}, "sampling.max_samples", "8"),
        ({"noise_model_draws": 3}, "sampling.noise_model_draws", "3"),
    ],
)
def test_option_and_run_file_are_held_to_the_same_bounds(tmp_path: Any, given: Any, key: str, value: str) -> None:
    path = tmp_path / "run.toml"
    path.write_text('[model]\ncheckpoint = "m.pt"\n')
    (name,) = given
    with pytest.raises(RequestError) as of_option:
        resolve("run.toml", Options(given), folder=tmp_path)
    path.write_text(f"[sampling]\n{name} = {value}\n")
    with pytest.raises(RequestError) as of_file:
        read_run_file(path)
    assert str(of_option.value).partition("; ")[2] == str(of_file.value).partition("; ")[2]
    assert str(of_option.value).startswith(f"--{name.replace('_', '-')} is {value}; ")
    assert str(of_file.value).startswith(f"{path}: {key} is {value}; ")


def test_what_is_not_given_is_left_to_the_run_file_and_none_is_not_given(tmp_path: Any) -> None:
    (tmp_path / "run.toml").write_text('[model]\ncheckpoint = "m.pt"\n[scoring]\ntau = 2.0\npll = "moment"\n')
    run = resolve("run.toml", Options(tau=None, crps="fair", pll="mixture"), folder=tmp_path)
    assert (run.scoring.tau, run.scoring.crps, run.scoring.pll) == (2.0, "fair", "mixture")


def test_a_section_that_no_run_file_holds_is_settled_alone() -> None:
    assert section_from(InspectSection, {"points": 8}).draws == InspectSection().draws
    with pytest.raises(RequestError, match=r"^--points is 7; expected a whole number of at least 8\.$"):
        section_from(InspectSection, {"points": 7})


def test_leave_to_run_code_is_an_option_and_not_kept() -> None:
    recorded = {field.name for field in msgspec.structs.fields(RecordedOptions)}
    given = {field.name for field in msgspec.structs.fields(GivenOptions)}
    assert given - recorded == {"out", "on", "download", "trust_pickle", "trust_code"}


def test_a_setting_has_an_effect_if_something_that_it_needs_is_there() -> None:
    record = {"data": {"augment": {"scale": [0.5, 0.9], "pad_mode": "reflect", "pad": 2}, "interpolation": "nearest"}}
    record |= {"scoring": {"tau": 2.0}, "certificate": {"confidence": 0.9}, "tta": {"ratio": [0.5, 2.0]}}
    found = dict(without_effect(record, {"a regression"}))
    assert found.pop("tta") == "a method of test-time augmentation"  # said once, for all of it
    assert found == {
        "data.augment.scale": "data.augment.resized_crop",
        "data.interpolation": "data.resize or data.augment.resized_crop or tta.resized_crop or images of another size",
        "certificate.confidence": "certificate.risk",
    }
    assert "scoring.tau" in dict(without_effect(record, {"a classification"}))
    of_data = {"data": {"target": "y", "group": "lab", "classes": ["a"], "palette": "p.txt"}}
    assert [*dict(without_effect(of_data, {"a table", "masks"}))] == ["data.group", "data.classes"]


def test_a_help_with_many_options_shows_the_common_ones_in_a_screen(cli) -> None:
    lines = cli("evaluate", "--help").out.splitlines()
    assert len(lines) <= 40 and "--ood REF" in " ".join(lines) and "--mc-error" not in " ".join(lines)
    assert lines[-1] == "`bnuq evaluate --help all` explains them in full, and 59 more options."
