"""The batch-size experiment, made small: what it trains and keeps, its file, its report and its picture."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_pictures
from records_at_rest import replace_in_record
from report_text import rendered
from small_experiments import Finished
from small_pictures import SIDE

from bnuq.config import Options, resolve
from bnuq.errors import DataError, RequestError, ResultError
from bnuq.estimates import Estimate
from bnuq.findings import Finding
from bnuq.report.document import Table
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.batch_size import experiment, networks, optimum, training
from experiments.batch_size.experiment import QUICK, Protocol, Request, reproduce
from experiments.batch_size.record import BatchSizes, Network, Point, read
from experiments.batch_size.report import SENTENCES, findings, report, sentences
from experiments.learned.record import mean_of, with_interval

pytestmark = pytest.mark.nightly  # not installed; test_commands.py runs four whole experiments

IMAGES = 200
TINY: Protocol = replace(QUICK, batch_sizes=(8, 16, 32), images=IMAGES, epochs=1)


SMALL = """from torch import nn


def resnet50():
    return nn.Sequential(nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(256, 10))


vgg16 = resnet50
"""


@pytest.fixture
def request_of(small_root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Request:
    monkeypatch.setattr(experiment, "DRAW_SETS", 2)
    return Request(TINY, tmp_path / "b.h5", samples=4, limit=20, workers=1, data_root=small_root, device="cpu")


@pytest.fixture(scope="module")
def record(ran: Callable[[str], Finished]) -> BatchSizes:
    return read(ran("batch-size").path)


# ── what is trained and evaluated ────────────────────────────────────────────────────────────────────────────────────


def test_each_size_is_trained_for_equal_epochs_and_for_equal_steps(record):
    assert {(each.schedule, each.batch_size): (each.steps, each.epochs) for each in record.networks} == {
        ("equal epochs", 8): (25, 1), ("equal epochs", 16): (12, 1), ("equal epochs", 32): (6, 1),
        ("equal steps", 8): (12, 12 / 25), ("equal steps", 16): (12, 1), ("equal steps", 32): (12, 2),
    }  # fmt: skip


def test_both_schedules_share_a_network(record):
    by = {(network.schedule, network.batch_size): network for network in record.networks}
    epochs, steps = by["equal epochs", 16], by["equal steps", 16]
    assert (epochs.loss, epochs.seconds) == (steps.loss, steps.seconds)
    assert epochs.matched == steps.matched
    assert by["equal epochs", 8].loss != by["equal steps", 8].loss


def test_each_network_is_evaluated_at_its_own_size_and_one_a_schedule_at_others(record):
    assert record.ood == "mnist"
    for network in record.networks:
        assert network.matched.batch_size == network.batch_size
        assert set(network.matched.estimates["mutual_information"]) == {"test", "mnist"}
        assert 0 <= network.matched.auroc["mutual_information"]["mnist"].value <= 1
        swept = network.batch_size == 32  # of these sizes the nearest to 128
        assert [point.batch_size for point in network.single] == ([16, 32, 64] if swept else [])
        assert set(network.slopes) == ({"test", "mnist"} if swept else set())


def test_both_protocols_agree_where_they_meet(record):
    for network in record.networks:
        for point in network.single:
            if point.batch_size == network.batch_size:
                assert point == network.matched


def test_what_is_kept_can_be_evaluated_again_by_hand(record, small_root, tmp_path):
    folder = record.path.parent / "networks"
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {"train.npz", "networks.py"} | {
        f"equal-{what}/m{size}.{kind}"
        for what in ("epochs", "steps")
        for size in (8, 16, 32)
        for kind in ("pt", "toml")
    }
    options = Options(samples=4, data_root=small_root, limit=20, out=tmp_path / "r.h5", device="cpu")
    result = evaluate(resolve(str(folder / "equal-steps/m32.toml"), options, folder=tmp_path))
    assert result.sampling["reference_points"] == IMAGES and result.sampling["batch_size"] == 32
    (network,) = [
        network for network in record.networks if (network.schedule, network.batch_size) == ("equal steps", 32)
    ]
    mi = result.methods["mcbn"].sets["test"].estimates["mutual_information"].value
    matched = network.matched.mutual_information("test")
    assert matched.mc_se is not None
    assert abs(mi - matched.value) < 12 * matched.mc_se  # a single draw set, where two are averaged in the experiment
    with np.load(folder / "train.npz") as arrays:
        assert arrays["x"].shape == (IMAGES, 1, SIDE, SIDE) and arrays["x"].dtype == np.uint8


@pytest.mark.nightly  # test_batch_size_training.py and the other experiments interrupt the same journal in less time
def test_an_interrupted_run_goes_on_from_what_is_finished(request_of, tmp_path, monkeypatch):
    (tmp_path / "cache").mkdir(exist_ok=True)
    whole = reproduce(replace(request_of, out=tmp_path / "cache" / "whole.h5"))
    trained: list[training.Job] = []
    train = experiment.train

    def counting(job: training.Job, advance: Callable[[int], object]) -> None:
        if job.finished() is None:
            trained.append(job)
            if len(trained) == 3:
                raise KeyboardInterrupt
        train(job, advance)

    monkeypatch.setattr(experiment, "train", counting)
    with pytest.raises(KeyboardInterrupt) as stopped:
        reproduce(request_of)
    assert "b.h5.work: the same command resumes from them." in stopped.value.__notes__[0]
    assert not request_of.out.exists() and len(list((tmp_path / "b.h5.work").glob("*-network.part"))) == 2
    again = reproduce(request_of)
    assert len(trained) == 3 + 3  # of five networks, two were there
    for before, after in zip(whole.networks, again.networks, strict=True):
        assert (before.matched, before.single, before.loss) == (after.matched, after.single, after.loss)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["b.h5"]


def check_full(request_of: Request) -> None:
    full = replace(experiment.FULL, batch_sizes=(8, 16), images=32, epochs=1)
    record = reproduce(replace(request_of, protocol=full, samples=2, limit=10, keep=request_of.out.parent / "kept"))
    assert [(network.schedule, network.architecture, network.batch_size) for network in record.networks] == [
        ("equal epochs", "resnet50", 8),
        ("equal epochs", "resnet50", 16),
        ("equal epochs", "vgg16", 8),
        ("equal epochs", "vgg16", 16),
    ]
    text = " ".join(rendered(report, record).split())
    assert "ResNet-50, VGG-16" in text and "a tenth after 40 and 60, as here" in text
    assert (request_of.out.parent / "kept" / "vgg16-equal-epochs" / "m16.toml").is_file()


def test_a_full_run_trains_two_architectures_by_epochs_alone(request_of, monkeypatch, tmp_path):
    small = tmp_path / "small.py"
    small.write_text(SMALL)
    code: dict[str, Any] = {}
    exec(SMALL, code)
    for name in ("resnet50", "vgg16"):
        monkeypatch.setattr(networks, name, code[name])  # seconds instead of minutes
    monkeypatch.setattr(experiment, "_NETWORKS", small)
    check_full(request_of)


@pytest.mark.nightly
def test_a_full_run_goes_through_with_its_own_networks(request_of):
    check_full(request_of)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"protocol": replace(TINY, batch_sizes=(8,))}, "--batch-sizes is 8; expected two sizes or more, each from 2"),
        (
            {"protocol": replace(TINY, batch_sizes=(8, 101))},
            "--batch-sizes is 8, 101; .* to 100, half the 200 training",
        ),
        ({"device": "mps"}, "--device mps"),
        ({"work": Path("nowhere/at/all")}, "nowhere/at/all: the work folder cannot be made"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(request_of, changes, message, monkeypatch):
    monkeypatch.setattr(experiment, "run_all", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(RequestError, match=message):
        reproduce(replace(request_of, **changes))


def test_data_that_is_missing_or_too_little_is_told_before_any_training(request_of, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "run_all", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(DataError, match="fashion-mnist:train: not found"):
        reproduce(replace(request_of, data_root=tmp_path))
    with pytest.raises(DataError, match="fashion-mnist:train has 240 images, fewer than --images 500"):
        reproduce(replace(request_of, protocol=replace(TINY, images=500)))
    root = small_pictures.write_data(tmp_path / "other")
    (root / "mnist" / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match="mnist:test: not found"):
        reproduce(replace(request_of, data_root=root))


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_reads_without_bnuq(record):
    with h5py.File(record.path) as file:
        assert (file.attrs["kind"], file.attrs["command"]) == ("batch-size", "experiments batch-size")
        rows = file["estimates"]
        of = rows["metric"].asstr()[()] == "mutual_information"
        of &= np.array(
            [path.endswith("matched/estimates/mutual_information/mnist") for path in rows["path"].asstr()[()]]
        )
        expected = [network.matched.mutual_information("mnist").value for network in record.networks]
        np.testing.assert_array_equal(rows["value"][()][of], expected)
        assert set(rows["unit"].asstr()[()][of]) == {"nats"} and set(rows["set"].asstr()[()][of]) == {"mnist"}
        sizes = [str(network.batch_size) for network in record.networks]
        assert rows["batch_size"].asstr()[()][of].tolist() == sizes


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.__delitem__("estimates"), "incomplete or damaged"),
        (lambda file: replace_in_record(file, '"loss"', '"gain"'), "incomplete or damaged .*loss"),
        (lambda file: replace_in_record(file, '"architectures"', '"builds"'), "architectures: Expected"),
        (lambda file: replace_in_record(file, '"training":', '"train":'), "training: Expected"),
        (lambda file: replace_in_record(file, '"matched"', '"single"'), "incomplete or damaged"),
        (lambda file: replace_in_record(file, "[0.9343, ", "["), "accuracies are not one for each batch size"),
        (lambda file: replace_in_record(file, '"accuracy": 0.', '"accuracy": 7.'), "Expected `float` <= 1"),
    ],
)
def test_a_damaged_file_is_refused_in_one_message(record, tmp_path, damage, message):
    path = tmp_path / "b.h5"
    codec.write(record, path)
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=message):
        read(path)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


def point(size: int, test: float, other: float, *, auroc: float = 0.7, accuracy: float = 0.9) -> Point:
    def estimate(value: float) -> Estimate:
        return Estimate(value, se=1e-5, mc_se=1e-5)

    estimates = {
        "mutual_information": {"test": estimate(test), "mnist": estimate(other)},
        "accuracy": {"test": estimate(accuracy)},
        "pll": {"test": estimate(-0.3)},
    }
    return Point(size, estimates, {"mutual_information": {"mnist": estimate(auroc)}})


def network(size: int, matched: Point, *, loss: float, accuracy: float = 1.0) -> Network:
    return Network("equal epochs", "small_resnet", size, 100, 10.0, loss, accuracy, 1.0, matched)


def verdicts(record: BatchSizes, *networks: Network) -> dict[str, Finding]:
    """The findings of these networks, by code; each has a sentence."""
    record = replace(record, networks=networks)
    assert all(text.endswith(".") for text in sentences(record))
    return {finding.code: finding for finding in findings(record)}


def test_every_finding_has_its_sentence(record):
    assert report(record).summary == sentences(record)
    codes = {finding.code for finding in findings(record)}
    assert codes <= set(SENTENCES) and {"single-network-slope", "accuracies"} <= codes


def test_it_is_found_whether_training_explains_the_fall(record):
    ends = point(32, 0.004, 0.004), point(2048, 0.0001, 0.0001)
    alike = verdicts(record, network(32, ends[0], loss=0.10), network(2048, ends[1], loss=0.11))
    values = alike["mi-falls"].values
    assert (values["ends"], values["sizes"]) == ((0.004, 0.0001), (32, 2048))
    assert values["percents"] == pytest.approx(2.5)
    assert alike["published-near-zero"].values["size"] == 1024
    assert alike["equally-trained"].values["losses"] == (0.10, 0.11)
    worse = verdicts(record, network(32, ends[0], loss=0.1), network(2048, ends[1], loss=0.9, accuracy=0.7))
    assert worse["unequally-trained"].values["losses"] == (0.1, 0.9)
    assert "all-learnt" in verdicts(record, network(32, ends[0], loss=0.001), network(2048, ends[1], loss=0.003))


@pytest.mark.parametrize(
    ("values", "code"),
    [((0.004, 0.004), "mi-unchanged"), ((0.004, 0.009), "mi-rises"), ((0.004, 0.005, 0.001), "mi-falls-unsteadily")],
)
def test_it_is_found_where_mi_does_not_simply_fall(record, values, code):
    sizes = (32, 128, 2048) if len(values) == 3 else (32, 2048)
    series = [network(size, point(size, value, value), loss=0.1) for size, value in zip(sizes, values, strict=True)]
    assert code in verdicts(record, *series)


def test_it_is_found_whether_unfamiliar_data_are_alike_at_large_sizes(record):
    first = network(32, point(32, 0.004, 0.008, auroc=0.8), loss=0.1)
    alike = verdicts(record, first, network(2048, point(2048, 0.0001, 0.00011, auroc=0.52), loss=0.1))
    assert alike["ood-separated-somewhere"].values["sizes"] == [32]
    assert alike["ood-alike-as-published"].values["ratio"] == pytest.approx(1.1)
    apart = verdicts(record, first, network(2048, point(2048, 0.0001, 0.0003, auroc=0.82), loss=0.1))
    assert "ood-separated-everywhere" in apart
    assert apart["ood-not-alike"].values["ratio"] == pytest.approx(3)


def test_published_accuracies_stand_beside_those_of_the_same_size(record):
    ends = network(32, point(32, 0.004, 0.004), loss=0.1), network(2048, point(2048, 0.001, 0.001), loss=0.1)
    sections = {section.title: section for section in report(replace(record, networks=ends)).sections}
    [table] = sections["Accuracy of MCBN, and the published one"].parts
    assert isinstance(table, Table)
    assert [cell.value for cell in dict(table.rows)["M = 2048"]][-2:] == ["0.9387", "0.9486"]


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--batch-sizes", "8,x"], "--batch-sizes is 8,x; expected whole numbers of at least 2, such as 32,128."),
        (["--out", "nowhere/b.h5"], "--out nowhere/b.h5: its folder does not exist. Make the folder first."),
        (["--out", "mine.txt"], "mine.txt is not a result of bnuq; name another file to write."),
        (["--workers", "0"], "--workers is 0; expected a whole number of at least 1."),
        (["--epochs", "0"], "--epochs is 0; expected a whole number of at least 1."),
        (["--samples", "1"], "--samples is 1; expected a whole number of at least 2."),
    ],
)
def test_the_command_refuses_in_one_message(called, small_root, tmp_path, arguments, message):
    (tmp_path / "mine.txt").write_text("notes")
    assert called("batch-size", "--data-root", str(small_root), *arguments) == (2, "", f"bnuq: {message}\n")
    assert (tmp_path / "mine.txt").read_text() == "notes"


@pytest.mark.nightly
def test_a_small_run_on_the_real_images_is_learnt_and_measured(data_pack, tmp_path):
    protocol = replace(QUICK, batch_sizes=(32, 128), images=4000, epochs=8)
    record = reproduce(Request(protocol, tmp_path / "b.h5", limit=500, data_root=data_pack))
    of_epochs = record.series()["equal epochs", "small_resnet"]
    assert all(
        network.accuracy > 0.85 and network.matched.estimates["accuracy"]["test"].value > 0.78 for network in of_epochs
    )
    assert -1.25 < of_epochs[-1].slopes["test"].value < -0.8


@pytest.mark.parametrize(
    ("values", "said"),
    [((0.5, 0.6, 0.7), "holds"), ((-0.5, -0.6, -0.7), "fails"), ((-1, 2, 0.3), "open"), ((1,), "open")],
)
def test_an_optimum_grows_with_n_where_the_interval_of_its_slope_is_above_0(
    values: tuple[float, ...], said: str
) -> None:
    slope = with_interval(mean_of(np.array(values)), len(values))
    assert optimum.grows(slope).partition(" ")[0].rstrip(",") == said


def test_coloured_images_are_trained_on_from_several_seeds_which_are_averaged(
    request_of: Request, small_root: Path
) -> None:
    protocol = replace(TINY, of="cifar10", images=64, batch_sizes=(8, 16), seeds=2, equal_steps=False)
    (small_root / "ood").mkdir(exist_ok=True)
    digits = np.random.default_rng(0).integers(0, 256, (30, SIDE, SIDE, 3)).astype(np.uint8)
    np.savez(small_root / "ood" / "pcbdigits32.npz", x=digits, y=np.arange(30) % 10)
    both = reproduce(replace(request_of, protocol=protocol, keep=request_of.out.parent / "kept", draw_sets=2))
    kept = sorted(path.name for path in (request_of.out.parent / "kept" / "equal-epochs").glob("*.toml"))
    assert kept == ["m16-seed1.toml", "m16.toml", "m8-seed1.toml", "m8.toml"]
    assert (both.ood, len(both.networks)) == ("digits", 2)
    one = replace(request_of, protocol=replace(protocol, seeds=1), draw_sets=2)
    alone = [reproduce(replace(one, seed=seed)).networks[0].loss for seed in (0, 1)]
    assert both.networks[0].loss == pytest.approx(np.mean(alone))
    mi = both.networks[0].matched.mutual_information("digits")
    assert mi.se is not None and mi.mc_se is None
    assert both.published["batch_sizes"][-1] == 512
