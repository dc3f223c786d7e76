"""The batch-size experiment, made small: what it trains and keeps, its file, its report and its picture."""

from __future__ import annotations

import io
import json
import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from bnuq.config import Options, resolve
from bnuq.errors import DataError, RequestError, ResultError
from bnuq.estimates import Estimate
from bnuq.findings import Finding
from bnuq.report.document import Table
from bnuq.report.render import draw_pictures, print_record
from bnuq.store import codec
from bnuq.workflows.evaluate import evaluate
from experiments.__main__ import main
from experiments.batch_size import experiment, networks, training
from experiments.batch_size.experiment import QUICK, Protocol, Request, reproduce
from experiments.batch_size.record import BatchSizes, Network, Point, summary
from experiments.batch_size.report import SENTENCES, findings, report, sentences

SIDE, IMAGES = 10, 200
TINY: Protocol = replace(QUICK, batch_sizes=(8, 16, 32), images=IMAGES, epochs=2)


def idx(values: np.ndarray) -> bytes:
    return bytes([0, 0, 8, values.ndim]) + np.array(values.shape, ">u4").tobytes() + values.tobytes()


def write_data(root: Path) -> Path:
    """A data root whose clothes are bright rows and whose digits are bright columns."""
    random = np.random.default_rng(0)
    for name, prefix, count in (("fashion-mnist", "train", 240), ("fashion-mnist", "t10k", 60), ("mnist", "t10k", 50)):
        y = np.arange(count, dtype=np.uint8) % 10
        x = random.integers(0, 120, (count, SIDE, SIDE))
        x[np.arange(count), y] += 130
        x = x if name == "fashion-mnist" else x.transpose(0, 2, 1)
        folder = root / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{prefix}-images-idx3-ubyte").write_bytes(idx(x.astype(np.uint8)))
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(y))
    return root


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_data(tmp_path_factory.mktemp("data"))


@pytest.fixture
def request_of(root: Path, tmp_path: Path) -> Request:
    return Request(TINY, tmp_path / "b.h5", samples=4, limit=40, workers=1, data_root=root, device="cpu")


@pytest.fixture(scope="module")
def kept(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[BatchSizes, Path]:
    """The experiment, and the folder that its networks stay in."""
    folder = tmp_path_factory.mktemp("experiment")
    request = Request(
        TINY, folder / "b.h5", samples=4, limit=40, workers=1, data_root=root, device="cpu", keep=folder / "networks"
    )
    return reproduce(request), folder / "networks"


def read(path: Path) -> BatchSizes:
    return codec.read(BatchSizes, path, summary=summary)


@pytest.fixture
def found(kept: tuple[BatchSizes, Path]) -> BatchSizes:
    return kept[0]


def drawn(found: BatchSizes, *, width: int = 80, encoding: str = "utf-8") -> str:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding=encoding)
    print_record(report, found, stream, width=width)
    stream.flush()
    return raw.getvalue().decode(encoding)


# ── what is trained and evaluated ────────────────────────────────────────────────────────────────────────────────────


def test_each_size_is_trained_for_equal_epochs_and_for_equal_steps(found):
    told = {(one.schedule, one.batch_size): (one.steps, one.epochs) for one in found.networks}
    assert told == {
        ("equal epochs", 8): (50, 2), ("equal epochs", 16): (24, 2), ("equal epochs", 32): (12, 2),
        ("equal steps", 8): (24, 24 / 25), ("equal steps", 16): (24, 2), ("equal steps", 32): (24, 4),
    }  # fmt: skip


def test_the_network_that_both_schedules_share_is_one(found):
    by = {(one.schedule, one.batch_size): one for one in found.networks}
    epochs, steps = by["equal epochs", 16], by["equal steps", 16]
    assert (epochs.loss, epochs.seconds) == (steps.loss, steps.seconds)
    assert epochs.matched == steps.matched
    assert by["equal epochs", 8].loss != by["equal steps", 8].loss


def test_each_network_is_evaluated_at_its_own_size_and_one_a_schedule_at_others(found):
    assert found.ood == "mnist"
    for network in found.networks:
        assert network.matched.batch_size == network.batch_size
        assert set(network.matched.estimates["mutual_information"]) == {"test", "mnist"}
        assert 0 <= network.matched.auroc["mutual_information"]["mnist"].value <= 1
        swept = network.batch_size == 32  # of these sizes the nearest to 128
        assert [point.batch_size for point in network.single] == ([16, 32, 64] if swept else [])
        assert set(network.slopes) == ({"test", "mnist"} if swept else set())


def test_both_protocols_agree_where_they_meet(found):
    for network in found.networks:
        for point in network.single:
            if point.batch_size == network.batch_size:
                assert point == network.matched


def test_what_is_kept_can_be_evaluated_again_by_hand(kept, root, tmp_path):
    found, folder = kept
    assert {path.relative_to(folder).as_posix() for path in folder.rglob("*.*")} == {"train.npz", "networks.py"} | {
        f"equal-{what}/m{size}.{kind}"
        for what in ("epochs", "steps")
        for size in (8, 16, 32)
        for kind in ("pt", "toml")
    }
    options = Options(samples=4, data_root=root, limit=40, out=tmp_path / "r.h5", device="cpu")
    result = evaluate(resolve(str(folder / "equal-steps/m32.toml"), options, folder=tmp_path))
    assert result.sampling["reference_points"] == IMAGES and result.sampling["batch_size"] == 32
    (network,) = [one for one in found.networks if (one.schedule, one.batch_size) == ("equal steps", 32)]
    mi = result.methods["mcbn"].sets["test"].estimates["mutual_information"].value
    ours = network.matched.mutual_information("test")
    assert ours.mc_se is not None
    assert abs(mi - ours.value) < 12 * ours.mc_se  # one of the five draw sets that are averaged there
    with np.load(folder / "train.npz") as held:
        assert held["x"].shape == (IMAGES, 1, SIDE, SIDE) and held["x"].dtype == np.uint8


def test_nothing_is_left_but_the_result(request_of, tmp_path):
    reproduce(request_of)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["b.h5"]


def test_an_interrupted_run_goes_on_from_what_is_finished(request_of, found, tmp_path, monkeypatch):
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
    assert "b.h5.work: the same command goes on from them." in stopped.value.__notes__[0]
    assert not request_of.out.exists() and len(list((tmp_path / "b.h5.work").glob("*-network.part"))) == 2
    again = reproduce(request_of)
    assert len(trained) == 3 + 3  # of five networks, two were there
    for before, after in zip(found.networks, again.networks, strict=True):
        assert (before.matched, before.single, before.loss) == (after.matched, after.single, after.loss)
    assert [path.name for path in tmp_path.iterdir() if path.name != "cache"] == ["b.h5"]


@pytest.mark.slow  # of processes beside each other the UCI experiment's test knows the same, with networks far smaller
def test_several_workers_find_the_same(request_of):
    protocol = replace(TINY, batch_sizes=(8, 16), epochs=1)
    one, two = (reproduce(replace(request_of, protocol=protocol, workers=workers, limit=10)) for workers in (1, 2))
    assert [each.matched for each in one.networks] == [each.matched for each in two.networks]


def check_full(request_of: Request) -> None:
    full = replace(experiment.FULL, batch_sizes=(8, 16), images=32, epochs=1)
    found = reproduce(replace(request_of, protocol=full, samples=2, limit=10, keep=request_of.out.parent / "kept"))
    assert [(one.schedule, one.architecture, one.batch_size) for one in found.networks] == [
        ("equal epochs", "resnet50", 8),
        ("equal epochs", "resnet50", 16),
        ("equal epochs", "vgg16", 8),
        ("equal epochs", "vgg16", 16),
    ]
    text = " ".join(drawn(found).split())
    assert "ResNet-50, VGG-16" in text and "those here are customary ones" in text
    assert (request_of.out.parent / "kept" / "vgg16-equal-epochs" / "m16.toml").is_file()


def test_a_full_run_trains_two_architectures_by_epochs_alone(request_of, monkeypatch, tmp_path):
    for name in ("resnet50", "vgg16"):
        monkeypatch.setattr(networks, name, networks.small_resnet)  # seconds instead of minutes
    small = tmp_path / "small.py"
    small.write_text(f"{experiment._NETWORKS.read_text()}\nresnet50 = vgg16 = small_resnet\n")
    monkeypatch.setattr(experiment, "_NETWORKS", small)
    check_full(request_of)


@pytest.mark.slow
def test_a_full_run_goes_through_with_its_own_networks(request_of):
    check_full(request_of)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"protocol": replace(TINY, batch_sizes=(8,))}, "--batch-sizes is 8; expected two sizes or more, each from 2"),
        (
            {"protocol": replace(TINY, batch_sizes=(8, 101))},
            "--batch-sizes is 8, 101; .* to 100, half the 200 training",
        ),
        ({"protocol": replace(TINY, epochs=0)}, "--epochs is 0; expected a whole number of at least 1"),
        ({"samples": 1}, "--samples is 1; expected a whole number of at least 2"),
        ({"seed": -1}, "--seed is -1"),
        ({"device": "mps"}, "--device mps"),
        ({"work": Path("nowhere/at/all")}, "nowhere/at/all: the work folder cannot be made"),
    ],
)
def test_what_cannot_be_is_refused_before_any_training(request_of, changes, said, monkeypatch):
    monkeypatch.setattr(experiment, "run_all", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(RequestError, match=said):
        reproduce(replace(request_of, **changes))


def test_data_that_is_missing_or_too_little_is_told_before_any_training(request_of, tmp_path, monkeypatch):
    monkeypatch.setattr(experiment, "run_all", lambda *_, **__: pytest.fail("trained"))
    with pytest.raises(DataError, match="fashion-mnist:train: not found"):
        reproduce(replace(request_of, data_root=tmp_path))
    with pytest.raises(DataError, match="expected at least 500 labelled images of bytes, and there are 240 of shape"):
        reproduce(replace(request_of, protocol=replace(TINY, images=500)))
    root = write_data(tmp_path / "other")
    (root / "mnist" / "t10k-images-idx3-ubyte").unlink()
    with pytest.raises(DataError, match="mnist:test: not found"):
        reproduce(replace(request_of, data_root=root))


# ── the file ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_gives_back_the_record(found):
    assert found.path is not None
    assert read(found.path) == found
    assert json.loads(json.dumps(summary(found), allow_nan=False)) == summary(read(found.path))


def test_the_file_reads_without_bnuq(found):
    with h5py.File(found.path) as file:
        assert (file.attrs["kind"], file.attrs["command"]) == ("batch-size", "experiments batch-size")
        rows = file["estimates"]
        of = rows["metric"].asstr()[()] == "mutual_information"
        of &= np.array(
            [path.endswith("matched/estimates/mutual_information/mnist") for path in rows["path"].asstr()[()]]
        )
        expected = [network.matched.mutual_information("mnist").value for network in found.networks]
        np.testing.assert_array_equal(rows["value"][()][of], expected)
        assert set(rows["unit"].asstr()[()][of]) == {"nats"} and set(rows["set"].asstr()[()][of]) == {"mnist"}
        sizes = [str(network.batch_size) for network in found.networks]
        assert rows["batch_size"].asstr()[()][of].tolist() == sizes


def changed(file: Any, old: str, new: str) -> None:
    """The record's text with `new` in the place of `old`."""
    text = file["record"].asstr()[()]
    assert old in text
    del file["record"]
    file["record"] = text.replace(old, new)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (lambda file: file.attrs.__setitem__("format", 99), "in format 99"),
        (lambda file: file.attrs.__setitem__("kind", "sweep"), "is not a result file of bnuq experiments batch-size"),
        (lambda file: file.__delitem__("estimates"), "incomplete or damaged"),
        (lambda file: changed(file, '"loss"', '"gain"'), "incomplete or damaged .*loss"),
        (lambda file: changed(file, '"architectures"', '"builds"'), "architectures: Expected"),
        (lambda file: changed(file, '"training":', '"train":'), "training: Expected"),
        (lambda file: changed(file, '"matched"', '"single"'), "incomplete or damaged"),
        (lambda file: changed(file, "[0.9343, ", "["), "accuracies are not one for each batch size"),
        (lambda file: changed(file, '"accuracy": 0.', '"accuracy": 7.'), "Expected `float` <= 1"),
    ],
)
def test_a_damaged_file_is_refused_in_one_message(found, tmp_path, damage, said):
    path = tmp_path / "b.h5"
    codec.write(found, path)
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=said):
        read(path)


# ── the report ───────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("width", [40, 80, 100])
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_the_report_fits_every_width_in_either_encoding(found, width, encoding):
    text = drawn(found, width=width, encoding=encoding)
    wide = [line for line in text.splitlines() if len(line) > width and not line.startswith("/")]
    assert not wide and not {"?", "{", "}"} & set(text)
    assert f"{found.networks[0].matched.mutual_information('test').value:.5f}" in text


def point(size: int, test: float, other: float, *, auroc: float = 0.7, accuracy: float = 0.9) -> Point:
    def told(value: float) -> Estimate:
        return Estimate(value, se=1e-5, mc_se=1e-5)

    estimates = {
        "mutual_information": {"test": told(test), "mnist": told(other)},
        "accuracy": {"test": told(accuracy)},
        "pll": {"test": told(-0.3)},
    }
    return Point(size, estimates, {"mutual_information": {"mnist": told(auroc)}})


def network(size: int, matched: Point, *, loss: float, accuracy: float = 1.0) -> Network:
    return Network("equal epochs", "small_resnet", size, 100, 10.0, loss, accuracy, 1.0, matched)


def verdicts(record: BatchSizes, *networks: Network) -> dict[str, Finding]:
    """The findings of these networks, by code; each has a sentence."""
    record = replace(record, networks=networks)
    assert all(text.endswith(".") for text in sentences(record))
    return {finding.code: finding for finding in findings(record)}


def test_every_finding_has_its_sentence(found):
    assert report(found).summary == sentences(found)
    codes = {finding.code for finding in findings(found)}
    assert codes <= set(SENTENCES) and {"single-network-slope", "accuracies"} <= codes


def test_it_is_found_whether_training_explains_the_fall(found):
    ends = point(32, 0.004, 0.004), point(2048, 0.0001, 0.0001)
    alike = verdicts(found, network(32, ends[0], loss=0.10), network(2048, ends[1], loss=0.11))
    values = alike["mi-falls"].values
    assert (values["ends"], values["sizes"]) == ((0.004, 0.0001), (32, 2048))
    assert values["percents"] == pytest.approx(2.5)
    assert alike["published-near-zero"].values["size"] == 1024
    assert alike["equally-trained"].values["losses"] == (0.10, 0.11)
    worse = verdicts(found, network(32, ends[0], loss=0.1), network(2048, ends[1], loss=0.9, accuracy=0.7))
    assert worse["unequally-trained"].values["losses"] == (0.1, 0.9)
    learnt = verdicts(found, network(32, ends[0], loss=0.001), network(2048, ends[1], loss=0.003))
    assert "all-learnt" in learnt


@pytest.mark.parametrize(
    ("values", "code"),
    [((0.004, 0.004), "mi-unchanged"), ((0.004, 0.009), "mi-rises"), ((0.004, 0.005, 0.001), "mi-falls-unsteadily")],
)
def test_it_is_found_where_mi_does_not_simply_fall(found, values, code):
    sizes = (32, 128, 2048) if len(values) == 3 else (32, 2048)
    series = [network(size, point(size, value, value), loss=0.1) for size, value in zip(sizes, values, strict=True)]
    assert code in verdicts(found, *series)


def test_it_is_found_whether_unfamiliar_data_are_alike_at_large_sizes(found):
    first = network(32, point(32, 0.004, 0.008, auroc=0.8), loss=0.1)
    alike = verdicts(found, first, network(2048, point(2048, 0.0001, 0.00011, auroc=0.52), loss=0.1))
    assert alike["ood-separated-somewhere"].values["sizes"] == [32]
    assert alike["ood-alike-as-published"].values["ratio"] == pytest.approx(1.1)
    apart = verdicts(found, first, network(2048, point(2048, 0.0001, 0.0003, auroc=0.82), loss=0.1))
    assert "ood-separated-everywhere" in apart
    assert apart["ood-not-alike"].values["ratio"] == pytest.approx(3)


def test_published_accuracies_stand_beside_those_of_the_same_size(found):
    ends = network(32, point(32, 0.004, 0.004), loss=0.1), network(2048, point(2048, 0.001, 0.001), loss=0.1)
    sections = {section.title: section for section in report(replace(found, networks=ends)).sections}
    [table] = sections["Accuracy of MCBN, and the published one"].parts
    assert isinstance(table, Table)
    assert [cell.value for cell in dict(table.rows)["M = 2048"]][-2:] == ["0.9387", "0.9486"]


def test_the_picture_is_the_same_bytes_again(found, tmp_path):
    pytest.importorskip("matplotlib")
    (first,), (again,) = (draw_pictures(report(found), tmp_path / folder) for folder in ("a", "b"))
    assert first.name == "batch-size.svg" and first.read_bytes() == again.read_bytes()
    assert b"<svg" in first.read_bytes() and b"mathdefault" not in first.read_bytes()


# ── the command ──────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Iterator[Callable[..., tuple[object, str, str]]]:
    """`bnuq` with these arguments, in an empty folder: exit code, standard output, standard error."""
    monkeypatch.chdir(tmp_path)
    before = signal.getsignal(signal.SIGTERM)

    def call(*arguments: str) -> tuple[object, str, str]:
        with pytest.raises(SystemExit) as leave:
            main([*arguments])
        said = capsys.readouterr()
        return leave.value.code, said.out, said.err

    yield call
    signal.signal(signal.SIGTERM, before)


SMALL = ("--images", "64", "--epochs", "1", "--batch-sizes", "8,16", "-T", "2", "--limit", "20", "--workers", "1")


def test_the_command_writes_what_it_prints_and_report_shows_it_again(called, root, tmp_path):
    pytest.importorskip("matplotlib")
    command = ("batch-size", *SMALL, "--device", "cpu", "--data-root", str(root), "--figures", "pictures")
    code, out, err = called(*command, "--json", "--keep", "kept")
    assert (code, err) == (0, "")
    told = json.loads(out)
    assert told == summary(read(tmp_path / "reproduce-batch-size.h5"))
    assert [one["train_batch_size"] for one in told["networks"]] == [8, 16, 8, 16]
    assert {path.name for path in (tmp_path / "pictures").iterdir()} == {"batch-size.svg", "batch-size.png"}
    assert (tmp_path / "kept" / "equal-epochs" / "m8.toml").is_file()
    code, out, err = called("report", "reproduce-batch-size.h5", "--figures", "again", "--format", "png")
    assert (code, err) == (0, "") and "bnuq experiments batch-size" in out
    assert (tmp_path / "again" / "batch-size.png").read_bytes().startswith(b"\x89PNG")
    code, out, _ = called("report", "reproduce-batch-size.h5", "--json")
    assert json.loads(out) == told


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--batch-sizes", "8,x"], "--batch-sizes is 8,x; expected whole numbers of at least 2, such as 32,128."),
        (["--out", "nowhere/b.h5"], "--out nowhere/b.h5: its folder does not exist. Make the folder first."),
        (["--out", "mine.txt"], "mine.txt is not a result of bnuq; name another file to write."),
        (["--workers", "0"], "--workers is 0; expected a whole number of at least 1."),
    ],
)
def test_the_command_refuses_in_one_message(called, root, tmp_path, arguments, said):
    (tmp_path / "mine.txt").write_text("notes")
    assert called("batch-size", "--data-root", str(root), *arguments) == (2, "", f"bnuq: {said}\n")
    assert (tmp_path / "mine.txt").read_text() == "notes"


@pytest.mark.slow
def test_a_small_run_on_the_real_images_is_learnt_and_measured(data_pack, tmp_path):
    protocol = replace(QUICK, batch_sizes=(32, 128), images=4000, epochs=8)
    found = reproduce(Request(protocol, tmp_path / "b.h5", limit=500, data_root=data_pack))
    of_epochs = found.series()["equal epochs", "small_resnet"]
    assert all(one.accuracy > 0.85 and one.matched.estimates["accuracy"]["test"].value > 0.78 for one in of_epochs)
    slope = of_epochs[-1].slopes["test"]
    assert -1.25 < slope.value < -0.8
