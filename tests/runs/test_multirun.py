"""Several runs over splits and seeds: what is asked for, what is kept, and aggregates against the single results."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import scipy.stats
import small_regression
import torch
from findings_of import noted, values_of
from records_at_rest import edited
from report_text import rendered
from torch import nn

import bnuq.workflows.multirun
from bnuq.cli.main import main
from bnuq.config import Options, Runs, Split, resolve, resolve_all
from bnuq.errors import BnuqError, ModelError, RequestError, ResultError
from bnuq.files.content import sha256_of_file
from bnuq.records import evaluation_file as result_file
from bnuq.records import multirun as several_file
from bnuq.report import multirun
from bnuq.report.multirun import report
from bnuq.store import codec
from bnuq.store.codec import kind_of_result
from bnuq.workflows.multirun import evaluate_several

SPLITS, SEEDS, POINTS, TRAINED, TESTED = 3, 2, 150, 120, 30

RUN = """[model]
checkpoint = "model_{split}_{seed}.pt"
arch = "net.py:net"
task = "regression"
train_batch_size = 16

[data]
train = "train_{split}.npz"
test = "test_{split}.npz"
validation = "validation.npz"
ood = ["far.npz"]
normalize = "train"
normalize_targets = "train"

[sampling]
samples = 8
methods = ["mcdo"]

[runs]
"""

# Nothing is fitted and nothing sampled, for what is not about estimates.
QUICK = RUN.replace('validation = "validation.npz"\n', "").replace("mcdo", "deterministic")


def write(folder: Path) -> Path:
    """The points in three splits, and for each of two seeds a network trained on its training part."""
    folder.mkdir(exist_ok=True)
    (folder / "net.py").write_text(small_regression.NET)
    random = np.random.default_rng(3)
    x = random.normal(size=(POINTS + 40, 3)).astype(np.float32)
    noise = (2 + 4 * np.abs(x[:, :1])) * random.normal(size=(len(x), 1))
    y = (50 + 15 * x[:, :1] - 10 * x[:, 1:2] ** 2 + noise).astype(np.float32)
    np.savez(folder / "validation.npz", x=x[POINTS:], y=y[POINTS:])
    np.savez(folder / "far.npz", x=random.normal(3.0, 3.0, (20, 3)).astype(np.float32))
    for split in range(SPLITS):
        order = np.random.default_rng(split).permutation(POINTS)
        for name, rows in (("train", order[:TRAINED]), ("test", order[TRAINED:])):
            np.savez(folder / f"{name}_{split}.npz", x=x[rows], y=y[rows])
        for seed in range(SEEDS):
            net = trained(x[order[:TRAINED]], y[order[:TRAINED]], seed)
            torch.save(net.state_dict(), folder / f"model_{split}_{seed}.pt")
    write_request(folder, "split = [0, 1, 2]\nseed = [0, 1]")
    return folder


def trained(x: np.ndarray, y: np.ndarray, seed: int) -> nn.Module:
    inputs, targets = (torch.from_numpy((values - values.mean(0)) / values.std(0)) for values in (x, y))
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = small_network()
        adam = torch.optim.Adam(model.parameters(), lr=0.02)
        for _ in range(5):
            for rows in torch.randperm(len(inputs)).split(20):
                adam.zero_grad()
                ((model(inputs[rows]) - targets[rows]) ** 2).mean().backward()
                adam.step()
    return model.eval()


def small_network() -> nn.Module:
    space: dict = {}
    exec(small_regression.NET, space)
    return space["net"]()


def write_request(folder: Path, runs: str, *, text: str = RUN) -> None:
    (folder / "run.toml").write_text(text + runs + "\n")


def runs_of(folder: Path, **options) -> Runs:
    runs = resolve_all(("run.toml",), Options(**options), folder=folder)
    assert runs is not None
    return runs


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """Three splits of two seeds, evaluated: (folder, what evaluate_several gave). Not to be changed."""
    folder = write(tmp_path_factory.mktemp("several"))
    return folder, evaluate_several(runs_of(folder))


@pytest.fixture
def one_split(finished, tmp_path):
    """A copy of the material, in which split 0 alone is asked for."""
    for path in finished[0].iterdir():
        if not path.name.startswith("run."):
            (tmp_path / path.name).write_bytes(path.read_bytes())
    write_request(tmp_path, "split = [0]\nseed = [0, 1]", text=QUICK)
    return tmp_path


@pytest.fixture
def evaluated(monkeypatch):
    """The names of the files of the runs that were evaluated and not read."""
    names: list[str] = []
    evaluate = bnuq.workflows.multirun.evaluate

    def counted(run, **options):
        names.append(run.out.name)
        return evaluate(run, **options)

    monkeypatch.setattr(bnuq.workflows.multirun, "evaluate", counted)
    return names


# ── the request ──────────────────────────────────────────────────────────────────────────────────────────────────────


def test_every_split_and_seed_is_a_run_with_its_own_texts_and_file(tmp_path):
    write_request(tmp_path, "split = [0, 7]\nseed = [1, 2]")
    runs = runs_of(tmp_path, samples=5, out=Path("all.bnuq.h5"))
    assert [requested.words for requested in runs.all] == [
        "split 0, seed 1", "split 0, seed 2", "split 7, seed 1", "split 7, seed 2"
    ]  # fmt: skip
    last = runs.all[-1].run
    assert last.checkpoint == tmp_path / "model_7_2.pt"
    assert last.train is not None and last.train.text == "train_7.npz"
    assert last.test is not None and last.test.text == "test_7.npz"
    assert last.out == tmp_path / "all.split7-seed2.bnuq.h5" and runs.out == tmp_path / "all.bnuq.h5"
    assert {(requested.run.samples, requested.run.seed) for requested in runs.all} == {(5, 0)} and runs.findings == ()


def test_without_out_the_aggregate_is_named_after_the_run_file(tmp_path):
    write_request(tmp_path, "split = [0, 1]", text=RUN.replace("_{seed}", ""))
    runs = runs_of(tmp_path)
    assert runs.out == tmp_path / "run.bnuq.h5"
    assert [requested.run.out.name for requested in runs.all] == ["run.split0.bnuq.h5", "run.split1.bnuq.h5"]


def test_placeholders_stand_in_every_text_and_a_split_of_another_set_stays(tmp_path):
    text = RUN.replace('"far.npz"', '"far=far_{split}.npz"').replace(
        '"net.py:net"',
        '"net_{seed}.py:net"\narch_args = {file = "w_{split}.txt", form = "{other}", sizes = ["{seed}"]}',
    )
    write_request(tmp_path, "split = [4]\nseed = [0]", text=text.replace("validation.npz", "validation_{split}.npz"))
    run = runs_of(tmp_path).all[0].run
    assert run.arch is not None and run.arch.text == "net_0.py:net"
    assert run.arch_args == {"file": "w_4.txt", "form": "{other}", "sizes": ["0"]}
    assert run.ood[0].text == "far=far_4.npz" and getattr(run.validation, "text", None) == "validation_4.npz"
    write_request(
        tmp_path, "split = [4]\nseed = [0]", text=text.replace('"validation.npz"', '{ split_of = "train", seed = 3 }')
    )
    assert runs_of(tmp_path).all[0].run.validation == Split(split_of="train", seed=3)


def test_seeds_that_are_nowhere_in_the_texts_are_those_of_sampling(tmp_path):
    write_request(tmp_path, "seed = [3, 4]", text=RUN.replace("{split}", "0").replace("{seed}", "0"))
    runs = runs_of(tmp_path)
    assert [requested.run.seed for requested in runs.all] == [3, 4]
    assert len({requested.run.checkpoint for requested in runs.all}) == 1
    assert noted(runs) == ["seeds-of-sampling"]
    with pytest.raises(RequestError, match="--seed 1 would give every run the same sampling seed"):
        runs_of(tmp_path, seed=1)


@pytest.mark.parametrize(
    ("runs", "change", "message"),
    [
        ("seed = [0]", {}, r"model.checkpoint is \"model_{split}_{seed}.pt\", and \[runs\] lists no split; add"),
        ("split = [0]", {}, r"lists no seed; add seed = \[0, 1, 2\]"),
        ("split = [0]\nseed = [0]", {"far": "far_{fold}"}, r"data.ood is \"far_{fold}.npz\", .* lists no fold"),
        ("split = [0, 1]\nseed = [0]", {"{split}": "0"}, r"runs.split is \[0, 1\], but the file does not"),
        ("", {}, r"\[runs\] lists no split"),
        ("", {"{split}": "0", "{seed}": "0"}, r"\[runs\] lists nothing; expected split = "),
        ("split = []\nseed = [0]", {}, "runs.split is empty; expected whole numbers"),
        ("split = [0]\nseed = [1, 2, 1]", {}, "runs.seed lists a number twice"),
        ("split = [-1]", {}, r"runs.split\[0\] is -1; expected a whole number of at least 0"),
        ('split = ["a"]', {}, r"runs.split\[0\] is \"a\"; expected a whole number"),
        ("splits = [0]", {}, "runs.splits is not known. Did you mean split"),
    ],
)  # fmt: skip
def test_lists_and_placeholders_that_do_not_belong_together_are_refused(tmp_path, runs, change, message):
    text = RUN
    for old, new in change.items():
        text = text.replace(old, new)
    write_request(tmp_path, runs, text=text)
    with pytest.raises(RequestError, match=message):
        runs_of(tmp_path)


def test_an_option_takes_a_placeholder_away(tmp_path):
    write_request(
        tmp_path, "split = [0, 1]", text=RUN.replace("model_{split}_{seed}", "model").replace("train_{split}", "train")
    )
    assert runs_of(tmp_path).all[1].run.test is not None
    with pytest.raises(RequestError, match=r"the file does not contain \{split\}"):
        runs_of(tmp_path, test="test_0.npz")


def test_a_run_file_of_several_is_no_single_run_and_a_checkpoint_beside_it_is_not_several(tmp_path):
    write_request(tmp_path, "split = [0]\nseed = [0]")
    with pytest.raises(RequestError, match=r"requests several runs \(\[runs\]\); expected one run"):
        resolve("run.toml", Options(), folder=tmp_path)
    with pytest.raises(RequestError, match=r"run.toml beside run.pt requests several runs .* Name run.toml"):
        resolve_all(("run.pt",), Options(), folder=tmp_path)
    (tmp_path / "run.toml").write_text('[model]\ncheckpoint = "model.pt"\n')
    assert resolve_all(("run.toml",), Options(), folder=tmp_path) is None
    assert resolve_all(("other.pt",), Options(), folder=tmp_path) is None


# ── the aggregates, by hand ──────────────────────────────────────────────────────────────────────────────────────────


def singles(several):
    return [result_file.read(run.path) for run in several.runs]


def test_every_estimate_holds_the_values_of_the_single_results_in_their_order(finished):
    _, several = finished
    assert [(run.split, run.seed) for run in several.runs] == [(s, e) for s in range(SPLITS) for e in range(SEEDS)]
    results = singles(several)
    rmse = several.aggregates["mcdo.sets.test.rmse"]
    expected = [result.methods["mcdo"].sets["test"].estimates["rmse"].value for result in results]
    assert rmse.values.tolist() == expected and len(set(expected)) == len(expected)
    assert rmse.mean == pytest.approx(sum(expected) / 6) and rmse.t_test is None
    assert rmse.sd == pytest.approx(math.sqrt(sum((v - sum(expected) / 6) ** 2 for v in expected) / 5))
    auroc = several.aggregates["mcdo.ood.far.variance.auroc"].values
    assert auroc.tolist() == [r.methods["mcdo"].ood["far"]["variance"]["auroc"].value for r in results]
    assert [run.sha256 for run in several.runs] == [sha256_of_file(run.path) for run in several.runs]


@pytest.mark.parametrize("metric", ["crps", "pll"])
def test_normalised_scores_are_means_of_the_runs_own_ratios_tested_both_ways(finished, metric):
    _, several = finished
    aggregate = several.aggregates[f"mcdo.normalized.{metric}"]
    scores, low, high = [], [], []
    for result in singles(several):
        method = result.methods["mcdo"]
        scores.append(method.sets["test"].estimates[metric].value)
        low.append(method.bounds["constant"][metric].value)
        high.append(method.bounds["optimum"][metric].value)
    ratios = [100 * (s - c) / (o - c) for s, c, o in zip(scores, low, high, strict=True)]
    assert aggregate.values == pytest.approx(ratios)
    assert aggregate.mean == pytest.approx(sum(ratios) / 6)
    assert aggregate.ratio_of_means == pytest.approx(100 * (sum(scores) - sum(low)) / (sum(high) - sum(low)))
    assert aggregate.ratio_of_means != pytest.approx(aggregate.mean)
    student = scipy.stats.ttest_1samp(ratios, 0.0)
    assert aggregate.t_test is not None and aggregate.t_test.df == 5
    assert (aggregate.t_test.t, aggregate.t_test.p) == pytest.approx((student.statistic, student.pvalue))
    means = np.reshape(ratios, (SPLITS, SEEDS)).mean(1)
    se = math.sqrt(means.var(ddof=1) * (1 / SPLITS + TESTED / TRAINED))
    corrected = aggregate.nadeau_bengio
    assert corrected is not None and (corrected.se, corrected.df) == (pytest.approx(se), SPLITS - 1)
    assert corrected.p == pytest.approx(2 * scipy.stats.t.sf(abs(means.mean() / se), SPLITS - 1))
    assert corrected.interval() == pytest.approx(scipy.stats.t.interval(0.95, SPLITS - 1, means.mean(), se))


def test_the_share_of_test_points_follows_the_split_and_train_size(one_split):
    write_request(one_split, "split = [0]\nseed = [0]", text=QUICK)
    assert evaluate_several(runs_of(one_split)).test_share == TESTED / TRAINED
    write_request(one_split, "split = [0]\nseed = [0]", text=QUICK.replace("[data]", "[data]\ntrain_size = 300"))
    assert evaluate_several(runs_of(one_split)).test_share == TESTED / 300
    assert evaluate_several(runs_of(one_split, limit=10)).test_share == TESTED / 300  # --limit changes no overlap
    text = QUICK.replace("ood =", 'validation = { split_of = "train", fraction = 0.25, held_out = true }\nood =')
    write_request(one_split, "split = [0]\nseed = [0]", text=text)
    assert evaluate_several(runs_of(one_split)).test_share == TESTED / (0.75 * TRAINED)


def test_one_split_has_no_error_over_splits_and_one_run_no_spread(finished, one_split):
    several = replace(finished[1], runs=finished[1].runs[:2], values=finished[1].values[:, :2])
    aggregate = several.aggregates["mcdo.normalized.crps"]
    assert aggregate.nadeau_bengio is None and aggregate.t_test is not None and aggregate.t_test.df == 1
    assert several_file.summary(several)["aggregate"]["mcdo"]["normalized"]["crps"]["nadeau_bengio"] is None
    single = replace(several, runs=several.runs[:1], values=several.values[:, :1])
    aggregate = single.aggregates["mcdo.normalized.crps"]
    assert aggregate.t_test is None and math.isnan(aggregate.sd) and aggregate.values.shape == (1,)
    assert "n/a" in rendered(report, single)
    assert "no-splits" in noted(evaluate_several(runs_of(one_split)))


def test_without_the_size_of_the_training_set_there_is_no_error_over_splits(one_split):
    text = QUICK.replace('train = "train_{split}.npz"\n', "")
    text = text.replace('normalize = "train"\n', "").replace('normalize_targets = "train"\n', "")
    write_request(one_split, "split = [0, 1]\nseed = [0]", text=text)
    several = evaluate_several(runs_of(one_split))
    assert several.test_share is None and "no-training-size" in noted(several)
    assert all(aggregate.nadeau_bengio is None for aggregate in several.aggregates.values())


def test_a_estimate_that_a_run_has_not_is_no_number_over_all_and_a_warning_names_the_run(one_split):
    """The PLL of a mixture is not defined at τ = ∞, which comes of validation points that are met without noise."""
    train, validation = (dict(np.load(one_split / f"{name}.npz")) for name in ("train_0", "validation"))
    model = small_network()
    model.load_state_dict(torch.load(one_split / "model_0_1.pt"))
    with torch.inference_mode():
        inputs = torch.from_numpy((validation["x"] - train["x"].mean(0)) / train["x"].std(0))
        met = model.eval()(inputs).numpy() * train["y"].std() + train["y"].mean()
    np.savez(one_split / "validation_0.npz", **validation)
    np.savez(one_split / "validation_1.npz", x=validation["x"], y=met)
    text = RUN.replace("validation.npz", "validation_{seed}.npz")
    write_request(one_split, "split = [0]\nseed = [0, 1]", text=text)
    several = evaluate_several(runs_of(one_split))
    aggregate = several.aggregates["mcdo.normalized.pll"]
    assert np.isnan(aggregate.values).tolist() == [False, True] and math.isnan(aggregate.mean)
    undefined = next(finding for finding in several.findings if finding.code == "undefined-in-some-runs")
    assert "pll" in undefined.values["estimates"] and undefined.values["without"] == ["split 0, seed 1"]
    assert undefined.runs == 1
    assert several_file.summary(several)["aggregate"]["mcdo"]["normalized"]["pll"]["mean"] == "nan"


def test_splits_of_the_same_test_points_are_warned_of(one_split):
    write_request(one_split, "split = [0, 1]\nseed = [0]", text=QUICK.replace("test_{split}", "test_0"))
    several = evaluate_several(runs_of(one_split))
    shared = next(finding for finding in several.findings if finding.code == "splits-share-test-set")
    assert shared.values == {"splits": [0, 1]} and shared.runs == 2


def test_a_score_without_the_points_met_exactly_is_the_score_itself_where_none_was():
    def run(estimates):
        return {f"m.normalized.{metric}": value for metric, value in estimates.items()}

    table = several_file.table_of([run({"pll": math.nan, "pll_without_exact": 3.0}), run({"pll": 5.0})])
    runs = (several_file.OneRun(Path("r.h5"), "", {"model": {"checkpoint": "m.pt"}}),) * 2
    several = several_file.Several(runs, **table, task="regression", findings=(), seconds=0.0, provenance={"bnuq": "0"})
    assert several.aggregates["m.normalized.pll_without_exact"].values.tolist() == [3.0, 5.0]
    assert np.isnan(several.aggregates["m.normalized.pll"].values).tolist() == [True, False]
    legend, table = multirun._legend(several), multirun._normalized_table(several)
    assert [cells[0].value for label, cells in table.rows if label == "  PLL"] == ["NaN"]
    assert "NaN: not a number in some run; the warning says in which." in [*legend]


# ── going on, and failing ────────────────────────────────────────────────────────────────────────────────────────────


def test_what_is_there_already_is_read_and_gives_the_same_estimates(one_split, evaluated):
    write_request(one_split, "split = [0, 1]\nseed = [0]", text=QUICK)
    runs = runs_of(one_split)
    evaluate_several(runs)
    assert len(evaluated) == 2
    before = several_file.read(runs.out).aggregates
    runs.all[1].run.out.unlink()
    evaluated.clear()
    again = evaluate_several(runs)
    assert evaluated == ["run.split1-seed0.bnuq.h5"]
    assert values_of(again, "runs-reused") == {"reused": 1, "all_runs": 2}
    for address, aggregate in again.aggregates.items():
        np.testing.assert_array_equal(aggregate.values, before[address].values)


def test_another_request_checkpoint_data_or_architecture_is_evaluated_again(one_split, evaluated):
    def again(size=16):
        evaluated.clear()
        evaluate_several(runs_of(one_split, batch_size=size))
        return evaluated

    both = ["run.split0-seed0.bnuq.h5", "run.split0-seed1.bnuq.h5"]
    assert again(None) == both and again(None) == []
    assert again() == both, "the request is another, even where it comes to the same"
    (one_split / "model_0_1.pt").write_bytes((one_split / "model_1_1.pt").read_bytes())
    assert again() == both[1:]
    (one_split / "train_0.npz").write_bytes((one_split / "train_1.npz").read_bytes())
    assert again() == both
    (one_split / "net.py").write_text(small_regression.NET.replace("rate: float = 0.2", "rate: float = 0.3"))
    assert again() == both
    with edited(one_split / both[0]) as record:
        record["provenance"]["identity"] = "that of version 0.0.1"
    with h5py.File(one_split / both[1], "r+") as file:
        del file["estimates"]
    assert again() == both, "another version, and a damaged file"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        pytest.param("SCALE, RATE = 1.0, 0.2", "SCALE, RATE = 0.1, 0.2", marks=pytest.mark.nightly),
        ("SCALE, RATE = 1.0, 0.2", "SCALE, RATE = 1.0, 0.5"),  # which no pass as it is can tell
        pytest.param("x * SCALE", "x * SCALE if not self.training else 0 * x", marks=pytest.mark.nightly),
    ],
)
def test_code_that_the_architecture_imports_is_part_of_what_was_asked(one_split, evaluated, before, after):
    parts = """import torch

SCALE, RATE = 1.0, 0.2


class Scaled(torch.nn.Module):
    def forward(self, x):
        return x * SCALE
"""
    net = small_regression.NET.replace("from torch import nn", "from parts import RATE, Scaled\nfrom torch import nn")
    net = net.replace("nn.Dropout(rate)", "nn.Dropout(RATE)").replace("nn.ReLU()", "Scaled()")
    (one_split / "net.py").write_text(net)
    (one_split / "parts.py").write_text(parts)
    write_request(one_split, "split = [0]\nseed = [0]", text=QUICK)
    evaluate_several(runs_of(one_split))
    assert len(evaluated) == 1
    evaluate_several(runs_of(one_split))
    assert len(evaluated) == 1, "nothing has changed"
    (one_split / "parts.py").write_text(parts.replace(before, after))
    evaluate_several(runs_of(one_split))
    assert len(evaluated) == 2


def test_a_run_that_fails_is_named_those_before_it_are_kept_and_no_aggregate_is_written(one_split, evaluated):
    write_request(one_split, "split = [0, 1]\nseed = [0, 1]", text=QUICK)
    (one_split / "model_1_1.pt").write_bytes(b"PK\x03\x04 of an archive that is cut off")
    runs = runs_of(one_split)
    with pytest.raises(ModelError, match=r"(?s)^split 1, seed 1: .*model_1_1.pt.*The 3 runs before it are kept"):
        evaluate_several(runs)
    assert not runs.out.exists() and [requested.run.out.exists() for requested in runs.all] == [True, True, True, False]
    (one_split / "model_1_1.pt").unlink()
    evaluated.clear()
    with pytest.raises(BnuqError, match=r"^split 1, seed 1: .*there is no such file"):
        evaluate_several(runs)
    assert evaluated == [], "what is missing is told before anything is computed"


def test_runs_that_cannot_be_put_together_are_refused_by_name(one_split):
    for split in (0, 1):
        (one_split / f"far_{split}.npz").write_bytes((one_split / "far.npz").read_bytes())
    write_request(one_split, "split = [0, 1]\nseed = [0]", text=QUICK.replace("far.npz", "far_{split}.npz"))
    with pytest.raises(RequestError, match=r"split 1, seed 0: its sets are far_1, .* of split 0, seed 0 are far_0, "):
        evaluate_several(runs_of(one_split))
    write_request(one_split, "split = [0, 1]\nseed = [0]", text=QUICK.replace("far.npz", "far=far_{split}.npz"))
    assert len(evaluate_several(runs_of(one_split)).runs) == 2


def test_the_progress_counts_runs(one_split):
    seen = []

    class Bar:
        def __init__(self, title, total):
            seen.append((title, total))

        def __enter__(self):
            return lambda steps: seen.append(steps)

        def __exit__(self, *_):
            return None

    evaluate_several(runs_of(one_split), progress=Bar)
    assert seen == [("runs", 2), 1, 1]


@pytest.mark.parametrize("out", ["run.toml", "nowhere/all.h5", "train_0.npz", "."])
def test_the_aggregate_goes_over_nothing_that_is_not_one(one_split, evaluated, out):
    with pytest.raises(BnuqError):
        evaluate_several(runs_of(one_split, out=Path(out)))
    assert evaluated == []


# ── file, summary, report ────────────────────────────────────────────────────────────────────────────────────────────


def test_the_file_gives_back_what_was_written(finished):
    _, several = finished
    assert several.path is not None and kind_of_result(several.path) == "several"
    again = several_file.read(several.path)
    assert [vars(run) for run in again.runs] == [
        vars(run) | {"record": json.loads(json.dumps(run.record))} for run in several.runs
    ]
    np.testing.assert_array_equal(again.values, several.values)
    assert several_file.summary(again) == several_file.summary(several)
    assert rendered(report, again) == rendered(report, several)


def test_the_file_is_readable_without_bnuq_and_every_number_has_a_unit(finished):
    _, several = finished
    with h5py.File(several.path) as file:
        record = json.loads(file["record"][()])  # type: ignore
        assert file.attrs["kind"] == "several" and [run["split"] for run in record["runs"]] == [0, 0, 1, 1, 2, 2]
        assert [axis.keys() for axis in file["values"].dims] == [["estimate"], ["run"]]  # type: ignore
        row = list(file["estimate"].asstr()[:]).index("mcdo.normalized.crps")  # type: ignore
        crps = several.aggregates["mcdo.normalized.crps"]
        assert file["values"][row].tolist() == crps.values.tolist()  # type: ignore

        def has_unit(name, item):
            if isinstance(item, h5py.Dataset) and item.dtype.kind in "iuf":
                assert item.attrs.get("units"), name

        file.visititems(has_unit)


def test_the_summary_names_both_tests_and_is_json(finished):
    _, several = finished
    summary = json.loads(json.dumps(several_file.summary(several), allow_nan=False))
    assert (summary["command"], summary["schema"], len(summary["runs"])) == ("evaluate", 2, 6)
    assert summary["runs"][3].items() >= {"split": 1, "seed": 1}.items() and Path(summary["runs"][3]["result"]).exists()
    normalised = summary["aggregate"]["mcdo"]["normalized"]["crps"]
    assert set(normalised) == {"mean", "sd", "values", "ratio_of_means", "t_test", "nadeau_bengio"}
    assert set(normalised["t_test"]) == {"t", "df", "p", "stars"}
    assert set(normalised["nadeau_bengio"]) == {"se", "low", "high", "t", "df", "p", "stars"}
    rmse = summary["aggregate"]["deterministic"]["sets"]["test"]["rmse"]
    assert set(rmse) == {"mean", "sd", "values", "nadeau_bengio"} and "p" not in rmse["nadeau_bengio"]
    assert summary["aggregate"]["mcdo"]["ood"]["far"]["variance"]["auroc"]["values"]


def test_the_report_says_which_stars_are_the_papers_and_which_are_ours(finished):
    _, several = finished
    text = " ".join(rendered(report, several).split())
    crps = several.aggregates["mcdo.normalized.crps"]
    assert f"CRPS {crps.mean:.1f} ±{crps.sd:.1f}".replace("-", "−") in text, "two digits of the error"
    assert "two-sided one-sample t-test over 6 runs, as in the paper" in text
    assert "it treats overlapping splits as independent and rejects far too often" in text
    assert "the Nadeau–Bengio test on split means" in text and "model_0_0.pt … model_2_1.pt, 6 checkpoints" in text


@pytest.mark.parametrize("width", [40, 60, 100])
def test_the_report_fits_its_width_and_an_ascii_stream(finished, width):
    _, several = finished
    lines = rendered(report, several, width=width, encoding="ascii").splitlines()
    assert lines and not [line for line in lines if len(line) > width and str(several.path) not in line]


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda file: file.pop("values"), "incomplete or damaged"),
        (lambda file: file.pop("record"), "incomplete or damaged"),
        (lambda file: file.attrs.update(format=codec.FORMAT + 1), "reads up to format"),
        (lambda file: file.attrs.update(kind="other"), r"is not a result file of bnuq evaluate for a \[runs\] list"),
    ],
)
def test_a_damaged_or_newer_file_is_refused(finished, tmp_path, damage, message):
    path = tmp_path / "copy.h5"
    path.write_bytes(finished[1].path.read_bytes())
    with h5py.File(path, "r+") as file:
        damage(file)
    with pytest.raises(ResultError, match=message):
        several_file.read(path)


def test_a_single_result_and_several_are_told_apart(finished):
    _, several = finished
    assert kind_of_result(several.runs[0].path) == "evaluate"
    with pytest.raises(ResultError, match=r"is not a result file of bnuq evaluate for a \[runs\] list"):
        several_file.read(several.runs[0].path)
    with pytest.raises(ResultError, match="is not a result file"):
        result_file.read(several.path)


# ── the command line ─────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture
def cli(one_split, monkeypatch, capsys):
    monkeypatch.chdir(one_split)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(one_split / "config"))
    monkeypatch.setattr("signal.signal", lambda *_: None)

    def call(*arguments):
        capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main([str(argument) for argument in arguments])
        printed = capsys.readouterr()
        return leave.value.code, printed.out, printed.err

    return call


def test_evaluate_prints_and_report_shows_again(cli, one_split):
    code, out, err = cli("evaluate", "run.toml", "--json")
    summary = json.loads(out)
    assert (code, err) == (0, "") and summary["result"] == str(one_split / "run.bnuq.h5")
    code, out, err = cli("evaluate", "run.toml", "--quiet")
    assert (code, out, err) == (0, "", "")
    code, out, err = cli("evaluate", "run.toml")
    assert code == 0 and cli("report", "run.bnuq.h5") == (0, out, "")
    whole = cli("report", "run.bnuq.h5", "--full")[1]
    assert "2 of 2 runs already had a result of the same request" in " ".join(whole.split())
    code, out, _ = cli("report", "run.bnuq.h5", "--json")
    assert code == 0 and json.loads(out)["aggregate"] == summary["aggregate"]


def test_from_runs_an_aggregate_again_with_other_options(cli, one_split):
    assert cli("evaluate", "run.toml", "--quiet")[0] == 0
    code, out, _ = cli("evaluate", "--from", "run.bnuq.h5", "-o", "more.h5", "--limit", "7", "--trust-code", "--json")
    summary = json.loads(out)
    assert code == 0 and [Path(run["result"]).name for run in summary["runs"]] == [
        "more.split0-seed0.bnuq.h5", "more.split0-seed1.bnuq.h5"
    ]  # fmt: skip
    assert result_file.read(one_split / "more.split0-seed0.bnuq.h5").sets["test"].n == 7
    code, _, err = cli("evaluate", "--from", "run.bnuq.h5")
    assert code == 2 and "is a file that these runs read" in err


def test_strict_writes_everything_and_then_refuses(cli, one_split):
    (one_split / "test_0.npz").write_bytes((one_split / "train_0.npz").read_bytes())
    code, out, err = cli("evaluate", "run.toml", "--strict", "--json")
    assert (code, out) == (2, "") and "--strict: there were warnings (test-in-reference)" in err
    assert several_file.read(one_split / "run.bnuq.h5").findings[0].runs == 2
