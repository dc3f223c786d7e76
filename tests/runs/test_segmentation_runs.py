"""Segmentations from the command line: files, reports, the gate, and requests that are refused."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import small_run
import small_segmentation
import torch
from PIL import Image
from records_at_rest import edited

from bnuq.cli.main import main
from bnuq.errors import ResultError
from bnuq.evaluation.scoring import KeptOutputs
from bnuq.gate import GateSettings, check
from bnuq.gate.checking import recomputed
from bnuq.records import evaluation_file
from bnuq.records.addresses import estimates_of
from bnuq.records.evaluation import Result

Call = Callable[..., tuple[int, str, str]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a result, and that of a worse network."""
    folder = small_segmentation.write(tmp_path_factory.mktemp("segmentation")).parent
    small_segmentation.evaluated(folder, methods=("mcbn",))
    state = torch.load(folder / "model.pt")
    state["4.weight"] = -state["4.weight"]
    torch.save(state, folder / "worse.pt")
    (folder / "worse.toml").write_text(small_segmentation.RUN.replace("model.pt", "worse.pt"))
    small_segmentation.evaluated(folder, run_file="worse.toml", out="worse.h5", methods=("mcbn",))
    return folder


@pytest.fixture
def cli(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Call:
    """`bnuq` with these arguments, in the folder: exit code, standard output, standard error."""
    monkeypatch.chdir(folder)
    monkeypatch.delenv("COLUMNS", raising=False)

    def call(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as left:
            main([*arguments])
        return int(left.value.code or 0), *capsys.readouterr()

    return call


# ── outputs that pass again for a temperature ────────────────────────────────────────────────────────────────────────


def test_outputs_are_kept_of_whole_images_for_which_there_is_room(tmp_path: Path) -> None:
    outputs = torch.randn(4, 3, 2, 5, 5, generator=torch.Generator().manual_seed(0))  # (T, images, K, H, W)
    kept = KeptOutputs(tmp_path, samples=4)
    kept._MOST = 2 * outputs[:, 0].nbytes  # pyrefly: ignore
    for draw in (0, 2):
        kept.add(7, draw, outputs[draw : draw + 2])
    assert [kept.has(image) for image in (6, 7, 8, 9)] == [False, True, False, False]  # halves of the others
    kept.add(10, 0, outputs[:, :1])
    assert not kept.has(10)
    kept.close()

    kept = KeptOutputs(tmp_path, samples=4)
    kept._MOST = 2 * outputs[:, 0].nbytes  # pyrefly: ignore
    kept.add(7, 0, outputs[:2, :1])
    assert not kept.has(7)
    kept.add(7, 2, outputs[2:, :1])
    kept.add(8, 0, outputs[:, 1:])
    assert [kept.has(image) for image in (7, 8, 9)] == [True, True, False]
    for image in (7, 8):
        assert torch.equal(torch.cat([part.clone() for part in kept.of(image)])[:, 0], outputs[:, image - 7])
    kept.close()
    assert not kept.has(7)


@pytest.mark.parametrize(
    "room",
    [pytest.param(0, marks=pytest.mark.nightly), 5 * 8 * 3 * 8 * 12 * 4],
    ids=["no room", "room for five images"],
)
@pytest.mark.nightly
def test_images_pass_again_where_their_outputs_are_not_kept(folder, monkeypatch, room):
    options = {"methods": ("mcbn",), "calibrate": "cross", "ood": (), "save_maps": True}
    of_kept = small_segmentation.evaluated(folder, out="kept.h5", **options)
    monkeypatch.setattr(KeptOutputs, "_MOST", room)
    passed = small_segmentation.evaluated(folder, out="passed.h5", **options)
    assert of_kept.methods.keys() == passed.methods.keys()
    expected = estimates_of(of_kept)
    for address, row in estimates_of(passed).items():
        # Entropies, up to ln 3, are rounded to half an eps of float32, and mutual information is a difference of two.
        rounding = np.log(3) * np.finfo(np.float32).eps
        value = expected[address].estimate.value
        assert row.estimate.value == pytest.approx(value, rel=1e-6, abs=rounding, nan_ok=True)


# ── the file and the gate ────────────────────────────────────────────────────────────────────────────────────────────


def test_a_result_read_back_is_the_same_and_contradicts_nothing(folder: Path) -> None:
    first = evaluation_file.read(folder / "out.h5")
    evaluation_file.write(first, folder / "again.h5")
    again = evaluation_file.read(folder / "again.h5")
    read = estimates_of(again)
    for address, row in estimates_of(first).items():
        assert read[address].estimate.value == row.estimate.value
    recomputed(again)
    for method, found in first.methods.items():
        for name, values in found.sets["test"].contributions.items():
            np.testing.assert_array_equal(again.methods[method].sets["test"].contributions[name], values)


def test_what_earlier_versions_estimated_besides_is_left_out_by_name(folder: Path) -> None:
    (folder / "earlier.h5").write_bytes((folder / "out.h5").read_bytes())
    with edited(folder / "earlier.h5") as record:
        method = record["methods"]["mcbn"]
        method["boundary"] = method["pavpu"] = {"count": {"values": [1.0, 2.0]}}
        estimates = method["sets"]["test"]["estimates"]
        estimates["component_iou"] = estimates["ece_boundary"] = estimates["ece"]
        method["sets"]["test"]["by_class"]["0"]["component_iou"] = estimates["ece"]
        method["pixel_ood"]["anomalies"]["energy"]["pixel_segment_f1"] = estimates["ece"]
    result = evaluation_file.read(folder / "earlier.h5")
    [note] = [each for each in result.findings if each.code == "made-by-another-version"]
    assert {*note.values["names"]} == {"boundary", "pavpu", "component_iou", "ece_boundary", "pixel_segment_f1"}
    assert estimates_of(result).keys() == estimates_of(first := evaluation_file.read(folder / "out.h5")).keys()
    assert check(result, first).passed


def test_a_worse_network_is_found_by_paired_errors(folder: Path) -> None:
    baseline, current = (evaluation_file.read(folder / name) for name in ("out.h5", "worse.h5"))
    assert check(baseline, baseline).passed
    verdict = check(current, baseline, GateSettings(estimates=("*",)))
    assert not verdict.passed
    found = {one.address: one for one in verdict.comparisons}
    for address in ("deterministic.sets.test.mean_iou", "deterministic.sets.test.accuracy", "mcbn.sets.test.accuracy"):
        assert found[address].outcome == "worse"
    one = found["deterministic.sets.test.mean_iou"]
    of_each = [result.methods["deterministic"].sets["test"].contributions["mean_iou"] for result in (current, baseline)]
    apart = of_each[0] - of_each[1]
    assert one.se_points == pytest.approx(np.std(apart, ddof=1) / np.sqrt(len(apart)))
    pixel = found["mcbn.ood.strange.mutual_information.pixel_auroc"]
    assert pixel.se_points is not None and pixel.se_draws is not None


@pytest.mark.nightly
def test_more_draws_than_parts_contradict_nothing(folder: Path) -> None:
    result = small_segmentation.evaluated(folder, out="many.h5", methods=("mcbn",), ood=(), samples=40, limit=4)
    assert len(result.methods["mcbn"].sets["test"].estimates["pll"].jackknife) == 32
    assert check(*[evaluation_file.read(folder / "many.h5")] * 2).passed


@pytest.mark.parametrize(
    "address",
    [
        "deterministic.sets.test.mean_iou",
        "mcbn.sets.test.accuracy",
        "mcbn.sets.test.ece",
        "mcbn.sets.test.by_class.1.iou",
        "mcbn.sets.test.by_class.0.count",
        "mcbn.ood.strange.mutual_information.pixel_auroc",
        "mcbn.ood.anomalies.energy.pixel_fpr95",
        "mcbn.ood.anomalies.mutual_information.pixel_auroc_per_image",
    ],
)
def test_a_damaged_estimate_is_found(folder: Path, address: str) -> None:
    with pytest.raises(ResultError, match=address):
        recomputed(damaged(evaluation_file.read(folder / "out.h5"), address))


def damaged(result: Result, address: str) -> Result:
    """The result with an estimate that is 0.01 better than it was."""
    row = estimates_of(result)[address]
    row = row.coordinates
    method = result.methods[row["method"]]
    if row.get("score"):
        places = method.pixel_ood[row["set"]][row["score"]]
        scores = {**method.pixel_ood[row["set"]], row["score"]: moved(places, row["metric"])}
        method = replace(method, pixel_ood={**method.pixel_ood, row["set"]: scores})
    else:
        found = method.sets[row["set"]]
        if row.get("class"):
            of_class = moved(found.by_class[row["class"]], row["metric"])
            found = replace(found, by_class={**found.by_class, row["class"]: of_class})
        else:
            found = replace(found, estimates=moved(found.estimates, row["metric"]))
        method = replace(method, sets={**method.sets, row["set"]: found})
    return replace(result, methods={**result.methods, row["method"]: method})


def moved(estimates, name):
    one = estimates[name]
    jackknife = None if one.jackknife is None else one.jackknife + 0.01
    return {**estimates, name: replace(one, value=one.value + 0.01, high=None, jackknife=jackknife)}


# ── reports ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_the_short_report_fits_a_screen(cli: Call, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "100")
    small_segmentation.evaluated(folder, out="short.h5", ood=("strange.npz",), limit=8)
    code, out, _ = cli("report", "short.h5")
    assert code == 0 and "mean IoU" in out
    assert len(out.splitlines()) <= 50
    assert all(len(line) <= 100 for line in out.splitlines())


@pytest.mark.nightly
def test_a_page_shows_a_segmentation(cli: Call, folder: Path) -> None:
    small_segmentation.evaluated(folder, out="page.h5", methods=("deterministic",), ood=(), images=False, limit=8)
    assert cli("report", "page.h5", "--html", "page.html")[0] == 0
    assert "mean IoU" in (folder / "page.html").read_text()


@pytest.mark.nightly
def test_all_reports_show_a_segmentation(cli: Call) -> None:
    code, out, _ = cli("report", "out.h5", "--full")
    assert code == 0 and "By pixel" in out and "IoU" in out
    code, out, _ = cli("report", "out.h5", "--json")
    found = json.loads(out)["methods"]["mcbn"]
    assert found["sets"]["test"]["mean_iou"]["value"] > 0
    assert found["ood"]["strange"]["energy"]["pixel_auroc"]["value"] > 0
    code, out, _ = cli("report", "out.h5", "--points", "3", "--by", "mutual_information")
    assert code == 0 and out
    code, out, _ = cli("report", "out.h5", "worse.h5")
    assert code == 0 and out


# ── other commands ───────────────────────────────────────────────────────────────────────────────────────────────────


def test_a_segmentation_is_inspected(cli: Call) -> None:
    code, out, err = cli("inspect", "run.toml", "--draws", "8")
    assert code == 0, err
    assert "BatchNorm" in out


def test_the_statistics_of_a_segmentation_are_made_precise(cli: Call, folder: Path) -> None:
    code, _, err = cli("precise-bn", "run.toml", "--out", "precise.pt")
    assert code == 0, err
    before, after = (torch.load(folder / name) for name in ("model.pt", "precise.pt"))
    assert not torch.equal(before["1.running_mean"], after["1.running_mean"])
    torch.testing.assert_close(before["4.weight"], after["4.weight"])


# ── refused ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def refused(cli: Call, *arguments: str) -> str:
    code, _, err = cli(*arguments)
    assert code == 2, err
    assert err.startswith("bnuq: ") and err.count("bnuq: ") == 1 and "Traceback" not in err
    return err


def test_a_sweep_is_refused_with_what_to_do_instead(cli: Call) -> None:
    message = refused(cli, "sweep-batch-size", "run.toml", "--batch-sizes", "4,8", "--out", "refused.h5")
    assert "model.pt classifies pixels; expected a classifier of whole inputs" in message
    assert "`bnuq evaluate --batch-size B` at a few sizes B" in message


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--save-samples",), "--save-samples"),
        (("--samples", "auto"), "--samples auto"),
        (("--bank", "16"), "--bank"),
        (("--method", "tta", "--augment", "pad=2,crop=8"), "flipped back, not cropped back"),
        (("--method", "laplace"), "laplace"),
        (("--recalibration", "vector", "--calibrate", "cross"), "vector"),
        (("--outputs", "multilabel"), "multilabel"),
        (("--task", "classification"), '"segmentation"'),
        (("--task", "regression"), '"segmentation"'),
        (("--mutual-information", "corrected"), "--mutual-information"),
        (("--arch-arg", "stride=2"), "pixels for images"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, tuple) else "",
)
def test_what_a_segmentation_has_not_is_refused(cli: Call, options: tuple[str, ...], message: str) -> None:
    assert message in refused(cli, "evaluate", "run.toml", "--out", "refused.h5", *options)


def test_bad_masks_are_named_by_file(cli: Call, folder: Path) -> None:
    bad = folder / "bad"
    masks = [np.asarray(Image.open(file)) for file in sorted((folder / "masks").iterdir())]

    def message() -> str:
        return refused(cli, "evaluate", "run.toml", "--out", "refused.h5", "--test", "test:bad")

    small_segmentation.write_pictures(bad, np.stack(masks))
    wrong = masks[4].copy()
    wrong[0, 0] = 7
    Image.fromarray(wrong).save(bad / "04.png")
    assert "04.png" in message()
    Image.fromarray(masks[4][:4]).save(bad / "04.png")
    assert "04.png" in message()
    (bad / "04.png").unlink()
    assert "04" in message()


def test_an_ordinary_network_is_no_segmentation(cli: Call, tmp_path: Path) -> None:
    run_file = small_run.write(tmp_path / "small")
    assert "one row of outputs" in refused(cli, "evaluate", str(run_file), "--task", "segmentation")
