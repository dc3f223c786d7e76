"""Every setting of a request: a record repeats it, and nothing that was computed for another value is taken for it."""

from __future__ import annotations

import contextlib
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from functools import cache, reduce
from operator import getitem
from pathlib import Path
from typing import Any

import at_night
import numpy as np
import pytest
import small_pictures
import small_regression
import small_run
import small_segmentation
import torch

from bnuq.config import Options, resolve, resolve_again, resolve_sweep
from bnuq.config.runfile_writing import Line, table
from bnuq.config.schema import Normalize, Request, Section, choices_of, parts_of, settings_of
from bnuq.errors import BnuqError
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.records.summary import summary
from bnuq.studies.sweep.compute import sweep
from bnuq.workflows.evaluate import evaluate

NOT_VARIED = {  # by the beginnings of their places
    "sweep.": "of a sweep, which no record repeats",
    "runs.": "of several runs, each of which has its own record",
    "check.": "of a comparison of results",
    "gate.": "of a comparison of results",
    "options.device": "needs another device",
    "options.on": "other processes, see test_many_processes.py",
    "options.out": "a name",
    "options.download": "a permission, which is not recorded",
    "options.trust_": "a permission, which is not recorded",
}
# Of the small networks: values that types do not say, and behind them what else is set.
CASES = {
    "classes": """
    model.checkpoint = "other.pt" | model.arch = "smooth.py:net" | model.arch_args = { rate = 0.2 }
    model.entry = "model"; model.checkpoint = "entries.pt" | model.task = "classification"
    model.outputs = "probabilities"; model.arch = "smooth.py:ends" | data.train = "validation.npz"
    data.test = "validation.npz" | data.ood = ["strange=other.npz"] | data.perturb = ["gaussian:0.1"]
    data.validation = "validation.npz" | data.validation.fraction = 0.3; data.validation.split_of = "test"
    data.validation.seed = 12; data.validation.split_of = "test" | data.train_size = 960 | data.group = "laboratory"
    data.validation.held_out = true; data.validation.split_of = "test" | data.normalize = "0.4/0.2"
    sampling.batches = "group"; data.group = "laboratory" | sampling.methods = ["mcdo"]
    sampling.counts = "nominal"; sampling.methods = ["mcbn-chi2"]
    sampling.covariance = "channel"; sampling.methods = ["mcbn-empirical"]
    sampling.noise_model_draws = 12; sampling.methods = ["mcbn-gaussian"]
    sampling.laplace = "diag"; sampling.methods = ["laplace"] | sampling.samples = 12
    sampling.mc_error = 0.3; sampling.samples = "auto"; data.ood = []
    sampling.max_samples = 20; sampling.samples = "auto"; data.ood = []
    scoring.recalibration = ["vector"]; data.validation = "validation.npz"
    scoring.set_coverage = 0.8; sampling.calibrate = "cross"
    certificate.risk = 0.45; data.validation = "validation.npz"
    certificate.confidence = 0.8; certificate.risk = 0.45; data.validation = "validation.npz"
    certificate.score = "predictive_entropy"; certificate.risk = 0.45; data.validation = "validation.npz"
    certificate.each = "class"; certificate.risk = 0.45; data.validation = "validation.npz"
    options.threads = 1 | options.data_root = "root"; data.ood = ["mnist"]
    options.folders = {}; model.arch = "net:net"
    """,
    "pictures": """
    data.classes = ["b", "a", "c"] | data.resize = 8 | data.crop = 7 | data.interpolation = "nearest"; data.resize = 7
    data.channel_order = "bgr" | data.augment = "flip" | sampling.layers = "first:1" | options.images = false
    scoring.shift_window = 12; data.perturb = ["gaussian@1", "gaussian@3"]
    scoring.shift_loss = 0.3; data.perturb = ["gaussian@1", "gaussian@3"]
    """,
    "numbers": """
    data.target = "x3" | data.normalize_targets = "40/10"
    scoring.pll = "moment" | scoring.crps = "mixture" | scoring.fit = "pll" | scoring.tau = 0.01
    scoring.tau_range = [0.001, 0.002]
    """,
    "pixels": """
    data.ignore = 1 | data.palette = "names.txt" | options.save_maps = true | options.show_images = [1]
    """,
}
for at, others in (("data.augment", ""), ("tta", '; sampling.methods = ["tta", "mcbn+tta"]')):
    for augmented in (
        "resized_crop = 12", "scale = [0.5, 0.9]; X.resized_crop = 12", "ratio = [0.5, 0.8]; X.resized_crop = 12",
        "pad = 1; X.crop = 12", "crop = 12; X.pad = 2", "flip = true", "pad_value = 0.3; X.pad = 1; X.crop = 12",
        'pad_mode = "reflect"; X.pad = 1; X.crop = 12', "jitter = [0.1, 0.2, 0.3, 0.1]", "jitter.brightness = 0.3",
        "jitter.contrast = 0.3", "jitter.saturation = 0.3", "jitter.hue = 0.3",
    ):  # fmt: skip
        CASES["pictures"] += f"{at}.{augmented.replace('X', at)}{others} | "
LINES = {
    case.split()[0]: (network, *case.partition("; ")[::2])
    for network, cases in CASES.items()
    for case in re.split(r"\s*[|\n]\s*", cases)
    if case
}


def settings_in(section: type[Section], place: str = "") -> Iterator[tuple[str, Any]]:
    """The place and the field of every setting of a section, and of the tables in it."""
    for key, field in settings_of(section).items():
        parts = [*parts_of(field.type)]
        tables = [part for part in parts if isinstance(part, type) and issubclass(part, Section)]
        if not tables or {str, float}.intersection(parts):  # a text or a list may stand for the table
            yield f"{place}{key}", field
        for part in tables:
            if part is not Normalize:  # which is whole or not there
                yield from settings_in(part, f"{place}{key}.")


FIELDS = {place: field for place, field in settings_in(Request) if not place.startswith(tuple(NOT_VARIED))}


def network_and_lines(place: str) -> tuple[str, str, str]:
    """The network for which a setting is varied, the lines of what else is set, and of all."""
    if place in LINES:
        network, line, others = LINES[place]
    else:  # another value by its type
        of, default, others, network = FIELDS[place].type, FIELDS[place].default, "", "classes"
        choices = [f'"{choice}"' for choice in choices_of(of) if choice not in (default, "auto")]
        line = f"{place} = {str(not default).lower() if bool in parts_of(of) else choices[-1] if choices else 12}"
    others = others.replace("; ", "\n")
    return network, others, f"{line}\n{others}"


def test_every_setting_is_varied_or_has_a_reason() -> None:
    assert LINES.keys() <= FIELDS.keys()
    for place in FIELDS:  # a new setting whose type says no value is named above
        value = reduce(getitem, place.split("."), tomllib.loads(network_and_lines(place)[2]))
        assert value != FIELDS[place].default, place


# ── small networks, and their requests ───────────────────────────────────────────────────────────────────────────────


def write_classes(folder: Path) -> None:
    small_run.write(folder)
    model, state = small_run.network().eval(), torch.load(folder / "model.pt")
    model.load_state_dict(state)
    other = state | {"7.bias": state["7.bias"] + 0.1, "7.weight": state["7.weight"] * 0.9}
    torch.save(other, folder / "other.pt")
    torch.save({"model": other, "model_ema": state}, folder / "entries.pt")
    for name in ("train", "test"):
        with np.load(folder / f"{name}.npz") as file:
            x, y = file["x"], file["y"]
        np.savez(folder / f"{name}.npz", x=x, y=y, laboratory=np.arange(len(x)) % 4)
    x = np.random.default_rng(1).normal(0.5, 0.3, (64, 1, 6, 6)).astype(np.float32)
    y = model(torch.from_numpy(x)).argmax(1).numpy()
    np.savez(folder / "validation.npz", x=x, y=y, laboratory=np.arange(64) % 4)
    ends = "\n\ndef ends() -> nn.Module:\n    return nn.Sequential(*net(), nn.Softmax(1))\n"
    (folder / "smooth.py").write_text(small_run.NET.replace("nn.ReLU", "nn.GELU") + ends)
    small_pictures.write_data(folder / "root")


def write_pictures(folder: Path) -> None:
    net = small_run.NET.replace("nn.Conv2d(1, ", "nn.Conv2d(3, ")
    net = net.replace("nn.Flatten()", "nn.BatchNorm2d(4),\n        nn.AdaptiveAvgPool2d(4),\n        nn.Flatten()")
    namespace: dict[str, Any] = {}
    exec(net, namespace)
    random = np.random.default_rng(0)
    for name, count in (("train", 16), ("test", 7)):
        for number, label in enumerate("abc"):
            images = random.integers(0, 150, (count, 12, 12, 3))
            images[:, 3 * number : 3 * number + 3, 2:7] += 90
            (folder / name).mkdir(parents=True, exist_ok=True)
            small_segmentation.write_pictures(folder / name / label, images)
    small_segmentation.write_pictures(folder / "other", random.integers(0, 255, (12, 12, 12, 3)))
    with torch.random.fork_rng():
        torch.manual_seed(0)
        for name in ("model", "other"):
            model = namespace["net"]()
            small_run.settle(model, torch.from_numpy(random.random((48, 3, 12, 12), np.float32)))
            torch.save(model.state_dict(), folder / f"{name}.pt")
    (folder / "net.py").write_text(net)
    (folder / "run.toml").write_text(small_run.RUN.replace(".npz", ""))


def write_numbers(folder: Path) -> None:
    small_regression.write(folder)
    for name in ("train", "test", "validation"):
        with np.load(folder / f"{name}.npz") as file:
            rows = np.hstack([file["x"], file["y"]])
        np.savetxt(folder / f"{name}.csv", rows, delimiter=",", header="x1,x2,x3,y", comments="")
    state = torch.load(folder / "model.pt")
    torch.save(state | {"4.bias": state["4.bias"] + 0.1}, folder / "other.pt")
    (folder / "run.toml").write_text(small_regression.RUN.replace(".npz", ".csv").replace("far.csv", "far.npz"))


def write_pixels(folder: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(small_segmentation, "IGNORE", 1)  # so that all values are classes
        small_segmentation.write(folder)
    (folder / "names.txt").write_text("road\nsky\ncar\n")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("settings")


@cache
def written(root: Path, network: str) -> Path:
    """The folder of a small network."""
    globals()[f"write_{network}"](folder := root / network)
    return folder


def run_file(folder: Path, lines: str, name: str, **model: Any) -> tuple[str, dict[str, Any]]:
    """The name of a run file of the network in `folder` with these settings, and those that are options."""
    content = tomllib.loads((folder / "run.toml").read_text())
    content["sampling"] |= {"samples": 4, "methods": ["mcbn"]}
    content["model"] |= model
    for section, values in tomllib.loads(lines).items():
        content[section] = content.get(section, {}) | values
    options = content.pop("options", {})
    options |= {key: tuple(value) for key, value in options.items() if isinstance(value, list)}
    options.pop("folders", None)  # of a record alone
    tables = [table(section, [Line(*item) for item in values.items()], None) for section, values in content.items()]
    (folder / f"{name}.toml").write_text("\n\n".join(tables))
    return f"{name}.toml", options


def evaluated(folder: Path, lines: str, name: str) -> Result:
    """The result of these settings, read from its file."""
    text, options = run_file(folder, lines, name)
    evaluate(resolve(text, Options({"chunk_size": 20, "out": f"{name}.h5"} | options), folder=folder))
    return read(folder / f"{name}.h5")


@cache
def undisturbed(root: Path, place: str) -> Result:
    network, _, lines = network_and_lines(place)
    return evaluated(written(root, network), lines, place)


def assert_same(found: Any, expected: Any, where: str = "") -> None:
    """Bitwise, NaN included; but for how long it took, where it lies, and how paths are written."""
    if where.rpartition(".")[2] in ("path", "seconds", "work", "provenance", "findings", "reference"):
        return
    if isinstance(expected, Mapping):
        assert [*found] == [*expected], where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}.{key}")
    elif isinstance(expected, list | tuple) and not all(isinstance(each, str | int) for each in expected):
        assert len(found) == len(expected), where
        for first, second in zip(found, expected, strict=True):
            assert_same(first, second, f"{where}[]")
    elif hasattr(expected, "__dict__"):
        assert_same(vars(found), vars(expected), where)
    else:
        np.testing.assert_array_equal(found, expected, err_msg=where)


# ── the walks ────────────────────────────────────────────────────────────────────────────────────────────────────────

DAILY = ("data.interpolation", "scoring.set_coverage", "sampling.mc_error")


@pytest.mark.parametrize("place", at_night.but(DAILY, FIELDS))
def test_a_record_repeats_its_run(root: Path, place: str) -> None:
    first = undisturbed(root, place)
    folder, options = first.path.parent, Options(out=f"again.{place}.h5", trust_code=True)
    evaluate(resolve_again(dict(first.run), first.path, options, folder=folder))
    assert_same(read(folder / f"again.{place}.h5"), first)


CODES = ("setting-ignored", "without-effect")
WITHOUT_A_WORD = {  # what may change no figure, by the beginnings of places
    "model.arch_args": "as the factory has it by default",
    "model.task": "as the network has it",
    "data.train_size": "near enough to what is there",
    "data.target": "one of the names that are looked for",
    "data.resize": "as the images are",
    "data.augment": "as large as the images are",
    "sampling.layers": "the only layer",
    "sampling.calibrate": "as by default",
    "scoring.set_coverage": "by default no temperature is fitted here, see conftest.py",
    "options.": "how, where and what else is written",
}


@pytest.mark.nightly
@pytest.mark.parametrize("network", CASES)
def test_a_setting_changes_a_figure_or_is_said_to_have_no_effect(root: Path, network: str) -> None:
    def figures(line: str) -> dict[str, Any]:
        nonlocal said
        result = evaluated(written(root, network), line, "alone")
        said = {finding.values["key"] for finding in result.findings if finding.code in CODES}
        return {key: summary(result)[key] for key in ("sets", "methods", "decisions", "verdict", "reference_check")}

    said = set[Any]()
    silent, unchanged = [], figures("")
    for place in FIELDS:
        line = network_and_lines(place)[2].partition("\n")[0]
        with contextlib.suppress(BnuqError):
            same = repr(figures(line)) == repr(unchanged)
            spoken = said & {place, place.partition(".")[0], place.rpartition(".")[2]}
            if same and not spoken and not place.startswith(tuple(WITHOUT_A_WORD)):
                silent.append(place)
            assert same or not spoken, place
    assert not silent


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@cache
def interrupted(root: Path, network: str, lines: str) -> Path | None:
    """The folder of all units of a run; None if there are none."""
    folder, name = written(root, network), f"units{abs(hash(lines))}"
    with pytest.MonkeyPatch.context() as patch, pytest.raises((KeyboardInterrupt, BnuqError)):
        patch.setattr("bnuq.workflows.evaluate.check_network_unchanged", interrupt)
        evaluated(folder, lines, name)
    return place if (place := folder / f"{name}.h5.work").exists() else None


@pytest.mark.parametrize("place", at_night.but(DAILY, FIELDS))
def test_units_of_another_value_are_not_taken(root: Path, place: str) -> None:
    network, before, lines = network_and_lines(place)
    if (units := interrupted(root, network, before)) is not None:
        shutil.copytree(units, units.parent / f"mixed.{place}.h5.work")
    assert_same(evaluated(written(root, network), lines, f"mixed.{place}"), undisturbed(root, place))


SWEPT = [
    case
    for case in at_night.but(DAILY, FIELDS)
    if network_and_lines(case.values[0])[0] != "pixels" and not case.values[0].startswith("options.")
]


@pytest.mark.parametrize("place", SWEPT)
def test_a_network_of_a_sweep_is_as_alone_or_refused(root: Path, place: str) -> None:
    network, before, lines = network_and_lines(place)
    folder, points = written(root, network), []
    files = [run_file(folder, before, "first")[0]]
    files.append(run_file(folder, lines, "second", checkpoint="other.pt", train_batch_size=24)[0])
    for models in (files, files[1:]):
        asked = {"draw_sets": 2, "batch_sizes": (24,)}
        with contextlib.suppress(BnuqError):
            record = sweep(*resolve_sweep(models, Options(out=f"{place}.h5"), asked, folder=folder))
            points.append(next(point for point in record.line(len(models) - 1) if point.batch_size == 24))
    if len(points) == 2:
        assert_same(*({**vars(point), "model": None} for point in points))
