"""`bnuq init` writes a run file that is read, evaluated and trusted, and says what it could not find out."""

from __future__ import annotations

import io
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import less_work
import made_up_inspection
import numpy as np
import pytest
import small_run
import torch
from cut_sets import DEMO
from making_points import png
from report_text import Terminal
from torch import nn

from bnuq.config import Named, Options, read_run_file, resolve
from bnuq.data import load_points
from bnuq.errors import RequestError
from bnuq.evaluation.completeness import beside
from bnuq.studies.init import compute as workflow
from bnuq.studies.init.run_file_lines import pipeline_lines
from bnuq.studies.inspect import pipelines
from bnuq.studies.inspect.record import Pipelines

COMPLETE = ("--arch", "net.py:net", "--train", "train.npz", "--test", "test.npz")
FAST = ("--normalize", "none", "--augment", "none")  # no search


@pytest.mark.nightly  # a search in full; a short one below
def test_the_quickstarts_run_file_is_found_again_and_evaluates_without_asking(cli, tmp_path, monkeypatch):
    effort = replace(pipelines.QUICK, finalists=3, batches=12)  # which tells as much here
    monkeypatch.setattr("bnuq.studies.init.compute.QUICK", effort)
    monkeypatch.chdir(shutil.copytree(DEMO, tmp_path / "q", ignore=shutil.ignore_patterns("*.toml")))
    sets = ("--train", "fashion_train.npz", "--test", "fashion_test.npz", "--ood", "digits=mnist.npz")
    done = cli("init", "fashion_cnn.pt", "--arch", "net.py:small_cnn", *sets)
    assert done.code == 0
    announced = "The run file will be fashion_cnn.toml."
    last = ["fashion_cnn.toml was written.", "Next: bnuq evaluate fashion_cnn.toml"]
    assert done.out.splitlines() == [announced, *last]
    sample = resolve(str(DEMO / "fashion_cnn.toml"), Options(), folder=tmp_path)
    written = resolve("fashion_cnn.toml", Options(), folder=Path.cwd())
    assert (written.normalize, written.augment) == (sample.normalize, sample.augment)
    assert written.task == "classification" and written.ood[0].text == "digits=mnist.npz"
    data = Path("fashion_cnn.toml").read_text().partition("[data]")[2]
    assert data.count("# found") == 2 and 'normalize = "fashion-mnist"' in data and "TODO" not in data
    less_work.at_the_reference(monkeypatch)
    few = ("-T", "4", "--limit", "40", "--method", "mcbn", "--no-post-hoc")
    evaluated = cli("evaluate", "fashion_cnn.pt", *few)  # found, yet trusted
    assert evaluated.code == 0 and "Data and preprocessing match the training" in " ".join(evaluated.out.split())


def test_an_augmentation_that_fits_no_better_than_none_is_no_guess(small):
    points = load_points(str(small / "train.npz"))
    unfit = Pipelines((made_up_inspection.candidate("mnist", "pad 2, crop 6", 20.0),), (), (), "")
    settings = {"normalize": None, "channel_order": "rgb", "augment": {"pad": 2, "crop": 6}}
    [*_, line] = pipeline_lines(pipelines.Suggestion(settings, frozenset({"augment"}), unfit), {"train": points})
    assert (line.key, line.active) == ("augment", False)
    assert line.comment == "TODO: as in training, or leave it out: the statistics do not tell"


def test_what_is_unknown_is_a_comment_marked_todo_and_listed(cli, small):
    done = cli("init", "model.pt")
    assert done.code == 0
    assert "marked TODO: arch, train, test, normalize, augment" in done.out and "Then: bnuq evaluate" in done.out
    text = (small / "model.toml").read_text()
    read = read_run_file(small / "model.toml")
    assert (read.model.checkpoint, read.model.arch, read.data.train) == ("model.pt", None, None)
    assert "tensors, 0.weight (4, 1, 3, 3) to 7.bias (3,), probably 3 outputs" in text and "1 BatchNorm layer\n" in text
    assert sum("TODO: " in line for line in text.splitlines()) == 5
    everything = tomllib.loads("\n".join(line.removeprefix("# ") for line in text.splitlines() if " = " in line))
    assert everything["samples"] == 64  # a line without its # is TOML, too
    assert everything["calibrate"] == "cross"  # the default without validation points
    assert "there is no architecture" in " ".join(cli("evaluate", "model.toml", *COMPLETE[2:]).err.split())


def test_classes_and_paths_are_found_from_another_folder_and_no_pipeline_is_searched_where_it_is_given(
    cli, small, monkeypatch
):
    small_run.write(small, classes=5)
    (small / "runs").mkdir()
    monkeypatch.chdir(small / "runs")
    given = ("--arch", "../net.py:net", "--train", "../train.npz", "--test", "../test.npz", "--out", "my.toml")
    done = cli("init", "../model.pt", *given, *FAST)
    assert (done.code, done.err) == (0, "")
    content = tomllib.loads((small / "runs" / "my.toml").read_text())
    assert content["model"]["checkpoint"] == "../model.pt" and content["model"]["arch"] == "../net.py:net"
    assert content["model"]["arch_args"] == {"classes": 5} and content["data"]["normalize"] == "none"
    assert cli("evaluate", "my.toml", "-T", "2", "--limit", "20").code == 0


def test_an_existing_run_file_stays_unless_forced_and_errors_write_nothing(cli, small):
    (small / "model.toml").write_text("# mine\n")
    done = cli("init", "model.pt", *COMPLETE, *FAST)
    assert done.code == 2 and "--force" in done.message and (small / "model.toml").read_text() == "# mine\n"
    assert cli("init", "model.pt", *COMPLETE[2:], "--arch", "net.py:other", "--force").code == 2
    assert cli("init", "model.pt", "--train", "none.npz", "--force").code == 2
    assert (small / "model.toml").read_text() == "# mine\n"
    assert cli("init", "model.pt", *COMPLETE, *FAST, "--force").code == 0
    assert read_run_file(small / "model.toml").model.arch == "net.py:net"
    assert ".toml" in cli("init", "model.pt", "--out", "model.pt", "--force").message
    assert "expected a file of weights" in cli("init", "run.toml").message
    assert cli("init", "none.pt").code == 2 and not (small / "none.toml").exists()


def test_without_a_checkpoint_the_only_one_in_the_folder_is_taken(cli, small):
    assert cli("init", *COMPLETE, *FAST).code == 0
    assert read_run_file(small / "bnuq.toml").model.checkpoint == "model.pt"
    assert cli("evaluate", "-T", "2", "--limit", "20").code == 0
    shutil.copy(small / "model.pt", small / "other model.pth")
    message = cli("init").message
    assert "there are 2 checkpoints" in message and "model.pt, other model.pth" in message
    (small / "model.pt").unlink()
    (small / "other model.pth").unlink()
    assert "no checkpoint in this folder" in cli("init").message


def test_code_is_trusted_until_it_changes(cli, small):
    assert cli("init", "model.pt", *COMPLETE, *FAST).code == 0
    assert cli("evaluate", "model.pt", "-T", "2", "--limit", "20").code == 0
    with (small / "net.py").open("a") as code:
        code.write("# changed\n")
    assert "--trust-code" in cli("evaluate", "model.pt", "-T", "2", "--limit", "20").message


def test_why_no_pipeline_was_searched_is_one_sentence(cli, small):
    weights = torch.load(small / "model.pt", weights_only=True)
    weights["1.running_mean"].zero_()
    weights["1.running_var"].fill_(1)
    torch.save(weights, small / "model.pt")
    assert cli("init", "model.pt", *COMPLETE).code == 0
    assert "(they still have mean 0 and variance 1).\n" in (small / "model.toml").read_text()


def test_where_no_pipeline_fits_the_closest_is_a_comment(cli, small):
    weights = torch.load(small / "model.pt", weights_only=True)
    weights["1.running_mean"] += 50
    torch.save(weights, small / "model.pt")
    done = cli("init", "model.pt", *COMPLETE)
    assert done.code == 0 and "marked TODO: normalize" in done.out
    assert "fits the running statistics. The closest" in (small / "model.toml").read_text()
    assert read_run_file(small / "model.toml").data.normalize is None
    once = (small / "model.toml").read_text()
    assert cli("init", "model.pt", *COMPLETE[:2], *COMPLETE[4:], "--force").code == 0
    assert once != (small / "model.toml").read_text()
    assert "Searched on the test set" in (small / "model.toml").read_text()


ENDS = {
    "probabilities": "nn.Linear(4, 3), nn.Softmax(-1)",
    "binary": "nn.Linear(4, 1)",
    "sigmoid": "nn.Linear(4, 1), nn.Sigmoid()",
    "several": "nn.Linear(4, 3), nn.Sigmoid()",
    "regression": "nn.Linear(4, 1)",
}


@pytest.mark.parametrize(
    ("end", "written"),
    [
        ("probabilities", {"task": "classification", "outputs": "probabilities"}),
        ("binary", {"outputs": "binary"}),
        ("sigmoid", {"outputs": "probabilities"}),
        ("several", {"task": "classification"}),
        ("regression", {"task": "regression"}),
    ],
)
def test_task_and_outputs_are_found_by_outputs_and_targets(cli, small, end, written):
    (small / "mlp.py").write_text(f"from torch import nn\n\ndef mlp():\n    return nn.Sequential({ENDS[end]})\n")
    torch.manual_seed(0)
    torch.save(nn.Sequential(nn.Linear(4, 3 if "3" in ENDS[end] else 1)).state_dict(), small / "mlp.pt")
    random = np.random.default_rng(0)
    x = 3 * random.normal(size=(80, 4)).astype(np.float32)
    y = random.normal(size=80) if end == "regression" else random.integers(0, 3 if "3" in ENDS[end] else 2, 80)
    np.savez(small / "rows.npz", x=x, y=y)
    done = cli("init", "mlp.pt", "--arch", "mlp.py:mlp", "--test", "rows.npz", *FAST)
    model = tomllib.loads((small / "mlp.toml").read_text())["model"]
    assert done.code == 0
    assert {key: model[key] for key in ("task", "outputs") if key in model} == written
    guess = "Likely, but please check:\n  - outputs: 1 output, and labels 0 and 1\n"
    assert (guess in done.out) == (end in ("binary", "sigmoid"))
    assert ("TODO: outputs" in done.out.replace("marked ", "")) == (end == "several")
    if end == "regression":
        assert '# normalize_targets = "train"' in (small / "mlp.toml").read_text()


@pytest.mark.parametrize(
    ("order", "written"),
    [(("1", "2", "9", "10"), "active"), (("1", "10", "2", "9"), None), (("10", "1", "9", "2"), "comment")],
)
def test_timms_order_of_class_folders_is_written_where_it_fits_the_labels(cli, small, order, written):
    for place, name in enumerate(order):  # the brightest pixel of an image tells its class
        for at in range(9):
            pixels = np.full((2, 2), 10 + at, np.uint8)
            pixels.flat[place] += 200 if written != "comment" else 0
            (small / "t" / name).mkdir(parents=True, exist_ok=True)
            (small / "t" / name / f"{at}.png").write_bytes(png(pixels))
    (small / "flat.py").write_text(
        "from torch import nn\n\ndef flat():\n    return nn.Sequential(nn.Flatten(), nn.Linear(4, 4))\n"
    )
    torch.save({"1.weight": 9 * torch.eye(4), "1.bias": torch.zeros(4)}, small / "flat.pt")
    assert cli("init", "flat.pt", "--arch", "flat.py:flat", "--test", "t", *FAST).code == 0
    text = (small / "flat.toml").read_text()
    if written == "active":
        assert read_run_file(small / "flat.toml").data.classes == order
        assert "found: accuracy 100.0% in timm's order, 25.0% in that of texts, on 36 examples of t" in text
        return
    assert read_run_file(small / "flat.toml").data.classes is None
    assert ("\n# classes = [" in text) == (written == "comment")


def test_entries_and_the_batch_size_of_a_checkpoint_are_written(cli, small):
    weights = torch.load(small / "model.pt", weights_only=True)
    torch.save({"model": weights, "model_ema": weights, "batch_size": 48, "epoch": 3}, small / "all.ckpt")
    assert cli("init", "all.ckpt").code == 0
    model = read_run_file(small / "all.toml").model
    assert (model.entry, model.train_batch_size) == ("model_ema", 48)
    assert "\n# batch_size = 48  " in (small / "all.toml").read_text()
    (small / "all.toml").unlink()
    refused = cli("evaluate", "all.ckpt", "--test", "test.npz").message
    template = tomllib.loads(refused[refused.index("[model]") :])["model"]
    assert (template["entry"], template["train_batch_size"]) == ("model_ema", 48)


@pytest.mark.usefixtures("small")
def test_where_it_will_write_is_said_before_anything_is_asked(cli, monkeypatch):
    monkeypatch.setattr(sys, "stdin", Terminal("\n\n\n"))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    assert cli("init", "model.pt", *FAST).out.startswith("The run file will be model.toml.\nFunction that builds")
    assert cli("init", "model.pt", *FAST, "--force").out.startswith("The run file will be model.toml (replaced).\n")


@pytest.mark.parametrize("on_terminal", [True, False])
def test_a_terminal_is_asked_for_what_is_missing_and_nothing_else_is(cli, small, monkeypatch, on_terminal):
    answers = "net.py:net\n\ntest.npz\n"
    monkeypatch.setattr(sys, "stdin", Terminal(answers) if on_terminal else io.StringIO(answers))
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    done = cli("init", "model.pt", *FAST)
    assert done.code == 0
    read = read_run_file(small / "model.toml")
    assert (read.model.arch, read.data.test) == (("net.py:net", "test.npz") if on_terminal else (None, None))
    assert read.data.train is None and ("[Enter to skip]" in done.out) == on_terminal


def test_arrays_of_a_file_are_data_even_beside_a_module_of_its_name(cli, small, monkeypatch):
    for name in ("train", "test"):
        with np.load(small / f"{name}.npz") as file:
            np.savez(small / f"{name}.npz", a=file["x"], b=file["y"])
        (small / f"{name}.py").write_text("raise SystemExit('a script, not to be run')\n")
    (small / "runs").mkdir()
    monkeypatch.chdir(small / "runs")
    sets = ("--train", "../train.npz:a,b", "--test", "../test.npz:a,b")
    done = cli("init", "../model.pt", "--arch", "../net.py:net", *sets, *FAST, "--out", "my.toml")
    assert (done.code, done.err) == (0, "")
    assert read_run_file(small / "runs" / "my.toml").data.train == "../train.npz:a,b"
    monkeypatch.chdir(small)
    sets = ("--train", "train.npz:a,b", "--test", "test.npz:a,b")
    assert cli("init", "model.pt", *COMPLETE[:2], *sets, *FAST).code == 0
    assert cli("evaluate", "model.pt", "-T", "2", "--limit", "20").code == 0


def test_a_factory_with_arguments_is_trusted(cli, small):
    (small / "sets.py").write_text(
        "import numpy as np\n\ndef load(name):\n    return tuple(np.load(f'{name}.npz')[key] for key in 'xy')\n"
    )
    done = cli("init", "model.pt", *COMPLETE[:2], "--train", 'sets.py:load("train")', *COMPLETE[4:], *FAST)
    assert (done.code, done.err) == (0, "")
    assert cli("evaluate", "model.pt", "-T", "2", "--limit", "20").code == 0


def test_a_failure_in_the_last_step_leaves_the_file_as_it_was(cli, small, monkeypatch):
    def fails(*_: object, **__: object) -> None:
        raise RequestError("no.")

    monkeypatch.setattr(workflow, "_trust", fails)
    assert cli("init", "model.pt", *COMPLETE, *FAST).code == 2
    assert not (small / "model.toml").exists()
    (small / "model.toml").write_text("# mine\n")
    assert cli("init", "model.pt", *COMPLETE, *FAST, "--force").code == 2
    assert (small / "model.toml").read_text() == "# mine\n"


@pytest.mark.parametrize(
    ("known", "suggested"),
    [
        ("/data/latest/test.npz", "/data/latest/train.npz"),
        ("test/contest_test.csv", "test/contest_train.csv"),
        ("cifar10:test", "cifar10:train"),
        ("data/test.npz:x_test,y_test", "data/train.npz:x_train,y_train"),
        ("pictures/test/", "pictures/train/"),
        ("images/test:masks/test", "images/train:masks/train"),
        ("test/latest.npz", "train.npz"),
    ],
)
def test_the_name_of_the_other_set_is_suggested_by_whole_words_of_the_file_name(known, suggested, tmp_path):
    assert beside(Named(known, tmp_path), "test", "train") == suggested


def test_all_files_that_are_not_there_are_named_at_once(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = cli("init", "absent.pt", "--train", "gone.npz", "--test", "lost.npz")
    names = ("absent.pt", "gone.npz", "lost.npz")
    assert done.code == 2 and all(f"{name}: there is no such file" in done.message for name in names)
