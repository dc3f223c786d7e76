"""The test set with noise and under attacks, against attacks written independently with torch in float64."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import small_regression
import small_run
import torch
from report_text import rendered
from torch import nn

import bnuq
from bnuq.config import Options, resolve
from bnuq.errors import BnuqError
from bnuq.evaluation import perturbations
from bnuq.metrics import auroc
from bnuq.records.addresses import address_of, coordinates_of, estimates_of
from bnuq.records.evaluation import Result
from bnuq.report.document import Table
from bnuq.report.evaluation import report
from bnuq.sampling.dropout import Dropout
from bnuq.sampling.engine import Stochastic
from bnuq.sampling.gradients import Differentiable, agrees
from bnuq.sampling.plain_loop import Evaluation, PlainLoop
from bnuq.sampling.site_search import find_sites
from bnuq.workflows.evaluate import evaluate

KINDS = ("gaussian:0.1", "gaussian:0.4", "fgsm:0.05")
METHODS = ("mcbn", "mcdo", "mcbn+mcdo")
PURPOSE = 25  # of noise, never to be renumbered


def evaluated(folder: Path, name: str, **options: Any) -> Result:
    given = {"perturb": KINDS, "methods": METHODS, "samples": 12, "precision": "float64", "save_samples": True}
    return small_run.evaluated(folder, out=folder / f"{name}.h5", **given | options)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("perturbed") / "run").parent
    with np.load(folder / "test.npz") as arrays:
        np.savez(folder / "test.npz", x=arrays["x"][:30], y=arrays["y"][:30])
    return folder


@pytest.fixture(scope="module")
def whole(folder: Path) -> Result:
    return evaluated(folder, "whole")


def under_draws(folder: Path, result: Result, draws: range) -> list[nn.Sequential]:
    """The network with the statistics of each draw as its running ones."""
    networks = []
    assert result.bank is not None
    layer = result.bank.layers[0]
    for t in draws:
        model = small_run.stored(folder).double()
        model[1].running_mean[:] = torch.from_numpy(layer.mean[t])  # type: ignore
        model[1].running_var[:] = torch.from_numpy(layer.var[t])  # type: ignore
        networks.append(model)
    return networks


def attacked(networks: list[nn.Sequential], x: np.ndarray, y: np.ndarray, size: float) -> torch.Tensor:
    """x after a signed step of this size up the cross entropy of the mean probability."""
    leaf = torch.from_numpy(x).double().requires_grad_()
    p = torch.stack([model(leaf).softmax(1) for model in networks]).mean(0)
    nn.functional.nll_loss(p.log(), torch.from_numpy(y), reduction="sum").backward()
    assert leaf.grad is not None
    return (torch.from_numpy(x) + np.float32(size) * leaf.grad.sign().float()).double()


def test_an_attack_raises_the_loss_of_the_mean_prediction_of_the_first_draws(folder, whole):
    x, y = (np.load(folder / "test.npz")[key] for key in "xy")
    x_mcbn = attacked(under_draws(folder, whole, range(8)), x, y, 0.05)
    with h5py.File(folder / "whole.h5") as file, torch.no_grad():
        found = file["posterior_predictive/mcbn_test+fgsm:0.05"][0]
        expected = [model(x_mcbn).numpy() for model in under_draws(folder, whole, range(12))]
        np.testing.assert_allclose(found, expected, rtol=1e-7, atol=1e-9)
    net = small_run.stored(folder).double()
    p = torch.softmax(net(attacked([net], x, y, 0.05)), 1).detach().numpy()
    deterministic = whole.methods["deterministic"].sets["test+fgsm:0.05"]
    np.testing.assert_allclose(deterministic.points["pll"], np.log(p[np.arange(len(y)), y]), rtol=1e-9)
    for method in ("deterministic", *METHODS):
        sets = whole.methods[method].sets
        assert sets["test+fgsm:0.05"].estimates["pll"].value < sets["test"].estimates["pll"].value


def two(z: torch.Tensor) -> torch.Tensor:
    return torch.cat([-z / 2, z / 2], 1)


WRITTEN: dict[str, tuple[str, Any]] = {  # one function in several ways, from its logit
    "one": ("binary", lambda z: z),
    "two": ("logits", two),
    "masked": ("logits", lambda z: torch.cat([two(z), two(z) - 999, torch.full_like(z, -torch.inf)], 1)),
    "sigmoid": ("probabilities", torch.sigmoid),
    "softmax": ("probabilities", lambda z: two(z).softmax(1)),
    "by hand": ("probabilities", lambda z: 1 / (1 + (-z).exp())),
}


class Sure(nn.Linear):
    """A network whose logits are up to ± 500."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return WRITTEN[self.written][1](500 * x @ torch.tensor([[1.0], [-0.25]]))


def test_an_attack_follows_the_gradient_at_any_margin_however_the_function_is_written() -> None:
    y, distances, size = np.arange(40) % 2, np.linspace(0.05, 1, 40), 0.4
    x = np.stack([(2 * y - 1) * distances, np.zeros(40)], 1).astype(np.float32)

    def accuracy(written: str) -> float:
        network = Sure(1, 1)
        network.written = written
        given = {"perturb": [f"fgsm:{size}"], "outputs": WRITTEN[written][0], "methods": ["deterministic"]}
        result = bnuq.evaluate(network, test=(x, y), device="cpu", post_hoc=False, **given).record
        return result.methods["deterministic"].sets[f"test+fgsm:{size}"].estimates["accuracy"].value

    for written in ("one", "two", "masked", "sigmoid", "softmax"):
        assert accuracy(written) == np.mean(distances > 1.25 * size)
    with pytest.raises(BnuqError, match=r"the gradient with respect to example \d+ .* let the network give logits"):
        accuracy("by hand")


def test_gradients_through_draws_are_those_of_the_plain_loop(folder: Path, whole: Result) -> None:
    """Through BatchNorm and dropout, by finite differences of the loss of the passes that evaluations make."""
    model = small_run.stored(folder).double()
    inputs = torch.from_numpy(np.load(folder / "test.npz")["x"][:5]).double()
    sites = find_sites(model, inputs)
    for parameter in model.parameters():
        parameter.grad = None
    before = {name: value.clone() for name, value in model.state_dict().items()}
    model.train()
    assert whole.bank is not None
    loop = PlainLoop(model, sites, omega=whole.bank, dropout=Dropout(whole.bank.samples, seed=3))
    assert agrees(loop, inputs)

    def loss(outputs: torch.Tensor) -> torch.Tensor:
        return -outputs.softmax(-1)[..., 1].mean(0).log().sum()

    def value(values: torch.Tensor) -> float:
        return float(loss(loop.passes(values, 40, range(3))))

    found = Differentiable.of_draws(loop, range(3)).gradient(inputs, loss, start=40)
    for point, row, column in ((0, 1, 2), (2, 4, 4), (4, 0, 3), (4, 5, 0)):
        slopes = []
        for at in ((0, row, column), (0, 3, 3)):
            step = torch.zeros_like(inputs)
            step[(point, *at)] = 1e-6
            slopes.append((value(inputs + step) - value(inputs - step)) / 2e-6)
        assert float(found[point, 0, row, column] * slopes[1]) == pytest.approx(
            float(found[point, 0, 3, 3] * slopes[0]), rel=1e-4, abs=1e-9
        )
        assert float(found[point, 0, row, column]) * slopes[0] >= 0
    assert model.training and all(parameter.grad is None for parameter in model.parameters())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


@pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")
def test_a_network_whose_draws_torch_cannot_see_is_attacked_in_evaluation_mode(folder: Path, whole: Result) -> None:
    inputs = torch.from_numpy(np.load(folder / "test.npz")["x"][:5]).double()
    scripted = torch.jit.script(small_run.stored(folder).double())
    assert whole.bank is not None
    assert not agrees(PlainLoop(scripted, find_sites(scripted, inputs), omega=whole.bank), inputs)
    sites = find_sites(scripted, inputs)
    engines = Evaluation(scripted), Stochastic(scripted, sites, omega=whole.bank)
    assert [perturbations.attack_of(engine, inputs) for engine in engines] == [None, None]


def test_noise_is_gaussian_and_keyed_by_the_seed_and_the_number_of_the_point(folder: Path, whole: Result) -> None:
    x = np.load(folder / "test.npz")["x"]
    drawn = perturbations.noise(0, np.arange(500), (1, 6, 6))
    words = np.random.Philox(key=np.array([0, 7], np.uint64), counter=np.array([0, 0, 0, PURPOSE], np.uint64))
    uniform = ((words.random_raw(36) >> np.uint64(12)).astype(np.float64) + 0.5) * 2.0**-52
    standard = torch.distributions.Normal(0.0, 1.0).icdf(torch.from_numpy(uniform)).numpy()
    np.testing.assert_allclose(drawn[7].ravel(), standard, rtol=1e-6, atol=1e-9)
    np.testing.assert_array_equal(perturbations.noise(0, [7, 3], (1, 6, 6)), drawn[[7, 3]])
    assert abs(drawn.mean()) < 4 / drawn.size**0.5 and abs(drawn.var() - 1) < 4 * (2 / drawn.size) ** 0.5
    assert abs(np.corrcoef(drawn[:-1].ravel(), drawn[1:].ravel())[0, 1]) < 4 / drawn.size**0.5
    with torch.no_grad():
        expected = small_run.stored(folder).double()(
            torch.from_numpy((x + np.float32(0.4) * drawn[: len(x)]).astype(np.float32)).double()
        )
    p = expected.softmax(1).numpy()
    found = whole.methods["deterministic"].sets["test+gaussian:0.4"].points["max_probability"]
    np.testing.assert_allclose(found, p.max(1), rtol=1e-9)


@pytest.mark.nightly  # two settings at once
def test_rounds_of_draws_and_a_bank_keep_the_attack_of_the_first_draws(folder: Path) -> None:
    given: dict[str, Any] = {"perturb": ("fgsm:0.05",), "methods": ("mcbn",), "ood": (), "limit": 12}
    auto = evaluated(folder, "auto", samples="auto", mc_error=0.001, max_samples=32, **given)
    fixed = evaluated(folder, "fixed", samples=auto.sampling["samples"], **given)
    assert auto.sampling["samples"] == 32
    sets = [result.methods["mcbn"].sets["test+fgsm:0.05"] for result in (auto, fixed)]
    np.testing.assert_allclose(sets[0].points["pll"], sets[1].points["pll"], rtol=1e-9)
    banked = evaluated(folder, "banked", samples=8, bank=16, **given).methods["mcbn"].sets
    assert banked["test+fgsm:0.05"].estimates["pll"].value < banked["test"].estimates["pll"].value


def test_each_is_a_labelled_set_and_one_to_be_told_from_the_test_set(folder: Path, whole: Result) -> None:
    y = np.load(folder / "test.npz")["y"]
    for kind in KINDS:
        name = f"test+{kind}"
        assert whole.sets[name].kind == "perturbed"
        np.testing.assert_array_equal(whole.sets[name].labels, y)
        for method in ("deterministic", *METHODS):
            found = whole.methods[method]
            assert {"accuracy", "pll", "ece", "aurc", "brier"} <= set(found.sets[name].estimates)
            assert found.sets[name].estimates["accuracy"].value == np.mean(found.sets[name].predicted == y)
            scores = [found.sets[of].points["predictive_entropy"] for of in ("test", name)]
            assert found.ood[name]["predictive_entropy"]["auroc"].value == pytest.approx(auroc(*scores))
        assert "mutual_information" in whole.methods["mcbn"].ood[name]
        address = f"mcbn.ood.{name}.mutual_information.auroc"
        assert address_of(coordinates_of(address)) == address and address in estimates_of(whole)
        address = f"mcbn.sets.{name}.pll"
        assert address_of(coordinates_of(address)) == address and address in estimates_of(whole)
    [text] = [each for each in report(whole).notes if each.startswith("fgsm computes separate examples")]
    assert "mcbn, mcdo, mcbn+mcdo through the mean prediction of its first 8 samples" in text
    assert "deterministic through the network in evaluation mode" in text


def test_the_report_has_a_table_and_a_picture_of_a_kind_of_several_sizes(whole: Result, tmp_path: Path) -> None:
    of_result = report(whole)
    assert [picture.kind for picture in of_result.pictures if picture.kind[0] == "shift"] == [("shift", "gaussian:σ")]
    full = rendered(report, whole, full=True)
    assert "Shift of the inputs" in full and "AUROC against the test set by mutual information" in full
    for method in ("deterministic", *METHODS):
        estimate = whole.methods[method].sets["test+gaussian:0.1"].estimates["accuracy"]
        assert f"{estimate.value:.4f}" in full[full.index("Shift of the inputs") :]
    # Of the parts of one screen, not of the lines: on a slow machine a line on costs may take the table's place.
    tables = [part for part in of_result.one_screen or () if isinstance(part, Table)]
    [rows] = [[name for name, _ in table.rows] for table in tables if table.header[1] == "loss at"]
    assert "gaussian:0.4" in rows and "gaussian:0.1" not in rows
    for picture in of_result.pictures:
        if picture.kind[0] == "shift":
            picture.draw(tmp_path / "shift.svg")
            assert "σ of the noise" in (tmp_path / "shift.svg").read_text()


def test_a_regression_is_attacked_by_its_squared_error(tmp_path: Path) -> None:
    folder = small_regression.write(tmp_path / "run").parent
    options = Options(
        perturb=("gaussian:0.5", "fgsm:0.2"), precision="float64", out=folder / "r.h5", methods=("mcbn",), ood=()
    )
    result = evaluate(resolve("run.toml", options, folder=folder))
    train, test = (np.load(folder / f"{name}.npz") for name in ("train", "test"))
    mean, std = train["x"].mean(0, dtype=np.float64), train["x"].std(0, dtype=np.float64)
    namespace: dict[str, Any] = {}
    exec(small_regression.NET, namespace)
    model = namespace["net"]()
    model.load_state_dict(torch.load(folder / "model.pt", weights_only=True))
    model.double().eval()
    leaf = torch.from_numpy((test["x"] - mean) / std).double().requires_grad_()
    y = torch.from_numpy(test["y"]).double().reshape(len(leaf), -1)
    of_target = train["y"].reshape(len(train["y"]), -1)
    scale, shift = (torch.from_numpy(f(of_target, axis=0).astype(np.float64)) for f in (np.std, np.mean))
    ((model(leaf) * scale + shift - y) ** 2).sum().backward()
    assert leaf.grad is not None
    with torch.no_grad():  # sizes of rows are in standard deviations
        error = model(leaf + 0.2 * leaf.grad.sign()) * scale + shift - y
    found = result.methods["deterministic"].sets["test+fgsm:0.2"]
    np.testing.assert_allclose(found.points["squared_error"], (error**2).sum(1).numpy(), rtol=1e-5)
    assert "variance" in result.methods["mcbn"].ood["test+fgsm:0.2"]
    assert "Shift of the inputs" in rendered(report, result, full=True)


@pytest.mark.nightly
def test_pictures_of_8_bits_stay_between_black_and_white(tmp_path: Path) -> None:
    folder = small_run.write(tmp_path / "run").parent
    for name in ("train", "test", "other"):
        arrays = dict(np.load(folder / f"{name}.npz"))
        arrays["x"] = (255 * np.clip(arrays["x"], 0, 1)).astype(np.uint8)
        np.savez(folder / f"{name}.npz", **arrays)
    kinds = ("fgsm:0.1", "gaussian:0.3")
    result = evaluated(folder, "bytes", normalize="0.5/0.25", perturb=kinds, methods=("mcbn",), ood=())
    x = (np.load(folder / "test.npz")["x"] / np.float32(255)).astype(np.float32)
    changed = np.clip(x + np.float32(0.3) * perturbations.noise(0, np.arange(len(x)), (1, 6, 6)), 0, 1)
    inputs = (torch.from_numpy(changed.astype(np.float32)).double() - 0.5) / 0.25
    expected = small_run.stored(folder).double()(inputs).softmax(1).detach().numpy()
    found = result.methods["deterministic"].sets["test+gaussian:0.3"].points["max_probability"]
    np.testing.assert_allclose(found, expected.max(1), rtol=1e-6)
    assert result.methods["mcbn"].sets["test+fgsm:0.1"].estimates["pll"].value < (
        result.methods["mcbn"].sets["test"].estimates["pll"].value
    )


@pytest.mark.parametrize(
    "texts",
    [("noise:0.1",), ("gaussian",), ("fgsm:0",), ("fgsm:-1",), ("gaussian:inf",), ("gaussian:0.1", "gaussian:.10")],
)
def test_what_is_no_perturbation_is_refused(folder: Path, texts: tuple[str, ...]) -> None:
    with pytest.raises(BnuqError, match="--perturb"):
        resolve("run.toml", Options(perturb=texts), folder=folder)


def test_what_cannot_be_perturbed_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    np.savez(folder / "unlabelled.npz", x=dict(np.load(folder / "test.npz"))["x"])
    given: dict[str, Any] = {"methods": ("mcbn",), "ood": ()}
    with pytest.raises(BnuqError, match=r"The perturbation fgsm:0.1 attacks the loss, and .* has no labels"):
        evaluated(folder, "refused", test="unlabelled.npz", perturb=("fgsm:0.1",), **given)
    unlabelled = evaluated(folder, "unlabelled", test="unlabelled.npz", perturb=("gaussian:0.1",), **given)
    assert "mutual_information" in unlabelled.methods["mcbn"].ood["test+gaussian:0.1"]
    stopped = small_run.write(tmp_path / "stopped").parent
    (stopped / "net.py").write_text(
        small_run.NET.replace("from torch import nn", "import torch\nfrom torch import nn")
        + "\n\nclass Stopped(nn.Sequential):\n    def forward(self, x):\n        return super().forward(x.detach())\n"
        + "\n\n_net = net\n\n\ndef net(**given):\n    return Stopped(*_net(**given))\n"
    )
    with pytest.raises(BnuqError, match="no gradient with respect to its inputs"):
        evaluated(stopped, "refused", perturb=("fgsm:0.1",), **given)
    integers = evaluated(stopped, "noise", perturb=("gaussian:0.1",), **given)
    assert "test+gaussian:0.1" in integers.methods["mcbn"].sets


def test_raw_samples_of_changed_points_are_in_the_unit_of_the_targets(tmp_path: Path) -> None:
    """The network predicts standardised targets; the file holds targets of 50 ± 20 or so."""
    run = small_regression.write(tmp_path / "run").parent
    result = small_regression.evaluated(
        run, methods=("mcbn",), perturb=("gaussian@1",), save_samples=True, ood=(), out="result.h5"
    )
    sets = result.methods["mcbn"].sets
    assert len(sets) == 2
    with h5py.File(run / "result.h5") as file:
        for name, each in sets.items():
            samples = file[f"posterior_predictive/mcbn_{name}"][0]
            assert samples.mean() > 30
            np.testing.assert_allclose(samples.mean(0), each.predicted, rtol=1e-5)
