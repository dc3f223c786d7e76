"""The noise of BatchNorm on a network of the user's, beside the published: record, report, command."""

from __future__ import annotations

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
from bnuq.studies.inspect.record import Inspection, read, write
from experiments.bn_noise import PUBLISHED, panels, report, reproduce


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("run")
    small_run.write(path)
    np.savez(path / "train.npz", x=np.random.default_rng(0).normal(0.5, 0.3, (600, 1, 6, 6)).astype(np.float32))
    return path


@pytest.fixture(scope="module")
def noise_record(folder: Path) -> Inspection:
    run = resolve("run.toml", Options(device="cpu", out=folder / "noise.h5"), folder=folder)
    return reproduce(run, batch_size=16, draws=80, points=300)


def test_it_is_an_inspection_of_the_noise_alone(noise_record):
    assert noise_record.gap is None and noise_record.noise is not None
    noise = noise_record.noise
    assert (noise.draws, noise.batch_size, noise.sizes) == (80, 16, (4, 8, 16, 30, 60))
    assert read(noise_record.path).noise is not None
    assert not any(code.startswith("reference") for code in warned(noise_record))


def test_the_noise_of_the_first_layer_falls_as_one_over_the_size(noise_record):
    [layer] = noise_record.noise.layers
    assert layer.slope is not None and layer.slope.value == pytest.approx(-1, abs=0.15)
    # a convolution of independent pixels: neighbours share some, so that its values are fewer than they seem
    assert 16 * 4 < layer.values_mean < layer.nominal


def test_the_published_deviations_are_above_those_of_independent_values_in_large_pictures_alone():
    positions = np.array(PUBLISHED.positions)
    assert len(PUBLISHED.sigma_u) == 9 and np.sqrt(positions).tolist() == [30, 28, 13, 11, 9, 4, 2, 2, 2]
    excess = np.array(PUBLISHED.sigma_u) * np.sqrt(2 * PUBLISHED.batch_size * positions)
    assert excess[:5].min() == pytest.approx(1.44, abs=0.01) and excess.max() == pytest.approx(12.0, abs=0.1)
    assert excess[5:].min() == pytest.approx(0.66, abs=0.01) and excess[5:].max() == pytest.approx(1.14, abs=0.01)


def test_the_report_has_the_three_panels_and_the_published_network(noise_record):
    sections = {section.title: section for section in report(noise_record).sections}
    assert [picture.kind for picture in report(noise_record).pictures] == [("bn-noise",)]
    table, legend = sections["The published network"].parts
    assert [label for label, _ in table.rows] == [f"layer {place}" for place in range(1, 10)]
    assert table.rows[-1][1][1].value == "0.071" and "Shekhovtsov & Flach 2018" in legend.text
    assert report(noise_record).summary == tuple(panels(noise_record.noise)) and len(report(noise_record).summary) >= 3


def test_warnings_are_shown_with_what_to_do(noise_record):
    dead = replace(noise_record, findings=(warning("dead-channels", layers=[["1", 2]]),))
    [(text, code, remedy)] = report(dead).warnings
    assert text and code == "dead-channels" and remedy


def test_a_network_without_batchnorm_is_refused(tmp_path):
    small_run.write(tmp_path, norm=False, text=small_run.RUN.replace("[data]", "arch_args = { norm = false }\n[data]"))
    run = resolve("run.toml", Options(out=tmp_path / "x.h5"), folder=tmp_path)
    with pytest.raises(RequestError, match="there is no noise to measure: the network has no BatchNorm layer"):
        reproduce(run)
    assert not run.out.exists()


def test_to_bnuq_its_result_is_an_inspection_and_its_json_has_the_published_estimates(
    noise_record, called, monkeypatch, capsys
):
    monkeypatch.chdir(noise_record.path.parent)
    code, printed, _ = called("report", "noise.h5", "--json")
    assert code == 0 and json.loads(printed)["published"]["sigma_u"][0] == 0.05
    with pytest.raises(SystemExit) as leave:
        bnuq_main(["report", "noise.h5"])
    assert leave.value.code == 0 and "bnuq report noise.h5 --full" in capsys.readouterr().out


def test_an_inspection_of_more_than_the_noise_is_left_to_bnuq_report(noise_record, called, tmp_path):
    write(replace(noise_record, run={**noise_record.run, "inspect": {}}), tmp_path / "inspect.h5")
    expected = "bnuq: inspect.h5 is not a result of an experiment. Show it with: bnuq report inspect.h5\n"
    assert called("report", "inspect.h5") == (2, "", expected)
