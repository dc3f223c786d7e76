"""Post-hoc scores of whole evaluations, against the definitions on features that a hook took."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import small_run
import torch
from scipy.special import logsumexp
from sklearn.covariance import EmpiricalCovariance
from sklearn.neighbors import NearestNeighbors
from table import streamed_scores

from bnuq import metrics
from bnuq.config import Options, resolve
from bnuq.metrics import posthoc
from bnuq.records.evaluation import Result
from bnuq.workflows.evaluate import evaluate

pytestmark = pytest.mark.held(False)


def run(place: Path, **options) -> Result:
    return evaluate(resolve(str(place), Options(samples=8) | options, folder=place.parent))


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run.write(tmp_path_factory.mktemp("post-hoc") / "run")


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return run(place, methods=("deterministic",))


def features_of(place: Path, name: str) -> np.ndarray:
    model = small_run.stored(place.parent)
    taken: list[torch.Tensor] = []
    model[-1].register_forward_hook(lambda _module, inputs, _output: taken.append(inputs[0]))
    with torch.no_grad():
        model(torch.from_numpy(np.load(place.parent / f"{name}.npz")["x"]))
    return taken[0].double().numpy()


@pytest.mark.held
def test_every_score_is_its_definition_on_the_features_before_the_last_layer(place: Path, result: Result) -> None:
    train, labels = features_of(place, "train"), np.load(place.parent / "train.npz")["y"]
    last = torch.load(place.parent / "model.pt", weights_only=True)
    weight, bias = (last[f"7.{name}"].double().numpy() for name in ("weight", "bias"))
    means = np.stack([train[labels == c].mean(0) for c in range(3)])
    within = EmpiricalCovariance(assume_centered=True).fit(train - means[labels])
    total, clipped = EmpiricalCovariance().fit(train), np.percentile(train, 90)
    units = train / (np.linalg.norm(train, axis=1, keepdims=True) + 1e-10)
    for name in ("test", "other"):
        features = features_of(place, name)
        logits = features @ weight.T + bias
        nearest = np.min([within.mahalanobis(features - mean) for mean in means], axis=0)
        scaled = features / (np.linalg.norm(features, axis=1, keepdims=True) + 1e-10)
        expected = {
            "max_logit": -logits.max(1),
            "energy": -logsumexp(logits, axis=1),
            "react": -logsumexp(np.minimum(features, clipped) @ weight.T + bias, axis=1),
            "knn": NearestNeighbors(n_neighbors=50).fit(units).kneighbors(scaled)[0][:, -1],
            "mahalanobis": nearest,
            "relative_mahalanobis": nearest - total.mahalanobis(features),
        }
        points = result.methods["deterministic"].sets[name].points
        for score, values in expected.items():
            np.testing.assert_allclose(points[score], values, rtol=1e-3, atol=1e-4, err_msg=f"{score} of {name}")
    ood = result.methods["deterministic"].ood["other"]
    assert set(ood) == streamed_scores(single_sample=True) | {*metrics.FEATURE_SCORES}
    inside, outside = (result.methods["deterministic"].sets[name].points["vim"] for name in ("test", "other"))
    assert ood["vim"]["auroc"].value == pytest.approx(metrics.auroc(inside, outside))


def test_sampled_methods_have_the_mean_energy_of_their_samples(place: Path) -> None:
    result = run(place, methods=("mcbn",), save_samples=True, out="samples.h5")
    import h5py

    with h5py.File(place.parent / "samples.h5") as file:
        logits = file["posterior_predictive/mcbn_other"][0].astype(np.float64)
    points, ood = result.methods["mcbn"].sets["other"].points, result.methods["mcbn"].ood["other"]
    np.testing.assert_allclose(points["energy"], -logsumexp(logits, axis=-1).mean(0), rtol=1e-6)
    np.testing.assert_allclose(points["max_logit"], -logits.max(-1).mean(0), rtol=1e-6)
    assert ood["energy"]["auroc"].mc_se is not None
    assert not {*metrics.FEATURE_SCORES} & set(points)


def test_they_can_be_left_out(place: Path) -> None:
    result = run(place, post_hoc=False, methods=("deterministic",), out="without.h5")
    assert set(result.methods["deterministic"].ood["other"]) == streamed_scores(single_sample=True)
    assert result.run["sampling"]["post_hoc"] is False


def test_probabilities_have_the_logits_before_the_softmax(place: Path, result: Result) -> None:
    source = place.parent / "softmax.py"
    source.write_text(small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes), nn.Softmax(1),"))
    converted = run(
        place, arch=f"{source}:net", outputs="probabilities", methods=("deterministic",), out="probabilities.h5"
    )
    for score in (*metrics.LOGIT_SCORES, *metrics.FEATURE_SCORES):
        values = (each.methods["deterministic"].sets["other"].points[score] for each in (result, converted))
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-6)


def codes(result: Result) -> set[str]:
    return {finding.code for finding in result.findings}


def test_a_network_with_another_end_says_what_it_ends_in(place: Path) -> None:
    source = place.parent / "scaled.py"
    source.write_text(small_run.NET.replace("nn.Linear(8, classes),", "nn.Linear(8, classes), nn.Hardtanh(-99, 99),"))
    result = run(place, arch=f"{source}:net", methods=("deterministic",), out="end.h5")
    assert set(result.methods["deterministic"].ood["other"]) == streamed_scores(single_sample=True)
    (finding,) = (finding for finding in result.findings if finding.code == "no-post-hoc-scores")
    assert "hardtanh" in finding.values["reason"]


def test_a_reference_without_classes_has_no_mahalanobis_distance(place: Path) -> None:
    np.savez(place.parent / "unlabelled.npz", x=np.load(place.parent / "train.npz")["x"])
    result = run(place, train="unlabelled.npz", methods=("deterministic",), out="unlabelled.h5")
    assert "no-labels-of-reference" in codes(result)
    assert {"knn", "vim", "react"} <= set(result.methods["deterministic"].ood["other"])
    assert not {"mahalanobis", "relative_mahalanobis"} & set(result.methods["deterministic"].ood["other"])


@pytest.mark.nightly  # it is speed alone
def test_fitting_takes_at_most_a_fifth_of_the_passes_of_the_samples_of_the_test_set(place, monkeypatch):
    monkeypatch.setattr("bnuq.evaluation.posthoc._FEWEST_POINTS", 20)
    for number, ood in enumerate([("other.npz",), ("other.npz", "again=other.npz")]):  # whatever the other sets are
        result = run(place, methods=("mcdo",), samples=2, ood=ood, out=f"bounded{number}.h5")
        (finding,) = (finding for finding in result.findings if finding.code == "fitted-to-a-part")
        assert finding.values == {"points": 24}
    monkeypatch.setattr("bnuq.evaluation.posthoc._FEWEST_POINTS", 1000)
    assert "fitted-to-a-part" not in codes(run(place, methods=("mcdo",), samples=2, out="all.h5"))


def test_without_a_reference_only_scores_of_logits_are_there(place: Path) -> None:
    (place.parent / "no_train.toml").write_text(small_run.RUN.replace('train = "train.npz"\n', ""))
    result = run(place.parent / "no_train.toml", methods=("deterministic",), out="no_train.h5")
    assert "no-fitted-scores" in codes(result)
    of_layer = {name for name, each in metrics.SCORES.items() if each.score is not None and each.score.of_layer}
    assert set(result.methods["deterministic"].ood["other"]) == streamed_scores(single_sample=True) | of_layer


def test_distances_are_those_of_exact_products_whatever_the_user_set_for_torch(place: Path, monkeypatch) -> None:
    said = []

    def distance(*given):
        said.append(torch.get_float32_matmul_precision())
        return neighbour_distance(*given)

    neighbour_distance = posthoc.neighbour_distance
    monkeypatch.setattr(posthoc, "neighbour_distance", distance)
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        run(place, methods=("deterministic",))
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        torch.set_float32_matmul_precision(before)
    assert {*said} == {"highest"}
