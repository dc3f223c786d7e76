"""Sweeps of a network that classifies each pixel: against evaluations, against all pixels at once, and refused."""

from __future__ import annotations

import gc
import json
import math
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_segmentation
import torch
from findings_of import noted, values_of, warned
from PIL import Image
from report_text import rendered
from scipy.special import log_softmax, softmax
from test_stale_statistics import let_go_stale

import bnuq
from bnuq import metrics
from bnuq.cli.main import main
from bnuq.config import Options, SweepSection, resolve_sweep
from bnuq.errors import DataError, RequestError
from bnuq.evaluation import passes, pixels
from bnuq.methods import DETERMINISTIC, POPULATION
from bnuq.progress import Advance, silent
from bnuq.records.sweep import Sweep, SweepPoint, read, summary
from bnuq.report.sweep import report
from bnuq.sampling import counter_rng
from bnuq.sweeping import sizes as sweeping_sizes
from bnuq.workflows.sweep import sweep

MASKED = {"train": "trainmasks", "test": "masks"}
IGNORE, TRAIN, SAMPLES, DRAW_SETS = small_segmentation.IGNORE, small_segmentation.TRAIN, 4, 2
SIZES = (4, 8, 16)
RUN = small_segmentation.RUN.replace('"train"', '"train:trainmasks"').replace("samples = 8", f"samples = {SAMPLES}")


def write(folder: Path) -> Path:
    """The small segmentation, with masks of its reference: one of them ignored throughout, and one but for a pixel."""
    small_segmentation.write(folder, text=RUN)
    random = np.random.default_rng(5)
    with torch.no_grad():
        masks = small_segmentation.network()(inputs(folder / "train")).argmax(1).numpy()
    masks[random.random(masks.shape) < 0.2] = 0
    masks[random.random(masks.shape) < 0.1] = IGNORE
    masks[5] = IGNORE
    masks[7], masks[7, 2, 3] = IGNORE, 1
    small_segmentation.write_pictures(folder / "trainmasks", masks)
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("segmentation"))


@pytest.fixture(scope="module")
def record(folder: Path) -> Sweep:
    return swept(folder, sizes=SIZES)


def swept(folder: Path, *, sizes: tuple[int, ...] = (8,), progress: Any = silent, **changes: Any) -> Sweep:
    """The sweep of the run file, as it is read from its file; what is no setting of a sweep is an option."""
    settings: dict[str, Any] = {"batch_sizes": sizes, "draw_sets": DRAW_SETS}
    settings |= {key: changes.pop(key) for key in [*changes] if key in SweepSection.__struct_fields__}
    run_file = changes.pop("run_file", "run.toml")
    options = Options(**{"out": folder / "s.h5"} | changes)
    runs, chosen = resolve_sweep((run_file,), options, settings, folder=folder)
    return read(sweep(runs, chosen, progress=progress).path)


def point_at(record: Sweep, size: int) -> SweepPoint:
    return next(point for point in record.points if point.batch_size == size)


def numbers(point: SweepPoint) -> dict[tuple[str, ...], np.ndarray]:
    """Every estimate of a size in each draw set."""
    parts = {"": point.estimates, "auroc": point.auroc, "pixel_auroc": point.pixel_auroc}
    return {
        (part, name, of): each.of_sets
        for part, by_name in parts.items()
        for name, by_set in by_name.items()
        for of, each in by_set.items()
    }


def check_alike(first: SweepPoint, second: SweepPoint, tolerance: float = 1e-6) -> None:
    expected = numbers(second)
    assert expected.keys() == numbers(first).keys()
    for address, values in numbers(first).items():
        np.testing.assert_allclose(values, expected[address], atol=tolerance, err_msg=str(address))
    assert first.elbo is not None and second.elbo is not None
    np.testing.assert_allclose(first.elbo.log_likelihood, second.elbo.log_likelihood, rtol=1e-6)


# ── all pixels at once, in float64 ───────────────────────────────────────────────────────────────────────────────────


def inputs(pictures: Path) -> torch.Tensor:
    images = np.stack([np.asarray(Image.open(file)) for file in sorted(pictures.iterdir())])
    return (torch.from_numpy(images).float().permute(0, 3, 1, 2) / 255 - 0.5) / 0.3


def masks_of(folder: Path) -> np.ndarray:
    return np.stack([np.asarray(Image.open(file)) for file in sorted(folder.iterdir())]).astype(np.int64)


def logits(folder: Path, evaluated: torch.Tensor, size: int, draws: range) -> np.ndarray:
    """The outputs (T, n, K, H, W) under these draws, by hand: that of the network with each mini-batch's statistics."""
    train, model = inputs(folder / "train"), bnuq.load(folder / "model.pt", arch=f"{folder / 'net.py'}:net")
    rows = [counter_rng.batch_indices(0, t, population=TRAIN, batch_size=size) for t in draws]
    outputs = []
    with torch.no_grad():
        for batch in (train[row] for row in rows):
            before = model[0](batch)
            norm = model[1]
            mean, var = before.mean((0, 2, 3)), before.var((0, 2, 3), unbiased=False)
            here = torch.nn.functional.batch_norm(model[0](evaluated), mean, var, norm.weight, norm.bias, eps=norm.eps)
            outputs.append(model[4](here.relu()).double().numpy())
    return np.stack(outputs)


def scores(outputs: np.ndarray) -> dict[str, np.ndarray]:
    """The scores of every pixel, (n, H, W), and the mean probabilities (n, K, H, W)."""
    p = softmax(outputs, axis=2)
    mean, entropy = p.mean(0), -(p * np.log(p)).sum(2).mean(0)
    predictive = -(mean * np.log(mean)).sum(1)
    return {
        "mean": mean,
        "predictive_entropy": predictive,
        "expected_entropy": entropy,
        "mutual_information": predictive - entropy,
        "least_confidence": 1 - mean.max(1),
    }


def estimates_at_once(found: dict[str, np.ndarray], y: np.ndarray) -> dict[str, float]:
    valid = y != IGNORE
    p, truth = np.moveaxis(found["mean"], 1, -1)[valid], y[valid]
    predicted, confidence = p.argmax(1), p.max(1)
    right = predicted == truth
    gaps = (confidence - right)[None] * (np.ceil(confidence * 15) - 1 == np.arange(15)[:, None])
    ious = [
        np.sum((truth == k) & (predicted == k)) / np.sum((truth == k) | (predicted == k))
        for k in range(small_segmentation.CLASSES)
    ]
    return {
        "accuracy": right.mean(),
        "mean_iou": float(np.mean(ious)),
        "pll": np.log(p[np.arange(len(truth)), truth]).mean(),
        "brier": ((p - np.eye(p.shape[1])[truth]) ** 2).sum(1).mean(),
        "ece": np.abs(gaps.sum(1)).sum() / len(truth),
        **{name: found[name][valid].mean() for name in found if name not in ("mean", "least_confidence")},
    }


def test_every_value_is_that_of_all_pixels_at_once(folder: Path, record: Sweep) -> None:
    size = 4
    y, point = masks_of(folder / "masks"), point_at(record, size)
    with np.load(folder / "strange.npz") as arrays:
        strange = (torch.from_numpy(arrays["x"]) - 0.5) / 0.3
    with np.load(folder / "anomalies.npz") as arrays:
        anomalies, where = (torch.from_numpy(arrays["x"]) - 0.5) / 0.3, arrays["y"]
    for r in range(DRAW_SETS):
        draws = range(r * SAMPLES, (r + 1) * SAMPLES)
        test, other, masked = (
            scores(logits(folder, of, size, draws)) for of in (inputs(folder / "test"), strange, anomalies)
        )
        for name, expected in estimates_at_once(test, y).items():
            assert point.estimates[name]["test"].of_sets[r] == pytest.approx(expected, abs=2e-6), name
        found = point.estimates["mutual_information"]
        assert found["strange"].of_sets[r] == pytest.approx(other["mutual_information"].mean(), abs=2e-6)
        assert found["anomalies"].of_sets[r] == pytest.approx(
            masked["mutual_information"][where != IGNORE].mean(), abs=2e-6
        )
        for score, by_set in point.pixel_auroc.items():
            against = metrics.auroc(test[score][y != IGNORE], other[score].ravel())
            assert by_set["strange"].of_sets[r] == pytest.approx(against, abs=2e-3), score
            within = metrics.auroc(masked[score][where == 0], masked[score][where == 1])
            assert by_set["anomalies"].of_sets[r] == pytest.approx(within, abs=2e-3), score
            seen = y != IGNORE
            seen[~seen.any((1, 2))] = True  # an image that is ignored still has a score
            of_images = [score_of[valid].mean() for score_of, valid in zip(test[score], seen, strict=True)]
            auroc = metrics.auroc(np.array(of_images), other[score].mean((1, 2)))
            assert point.auroc[score]["strange"].of_sets[r] == pytest.approx(auroc, abs=0.02), score


def test_the_first_draw_set_is_the_evaluation_at_that_size(folder: Path, record: Sweep) -> None:
    options: dict[str, Any] = {"batch_size": 16, "methods": ("mcbn",), "images": False}
    alone = small_segmentation.evaluated(folder, out="e.h5", **options).methods["mcbn"]
    point = point_at(record, 16)
    assert {*point.estimates} == {
        "accuracy", "mean_iou", "pll", "brier", "ece", "mutual_information", "predictive_entropy", "expected_entropy",
    }  # fmt: skip
    for metric, by_set in point.estimates.items():
        for name, found in by_set.items():
            expected = alone.sets[name].estimates[metric]
            assert found.of_sets[0] == pytest.approx(expected.value, abs=1e-9), (metric, name)
            if metric != "mutual_information":  # whose spread over images is that of two draw sets
                assert found.estimate.se == pytest.approx(expected.se, rel=0.35), (metric, name)
    for score, by_set in point.pixel_auroc.items():
        for name, found in by_set.items():
            expected = alone.pixel_ood[name][score]["pixel_auroc"]
            assert found.of_sets[0] == pytest.approx(expected.value, abs=1e-9)
            assert found.estimate.se == pytest.approx(expected.se, rel=0.3)
            of_images = alone.ood[name][score]["auroc"].value
            assert point.auroc[score][name].of_sets[0] == pytest.approx(of_images, abs=1e-9)


def test_errors_over_images_are_those_of_a_ratio(folder: Path, record: Sweep) -> None:
    y, point = masks_of(folder / "masks"), point_at(record, 8)
    valid, test = y != IGNORE, inputs(folder / "test")
    total = np.mean(
        [
            (scores(logits(folder, test, 8, range(r * SAMPLES, (r + 1) * SAMPLES)))["mutual_information"] * valid).sum(
                (1, 2)
            )
            for r in range(DRAW_SETS)
        ],
        axis=0,
    )
    count = valid.sum((1, 2))
    residual = total - total.sum() / count.sum() * count
    expected = math.sqrt(len(y) / (len(y) - 1) * np.sum(residual**2)) / count.sum()
    found = point.estimates["mutual_information"]["test"]
    assert found.estimate.se == pytest.approx(expected, rel=1e-4)
    assert found.estimate.mc_se == pytest.approx(found.of_sets.std(ddof=1) / math.sqrt(DRAW_SETS))


def test_the_elbo_is_the_sum_over_scored_pixels_by_hand(folder: Path, record: Sweep) -> None:
    train, y = inputs(folder / "train"), masks_of(folder / "trainmasks")
    for size in SIZES:
        log_p = log_softmax(logits(folder, train, size, range(SAMPLES * DRAW_SETS)), axis=2)
        of_truth = np.take_along_axis(log_p, np.where(y == IGNORE, 0, y)[None, :, None], 2)[:, :, 0]
        of_images = np.where(y == IGNORE, 0, of_truth).sum((2, 3))
        assert np.all(of_images[:, 5] == 0)
        elbo = point_at(record, size).elbo
        assert elbo is not None
        np.testing.assert_allclose(elbo.log_likelihood, of_images.mean(1), rtol=1e-5)
        assert elbo.expected_log_likelihood.value == pytest.approx(of_images.mean(0).sum(), rel=1e-5)
        assert elbo.expected_log_likelihood.se == 0  # all images are there
        assert elbo.elbo.value == pytest.approx(elbo.expected_log_likelihood.value - elbo.kl)
    assert record.recommended is not None and record.recommended.of == "train"
    terms = record.models[0].elbo
    assert terms is not None and terms.points == terms.train_size == TRAIN


def test_training_images_that_stand_for_more_give_the_elbo_an_error(folder: Path) -> None:
    elbo = point_at(swept(folder, train_points=10, ood=()), 8).elbo
    assert elbo is not None and elbo.elbo.se is not None and elbo.elbo.se > 0


def test_mutual_information_decays(record: Sweep) -> None:
    decay = record.models[0].decay
    assert {*decay} == {"test", "strange", "anomalies"}
    values = [point_at(record, size).estimates["mutual_information"]["test"].estimate.value for size in SIZES]
    factor = [(TRAIN - size) / (TRAIN - 1) for size in SIZES]
    expected = np.polyfit(np.log(SIZES), np.log(np.array(values) / factor), 1)[0]
    assert decay["test"].slope.value == pytest.approx(expected, abs=0.02)


def test_the_whole_reference_has_no_information(folder: Path) -> None:
    [point] = swept(folder, sizes=(TRAIN,)).points
    assert point.degenerate and point.elbo is None
    assert point.estimates["mutual_information"]["test"].of_sets.tolist() == [0.0]
    for by_score in (point.auroc, point.pixel_auroc):
        assert [each.estimate.value for each in by_score["mutual_information"].values()] == [0.5, 0.5]
    assert 0 < point.pixel_auroc["predictive_entropy"]["strange"].estimate.value < 1


# ── in whatever parts ────────────────────────────────────────────────────────────────────────────────────────────────


def test_chunks_blocks_of_draws_units_and_other_sizes_change_nothing(
    folder: Path, record: Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sweeping_sizes, "_IMAGES", 3)
    of_image = small_segmentation.CLASSES * small_segmentation.HEIGHT * small_segmentation.WIDTH
    for chunk_size, outputs in ((None, 5 * of_image), (2, 14 * of_image)):
        monkeypatch.setattr(passes, "_DENSE", outputs)  # 5 draws of an image, 7 draws of two
        check_alike(point_at(swept(folder, chunk_size=chunk_size), 8), point_at(record, 8))


@pytest.mark.held
def test_one_draw_set_of_a_few_images_is_open_at_a_time(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[weakref.ref[Any]] = []
    really, most = pixels._Open.of, 0

    def counted(sample: torch.Tensor, parts: int) -> Any:
        nonlocal most
        assert parts == 1
        made = really(sample, parts)
        opened.append(weakref.ref(made))
        if sum(each() is not None for each in opened[-8:]) > 1:
            gc.collect()
        most = max(most, sum(each() is not None for each in opened[-8:]))
        return made

    monkeypatch.setattr(pixels._Open, "of", staticmethod(counted))
    record = swept(folder, chunk_size=2)
    assert len(opened) > 4 * DRAW_SETS and most == 1
    assert record.path is not None and record.path.stat().st_size < 500_000


class _Interrupting:
    """A progress that is interrupted after so many steps of the passes."""

    def __init__(self, after: int) -> None:
        self.after, self.titles = after, list[str]()

    @contextmanager
    def __call__(self, title: str, total: int) -> Iterator[Advance]:
        assert total > 0
        self.titles.append(title)
        done = 0

        def advance(steps: int) -> None:
            nonlocal done
            done += steps
            assert done <= total
            if "points," in title and done > self.after:
                raise KeyboardInterrupt

        yield advance


def test_an_interrupted_sweep_goes_on_from_what_was_done(folder: Path, record: Sweep) -> None:
    out = folder / "resumed.h5"
    sizes = SIZES[:2]
    draws = SAMPLES * DRAW_SETS * len(sizes)
    with pytest.raises(KeyboardInterrupt) as stopped:
        # in the second of three units of the test set
        swept(folder, out=out, sizes=sizes, ood=("strange.npz",), progress=_Interrupting(12 * draws))
    assert "finished parts are kept in" in stopped.value.__notes__[0]
    kept = sorted(path.name.split("-", 1)[1] for path in (folder / "resumed.h5.work").iterdir())
    assert sum("-test-" in name for name in kept) == len(sizes)
    assert all(path.stat().st_size < 20_000_000 for path in (folder / "resumed.h5.work").iterdir())
    again = _Interrupting(10**9)
    resumed = swept(folder, out=out, sizes=sizes, ood=("strange.npz",), progress=again)
    assert not any(title.startswith("Drawing") for title in again.titles)
    assert values_of(resumed, "sweep-continued")["parts"] == len(kept)
    for size in sizes:
        expected = numbers(point_at(record, size))
        for address, values in numbers(point_at(resumed, size)).items():
            assert np.array_equal(values, expected[address]), address


def test_what_another_value_is_ignored_for_is_not_taken(folder: Path) -> None:
    out = folder / "other.h5"
    with pytest.raises(KeyboardInterrupt):
        swept(folder, out=out, progress=_Interrupting(300))
    (folder / "other.toml").write_text(RUN.replace("ignore = 255", "ignore = 0").replace('"test:masks"', '"test"'))
    with pytest.raises(DataError, match=r"pixels of 255"):
        swept(folder, out=out, run_file="other.toml")
    for file in [*(folder / "trainmasks").iterdir()]:
        mask = np.asarray(Image.open(file))
        small_segmentation.write_pictures(folder / "renumbered", np.stack([np.where(mask == IGNORE, 0, mask)]))
        (folder / "renumbered" / "00.png").rename(folder / "renumbered" / f"x{file.name}")
    (folder / "other.toml").write_text(
        RUN.replace("ignore = 255", "ignore = 0").replace('"test:masks"', '"test"').replace(":trainmasks", "")
        .replace('"anomalies.npz"', '"strange.npz"').replace('ood = ["strange.npz", ', "ood = [")
    )  # fmt: skip
    assert "sweep-continued" not in noted(swept(folder, out=out, run_file="other.toml"))


def test_a_network_and_arrays_in_memory_are_swept_as_those_in_files(folder: Path, record: Sweep) -> None:
    sets = {name: (inputs(folder / name), masks_of(folder / masks)) for name, masks in MASKED.items()}
    model = small_segmentation.network()
    found = bnuq.sweep_batch_size(
        model, **sets, batch_sizes=[8], samples=SAMPLES, draw_sets=DRAW_SETS, train_batch_size=8
    )
    (point,) = found.points
    for metric, by_set in point.estimates.items():
        expected = point_at(record, 8).estimates[metric]["test"].of_sets
        np.testing.assert_allclose(by_set["test"].of_sets, expected, atol=1e-5, err_msg=metric)
    assert "sweep" in found.figures


def test_networks_are_compared_on_the_same_pixels(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save(state | {"4.bias": state["4.bias"] + 0.1}, folder / "second.pt")
    text = RUN.replace("model.pt", "second.pt").replace("train_batch_size = 8", "train_batch_size = 4")

    def both(second: str) -> Sweep:
        (folder / "second.toml").write_text(second)
        options = Options(out=folder / "two.h5", ood=("strange.npz",))
        runs, chosen = resolve_sweep(("run.toml", "second.toml"), options, {"draw_sets": 2}, folder=folder)
        return sweep(runs, chosen)

    record = both(text)
    assert [(point.protocol, point.batch_size) for point in record.points] == [("matched", 4), ("matched", 8)]
    assert all(point.elbo is not None and point.pixel_auroc for point in record.points)
    with pytest.raises((RequestError, DataError), match=r"ignore is 2, and 255|pixels of 255"):
        both(text.replace("ignore = 255", "ignore = 2"))


# ── the choice ───────────────────────────────────────────────────────────────────────────────────────────────────────


def test_pll_and_the_auroc_of_pixels_choose(folder: Path) -> None:
    by_pll = swept(folder, sizes=(4, 16), criterion="pll", ood=())
    values = {size: point_at(by_pll, size).estimates["pll"]["test"].estimate.value for size in (4, 16)}
    assert by_pll.recommended is not None
    assert by_pll.recommended.batch_size == max(values, key=lambda size: values[size])
    assert "chosen-on-test" in warned(by_pll)
    by_auroc = swept(folder, sizes=(4, 16), criterion="auroc")
    best = by_auroc.recommended
    aurocs = {
        size: np.mean(
            [each.estimate.value for each in point_at(by_auroc, size).pixel_auroc["mutual_information"].values()]
        )
        for size in (4, 16)
    }
    assert best is not None and best.batch_size == max(aurocs, key=lambda size: aurocs[size])
    for size, behind in best.behind.items():
        assert behind.value == pytest.approx(aurocs[size] - aurocs[best.batch_size], abs=1e-12)


def test_the_error_of_a_difference_of_aurocs_is_paired_by_image(folder: Path) -> None:
    record = swept(folder, criterion="auroc", sizes=(4, 8), ood=("strange.npz",))
    best = record.recommended
    assert best is not None
    (behind,) = (each for size, each in best.behind.items() if size != best.batch_size)
    both = [point_at(record, size).pixel_auroc["mutual_information"]["strange"].estimate.se for size in (4, 8)]
    assert behind.se is not None and 0 < behind.se < math.hypot(*both)
    apart = np.diff(
        [point_at(record, size).pixel_auroc["mutual_information"]["strange"].of_sets for size in (4, 8)], axis=0
    )
    assert behind.mc_se == pytest.approx(apart.std(ddof=1) / math.sqrt(DRAW_SETS))


def test_stale_statistics_are_compared_with_those_of_the_population(tmp_path: Path) -> None:
    write(tmp_path)
    let_go_stale(tmp_path, "1")
    record = swept(tmp_path, run_file="stale.toml", sizes=(8, 16), ood=())
    assert "reference-mismatch" in warned(record) and record.recommended is None
    options: dict[str, Any] = {"batch_size": 8, "methods": ("mcbn",), "ood": (), "images": False}
    alone = small_segmentation.evaluated(tmp_path, run_file="stale.toml", samples=SAMPLES * DRAW_SETS, **options)
    for name in (DETERMINISTIC, POPULATION):
        compared = point_at(record, 8).compared_with[name]
        assert {*compared} == {"accuracy", "mean_iou", "pll", "brier", "ece"}
        for metric, each in compared.items():
            expected = alone.methods[name].sets["test"].estimates[metric]
            assert each.estimate.value == pytest.approx(expected.value, rel=1e-5, abs=1e-6), (name, metric)
            assert each.estimate.se == pytest.approx(expected.se, rel=1e-3)
            sampled = point_at(record, 8).estimates[metric]["test"].estimate.value
            assert each.difference.value == pytest.approx(sampled - each.estimate.value)
    assert "repair" in " ".join(rendered(report, record).split())


# ── what there is not ────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_reference_without_masks_has_no_elbo_and_says_so(folder: Path) -> None:
    record = swept(folder, train="train", sizes=(4, 16), ood=())
    assert not any(point.auroc or point.pixel_auroc for point in record.points)
    assert record.models[0].elbo is None and record.recommended is None
    assert values_of(record, "no-elbo")["reason"] == "the reference has no masks; name them, --train IMAGES:MASKS"
    by_pll = swept(folder, train="train", sizes=(4, 16), ood=(), criterion="pll")
    assert by_pll.recommended is not None


def test_a_test_set_without_masks_is_swept_by_what_needs_none(folder: Path) -> None:
    record = swept(folder, test="test", train="train")
    point = point_at(record, 8)
    assert {*point.estimates} == {"mutual_information", "predictive_entropy", "expected_entropy"}
    assert {*point.pixel_auroc["mutual_information"]} == {"strange", "anomalies"}
    with pytest.raises(RequestError, match="--criterion pll: the test set test has no labels"):
        swept(folder, test="test", criterion="pll")


def test_masks_without_anomalies_separate_nothing(folder: Path) -> None:
    with np.load(folder / "anomalies.npz") as arrays:
        np.savez(folder / "calm.npz", x=arrays["x"], y=np.zeros_like(arrays["y"]))
    record = swept(folder, sizes=(4, 8), ood=("calm.npz",), criterion="auroc")
    assert math.isnan(point_at(record, 8).pixel_auroc["mutual_information"]["calm"].estimate.value)
    assert 0 < point_at(record, 8).auroc["mutual_information"]["calm"].estimate.value < 1
    assert record.recommended is None and "no-recommendation" in warned(record)
    assert "too few sizes to say how well calm is separated" in " ".join(rendered(report, record).split())


def test_wholly_ignored_masks_are_named(record: Sweep) -> None:
    found = [finding for finding in record.findings if finding.code == "masks-ignored"]
    assert {finding.subject: finding.values["names"][0].rpartition("/")[2] for finding in found} == {
        "test": "03.png", "train": "05.png",
    }  # fmt: skip


def test_masks_of_the_reference_that_are_wrong_are_named_by_file(tmp_path: Path) -> None:
    write(tmp_path)
    masks = masks_of(tmp_path / "trainmasks")
    file = tmp_path / "trainmasks" / "04.png"

    def message() -> str:
        with pytest.raises(DataError) as error:
            swept(tmp_path)
        return str(error.value)

    Image.fromarray(np.full(masks.shape[1:], 7, np.uint8)).save(file)
    assert "04.png" in message() and "pixels of 7" in message()
    Image.fromarray(masks[4, :4].astype(np.uint8)).save(file)
    assert "04.png" in message()
    file.unlink()
    assert "04" in message()
    small_segmentation.write_pictures(tmp_path / "trainmasks", np.full_like(masks, IGNORE))
    assert "no pixel can be scored" in message()
    assert not (tmp_path / "s.h5").exists()


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_report_tells_of_pixels_and_images(record: Sweep) -> None:
    text = " ".join(rendered(report, record, width=200, full=True).split())
    for words in (
        "mean IoU", "pixel AUROC strange", "image AUROC strange", "test 20 images", "The anomalous part of anomalies",
        "that of an image is the sum over its pixels",
    ):  # fmt: skip
        assert words in text, words
    assert "image AUROC anomalies" not in text
    found = json.loads(json.dumps(summary(record)))
    assert found["task"] == "segmentation" and found["sets"]["anomalies"]["has_anomalies"]
    point = found["points"][0]
    assert point["mean_iou"]["test"]["value"] == record.points[0].estimates["mean_iou"]["test"].estimate.value
    assert {*point["pixel_auroc"]} == {"strange", "anomalies"} and "predictive_entropy" in point["pixel_auroc_by"]


def test_pictures_are_drawn(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    given = ("--batch-sizes", "4,8", "--draw-sets", "2", "--out", "cli.h5", "--figures", "figures")
    with pytest.raises(SystemExit) as left:
        main(["sweep-batch-size", "run.toml", *given])
    assert not left.value.code, capsys.readouterr().err
    assert {path.name for path in (folder / "figures").iterdir()} == {"sweep.svg"}
    drawn = (folder / "figures" / "sweep.svg").read_text()
    assert "image AUROC" in drawn and "pixel AUROC" in drawn
