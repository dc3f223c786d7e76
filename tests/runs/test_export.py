"""`bnuq export`: programs that run with torch alone and give what the evaluation gave, and what is refused."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import at_night
import numpy as np
import pytest
import small_regression
import small_run
import small_segmentation
import torch
from torch import Tensor, nn
from written import folder_of

import bnuq
from bnuq.cli.main import main
from bnuq.config import Options, Run, resolve, resolve_again, resolve_ensemble
from bnuq.errors import BnuqError, RequestError, ResultError, SamplingError
from bnuq.metrics import POST_HOC_SCORES
from bnuq.records.decisions import decided
from bnuq.records.evaluation import Result
from bnuq.sampling import counter_rng
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.predictor import ExportedPredictor, SamplePasses, Scoring
from bnuq.sampling.program_draws import BankDraws, MaskDraws
from bnuq.sampling.site_search import find_sites
from bnuq.sampling.sites import DropoutSite
from bnuq.studies.export import compute as exporting
from bnuq.studies.export.command import _lines
from bnuq.studies.export.compute import Exported
from bnuq.studies.export.predictor_modules import pass_modules
from bnuq.workflows.evaluate import evaluate

place = folder_of(small_run)


@pytest.fixture(scope="module")
def result(place: Path) -> Result:
    return small_run.evaluated(place, out="run.h5", validation="train.npz")


def exported(folder: Path, *arguments: str, name: str = "program.pt2") -> Callable[[Tensor], dict[str, Tensor]]:
    """The program that `bnuq export` writes in this folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        with pytest.raises(SystemExit) as leave:
            main(["export", *arguments, "--out", name, "--quiet"])
    assert leave.value.code == 0
    return torch.export.load(folder / name).module()


@pytest.fixture(scope="module")
def program(place: Path, result: Result) -> Callable[[Tensor], dict[str, Tensor]]:
    """That of mini-batches and masks: both.pt2 at `place`."""
    assert result.path is not None
    return exported(place, "--from", "run.h5", "--method", "mcbn+mcdo", "--trust-code", name="both.pt2")


@pytest.fixture(scope="module")
def tempered(place: Path, result: Result) -> Callable[[Tensor], dict[str, Tensor]]:
    """That of mini-batches alone, which is read in less time: tempered.pt2 at `place`."""
    assert result.path is not None
    arguments = ("--from", "run.h5", "--method", "mcbn+temperature", "--trust-code")
    return exported(place, *arguments, name="tempered.pt2")


def images(folder: Path, name: str = "test") -> Tensor:
    return torch.from_numpy(np.load(folder / f"{name}.npz")["x"])


@pytest.fixture(scope="module")
def of_free_methods(place: Path) -> Result:
    """A result of the methods without mini-batches or masks, and of test-time augmentation."""
    state, generator = torch.load(place / "model.pt", weights_only=True), torch.Generator().manual_seed(1)
    for name in ("b.pt", "c.pt"):
        for value in state.values():
            if value.ndim > 1:
                value += 0.1 * torch.randn(value.shape, generator=generator)
        torch.save(state, place / name)
    methods = ("tta", "mcbn+tta", "laplace", "ensemble")
    options = {"methods": methods, "augment": AUGMENT, "validation": "train.npz", "post_hoc": False, "out": "free.h5"}
    given = Options({**options, "recalibration": ("temperature", "vector")})
    return evaluate(resolve_ensemble(("run.toml", "b.pt", "c.pt"), given, folder=place))


AUGMENT = "pad=2,pad_value=0.4,crop=6,flip"


def again(folder: Path, result: Result) -> Run:
    assert result.path is not None
    return resolve_again(dict(result.run), result.path, Options(trust_code=True), folder=folder)


def assert_evaluated(given: Any, result: Result, method: str, folder: Path) -> None:
    """That these outputs for the test set are those of the result."""
    labels = np.load(folder / "test.npz")["y"]
    points = result.methods[method].sets["test"].points
    found = {name: values.numpy() for name, values in given.items()}
    pll = np.log(found["mean"][np.arange(len(labels)), labels])
    np.testing.assert_allclose(pll, points["pll"], rtol=0, atol=1e-5)
    for name in {"mutual_information", "predictive_entropy"} & {*points}:
        np.testing.assert_allclose(found[name], points[name], rtol=0, atol=1e-5)
    single = method.startswith("deterministic")
    assert (found["mutual_information"] == 0).all() if single else (found["mutual_information"] > 0).all()


def check_module(result: Result, method: str, folder: Path, inputs: Tensor) -> None:
    """That the module gives what was evaluated, before it is traced, which takes seconds."""
    made = exporting.assembled(again(folder, result), method=method, result=result)
    with torch.no_grad():
        assert_evaluated(made.predictor(inputs), result, method, folder)


@pytest.mark.parametrize("method", ["mcbn", "mcdo", "mcbn+temperature", "deterministic"])
def test_the_module_gives_what_was_evaluated(place: Path, result: Result, method: str) -> None:
    check_module(result, method, place, images(place))


FREE = ["tta", "tta+vector", "mcbn+tta+temperature", "laplace", "ensemble", "ensemble+vector", "deterministic+vector"]


@pytest.mark.parametrize("method", at_night.but({"tta", "laplace", "ensemble"}, FREE))
def test_so_it_does_with_other_sources_of_samples(place: Path, of_free_methods: Result, method: str) -> None:
    check_module(of_free_methods, method, place, images(place))


@pytest.mark.parametrize(
    ("made", "method"),
    at_night.but({("tempered", "mcbn+temperature")}, [("tempered", "mcbn+temperature"), ("program", "mcbn+mcdo")]),
)
@pytest.mark.nightly
def test_the_program_gives_what_was_evaluated(place, result, made, method, request):
    assert_evaluated(request.getfixturevalue(made)(images(place)), result, method, place)


@pytest.fixture(scope="module")
def with_a_bank(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Result]:
    """A result of 3 draws of a bank of 24 for every 64 points, of which there are 100, normalised."""
    folder = small_run.write(tmp_path_factory.mktemp("bank") / "run").parent
    random = np.random.default_rng(5)
    x = random.normal(0.5, 0.3, (100, 1, 6, 6)).astype(np.float32)
    np.savez(folder / "test.npz", x=x, y=random.integers(0, small_run.CLASSES, 100))
    options = {"methods": ("mcbn", "mcbn+mcdo", "mcbn+tta"), "augment": "pad=2,pad_mode=reflect,crop=6,flip"}
    options |= {"samples": 3, "bank": 24, "normalize": "0.5/0.3", "post_hoc": False, "out": "bank.h5"}
    return folder, small_run.evaluated(folder, **options)


@pytest.mark.parametrize("method", ["mcbn", "mcbn+mcdo"])
def test_each_64_points_use_their_own_draws_of_a_bank(with_a_bank: tuple[Path, Result], method: str) -> None:
    folder, result = with_a_bank
    check_module(result, method, folder, (images(folder) - 0.5) / 0.3)


def test_without_a_result_the_draws_are_those_of_the_seed(place: Path, result: Result) -> None:
    run = resolve("run.toml", Options(samples=small_run.SAMPLES), folder=place)
    points = result.methods["mcbn"].sets["other"].points
    given, other = (exporting.assembled(replace(run, seed=seed)).predictor(images(place, "other")) for seed in (0, 5))
    np.testing.assert_allclose(given["mutual_information"], points["mutual_information"], rtol=0, atol=1e-5)
    assert (other["mean"] - given["mean"]).abs().max() > 1e-4


def test_any_number_of_points_passes_and_none_knows_of_the_others(place: Path, tempered: Any) -> None:
    x = images(place)
    whole = tempered(x)
    for count in (1, 2, 37):
        some = tempered(x[:count])
        for name in whole:
            np.testing.assert_allclose(some[name], whole[name][:count], rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_a_masked_class_leaves_the_scores_of_the_others() -> None:
    logits = torch.tensor([[[0.0, 1.0]], [[1.0, 1.0]]])
    masked = torch.cat([logits, torch.full((2, 1, 1), -torch.inf)], 2)
    given, alone = (ExportedPredictor([], Scoring("classes"), None, None).scored(each) for each in (masked, logits))
    for name in ("predictive_entropy", "mutual_information"):
        torch.testing.assert_close(given[name], alone[name])


def test_noise_of_the_networks_own_layers(tmp_path: Path) -> None:
    folder = small_run.write_noisy(tmp_path / "run").parent
    points = small_run.evaluated(folder, out="run.h5").methods["learned"].sets["test"].points
    run = resolve("run.toml", Options(), folder=folder)
    given = exporting.assembled(run, method="learned").predictor(images(folder))
    np.testing.assert_allclose(given["mutual_information"], points["mutual_information"], rtol=0, atol=1e-5)


@pytest.mark.parametrize(("outputs", "last_unit"), at_night.but({(2, 1e4)}, [(1, 1.0), (2, 1.0), (2, 1e4)]))
def test_a_regression_has_mean_and_variance_in_the_unit_of_its_targets(tmp_path, outputs, last_unit):
    text = small_regression.RUN.replace('"regression"\n', f'"regression"\narch_args = {{ outputs = {outputs} }}\n')
    folder = small_regression.write(tmp_path / "run", text=text, outputs=outputs, last_unit=last_unit).parent
    result = small_regression.evaluated(folder, out="run.h5")
    assert any(f.code == "outputs-of-other-sizes" for f in result.findings) == (last_unit > 10)
    train, x = (np.load(folder / f"{name}.npz")["x"] for name in ("train", "test"))
    inputs = torch.from_numpy(((x - train.mean(0)) / train.std(0)).astype(np.float32))
    given = exporting.assembled(again(folder, result), method="mcbn", result=result).predictor(inputs)
    of_set = result.methods["mcbn"].sets["test"]
    assert of_set.sigma is not None
    np.testing.assert_allclose(given["mean"], of_set.predicted.reshape(-1, outputs), rtol=1e-4)
    np.testing.assert_allclose(given["variance"].sqrt(), of_set.sigma.reshape(-1, outputs), rtol=1e-4)


@pytest.mark.nightly
def test_a_segmentation_has_a_prediction_for_each_pixel(tmp_path: Path) -> None:
    folder = small_segmentation.write(tmp_path / "run").parent
    less = {"samples": 4, "limit": small_segmentation.OTHER, "ood": ("strange.npz",)}
    result = small_segmentation.evaluated(folder, out="run.h5", methods=("mcdo", "tta"), augment="flip", **less)
    x = images(folder, "strange")
    inputs = ((x.float() / 255 if x.dtype == torch.uint8 else x) - 0.5) / 0.3
    inputs = inputs if inputs.shape[1] == 3 else inputs.movedim(-1, 1)
    for method in ("mcdo", "tta"):
        with torch.no_grad():
            given = exporting.assembled(again(folder, result), method=method, result=result).predictor(inputs)
        assert given["mean"].shape == (small_segmentation.OTHER, small_segmentation.CLASSES, 8, 12)
        np.testing.assert_allclose(given["mean"].sum(1), 1, atol=1e-5)
        of_set = result.methods[method].sets["strange"]
        predicted = given["mean"].argmax(1).flatten(1)
        counts = np.stack([(predicted == k).sum(1) for k in range(small_segmentation.CLASSES)], 1)
        np.testing.assert_array_equal(counts, of_set.predicted)
        information = given["mutual_information"].flatten(1).mean(1)
        np.testing.assert_allclose(information, of_set.points["mutual_information"], rtol=0, atol=1e-3)  # bins


def test_ood_scores_of_the_demo_are_those_of_its_evaluation(tmp_path: Path, capsys: Any) -> None:
    demo = Path(bnuq.__file__).parent / "demo"
    given = Options(methods=("deterministic",), out=str(tmp_path / "demo.h5"))
    result = evaluate(resolve("fashion_cnn.toml", given, folder=demo))
    arguments = ("--method", "deterministic", "--ood-score", ",".join(POST_HOC_SCORES), "--trust-code", "--json")
    program = exported(tmp_path, "--from", "demo.h5", *arguments)
    for name, file in (("test", "fashion_test"), ("mnist", "mnist")):
        x = (torch.from_numpy(np.load(demo / f"{file}.npz")["x"]).reshape(-1, 1, 28, 28)[:200] / 255 - 0.286) / 0.353
        found = program(x)
        for score in POST_HOC_SCORES:
            expected = result.methods["deterministic"].sets[name].points[score][:200]
            np.testing.assert_allclose(found[score], expected, rtol=1e-5, atol=1e-5)
    (chosen,) = (f.values for f in decided(result) if f.code == "foreign")
    about = json.loads(capsys.readouterr().out)["ood_scores"]
    assert about == {name: chosen["threshold"] if name == chosen["score"] else None for name in POST_HOC_SCORES}


def test_scores_of_another_reference_are_not_written(place: Path, result: Result, tmp_path: Path) -> None:
    x, y = np.load(place / "train.npz").values()
    np.savez(tmp_path / "other.npz", x=x[:50], y=y[:50])
    given = Options(trust_code=True, train=str(tmp_path / "other.npz"))
    run = resolve_again(dict(result.run), place / "run.h5", given, folder=place)
    made = exporting.assembled(run, method="deterministic", result=result, scores=["mahalanobis"])
    with pytest.raises(SamplingError, match=r"mahalanobis differs .* but another training set would"):
        exporting._compared(made.predictor(made.inputs), made)


def test_ood_scores_that_a_network_does_not_have_are_refused(tmp_path: Path) -> None:
    run = resolve(str(small_regression.write(tmp_path / "run")), Options(), folder=tmp_path)
    with pytest.raises(RequestError, match=r"--ood-score energy cannot be had .* this is a regression"):
        exporting.assembled(run, scores=["energy"])


@pytest.mark.usefixtures("tempered")
def test_what_the_file_says_of_itself(place: Path, result: Result) -> None:
    with zipfile.ZipFile(place / "tempered.pt2") as archive:
        files = {name.rpartition("/")[2]: archive.read(name) for name in archive.namelist()}
    about = json.loads(files["bnuq.json"])
    assert (about["method"], about["samples"], about["batch_size"]) == ("mcbn+temperature", 8, 16)
    assert about["inputs"] == {"shape": [1, 6, 6], "dtype": "float32"}
    temperature = result.methods["mcbn+temperature"].sets["test"].estimates["temperature"].value
    assert about["temperature"] == pytest.approx(temperature)
    assert b"Permission is hereby granted" in files["LICENSE.bnuq"]


def test_a_predictor_is_no_network_to_evaluate(place: Path, tempered: Any, capsys: Any, monkeypatch: Any) -> None:
    assert tempered is not None
    monkeypatch.chdir(place)
    for arguments in (
        ["evaluate", "tempered.pt2", "--train", "train.npz", "--test", "test.npz"],
        ["inspect", "tempered.pt2"],
    ):
        with pytest.raises(SystemExit) as leave:
            main(arguments)
        said = capsys.readouterr().err
        assert leave.value.code == 2 and said.count("\n") == 1
        assert "tempered.pt2: is a predictor that bnuq export wrote" in said and "Give the network" in said


def test_the_command_says_what_was_written(place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(place)
    with pytest.raises(SystemExit) as leave:
        main(["export", "run.toml", "-o", "told.pt2", "--json"])
    assert leave.value.code == 0
    found = json.loads(capsys.readouterr().out)
    path, size, compared = place / "told.pt2", found["bytes"], found["compared"]
    told = Exported(path, found, compared["largest_difference"], compared["points"], size)
    assert _lines(told)[0].startswith("told.pt2 was written") and "(examples, 1, 6, 6)" in _lines(told)[2]
    single = replace(told, metadata=found | {"samples": 1, "method": "deterministic"})
    assert ": 8 samples by mcbn of model.pt." in _lines(told)[0] and ": 1 sample by deterministic" in _lines(single)[0]
    assert found["bytes"] == (place / "told.pt2").stat().st_size
    assert 0 <= found["compared"]["largest_difference"] < 1e-5


@pytest.mark.nightly  # a server in another process
def test_the_service_of_the_page_answers_where_there_is_no_bnuq(place: Path, tempered: Any, tmp_path: Path) -> None:
    x = images(place)[:2]
    code = (Path(__file__).parents[2] / "sample_configs" / "serve.py").read_text(encoding="utf-8")
    (tmp_path / "serve.py").write_text(code.replace("HTTPServer((", "server = HTTPServer((").replace(
        ").serve_forever()", "); print(server.server_port, flush=True); [server.handle_request() for _ in range(2)]"
        "; print('bnuq' in sys.modules)"
    ))  # fmt: skip
    command = [sys.executable, "-I", "serve.py", str(place / "tempered.pt2"), "0"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as server:
        assert server.stdout is not None
        port = int(server.stdout.readline())
        with urlopen(Request(f"http://127.0.0.1:{port}", json.dumps(x.tolist()).encode()), timeout=60) as response:
            answer = json.loads(response.read())
        with pytest.raises(HTTPError, match="400"):
            urlopen(Request(f"http://127.0.0.1:{port}", b"[[1, 2]]"), timeout=60)
        assert server.stdout.read() == b"False\n"
    for name, values in tempered(x).items():
        np.testing.assert_allclose(answer[name], values, rtol=0, atol=1e-6)


@pytest.mark.nightly
def test_a_cross_fitted_temperature_is_said_to_be_one_in_the_program(place: Path) -> None:
    result = small_run.evaluated(place, out="cross.h5", methods=("mcbn",), calibrate="cross", post_hoc=False, ood=())
    for method, is_said in (("mcbn+temperature", True), ("mcbn", False)):
        made = exporting.assembled(again(place, result), method=method, result=result)
        said = "\n".join(_lines(Exported(place / "cross.pt2", made.metadata, 0.0, 60, 1)))
        assert ("the temperature of each half of its test set" in said) == is_said


# ── masks ────────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("seed", [0, 2**62 + 3])
def test_words_are_those_of_numpy(seed: int) -> None:
    found = MaskDraws(Dropout(8, seed), masks(0.5)).words(torch.tensor([[0], [7]]), 5, counter_rng.MASK, site=4)
    for row, draw in zip(found, (0, 7), strict=True):
        expected = counter_rng.words(seed, draw, counter_rng.MASK, 20, site=4)
        np.testing.assert_array_equal(row.numpy().view(np.uint64), expected)


def masks(rate: float) -> DropoutSite:
    sites = find_sites(nn.Sequential(nn.Dropout(rate)).eval(), torch.ones(3, 1000))
    return next(each for each in sites.dropouts if isinstance(each, DropoutSite))


@pytest.mark.parametrize("rate", [0.5, 0.3])
def test_masks_are_those_of_an_evaluation_but_for_entries_that_16_bits_do_not_decide(rate: float) -> None:
    site, numbers = masks(rate), torch.arange(5)[:, None]
    found = (
        MaskDraws(Dropout(5, seed=2), site)(torch.ones(5 * 400, 1000), 400, numbers, in_place=False).reshape(5, -1) > 0
    )
    expected = counter_rng.kept(counter_rng.MaskKey(2, tuple(range(5)), site.order, rate), 0, 400_000) > 0
    differ = int((found.numpy() != expected).sum())
    assert differ == 0 if rate == 0.5 else differ < 5 * 400_000 / 2**15


@pytest.mark.parametrize(("bank", "samples"), [(24, 5), (8, 8), (3000, 2)])
def test_draws_of_a_bank_are_those_of_an_evaluation(bank: int, samples: int) -> None:
    found = BankDraws(bank, samples, seed=9)(200)
    for row in (0, 63, 64, 199):
        expected = counter_rng.draws_of_tile(9, row // 64, bank=bank, samples=samples)
        np.testing.assert_array_equal(found[:, row], expected)


# ── what is refused ──────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["run.toml", "-o", "program.bin"], "expected a name that ends in .pt2"),
        (["run.toml", "-o", "notes.pt2"], "was not written by bnuq export"),
        (
            ["run.toml", "-o", "x.pt2", "--method", "mcbn-chi2"],
            "--method mcbn-chi2 cannot be exported; expected one of mcbn",
        ),
        (
            ["run.toml", "-o", "x.pt2", "--method", "tta", "--augment", "resized_crop=6"],
            "augment.resized_crop cannot be exported",
        ),
        (["run.toml", "-o", "x.pt2", "--method", "tta"], "tta cannot be drawn"),
        (["run.toml", "-o", "x.pt2", "--method", "ensemble"], "ensemble cannot be drawn"),
        (["run.toml", "-o", "x.pt2", "--method", "mcbn+vector"], "Name its result: --from RESULT"),
        (["run.toml", "-o", "x.pt2", "--method", "mcbn+temperature"], "Name its result: --from RESULT"),
        (["run.toml", "-o", "x.pt2", "--ood-score", "knn,entropy"], "--ood-score entropy: expected one of max_logit"),
        (["run.toml", "-o", "x.pt2", "-T", "auto"], "expected a number, or --from RESULT"),
        (["run.toml", "-o", "x.pt2", "--from", "run.h5"], "Leave one of them out"),
        (["-o", "x.pt2", "--from", "run.h5", "--method", "learned"], "run.h5 has only deterministic"),
        (["-o", "x.pt2", "--from", "run.h5", "--seed", "1"], "leave --samples, --batch-size and --seed out"),
        (["-o", "x.pt2", "--from", "model.pt"], "model.pt"),
        (["gone.toml", "-o", "x.pt2"], "gone.toml"),
    ],
)
def test_refusals_are_one_message_and_write_nothing(place, result, arguments, message, capsys, monkeypatch):
    assert result.path is not None
    monkeypatch.chdir(place)
    (place / "notes.pt2").write_text("mine")
    with pytest.raises(SystemExit) as leave:
        main(["export", *arguments])
    said = capsys.readouterr().err
    assert leave.value.code == 2
    assert message in said and said.count("\n") == 1
    assert not (place / "x.pt2").exists() and (place / "notes.pt2").read_text() == "mine"


def test_weights_that_were_changed_since_the_evaluation_are_refused(place: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(place, tmp_path / "run")
    given = small_run.evaluated(folder, out="old.h5", methods=("mcbn", "mcdo"), ood=())
    state = torch.load(folder / "model.pt", weights_only=True)
    torch.save({name: value * 1.1 if value.ndim > 1 else value for name, value in state.items()}, folder / "model.pt")
    for method in ("mcbn", "mcdo"):
        with pytest.raises(ResultError, match=r"old\.h5: .*model\.pt was changed since it was evaluated"):
            exporting.assembled(again(folder, given), method=method, result=given)


def test_a_network_whose_operations_cannot_be_recorded_is_refused_by_name(tmp_path: Path) -> None:
    folder = small_run.write(tmp_path / "run").parent
    head, function = small_run.NET.replace("    return nn.Sequential(", "    return Stopping(").split("\n\n\n")
    path = "class Stopping(nn.Sequential):\n    def forward(self, x):\n"
    path += "        return super().forward(x) * (2.0 if float(x.sum()) > 0 else 1.0)\n"
    (folder / "net.py").write_text(f"{head}\n\n\n{path}\n\n{function}")
    run = resolve("run.toml", Options(), folder=folder)
    with pytest.raises(SamplingError, match="its operations cannot be recorded"):
        exporting.export(run, folder / "x.pt2")
    assert not (folder / "x.pt2").exists()


def test_an_engine_that_no_module_stands_for_is_refused_and_not_taken_for_the_network() -> None:
    subject: Any = SimpleNamespace(methods=("input-noise",), max_samples=2, samples_of=lambda *_: 2)
    with pytest.raises(SamplingError, match="input-noise cannot be exported"):
        pass_modules(subject, cast("Any", object()), torch.zeros(1))


def test_without_a_method_it_is_the_first_that_draws(tmp_path: Path) -> None:
    text = small_run.RUN.replace('net.py:net"\n', 'net.py:net"\narch_args = { norm = false }\n')
    folder = small_run.write(tmp_path / "run", text=text, norm=False).parent
    run = resolve("run.toml", Options(), folder=folder)
    assert exporting.assembled(run).metadata["method"] == "mcdo"
    result = small_run.evaluated(folder, out="single.h5", methods=("deterministic",))
    run = resolve("run.toml", Options(), folder=folder)
    with pytest.raises(BnuqError, match=r"single\.h5: no method of deterministic draws samples"):
        exporting.export(run, folder / "y.pt2", result=result)
    assert not (folder / "y.pt2").exists()


@pytest.mark.nightly
def test_a_program_that_differs_is_not_written(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    normalized = SamplePasses._normalized
    monkeypatch.setattr(SamplePasses, "_normalized", lambda self, *arguments: normalized(self, *arguments) * 1.01)
    run = resolve("run.toml", Options(), folder=place)
    with pytest.raises(BnuqError, match="differs from the network's own"):
        exporting.export(run, place / "x.pt2")
    assert not (place / "x.pt2").exists()
