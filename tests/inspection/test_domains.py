"""Domains: how far their statistics lie from the reference's, and what points come to under another's statistics."""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from bnuq.config import Named, Normalize, PointSettings, Run
from bnuq.data import Points, points_of
from bnuq.data.points import Contents
from bnuq.errors import BnuqError, DataError, RequestError, SamplingError
from bnuq.evaluation.pipeline import Pipeline
from bnuq.sampling.site_search import find_sites
from bnuq.studies.inspect import domains as stage
from bnuq.studies.inspect.domains import domains
from bnuq.studies.inspect.record import Crossing, Domains

CLASSES, FEATURES = 3, 6
CENTRES = 2.5 * np.random.default_rng(7).normal(size=(CLASSES, FEATURES))


def blobs(n: int, seed: int, *, gain: float = 1.0, offset: float = 0.0) -> tuple[np.ndarray, np.ndarray]:
    """Three classes around three centres, as a laboratory of this gain and offset measures them."""
    random = np.random.default_rng(seed)
    y = random.integers(0, CLASSES, n)
    return (gain * (CENTRES[y] + random.normal(size=(n, FEATURES))) + offset).astype(np.float32), y


def points(name: str, x: np.ndarray, y: np.ndarray | None = None) -> Points:
    return points_of(Contents(x, y), name=name, reference=f"{name}.npz")


def network(outputs: int = CLASSES, *, tracked: bool = True) -> nn.Module:
    """A classifier that is trained in a few steps; its running statistics are kept up to the end."""
    x, y = (torch.from_numpy(part) for part in blobs(1024, 0))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Linear(FEATURES, 16), nn.BatchNorm1d(16, track_running_stats=tracked), nn.ReLU(),
            nn.Linear(16, 8), nn.BatchNorm1d(8, track_running_stats=tracked), nn.ReLU(), nn.Linear(8, outputs),
        )  # fmt: skip
        optimizer = torch.optim.Adam(net.parameters(), lr=0.02)
        for step in range(60):
            rows = slice(step % 16 * 64, step % 16 * 64 + 64)
            out = net(x[rows])
            loss = nn.functional.cross_entropy(out, y[rows]) if outputs > 1 else ((out[:, 0] - y[rows]) ** 2).mean()
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    return net.eval()


@cache
def shared() -> nn.Module:
    """The network of the tests that name no other."""
    return network()


class Laboratory:
    """A folder of domains, and what `domains` says of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def holds(self, name: str, x: np.ndarray, y: np.ndarray | None = None, group: np.ndarray | None = None) -> str:
        parts = {"x": x, "y": y, "group": group}
        np.savez(self.folder / f"{name}.npz", **{k: v for k, v in parts.items() if v is not None})
        return f"{name}.npz"

    def found(self, *references: str, net: nn.Module | None = None, **options: Any) -> tuple[Domains, tuple[str, ...]]:
        of_run = {key: options.pop(key) for key in ("limit", "seed", "task", "group", "layers") if key in options}
        net = net or shared()
        run = Run(Path("m.pt"), Path("m.h5"), **of_run)
        train = options.pop("train", None) or points("train", *blobs(600, 1))
        return domains(
            run,
            [Named(reference, self.folder) for reference in references],
            model=net,
            sites=find_sites(net, torch.from_numpy(train.raw(slice(0, 3)))),
            pipeline=Pipeline(PointSettings.of(run), torch.device("cpu"), options.pop("normalize", None)),
            train=train,
            test=options.pop("test", None),
            batch_size=64,
            samples=options.pop("samples", 8),
        )


@pytest.fixture
def laboratory(tmp_path) -> Laboratory:
    return Laboratory(tmp_path)


def table(crossings: tuple[Crossing, ...]) -> Mapping[tuple[str, str], Mapping[str, float]]:
    return {
        (one.domain, one.statistics): {name: estimate.value for name, estimate in one.estimates.items()}
        for one in crossings
    }


@pytest.mark.held(False)
def test_a_domain_of_the_same_distribution_lies_within_batch_noise(laboratory):
    ratios = []
    for seed in range(2):
        reference = laboratory.holds(f"same{seed}", *blobs(400, 10 + seed))
        (domain,) = laboratory.found(reference, seed=seed, samples=16)[0].domains
        assert domain.n == 400 and domain.labelled and domain.layers == ("1", "4")
        assert (domain.shift < 0.3).all() and (domain.log_ratio < 0.3).all()
        ratios += list(domain.ratio)
    assert np.median(ratios) == pytest.approx(1, abs=0.3)
    assert max(ratios) < 2.5


@pytest.mark.held(False)
def test_another_laboratory_is_told_by_the_first_layer_and_its_own_statistics_mend_its_accuracy(laboratory):
    near = laboratory.holds("near", *blobs(400, 2))
    far = laboratory.holds("far", *blobs(400, 3, gain=3.0, offset=8.0))
    before = {name: value.clone() for name, value in shared().state_dict().items()}
    found, notes = laboratory.found(near, far, test=points("test", *blobs(200, 4)))
    told = {one.name: one for one in found.domains}
    assert told["near"].ratio.max() < 3
    assert told["far"].ratio[0] > 10 and told["far"].shift[0] > 1 and told["far"].log_ratio[0] > 1
    assert told["far"].ratio[1] < told["far"].ratio[0]  # the first BatchNorm has undone most of it
    cells = table(found.crossings)
    assert set(cells) == {
        (domain, statistics)
        for domain in ("near", "far", "test")
        for statistics in ("running", "train", "near", "far", "mixed")
    }
    assert cells["far", "running"]["accuracy"] < 0.7 < 0.9 < cells["far", "far"]["accuracy"]
    assert cells["near", "far"]["accuracy"] < 0.7 < 0.9 < cells["near", "near"]["accuracy"]
    assert cells["far", "far"]["pll"] > cells["far", "mixed"]["pll"] > cells["far", "train"]["pll"]
    assert "mutual_information" not in cells["far", "running"]
    assert all(cell["mutual_information"] > 0 for (_, source), cell in cells.items() if source != "running")
    assert (found.batch_size, found.samples) == (20, 8)
    (smaller,) = notes
    assert smaller.code == "domain-batch-size" and smaller.values["variance_left"] == pytest.approx(0.9, abs=0.005)
    assert [smaller.values[key] for key in ("batch_size", "requested", "smallest", "points")] == [20, 64, "near", 200]
    assert all(torch.equal(value, before[name]) for name, value in shared().state_dict().items())
    assert table(laboratory.found(near, far, test=points("test", *blobs(200, 4)))[0].crossings) == cells


def test_estimates_are_their_definition(laboratory):
    x, y = blobs(200, 5)
    found, _ = laboratory.found(laboratory.holds("lab", x, y))
    by_place = {(one.domain, one.statistics): one.estimates for one in found.crossings}
    (gains,) = [one.gains for one in found.crossings if one.statistics == one.domain]
    change, own, running = gains["pll"], by_place["lab", "lab"]["pll"], by_place["lab", "running"]["pll"]
    assert change.value == pytest.approx(own.value - running.value)
    assert change.se < 0.5 * math.hypot(own.se, running.se), "over the examples that both share"
    _, second = stage._halves(points("lab", x, y), 0)
    inputs, labels = torch.from_numpy(second.raw(slice(None))), torch.from_numpy(second.targets)
    with torch.inference_mode():
        logits = shared()(inputs)
    accuracy, pll = by_place["lab", "running"]["accuracy"], by_place["lab", "running"]["pll"]
    hits = (logits.argmax(1) == labels).double()
    assert accuracy.value == pytest.approx(float(hits.mean()))
    assert accuracy.se == pytest.approx(float(hits.std() / len(hits) ** 0.5))
    assert pll.value == pytest.approx(-float(nn.functional.cross_entropy(logits.double(), labels)), rel=1e-6)
    assert accuracy.mc_se is None
    spread = by_place["lab", "train"]["mutual_information"]
    assert spread.se is not None and spread.mc_se is not None and spread.mc_se > 0


def test_statistics_are_those_of_the_half_that_is_not_evaluated(laboratory):
    x, y = blobs(256, 6)
    found, _ = laboratory.found(laboratory.holds("lab", x, y))
    first, second = stage._halves(points("lab", x, y), 0)
    assert len(first) == len(second) == 128
    assert sorted(map(tuple, np.concatenate([first.raw(slice(None)), second.raw(slice(None))]))) == sorted(
        map(tuple, x)
    )
    layer = shared().get_submodule("0")
    with torch.inference_mode():
        h = layer(torch.from_numpy(first.raw(slice(None)))).double()
        reference = layer(torch.from_numpy(points("train", *blobs(600, 1)).raw(slice(None)))).double()
    shift = (h.mean(0) - reference.mean(0)) / reference.std(0, unbiased=False)
    (domain,) = found.domains
    assert domain.shift[0] == pytest.approx(float((shift**2).mean().sqrt()), rel=1e-3)
    logs = (h.var(0, unbiased=False) / reference.var(0, unbiased=False)).log().abs()
    assert domain.log_ratio[0] == pytest.approx(float(logs.mean()), rel=1e-3)


def test_whole_groups_go_to_one_half():
    x, y = blobs(120, 8)
    grouped = points_of(Contents(x, y, group=np.repeat(np.arange(12), 10)), name="lab", reference="lab.npz")
    for seed in range(5):
        first, second = stage._halves(grouped, seed)
        assert first.group is not None and second.group is not None
        assert not set(first.group) & set(second.group)
        assert (len(first), len(second)) == (60, 60)


def test_mixed_batches_hold_equal_shares_that_take_turns():
    parts = tuple(points(str(k), np.full((40, 2), k, dtype=np.float32)) for k in range(3))
    source = stage._PointSource("mixed", parts)
    pipeline = Pipeline(PointSettings(), torch.device("cpu"))
    counts = [
        np.bincount(source.drawn(pipeline, t, 10, (0, 1))[:, 0].numpy().astype(int), minlength=3) for t in range(3)
    ]
    assert all(count.sum() == 10 and count.max() - count.min() == 1 for count in counts)
    assert np.sum(counts, axis=0).tolist() == [10, 10, 10]


def test_what_is_said_of_a_domain_does_not_depend_on_the_others(laboratory):
    one, other = laboratory.holds("one", *blobs(300, 2)), laboratory.holds("other", *blobs(300, 3, gain=2.0))
    alone, together = laboratory.found(one)[0], laboratory.found(other, one)[0]
    np.testing.assert_array_equal(alone.domains[0].ratio, together.domains[1].ratio)
    a, b = table(alone.crossings), table(together.crossings)
    for statistics in ("running", "train", "one"):
        assert a["one", statistics] == pytest.approx(b["one", statistics], rel=1e-6)


def test_without_labels_there_is_mutual_information_alone(laboratory):
    found, _ = laboratory.found(laboratory.holds("lab", blobs(200, 2)[0]))
    assert not found.domains[0].labelled
    assert [one.statistics for one in found.crossings] == ["train", "lab", "mixed"]
    assert {name for one in found.crossings for name in one.estimates} == {"mutual_information"}


def test_small_domains_cut_the_mini_batches_of_all_and_limit_cuts_what_is_evaluated(laboratory):
    small, large = laboratory.holds("small", *blobs(40, 2)), laboratory.holds("large", *blobs(300, 3))
    found, notes = laboratory.found(small, large, limit=25)
    assert found.batch_size == 8
    (smaller,) = notes
    assert smaller.code == "domain-batch-size" and smaller.values["variance_left"] == pytest.approx(0.63, abs=0.005)
    assert [smaller.values[key] for key in ("batch_size", "requested", "smallest", "points")] == [8, 64, "small", 20]


@pytest.mark.held(False)
def test_mutual_information_does_not_tell_a_large_domain_from_a_small_one_of_the_same_points(laboratory):
    small, large = laboratory.holds("small", *blobs(65, 2)), laboratory.holds("large", *blobs(600, 3))
    found, notes = laboratory.found(small, large, samples=64)
    assert found.batch_size == 8 and (notes[0].values["smallest"], notes[0].values["points"]) == ("small", 33)
    assert notes[0].values["variance_left"] == pytest.approx(0.78, abs=0.005)
    cells = table(found.crossings)
    told = {source: cells["large", source]["mutual_information"] for source in ("small", "large", "train")}
    assert 0.6 * told["large"] < told["small"] < 1.2 * told["large"]
    assert told["large"] == pytest.approx(told["train"], rel=0.2)


@pytest.mark.parametrize("wanted", [16, 64])
def test_large_sets_need_no_note(wanted):
    sets = {"lab": points("lab", np.zeros((640, 2), np.float32))}
    assert stage._batch_size(wanted, sets, points("train", np.zeros((900, 2), np.float32))) == (wanted, ())


@pytest.mark.nightly
def test_mutual_information_is_that_of_the_layers_that_are_sampled(laboratory):
    lab = laboratory.holds("lab", *blobs(200, 2))
    every, last, named = (laboratory.found(lab, layers=layers)[0] for layers in ("all", "last:1", ("1", "4")))
    spread = {
        what: table(one.crossings)["lab", "lab"]["mutual_information"] for what, one in (("all", every), ("4", last))
    }
    assert 0 < spread["4"] < 0.9 * spread["all"]
    np.testing.assert_array_equal(every.domains[0].ratio, last.domains[0].ratio)  # which tells of all layers
    assert table(every.crossings) == table(named.crossings)
    with pytest.raises(RequestError, match='"head" matches no stochastic BatchNorm layer'):
        laboratory.found(lab, layers="head")
    with pytest.raises(SamplingError, match="BatchNorm 1 keeps no running statistics and layers leaves it out"):
        laboratory.found(lab, layers="last:1", net=network(tracked=False))


def test_channels_that_are_dead_in_both_are_left_out_and_one_that_only_the_domain_has_is_told(laboratory):
    net = nn.Sequential(nn.BatchNorm1d(2, eps=1e-3), nn.Linear(2, CLASSES)).eval()
    random = np.random.default_rng(0)

    def table_of(seed: int, first: float) -> np.ndarray:
        other = 1e-6 * np.random.default_rng(seed).normal(size=200)
        return np.stack([first * random.normal(size=200), other], axis=1).astype(np.float32)

    train = points("train", table_of(1, 1.0), np.zeros(200, int))
    same = laboratory.found(laboratory.holds("same", table_of(2, 1.0) + np.float32(5e-6)), net=net, train=train)[0]
    assert same.domains[0].ratio[0] < 3
    lively = np.stack([random.normal(size=200), random.normal(size=200)], axis=1).astype(np.float32)
    other = laboratory.found(laboratory.holds("other", lively), net=net, train=train)[0]
    assert np.isfinite(other.domains[0].ratio).all() and other.domains[0].ratio[0] > 10
    still = points("train", np.ones((200, 2), np.float32), np.zeros(200, int))
    none = laboratory.found(laboratory.holds("still", np.ones((200, 2), np.float32)), net=net, train=still)[0]
    assert np.isnan(none.domains[0].ratio).all() and np.isnan(none.domains[0].shift).all()


def test_networks_without_running_statistics_have_no_running_column(laboratory):
    found, _ = laboratory.found(laboratory.holds("lab", *blobs(200, 2)), net=network(tracked=False))
    assert {one.statistics for one in found.crossings} == {"train", "lab", "mixed"}


def test_a_regression_has_rmse_and_variance(laboratory):
    x, y = blobs(300, 2)
    net = network(1)
    lab = laboratory.holds("lab", x, y.astype(np.float64)[:, None] + 0.5)
    train = points("train", blobs(600, 1)[0], blobs(600, 1)[1] + 0.5)
    found, _ = laboratory.found(lab, net=net, train=train, task="regression")
    by_place = {(one.domain, one.statistics): one.estimates for one in found.crossings}
    assert set(by_place["lab", "running"]) == {"rmse"}
    assert set(by_place["lab", "lab"]) == {"rmse", "variance"}
    second = stage._halves(points("lab", x, y.astype(np.float64)[:, None] + 0.5), 0)[1]
    with torch.inference_mode():
        error = net(torch.from_numpy(second.raw(slice(None)))).double().numpy() - second.targets
    assert by_place["lab", "running"]["rmse"].value == pytest.approx(float(np.sqrt(np.mean(error**2))), rel=1e-6)


@pytest.mark.nightly
def test_domains_pass_through_the_pipeline(laboratory):
    scaled = Normalize(mean=(10.0,), std=(2.0,))
    x, y = blobs(200, 2)
    train = points("train", 10 + 2 * blobs(600, 1)[0], blobs(600, 1)[1])
    found = laboratory.found(laboratory.holds("lab", 10 + 2 * x, y), train=train, normalize=scaled)[0]
    plain = laboratory.found(laboratory.holds("lab", x, y))[0]
    np.testing.assert_allclose(found.domains[0].shift, plain.domains[0].shift, rtol=1e-2)
    assert table(found.crossings)["lab", "running"]["accuracy"] > 0.9


X, Y = blobs(60, 2)
NAN = np.where(np.arange(60)[:, None] == 3, np.nan, X)
ODD: dict[str, tuple[tuple[np.ndarray, ...], dict[str, Any]]] = {  # what the file holds, and what is asked
    "shape": ((X[:, :4], Y), {}),
    "nan": ((NAN, Y), {}),
    "few": ((X[:7], Y[:7]), {}),
    "empty": ((X[:0], Y[:0]), {}),
    "one group": ((X, Y, np.zeros(60, dtype=int)), {}),
    "labels": ((X, Y + 5), {}),
    "samples": ((X, Y), {"samples": 1}),
    "infinite": ((np.where(X > 0, np.float32(3e38), X), Y), {}),
}
NAMED = {"twice": ("lab.npz", "lab.npz"), "reserved": ("mixed=lab.npz",), "test": ("test=lab.npz",), "none": ()}


@pytest.mark.parametrize(
    ("what", "kind", "text"),
    [
        ("shape", DataError, r"domain lab \(lab.npz\) has examples of shape \(4,\), the training set of \(6,\)"),
        ("twice", RequestError, "two domains are called lab; give them different names: --domain NAME=lab.npz"),
        ("reserved", RequestError, "a domain is called mixed, which has a meaning here"),
        ("test", RequestError, "the set would be called 'test'|test"),
        ("nan", DataError, "NaN or infinity, first in row 3"),
        ("few", DataError, "holds 7 examples; expected at least 8 examples"),
        ("empty", DataError, "holds no examples"),
        ("one group", DataError, "holds 60 examples in 1 groups"),
        ("labels", DataError, "domain lab: .* run from 5 to 7; expected 0 to 2"),
        ("none", RequestError, "--domain NAME=REF"),
        ("samples", RequestError, "expected at least 2"),
        ("infinite", SamplingError, "lab: .*not finite"),
    ],
)
def test_what_cannot_be_told_is_one_clear_error(laboratory, what, kind, text):
    holds, options = ODD.get(what, ((X, Y), {}))
    laboratory.holds("lab", *holds)
    with pytest.raises(kind, match=text) as raised:
        laboratory.found(*NAMED.get(what, ("lab.npz",)), **options)
    assert isinstance(raised.value, BnuqError) and "\n" not in str(raised.value)


def test_segmentation_is_refused(laboratory):
    train = points("train", np.random.default_rng(0).random((40, 1, 6, 6)).astype(np.float32))
    net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2)).eval()
    lab = laboratory.holds("lab", np.random.default_rng(1).random((40, 1, 6, 6)).astype(np.float32))
    with pytest.raises(DataError, match="expected a classification or a regression"):
        laboratory.found(lab, net=net, train=train)


def test_a_network_without_batchnorm_is_refused(laboratory):
    with pytest.raises(SamplingError, match="no BatchNorm layer"):
        laboratory.found(laboratory.holds("lab", *blobs(60, 2)), net=nn.Linear(FEATURES, CLASSES).eval())


def accuracies(record: Domains) -> dict[str, float]:
    return {crossing.statistics: crossing.estimates["accuracy"].value for crossing in record.crossings}


@pytest.mark.nightly
def test_a_domain_has_the_class_numbers_of_the_reference(tmp_path: Path) -> None:
    x, y = blobs(80, 3)
    of_two = y > 0
    np.savez(tmp_path / "lab.npz", x=x[of_two], y=y[of_two] - 1, classes=np.array(["b", "c"]))
    train = points_of(Contents(*blobs(600, 1), classes=("a", "b", "c")), name="train", reference="train.npz")
    by_name = accuracies(Laboratory(tmp_path).found("lab.npz", train=train)[0])
    Laboratory(tmp_path).holds("lab", x[of_two], y[of_two])
    assert by_name == accuracies(Laboratory(tmp_path).found("lab.npz", train=train)[0])
    assert by_name["running"] > 0.9
    np.savez(tmp_path / "lab.npz", x=x, y=y, classes=np.array(["a", "b", "d"]))
    with pytest.raises(DataError, match=r"lab has the class 'd', which train \(train\.npz\) lacks"):
        Laboratory(tmp_path).found("lab.npz", train=train)
