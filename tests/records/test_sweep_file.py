"""The file of a sweep over mini-batch sizes: it gives back what went in, and is refused where it is damaged."""

from __future__ import annotations

import json
import math
import shutil
from dataclasses import asdict, replace
from pathlib import Path

import numpy as np
import pytest
import small_sweep
from records_at_rest import edited

from bnuq.errors import ResultError
from bnuq.estimates import Estimate
from bnuq.findings import note
from bnuq.records import evaluation_file as result_file
from bnuq.records.as_json import json_of as summary
from bnuq.studies.sweep.record import Elbo, read, write


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a sweep of both protocols."""
    path = tmp_path_factory.mktemp("kept") / "sweep.h5"
    write(small_sweep.both(), path)
    return path


# ── what went in ─────────────────────────────────────────────────────────────────────────────────────────────────────


def test_numbers_that_are_none_or_not_finite_come_back_as_they_were(tmp_path):
    plain = small_sweep.single()
    first, second, *others = plain.points
    bare = small_sweep.repeated(0.0, np.random.default_rng(0), mc=0.0, se=0.0)
    spoiled = replace(
        first,
        train_batch_size=None,
        estimates={
            **first.estimates,
            "pll": {"test": replace(bare, estimate=Estimate(-math.inf), of_sets=np.full(5, -np.inf))},
            "ece": {"test": replace(bare, estimate=Estimate(math.nan), of_sets=np.full(5, np.nan))},
            "accuracy": {"test": replace(bare, of_sets=np.array([0.5, 0.25]))},
        },
        auroc={"mutual_information": {"pcbdigits32": bare}},
        elbo=Elbo(Estimate(math.nan), Estimate(-3.0, se=1.0, mc_se=0.5), math.inf, np.zeros(0)),
    )
    estimates = {metric: by for metric, by in second.estimates.items() if metric != "predictive_entropy"}
    made = replace(
        plain,
        points=(replace(second, estimates=estimates, auroc={}, elbo=None), *others, spoiled),
        models=(small_sweep.network(name="网络.pt", trained=None),),
        recommended=None,
    )
    path = tmp_path / "sweep.h5"
    write(made, path)
    again = read(path)
    np.testing.assert_equal(asdict(again), asdict(replace(made, path=path)))
    json.dumps(summary(again), allow_nan=False)


def test_a_recommendation_keeps_what_is_not_finite_and_what_is_unknown(tmp_path):
    made = small_sweep.single()
    assert made.recommended is not None
    chosen = replace(
        made.recommended,
        behind={64: Estimate(0.0), 32: Estimate(-math.inf), 128: Estimate(math.nan, mc_se=math.inf)},
        predicted_batch_size=Estimate(math.inf),
    )
    write(replace(made, recommended=chosen), tmp_path / "sweep.h5")
    np.testing.assert_equal(asdict(read(tmp_path / "sweep.h5").recommended), asdict(chosen))


def test_long_records_and_many_layers_find_room(tmp_path):
    """HDF5 has no room for an attribute of more than 64 kB in an object's header."""
    layer = small_sweep.terms().layers[0]
    layers = tuple(replace(layer, name=f"stage.{n}.block.with.a.long.name.bn{n % 3}") for n in range(600))
    long = small_sweep.network(
        elbo=small_sweep.terms(layers=layers),
        layers=tuple(one.name for one in layers),
        record={"data": {"train": "x"}, "long": ["word" * 20] * 3000},
    )
    made = small_sweep.single()
    made = replace(made, models=(long,), findings=(note("long", text="a note " * 20_000),))
    write(made, tmp_path / "sweep.h5")
    assert read(tmp_path / "sweep.h5").models[0] == long


# ── other people's readers ───────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.filterwarnings("ignore")
def test_xarray_finds_every_estimate_by_its_coordinates(kept):
    xarray = pytest.importorskip("xarray")
    pytest.importorskip("h5netcdf")
    made = small_sweep.both()
    with xarray.open_dataset(kept, group="estimates", engine="h5netcdf") as opened:
        table = opened[["value", "batch_size", "protocol", "metric", "set", "score", "unit"]].to_dataframe()
    row = table.query(
        "batch_size == '64' and protocol == 'single' and metric == 'mutual_information' and set == 'svhn'"
    )
    assert row["value"].item() == made.points[1].estimates["mutual_information"]["svhn"].estimate.value
    assert row["unit"].item() == "nats"
    assert len(table.query("score == 'mutual_information'")) > 3


# ── files that somebody spoiled: what types cannot state ─────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda record: record.update(points=[]), "its networks or its sizes are missing"),
        (lambda record: record["points"][0].update(model=9), "belongs to no network"),
        (lambda record: record["sets"].append(record["sets"][0]), "two have one name"),
        (lambda record: record.update(score="odd"), "the score odd is unknown"),
        (lambda record: record["recommended"].update(batch_size=77), "recommends is not one of its sizes"),
        (lambda record: record["points"][0].update(batch_size=0), "Expected `int` >= 1"),
        (lambda record: record["points"][0].update(compared_with={"deterministic": {}}), "compared with deterministic"),
    ],
)
def test_a_sweep_that_cannot_be_is_refused(kept, tmp_path, change, said):
    path = Path(shutil.copy(kept, tmp_path / "spoiled.h5"))
    with edited(path) as record:
        change(record)
    with pytest.raises(ResultError, match=said):
        read(path)


# ── the summary ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_summary_has_every_point_with_its_estimates_by_set(kept):
    made = small_sweep.both()
    told = json.loads(json.dumps(summary(read(kept)), allow_nan=False))
    assert (told["command"], told["kind"], told["schema"]) == ("sweep-batch-size", "sweep", 2)
    assert told["result"] == str(kept)
    assert (told["samples"], told["draw_sets"], told["seed"], told["stopped"]) == (20, 5, 0, "full-grid")
    assert told["models"][0]["layers"] == ["conv1", "bn.2"] and told["points"][0]["draw_sets"] == 5
    assert {"name": "svhn", "role": "ood", "n": 900, "sha256": "bb"} in told["sets"]
    first, *_, last = told["points"]
    assert len(told["points"]) == 10
    assert (first["batch_size"], first["train_batch_size"], first["protocol"]) == (32, 128, "single")
    assert told["models"][first["model"]]["name"] == "resnet.pt" and not first["degenerate"]
    estimate = made.points[0].estimates["mutual_information"]["svhn"].estimate
    keys = ("value", "se", "mc_se", "low", "high")
    assert first["estimates"]["mutual_information"]["svhn"]["estimate"] == {key: getattr(estimate, key) for key in keys}
    assert set(first["auroc"]["mutual_information"]) == set(small_sweep.OOD)
    elbo = made.points[0].elbo
    assert elbo is not None and first["elbo"]["kl"] == elbo.kl
    assert first["elbo"]["elbo"] == {"value": elbo.elbo.value, "mc_se": elbo.elbo.mc_se}
    whole = told["points"][6]
    assert whole["degenerate"] and whole["elbo"] is None
    assert last["protocol"] == "matched" and told["models"][last["model"]]["name"] == "m512.pt"


def test_the_summary_tells_the_recommendation_and_what_it_rests_on(kept):
    told = summary(read(kept))
    chosen = told["recommended"]
    assert (chosen["batch_size"], chosen["criterion"], chosen["within"]) == (64, "elbo", [32, 64])
    assert chosen["predicted_batch_size"] == {"value": 88.4, "mc_se": 2.9}
    assert chosen["decided_by"] == "likelihood and prior" and chosen["model"] == 0
    assert set(chosen["behind"]) == {"32", "64", "128", "256", "512", "1024"}
    assert chosen["behind"]["64"]["value"] == 0
    model, other, *_ = told["models"]
    assert model["elbo"]["prior"] == "unit" and model["elbo"]["train_size"] == 50_000
    assert model["elbo"]["layers"][1] == {
        "name": "bn.2", "channels": 64, "nominal": 64.0, "mean": 8.5, "sd": "nan",
    }  # fmt: skip
    assert model["decay"]["test"]["slope"]["low"] == -1.04 and other["decay"] == {}
    assert summary(replace(small_sweep.single(), recommended=None))["recommended"] is None


def test_a_sweep_that_is_taken_for_an_evaluation_is_told_as_what_it_is(tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    write(small_sweep.single(), path)
    with pytest.raises(ResultError, match="is not a result file of bnuq evaluate, but of bnuq sweep-batch-size"):
        result_file.read(path)
