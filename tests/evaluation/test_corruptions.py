"""The corruptions of pictures against those of an independent package, and laws of all of them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bnuq.data import points_in_memory
from bnuq.evaluation import corruptions
from bnuq.evaluation.corruptions import CORRUPTIONS, ColumnMoments, Random
from bnuq.evaluation.perturbations import Values
from bnuq.perturbations import KINDS, Perturbation

EXPECTED = Path(__file__).with_name("expected") / "corruptions.npz"  # see make_corruptions.py beside it
SEVERITIES, GREYS = (1, 3, 5), (26, 128, 217)
CIFAR_C = {  # of make_cifar_c.py of hendrycks/robustness
    "gaussian": (0.04, 0.06, 0.08, 0.09, 0.10),
    "shot": (500, 250, 100, 75, 50),
    "impulse": (0.01, 0.02, 0.03, 0.05, 0.07),
    "defocus": ((0.3, 0.4), (0.4, 0.5), (0.5, 0.6), (1, 0.2), (1.5, 0.1)),
    "motion": ((1, 6), (1.5, 6), (2, 6), (2, 8), (2.5, 9)),  # σ, radius
    "contrast": (0.75, 0.5, 0.4, 0.3, 0.15),
    "brightness": (0.05, 0.1, 0.15, 0.2, 0.3),
    "pixelate": (0.95, 0.9, 0.85, 0.75, 0.65),
    "jpeg": (80, 65, 58, 50, 40),
}
NO_COLUMNS = ColumnMoments(np.zeros(1), np.ones(1))


@pytest.fixture(scope="module")
def expected() -> dict[str, np.ndarray]:
    with np.load(EXPECTED) as arrays:
        return dict(arrays)


def random(points: int = 1, seed: int = 0) -> Random:
    return Random(seed, np.arange(points))


def changed(name: str, x: np.ndarray, severity: int) -> np.ndarray:
    constants = Perturbation(KINDS[name], severity, is_severity=True).constants("large")
    return CORRUPTIONS[name](x, random(len(x)), NO_COLUMNS, *constants).clip(0, 1)


@pytest.mark.parametrize(
    ("name", "tolerance"), [("defocus", 0.51), ("contrast", 0.51), ("brightness", 0.51), ("pixelate", 1), ("jpeg", 2)]
)
def test_pictures_are_those_of_an_independent_package(expected, name, tolerance):
    """In levels of 255: half of one for rounding, one where Pillow rounds twice, two between decoders of JPEG."""
    x = expected["picture"].transpose(2, 0, 1)[None] / 255
    for severity, wanted in zip(SEVERITIES, expected[name], strict=True):
        found = changed(name, x, severity)[0].transpose(1, 2, 0)
        np.testing.assert_allclose(255 * found[::2, ::2], wanted.astype(float), rtol=0, atol=tolerance + 0.01)


@pytest.mark.parametrize("side", [15, 31, 35, 45, 225])
def test_pixels_between_two_rows_go_where_pillow_puts_them(side: int) -> None:
    x = np.random.default_rng(side).random((side, side)).astype(np.float32)
    for share in (0.95, 0.85, 0.75, 0.65, 0.5):
        few = Image.fromarray(x).resize([int(side * share)] * 2, Image.Resampling.BOX)
        expected = np.asarray(few.resize((side, side), Image.Resampling.BOX))
        found = CORRUPTIONS["pixelate"](x[None, None], random(), NO_COLUMNS, share)[0, 0]
        np.testing.assert_allclose(found, expected, atol=1e-6)


def test_a_motion_at_the_same_angle_is_that_of_an_independent_package(expected: dict[str, np.ndarray]) -> None:
    x = np.tile(expected["picture"], (2, 3, 1)).transpose(2, 0, 1) / 255
    for severity, wanted, angle in zip(SEVERITIES, expected["motion"], expected["angles"], strict=True):
        sigma, radius = map(float, KINDS["motion"].severities["large"][severity - 1])
        found = corruptions.along_line(x, sigma, int(radius), float(angle)).transpose(1, 2, 0)
        np.testing.assert_allclose(255 * found[::2, ::2], wanted.astype(float), rtol=0, atol=0.52)


@pytest.mark.parametrize("name", ["gaussian", "shot", "impulse"])
def test_noise_has_the_moments_of_an_independent_package(expected: dict[str, np.ndarray], name: str) -> None:
    """Mean, deviation, and the shares of black and of white, each of 160,000 numbers in both."""
    for severity, of_levels in zip(range(1, 6), expected[name], strict=True):
        for level, wanted in zip(GREYS, of_levels, strict=True):
            x = np.full((1, 1, 400, 400), level / 255)
            if name == "gaussian":
                sigma = KINDS[name].severities["large"][severity - 1]
                values = (x + sigma * random().normal(1, 400, 400, stream=0)).clip(0, 1)
            else:
                values = changed(name, x, severity)
            found = values.mean(), values.std(), (values == 0).mean(), (values == 1).mean()
            np.testing.assert_allclose(found, wanted, atol=6 * 0.5 / 400)


def test_small_pictures_have_the_severities_of_cifar_c() -> None:
    assert {name: KINDS[name].severities["small"] for name in CIFAR_C} == CIFAR_C
    assert {name for name, kind in KINDS.items() if kind.published} == {*CIFAR_C}


def test_the_form_and_the_moments_of_points_are_those_of_all_in_any_order() -> None:
    x = np.repeat([[-1.0, 0.0], [1.0, 100.0]], 1500, axis=0).astype(np.float32)
    bright = np.random.default_rng(0).random((1200, 2, 6, 6)).astype(np.float32)
    bright[-1, 0, 0, 0] = 1.5
    for values, form in ((x, "table"), (x[:, :, None], "sequence"), (bright, "image"), (bright[:-1], "picture")):
        for order in (np.arange(len(values)), np.random.default_rng(1).permutation(len(values))):
            found, axes = Values.of(points_in_memory(values[order], name="test")), (0, *range(2, values.ndim))
            assert found.form == form and found.columns is not None
            np.testing.assert_allclose(found.columns.mean.ravel(), values.mean(axes, np.float64), atol=1e-12)
            np.testing.assert_allclose(found.columns.deviation.ravel(), values.std(axes, np.float64), rtol=1e-12)


def test_every_kind_without_a_rule_of_its_own_has_a_function() -> None:
    assert {name for name, kind in KINDS.items() if kind.apply is None} == {*CORRUPTIONS}


PICTURES = np.random.default_rng(0).uniform(0.1, 0.9, (6, 3, 20, 24)).round(2)
POINTS = {
    "picture": PICTURES,
    "image": PICTURES,
    "sequence": np.random.default_rng(1).normal(size=(6, 2, 40)),
    "table": np.random.default_rng(2).normal(size=(6, 10)),
    "array": np.random.default_rng(3).normal(size=(6, 2, 4, 4, 4)),
}


@pytest.mark.parametrize("name", CORRUPTIONS)
def test_a_corruption_keeps_shapes_and_its_input_and_depends_on_no_other_point(name: str) -> None:
    kind = KINDS[name]
    for form in kind.forms:
        x = POINTS[form]
        columns, before = ColumnMoments(x.mean(tuple({*range(x.ndim)} - {1})), np.ones(x.shape[1])), x.copy()
        scale = "small" if form == "picture" else "other"
        distances = []
        for severity in range(1, 6):
            constants = Perturbation(kind, severity, is_severity=True).constants(scale)
            whole = CORRUPTIONS[name](x, random(len(x)), columns, *constants)
            alone = CORRUPTIONS[name](x[2:4], Random(0, np.array([2, 3])), columns, *constants)
            assert whole.shape == x.shape and np.isfinite(whole).all()
            np.testing.assert_array_equal(whole[2:4], alone)
            np.testing.assert_array_equal(x, before)
            distances.append(float(np.abs(whole - x).mean()))
        assert distances[-1] > distances[0] > 0, (name, form)


def test_a_larger_size_changes_the_same_numbers() -> None:
    """On common random numbers: what is lost at a smaller share is lost at a larger one, and counts grow together."""
    row, columns = POINTS["table"], ColumnMoments(np.full(10, 99.0), np.ones(10))
    fewer, more = (CORRUPTIONS["missing"](row, random(6), columns, share) == 99 for share in (0.2, 0.6))
    assert fewer.any() and (more | ~fewer).all() and more.sum() > fewer.sum()
    drawn = [CORRUPTIONS["shot"](PICTURES, random(6), NO_COLUMNS, photons) * photons for photons in (20.0, 40.0)]
    assert (drawn[1] >= drawn[0]).mean() > 0.99


def test_what_is_moved_comes_back() -> None:
    """A half turn twice is none, and a turn of a soft picture and back differs only by the interpolation."""
    y, x = np.mgrid[:20, :24] / 20
    soft = (0.5 + 0.4 * np.sin(3 * x) * np.cos(2 * y))[None, None]
    turned = corruptions.rotation(corruptions.rotation(soft, random(), NO_COLUMNS, 180.0), random(), NO_COLUMNS, 180.0)
    np.testing.assert_allclose(turned, soft, atol=1e-12)
    np.testing.assert_allclose(
        corruptions.rotation(soft, random(), NO_COLUMNS, 180.0), soft[..., ::-1, ::-1], atol=1e-12
    )
    moved = corruptions.translation(soft, random(), NO_COLUMNS, 0.1)
    angle = 2 * np.pi * random().uniform(1, stream=1)[0, 0]
    down, across = 0.1 * np.sin(angle) * 20, 0.1 * np.cos(angle) * 24
    rows, columns = np.clip([5 + down, 6 + across], 0, None)
    top, left = int(rows), int(columns)
    near = soft[0, 0, top : top + 2, left : left + 2]
    weights = np.outer([1 - (rows - top), rows - top], [1 - (columns - left), columns - left])
    assert moved[0, 0, 5, 6] == pytest.approx(float((near * weights).sum()))


def test_permuted_columns_are_the_same_for_all_points_and_lose_no_value() -> None:
    row = POINTS["table"]
    for share, count in ((0.1, 2), (0.5, 5), (1.0, 10)):
        found = CORRUPTIONS["permuted"](row, random(6), NO_COLUMNS, share)
        assert ((found != row).sum(1) == count).all()
        np.testing.assert_array_equal(np.sort(found, 1), np.sort(row, 1))
