"""Ensembles: the deterministic networks of several checkpoints, as numpy averages them; what is refused."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import small_regression
import small_run
import torch
from report_text import rendered
from scipy.special import logsumexp
from torch import nn

import bnuq
from bnuq.cli.main import main
from bnuq.config import Options, resolve, resolve_all, resolve_ensemble
from bnuq.errors import BnuqError
from bnuq.records import evaluation_file
from bnuq.records.decisions import judged
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report
from bnuq.workflows.evaluate import evaluate

xarray = pytest.importorskip("xarray")

NETWORKS = ("model.pt", "b.pt", "c.pt")


def moved(folder: Path, name: str, seed: int) -> None:
    """A checkpoint like that of the run, with other weights."""
    state = torch.load(folder / "model.pt", weights_only=True)
    generator = torch.Generator().manual_seed(seed)
    for value in state.values():
        if value.is_floating_point() and value.ndim > 1:
            value += 0.3 * value.std() * torch.randn(value.shape, generator=generator)
    torch.save(state, folder / name)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = small_run.write(tmp_path_factory.mktemp("ensemble") / "run").parent
    for seed, name in enumerate(NETWORKS[1:]):
        moved(folder, name, seed)
    return folder


def evaluated(folder: Path, *names: str, **options: Any) -> Result:
    given = Options({"out": "out.h5", "post_hoc": False, **options})
    return evaluate(resolve_ensemble(("run.toml", *names), given, folder=folder))


@pytest.fixture(scope="module")
def result(folder: Path) -> Result:
    return evaluated(folder, *NETWORKS[1:], methods=("mcdo", "ensemble"), calibrate="cross")


def values(result: Result, name: str = "test") -> dict[str, tuple[float, float | None, float | None]]:
    """The estimates of the ensemble, with their errors; without those of sets, which need calibration points, and
    without the parts of PLL, which need a temperature."""
    found = result.methods["ensemble"].sets[name].estimates
    kept = (metric for metric in found if not metric.startswith("set_") and not metric.endswith("_loss"))
    return {metric: (found[metric].value, found[metric].se, found[metric].mc_se) for metric in kept}


def logits(folder: Path, file: str) -> np.ndarray:
    """(network, point, class), by torch alone."""
    x = torch.from_numpy(np.load(folder / file)["x"])
    outputs = []
    for name in NETWORKS:
        network = small_run.network().eval()
        network.load_state_dict(torch.load(folder / name, weights_only=True))
        with torch.no_grad():
            outputs.append(network.double()(x.double()).numpy())
    return np.stack(outputs)


def test_an_ensemble_is_scored_by_its_mean_probability(folder: Path, result: Result):
    z, y = logits(folder, "test.npz"), np.load(folder / "test.npz")["y"]
    log_p = z - logsumexp(z, axis=-1, keepdims=True)
    mean = np.exp(log_p).mean(0)
    of_test = result.methods["ensemble"].sets["test"]
    assert of_test.estimates["pll"].value == pytest.approx(np.log(mean[np.arange(len(y)), y]).mean(), abs=1e-5)
    assert of_test.estimates["accuracy"].value == pytest.approx((mean.argmax(1) == y).mean())
    information = -(mean * np.log(mean)).sum(-1) + (np.exp(log_p) * log_p).sum(-1).mean(0)
    np.testing.assert_allclose(of_test.points["mutual_information"], information, atol=1e-5)
    assert of_test.log_likelihood is not None and of_test.log_likelihood.shape == (3, small_run.TEST)
    assert result.samples_of("ensemble+temperature") == 3 and result.samples_of("mcdo") == small_run.SAMPLES


def test_the_verdict_counts_the_networks_as_passes_and_as_given(result: Result):
    of_ensemble = [each for each in judged(result).comparisons if each.method.startswith("ensemble")]
    assert {each.passes for each in of_ensemble} == {3}
    assert all(each.p is not None for each in of_ensemble if each.metric == "pll")
    text = rendered(report, result, width=100, full=True)
    assert "ensemble  3 networks: model.pt, b.pt, c.pt" in text
    assert "too few points" not in text and result.work.methods["ensemble"].ratio is None


def test_the_file_holds_the_networks_and_says_so_for_xarray(folder: Path, result: Result):
    again = evaluation_file.read(folder / "out.h5")
    assert [Path(each["path"]).name for each in again.model["members"]] == [*NETWORKS]
    assert len({each["sha256"] for each in again.model["members"]}) == 3
    with xarray.open_datatree(folder / "out.h5", engine="h5netcdf") as tree:
        assert tree["log_likelihood/ensemble_test"].dims == ("chain", "network", "test_point")
    assert values(again) == values(result)


def test_a_list_in_the_run_file_and_an_architecture_each(folder: Path, result: Result):
    listed = (
        (folder / "run.toml")
        .read_text()
        .replace('"model.pt"', '["model.pt", "b.pt", "c.pt"]')
        .replace('"net.py:net"', '["net.py:net", "o.py:o", "net.py:net"]')
    )
    (folder / "listed.toml").write_text(listed)
    (folder / "o.py").write_text(small_run.NET.replace("def net", "def o"))
    run = resolve_ensemble(
        ("listed.toml",), Options(out="listed.h5", methods=("ensemble",), post_hoc=False), folder=folder
    )
    assert values(evaluate(run)) == values(result)
    (folder / "runs.toml").write_text(
        listed.replace('"b.pt", "c.pt"', '"b{split}.pt"').replace('"o.py:o", ', "") + "\n[runs]\nsplit = [1, 2]\n"
    )
    runs = resolve_all(("runs.toml",), Options(), folder=folder)
    assert runs is not None
    assert [each.run.members[0].checkpoint.name for each in runs.all] == ["b1.pt", "b2.pt"]


def test_networks_in_memory_and_of_a_regression(folder: Path, tmp_path: Path, result: Result):
    networks = []
    for name in NETWORKS:
        networks.append(small_run.network())
        networks[-1].load_state_dict(torch.load(folder / name, weights_only=True))
    arrays = np.load(folder / "test.npz")
    live = bnuq.evaluate(networks, test=(arrays["x"], arrays["y"]), methods=["ensemble"], post_hoc=False)
    expected = result.methods["ensemble"].sets["test"].estimates["pll"].value
    assert live.record.methods["ensemble"].sets["test"].estimates["pll"].value == pytest.approx(expected, abs=1e-6)
    small_regression.write(tmp_path)
    moved(tmp_path, "other.pt", 3)
    run = resolve_ensemble(
        ("run.toml", "other.pt"), Options(out="out.h5", methods=("ensemble",), ood=()), folder=tmp_path
    )
    assert evaluate(run).methods["ensemble"].sets["test"].estimates["variance"].value > 0


def wrong_classes(folder: Path) -> tuple[str, ...]:
    torch.save(small_run.network(classes=5).state_dict(), folder / "five.pt")
    (folder / "five.py").write_text(small_run.NET.replace("classes: int = 3", "classes: int = 5"))
    text = (folder / "run.toml").read_text().replace('"net.py:net"', '["net.py:net", "five.py:net"]')
    (folder / "run.toml").write_text(text)
    return ("five.pt",)


def cut(folder: Path) -> tuple[str, ...]:
    (folder / "cut.pt").write_bytes((folder / "model.pt").read_bytes()[:1000])
    return ("cut.pt",)


def a_copy(folder: Path) -> tuple[str, ...]:
    shutil.copy(folder / "model.pt", folder / "copy.pt")
    return ("copy.pt",)


def another_width(folder: Path) -> tuple[str, ...]:
    wide = torch.load(folder / "model.pt")
    torch.save(
        {name: torch.cat([value] * 2) if value.ndim else value for name, value in wide.items()}, folder / "wide.pt"
    )
    return ("wide.pt",)


WRONG: list[tuple[Callable[[Path], tuple[str, ...]], str]] = [
    (wrong_classes, "gives 5 outputs per example, and that of .* gives 3"),
    (another_width, r"have another shape.*Networks of other architectures need one --arch for each"),
    (cut, "cut.pt"),
    (lambda _: ("missing.pt",), "missing.pt"),
    (a_copy, "each network of an ensemble once"),
    (lambda _: ("run.toml",), "expected checkpoints after the first"),
]


@pytest.mark.parametrize(("made", "message"), WRONG)
def test_a_network_that_does_not_fit_is_refused_by_name(made, message, tmp_path):
    folder = small_run.write(tmp_path / "run").parent
    names = made(folder)
    with pytest.raises(BnuqError, match=message):
        evaluated(folder, *names, methods=("ensemble",))
    assert not (folder / "out.h5").exists()


class Changed(nn.Module):
    """A network whose inputs and outputs are changed by these functions."""

    def __init__(self, network: nn.Module, before: Any = lambda x: x, after: Any = lambda z: z) -> None:
        super().__init__()
        self.network, self.before, self.after = network, before, after

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.after(self.network(self.before(x)))


CENTRES = 4 * np.eye(4, 6)
ROWS, CLASSES = np.random.default_rng(0).normal(size=(400, 6)).astype(np.float32), np.arange(400) % 4


def trained(seed: int) -> nn.Module:
    """The Bayes classifier of four normal classes, a little moved."""
    network = nn.Linear(6, 4)
    with torch.no_grad(), torch.random.fork_rng():
        torch.manual_seed(seed)
        network.weight[:] = torch.tensor(CENTRES) + 0.1 * torch.randn(4, 6)
        network.bias[:] = -8
    return network


def of_members(*changes: dict[str, Any]) -> Any:
    networks = [trained(0), *(Changed(trained(seed), **change) for seed, change in enumerate(changes, 1))]
    x = (ROWS + CENTRES[CLASSES]).astype(np.float32)
    return bnuq.evaluate(networks, test=(x, CLASSES), methods=["ensemble"], post_hoc=False, device="cpu").record


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"after": lambda z: z.softmax(1)}, "look like the probabilities of a softmax"),
        ({"before": lambda x: x - x.mean(0)}, "depends on which examples pass with it"),
        ({"after": lambda z: z + torch.tensor(np.random.random(4), dtype=z.dtype)}, "draws from numpy's generator"),
    ],
)
def test_every_network_passes_what_the_first_one_passes(change: dict[str, Any], message: str):
    with pytest.raises(BnuqError, match=rf"network 3 of the ensemble \(Changed\): .*{message}"):
        of_members({}, change)


def test_a_network_far_below_the_others_is_named_with_what_it_looks_like():
    assert not [finding for finding in of_members({}, {}).findings if finding.code == "member-below"]
    changes = {"after": lambda z: z.roll(1, 1)}, {"before": lambda x: 1 - x}
    found = [each.values for each in of_members({}, {}, *changes).findings if each.code == "member-below"]
    assert {each["network"][:9]: each["looks"][:27] for each in found} == {
        "network 4": "like another order of class",
        "network 5": "like other preprocessing, o",
    }


def test_one_network_is_no_ensemble_and_other_commands_take_one(folder: Path, capsys: pytest.CaptureFixture[str]):
    with pytest.raises(BnuqError, match="there is one network"):
        evaluated(folder, methods=("ensemble",))
    (folder / "two.toml").write_text((folder / "run.toml").read_text().replace('"model.pt"', '["model.pt", "b.pt"]'))
    with pytest.raises(BnuqError, match="this command takes one network"):
        resolve("two.toml", Options(), folder=folder)
    with pytest.raises(BnuqError, match="2 architectures are named for 3 checkpoints"):
        evaluated(folder, *NETWORKS[1:], arch=("net.py:net", "o.py:o"))
    with pytest.raises(SystemExit, match="2"):
        main(["evaluate", str(folder / "model.pt"), str(folder / "nothing.pt")])
    assert "nothing.pt" in capsys.readouterr().err
