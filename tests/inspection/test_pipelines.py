"""A checkpoint's running statistics tell the pipeline that it was trained with, and what they cannot tell is said."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import torch
from torch import nn

from bnuq.catalogue import text_of
from bnuq.config import Augment, Normalize, PointSettings, read_run_file
from bnuq.data import Points, augmented, load_points, normalized
from bnuq.errors import SamplingError
from bnuq.evaluation.draws import check_reference
from bnuq.evaluation.pipeline import Pipeline
from bnuq.progress import silent
from bnuq.sampling.site_search import find_sites
from bnuq.studies.inspect import pipeline_settings, pipelines
from bnuq.studies.inspect.pipeline_settings import DATA_OWN
from bnuq.studies.inspect.pipelines import findings, suggest
from bnuq.studies.inspect.record import Pipelines

RUN = PointSettings()
IMAGENET = Normalize(mean=(0.485, 0.456, 0.406), std=(0.229, 0.224, 0.225))
M, SIZE = 64, 8


def pictures(n: int = 800, *, channels: int = 3, leaning: bool = True, seed: int = 0) -> Points:
    """Coloured blobs that are brighter to the right, where they lean."""
    random = np.random.default_rng(seed)
    at = np.arange(SIZE)
    middle, width = random.uniform(2, SIZE - 2, (n, 1, 2)), random.uniform(1, 4, (n, 1, 1))
    blob = np.exp(-(((at[:, None] - middle[..., :1]) / width) ** 2))[..., None] * np.ones(SIZE)
    blob = blob[:, 0] if blob.ndim == 5 else blob.reshape(n, SIZE, SIZE)
    across = np.linspace(0, 1.2, SIZE) if leaning else np.ones(SIZE)
    colour = random.uniform(0, 1, (n, channels, 1, 1)) * np.array([1.0, 0.8, 0.5])[:channels, None, None]
    noise = random.uniform(0, 0.4, (n, channels, SIZE, SIZE))
    x = np.clip((0.6 * blob[:, None] + noise) * across * (0.3 + colour), 0, 1)
    return Points("train", "train.npz", (255 * x).astype(np.uint8))


def trained(train: Points, pipeline: Callable[[np.ndarray, int], np.ndarray], *, steps: int = 100) -> nn.Module:
    """A network with the running averages of batches through `pipeline`, under fixed weights."""
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        net = nn.Sequential(
            nn.Conv2d(train.point_shape[0], 6, 3, padding=1), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(),
            nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 3),
        )  # fmt: skip
        random = np.random.default_rng(1)
        for step in range(steps):
            raw = train.raw(random.permutation(len(train))[:M])
            net(torch.from_numpy(np.ascontiguousarray(pipeline(raw, step), dtype=np.float32)))
    return net.eval()


@pytest.fixture
def quick(monkeypatch):
    """Fewer batches, which tell as much here."""
    monkeypatch.setattr(pipelines, "THOROUGH", replace(pipelines.QUICK, pads=()))


def as_in(normalize: Normalize | None = None, augment: Augment | None = None, *, bgr: bool = False):
    def pipeline(raw: np.ndarray, step: int) -> np.ndarray:
        if augment is not None:
            words = np.random.default_rng(step).integers(0, 2**64, (len(raw), 3), dtype=np.uint64)
            raw = augmented(raw, augment, words)
        return normalized(raw[:, ::-1] if bgr else raw, normalize)

    return pipeline


def suggested(net: nn.Module, train: Points, **of_run: Any) -> Pipelines:
    sites = find_sites(net, torch.from_numpy(train.raw(slice(0, 3))))
    return suggest(replace(RUN, **of_run), net, train, sites, trained_with=M).pipelines


def written(found: Pipelines, folder: Path):
    """What the run file's reader makes of the lines."""
    path = folder / "run.toml"
    path.write_text(found.lines)
    return read_run_file(path).data


CROP, FLIP = Augment(pad=4, crop=SIZE), Augment(flip=True)
BOTH = Augment(pad=4, crop=SIZE, flip=True)


@pytest.mark.nightly
@pytest.mark.held(False)
def test_imagenets_normalisation_with_pad_and_crop_comes_first_and_its_lines_are_a_run_file(tmp_path):
    train = pictures(500)
    net = trained(train, as_in(IMAGENET, CROP))
    before = {name: value.clone() for name, value in net.state_dict().items()}
    found = suggested(net, train)
    best = found.candidates[0]
    assert (best.normalize, best.channel_order, best.scale, best.augment) == ("imagenet", "rgb", 1, "pad 4, crop 8")
    assert best.passed and best.tied and best.median < 2
    assert len(found.candidates) == 12 and len(found.first_round) == 96 - 12
    assert not any(one.passed for one in (*found.candidates, *found.first_round) if one.normalize == "mnist")
    data = written(found, tmp_path)
    assert (data.normalize, data.channel_order, data.augment) == (IMAGENET, "rgb", CROP)
    assert found.lines.endswith("# or, as options: --normalize imagenet --augment pad=4,crop=8\n")
    assert list(findings(found)) == []
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.held(False)
@pytest.mark.usefixtures("quick")
@pytest.mark.nightly
def test_the_pipeline_that_the_run_says_is_tried_and_shown_wherever_it_ranks():
    train = pictures(400, channels=1)
    small = Augment(pad=2, crop=SIZE)
    odd, mnist = Normalize(mean=(0.31,), std=(0.11,)), Normalize(mean=(0.1307,), std=(0.3081,))
    net = trained(train, as_in(odd, small))
    best = suggested(net, train, normalize=odd, augment=small).candidates[0]
    assert (best.normalize, best.mean, best.augment) == ("the run file's", odd.mean, "pad 2, crop 8") and best.passed
    wrong = suggested(net, train, normalize=odd, augment=Augment(flip=True))
    assert "the run file's" in [one.normalize for one in wrong.candidates]
    known = suggested(trained(train, as_in(mnist, CROP)), train, normalize=mnist, augment=CROP)
    assert known.candidates[0].normalize == "mnist"
    assert "the run file's" not in [one.normalize for one in (*known.candidates, *known.first_round)]


@pytest.mark.nightly
@pytest.mark.held(False)
@pytest.mark.usefixtures("quick")
def test_blue_first_and_a_flip_are_found_where_pictures_lean(tmp_path):
    train = pictures()
    reversed_imagenet = Normalize(mean=IMAGENET.mean[::-1], std=IMAGENET.std[::-1])
    found = suggested(trained(train, as_in(reversed_imagenet, BOTH, bgr=True)), train)
    best = found.candidates[0]
    assert (best.normalize, best.channel_order, best.augment) == ("imagenet", "bgr", "pad 4, crop 8, flip")
    assert best.mean == IMAGENET.mean[::-1]
    assert found.undetermined == ()
    data = written(found, tmp_path)
    assert (data.normalize, data.channel_order, data.augment) == (reversed_imagenet, "bgr", BOTH)


@pytest.mark.held(False)
@pytest.mark.parametrize("seed", at_night.but({1}, range(2)))
@pytest.mark.usefixtures("quick")
@pytest.mark.nightly
def test_a_flip_that_changes_nothing_is_said_to_be_undetermined(seed, tmp_path):
    train = pictures(channels=1, leaning=False, seed=seed)
    found = suggested(trained(train, as_in(Normalize(mean=(0.5,), std=(0.5,)), (CROP, BOTH)[seed])), train)
    tied = [one for one in found.candidates if one.tied]
    assert {one.augment for one in tied} == {"pad 4, crop 8", "pad 4, crop 8, flip"}
    assert {one.normalize for one in tied} == {"0.5/0.5"}
    assert found.undetermined == ("flip: with and without it the statistics agree equally well",)
    assert found.candidates[: len(tied)] == tuple(tied)
    assert f"# {found.undetermined[0]}" in found.lines
    augment = written(found, tmp_path).augment
    assert augment in (CROP, BOTH)
    flip = ",flip" if augment == BOTH else ""
    assert f"# or, as options: --normalize 0.5/0.5 --augment pad=4,crop=8{flip}\n" in found.lines


@pytest.mark.held(False)
@pytest.mark.usefixtures("quick")
@pytest.mark.nightly
def test_a_published_normalisation_that_is_the_datas_own_is_preferred_and_both_are_named(tmp_path, monkeypatch):
    train = pictures(channels=1)
    own = pipeline_settings._data_statistics(train)[0]
    monkeypatch.setitem(pipeline_settings.PUBLISHED, "mnist", (own.mean, own.std))
    found = suggested(trained(train, as_in(own, None)), train)
    assert [one.normalize for one in found.candidates[:2]] == ["mnist", DATA_OWN]
    assert "normalize: mnist and the data's own agree equally well" in found.undetermined
    assert written(found, tmp_path).normalize == own


@pytest.mark.held(False)
@pytest.mark.usefixtures("quick")
def test_pixels_to_255_without_normalisation_are_found_and_found_again(tmp_path):
    train = pictures(400, channels=1)
    net = trained(train, lambda raw, _: 255 * raw)
    found = suggested(net, train)
    assert suggested(net, train) == found
    best = found.candidates[0]
    assert (best.normalize, best.scale, best.augment) == (None, 255, "")
    normalize = written(found, tmp_path).normalize
    assert isinstance(normalize, Normalize)
    assert normalized(np.ones((1, 1)), normalize) == pytest.approx(255)


@pytest.mark.usefixtures("quick")
def test_where_nothing_fits_the_closest_is_shown_and_not_recommended(tmp_path):
    train = pictures(400, channels=1)
    found = suggested(trained(train, lambda raw, _: np.log(0.01 + raw) ** 3), train)
    assert not any(one.passed for one in found.candidates)
    (none_fits,) = findings(found)
    assert none_fits.code == "no-pipeline-fits" and none_fits.values["worst"] == found.candidates[0].worst
    assert text_of(none_fits) in found.lines
    assert found.undetermined == () and [one.tied for one in found.candidates[:2]] == [True, False]
    data = written(found, tmp_path)
    assert data.augment is None and ("not sure" in found.lines or data.normalize is not None)


def test_a_pipeline_fits_a_part_of_the_training_set_where_evaluation_says_so():
    points = pictures(4000)
    net, part = trained(points, as_in(IMAGENET)), points.subset(np.arange(100))
    layers = find_sites(net, torch.zeros(2, 3, SIZE, SIZE)).live_batchnorms
    check = check_reference(net, Pipeline(RUN, torch.device("cpu"), IMAGENET), part, layers, silent, trained_with=M)
    assert check.passed and suggested(net, part).candidates[0].passed


def test_paddings_that_few_or_normalised_points_cannot_tell_are_said_to_be_untold():
    raw = pictures()
    for points, why in (
        (raw.subset(np.arange(60)), ["60 examples are"]),
        (replace(raw, inputs=((raw.inputs / 255 - 0.45) / 0.22).astype(np.float32)), ["already normalised"]),
        (raw, []),
    ):
        net = trained(points, lambda values, _: np.asarray(values, np.float32))
        found = suggest(RUN, net, points, find_sites(net, torch.zeros(2, 3, SIZE, SIZE)), trained_with=M)
        told = [text for text in found.pipelines.undetermined if text.startswith("pad and crop: ")]
        assert found.pipelines.candidates[0].passed and ("augment" in found.undetermined) == bool(why)
        assert all(part in told[-1] for part in why)


def test_of_feature_tables_normalisations_alone_are_tried(tmp_path):
    random = np.random.default_rng(0)
    table = Points("train", "train.csv", (random.normal(3, 2, (600, 5)) * [1, 5, 0.1, 1, 1]).astype(np.float32))
    own = Pipeline(RUN, torch.device("cpu"), Normalize(mean=(3, 15, 0.3, 3, 3), std=(2, 10, 0.2, 2, 2)))
    with torch.random.fork_rng(devices=[]), torch.no_grad():
        torch.manual_seed(0)
        net = nn.Sequential(nn.Linear(5, 9), nn.BatchNorm1d(9), nn.ReLU(), nn.Linear(9, 2))
        for _ in range(150):
            net(own.evaluated(table, random.permutation(600)[:M]))
    found = suggested(net.eval(), table)
    assert found.candidates[0].normalize == DATA_OWN
    assert {one.normalize for one in found.candidates} == {DATA_OWN, None, "min-max"}
    assert found.first_round == () and {one.augment for one in found.candidates} == {""}
    assert written(found, tmp_path).normalize == "train"


def test_float_pictures_are_read_for_what_their_pixels_run_to():
    uint8 = pictures(50, channels=1)
    to_255 = Points("train", "t", uint8.inputs[:].astype(np.float32))
    before = Points("train", "t", (uint8.raw(slice(None)) - 0.5) / 0.2)
    settings = {
        what: list(pipeline_settings._image_settings(of)) for what, of in (("u", uint8), ("f", to_255), ("n", before))
    }
    mnist = {what: {one.name: one.normalize for one in found}.get("mnist") for what, found in settings.items()}
    a, b = (normalized(of.raw(slice(0, 4)), mnist[what]) for what, of in (("u", uint8), ("f", to_255)))
    np.testing.assert_allclose(a, b, rtol=1e-5)
    assert [one.name for one in settings["n"]] == [DATA_OWN, None]


def test_float_pictures_that_overshoot_a_little_are_pictures_all_the_same():
    pixels = pictures(50, channels=1).raw(slice(None)).astype(np.float32)
    resized = pixels.copy()
    resized[0, 0, 0, :2] = 1.001, -0.001
    spike = pixels.copy()
    spike[0, 0, 0, 0] = 40.0
    several = np.clip(1.3 * pixels - 0.1, -0.1, 1.2)
    tops = {
        name: pipeline_settings._data_statistics(Points("train", "t", values))[1]
        for name, values in {
            "plain": pixels, "resized": resized, "spike": spike, "several": several, "to 255": 258 * pixels - 2,
            "standardised": (pixels - 0.1307) / 0.3081 * 1.2, "about 0": 2 * pixels - 1,
        }.items()
    }  # fmt: skip
    assert tops == {
        "plain": 1, "resized": 1, "spike": 1, "several": 1, "to 255": 255, "standardised": None, "about 0": None
    }  # fmt: skip


class CalledAgain(nn.Module):
    """Its first BatchNorm has a second call, beyond three others."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm2d(3) for _ in range(4))
        for one in self.norms:
            nn.init.constant_(one.running_mean, 0.4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in (*self.norms, self.norms[0]):
            x = torch.relu(one(x) + 0.3)
        return x


def test_a_layer_with_a_call_beyond_the_first_layers_is_not_checked_in_them():
    train, net = pictures(200), CalledAgain().eval()
    sites = find_sites(net, torch.from_numpy(train.raw(slice(0, 3)))).live_batchnorms
    tried = pipelines._Trials(RUN, net, train, sites, M, None, silent)
    settings = list(pipeline_settings.settings_to_try(RUN, train))[:2]
    found = tried.checked(settings, "some", batches=4, max_batch_size=32, layers=2)
    assert {one.check.layers for one in found} == {("norms.1", "norms.2")}


@pytest.mark.parametrize(
    ("bn", "why"),
    [
        (lambda: nn.BatchNorm2d(4, momentum=None), "momentum None"),
        (lambda: nn.BatchNorm2d(4, momentum=0.0), "momentum is 0"),
        (lambda: nn.BatchNorm2d(4), "mean 0 and variance 1"),
        (lambda: nn.BatchNorm2d(4, track_running_stats=False), "no running statistics"),
        (nn.Identity, "no BatchNorm layer"),
    ],
)
def test_statistics_that_tell_nothing_are_an_error_that_says_so(bn, why):
    train = pictures(40)
    layer = bn()
    if not getattr(layer, "momentum", 1):
        layer.running_mean.add_(1.0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), layer, nn.Flatten(), nn.Linear(144, 2)).eval()
    with pytest.raises(SamplingError, match=why):
        suggested(net, train)


def test_a_reference_that_is_too_small_is_an_error():
    train = pictures(7)
    net = trained(pictures(200), as_in())
    with pytest.raises(SamplingError, match="holds 7 examples; expected at least 8"):
        suggested(net, train)


@pytest.mark.held(False)
@pytest.mark.nightly  # real networks; made-up ones above
@pytest.mark.parametrize("name", ["fmnist", "mnist"])
def test_mnists_normalisation_is_found_for_the_dense_networks(data_pack, sample_configs, name, tmp_path):
    from bnuq.models.loading import load_model

    folder = {"fmnist": "fashion-mnist/train-images-idx3-ubyte.gz", "mnist": "mnist/train14k-images-idx3-ubyte.gz"}
    arch = f"{sample_configs}/architectures/mlp_bn.py:mlp"
    net = load_model(data_pack / f"checkpoints/{name}_mlp_bn.pt", arch=arch).module
    found = suggested(net, load_points(str(data_pack / folder[name])))
    best = found.candidates[0]
    assert (best.normalize, best.augment) == ("mnist", "")
    others = [one.worst for one in (*found.candidates, *found.first_round) if one.normalize not in ("mnist", DATA_OWN)]
    assert min(others) > 3 * best.worst
    assert written(found, tmp_path).normalize == Normalize(mean=(0.1307,), std=(0.3081,))


@pytest.mark.nightly
def test_the_pipeline_of_a_resnet20_that_others_trained_is_found(data_pack, sample_configs, tmp_path):
    """With ImageNet's normalisation, as its authors' code has it; the reference is a part of what it was trained on."""
    from bnuq.models.loading import load_model

    arch = f"{sample_configs}/architectures/cifar_resnet.py:resnet20"
    net = load_model(data_pack / "checkpoints/resnet20-12fca82f.th", arch=arch).module
    train = load_points(str(data_pack / "cifar10/lossless_train.npz"))
    sites = find_sites(net, torch.from_numpy(train.raw(slice(0, 3))))
    found = suggest(RUN, net, train, sites, trained_with=128, train_size=50_000).pipelines
    best = found.candidates[0]
    assert (best.normalize, best.channel_order, best.scale) == ("imagenet", "rgb", 1)
    assert best.passed and "pad 4, crop 32" in best.augment
    assert {one.normalize for one in found.candidates if one.tied} == {"imagenet"}
    assert written(found, tmp_path).normalize == IMAGENET
