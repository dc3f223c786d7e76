"""The noise of BatchNorm on a network of the user's, beside the published: record, report, command."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run
from findings_of import warned

from bnuq.cli.main import main as bnuq_main
from bnuq.config import Options, resolve
from bnuq.errors import RequestError
from bnuq.findings import warning
from bnuq.records.inspection import Inspection, read, write
from bnuq.report.render import print_record
from experiments.__main__ import main
from experiments.bn_noise import PUBLISHED, panels, report, reproduce


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    small_run.write(path)
    np.savez(path / "train.npz", x=np.random.default_rng(0).normal(0.5, 0.3, (600, 1, 6, 6)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def found(folder: Path) -> Inspection:
    run = resolve("run.toml", Options(device="cpu", out=folder / "noise.h5"), folder=folder)
    return reproduce(run, batch_size=16, draws=80, points=300)


def test_it_is_an_inspection_of_the_noise_alone(found):
    assert found.gap is None and found.noise is not None
    assert (found.noise.draws, found.noise.batch_size, found.noise.sizes) == (80, 16, (4, 8, 16, 30, 60))
    assert read(found.path).noise is not None
    assert not any(code.startswith("reference") for code in warned(found))


def test_the_noise_of_the_first_layer_falls_as_one_over_the_size(found):
    [layer] = found.noise.layers
    assert layer.slope is not None and layer.slope.value == pytest.approx(-1, abs=0.15)
    # a convolution of independent pixels: neighbours share some, so that its values are fewer than they seem
    assert 16 * 4 < layer.values_mean < layer.nominal


def test_the_published_deviations_are_far_above_the_law_of_independent_values():
    n = PUBLISHED.batch_size * np.array(PUBLISHED.positions)
    assert len(PUBLISHED.sigma_u) == 9 and n.tolist() == [32768] * 2 + [8192] * 3 + [2048] * 4
    excess = np.array(PUBLISHED.sigma_u) * np.sqrt(2 * n)
    assert excess.min() == pytest.approx(1.7, abs=0.05) and excess.max() == pytest.approx(12.8, abs=0.1)


def test_the_report_has_the_three_panels_and_the_published_network(found):
    sections = {section.title: section for section in report(found).sections}
    assert [picture.kind for picture in report(found).pictures] == [("bn-noise",)]
    table, legend = sections["The published network"].parts
    assert [label for label, _ in table.rows] == [f"layer {place}" for place in range(1, 10)]
    assert table.rows[-1][1][1].value == "0.071" and "Shekhovtsov & Flach 2018" in legend.text
    assert report(found).summary == tuple(panels(found.noise)) and len(report(found).summary) >= 3


@pytest.mark.parametrize("width", [40, 100])
def test_the_report_fits_every_width(found, width):
    stream = io.StringIO()
    print_record(report, found, stream, width=width)
    assert all(len(line) <= width or line == str(found.path) for line in stream.getvalue().splitlines())
    assert "Warnings" not in stream.getvalue()


def test_warnings_are_shown_with_what_to_do(found):
    dead = replace(found, findings=(warning("dead-channels", layers=[["1", 2]]),))
    [(text, code, remedy)] = report(dead).warnings
    assert text and code == "dead-channels" and remedy


def test_a_network_without_batchnorm_is_refused(tmp_path):
    small_run.write(tmp_path, norm=False, text=small_run.RUN.replace("[data]", "arch_args = { norm = false }\n[data]"))
    run = resolve("run.toml", Options(out=tmp_path / "x.h5"), folder=tmp_path)
    with pytest.raises(RequestError, match="there is no noise to measure: the network has no BatchNorm layer"):
        reproduce(run)
    assert not run.out.exists()


def test_the_command_draws_the_panels_and_prints_json(folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    asked = ["bn-noise", "run.toml", "-b", "16", "--draws", "16", "--figures", "pictures"]
    with pytest.raises(SystemExit) as leave:
        main([*asked, "--json"])
    said = capsys.readouterr()
    assert (leave.value.code, said.err) == (0, "")
    told = json.loads(said.out)
    assert told["published"]["sigma_u"][0] == 0.05 and told["noise"]["draws"] == 16
    assert (folder / "reproduce-bn-noise.h5").is_file()
    assert {path.name for path in (folder / "pictures").iterdir()} == {"bn-noise.svg", "bn-noise.png"}
    with pytest.raises(SystemExit):
        main(["report", "reproduce-bn-noise.h5"])
    shown = capsys.readouterr().out
    assert "bnuq experiments bn-noise" in shown and "The published network" in shown
    with pytest.raises(SystemExit) as leave:
        bnuq_main(["report", "reproduce-bn-noise.h5"])  # to bnuq it is an inspection
    assert leave.value.code == 0 and "bnuq inspect" in capsys.readouterr().out


def test_an_inspection_of_more_than_the_noise_is_left_to_bnuq_report(found, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write(replace(found, run={**found.run, "inspect": {}}), tmp_path / "inspect.h5")
    with pytest.raises(SystemExit) as leave:
        main(["report", "inspect.h5"])
    assert leave.value.code == 2
    expected = "bnuq: inspect.h5 is not a result of an experiment. Show it with: bnuq report inspect.h5\n"
    assert capsys.readouterr().err == expected
