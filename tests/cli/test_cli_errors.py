"""Every bad request is one message and exit code 2; a fault is 3; and nothing is left half done."""

from __future__ import annotations

import importlib.metadata
import io
import json
import os
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from unittest.mock import Mock

import h5py
import numpy as np
import pytest
import small_run
import torch

from bnuq.cli.failures import reported
from bnuq.errors import RequestError, ResultError
from bnuq.evaluation import memory
from bnuq.files.writing import alone

TINY = ("--limit", "20", "-T", "2")
Break = Callable[[Path], None]


def arrays(folder: Path, name: str) -> dict[str, np.ndarray]:
    with np.load(folder / name) as file:
        return dict(file)


def change(name: str, key: str, changed: Callable[[np.ndarray], np.ndarray]) -> Break:
    def apply(folder: Path) -> None:
        contents = arrays(folder, name)
        np.savez(folder / name, **(contents | {key: changed(contents[key])}))

    return apply


def nan_in(values: np.ndarray) -> np.ndarray:
    values = values.copy()
    values[3, 0, 0, 0] = np.nan
    return values


def set_one(values: np.ndarray, label: int) -> np.ndarray:
    values = values.copy()
    values[7] = label
    return values


def truncate(folder: Path) -> None:
    whole = (folder / "model.pt").read_bytes()
    (folder / "model.pt").write_bytes(whole[: len(whole) // 2])


def break_weights(folder: Path) -> None:
    state = torch.load(folder / "model.pt", weights_only=True)
    state["7.weight"] = torch.full_like(state["7.weight"], torch.nan)
    torch.save(state, folder / "model.pt")


def empty_test(folder: Path) -> None:
    np.savez(folder / "test.npz", x=np.zeros((0, 1, 6, 6), np.float32), y=np.zeros(0, np.int64))


def without_norm(folder: Path) -> None:
    small_run.write(folder, norm=False, text=small_run.RUN.replace("[data]", "arch_args = { norm = false }\n[data]"))


def without_dropout(folder: Path) -> None:
    small_run.write(folder, text=small_run.RUN.replace("[data]", "arch_args = { rate = 0.0 }\n[data]"))


def other_size(folder: Path) -> None:
    np.savez(folder / "other.npz", x=np.zeros((9, 25), np.float32))


def same_points(folder: Path) -> None:
    np.savez(folder / "train.npz", x=np.repeat(arrays(folder, "train.npz")["x"][:1], 20, axis=0))


def folder_as_out(folder: Path) -> None:
    (folder / "out.h5").mkdir()


def nothing(_: Path) -> None: ...


# what is broken, what is typed after `evaluate run.toml`, and what the one message says
BAD: dict[str, tuple[Break, tuple[str, ...], str]] = {
    "no checkpoint": (lambda f: (f / "model.pt").unlink(), (), "model.pt: there is no such file"),
    "checkpoint cut short": (truncate, (), "model.pt"),
    "checkpoint is text": (lambda f: (f / "model.pt").write_text("hello"), (), "model.pt"),
    "checkpoint is empty": (lambda f: (f / "model.pt").write_text(""), (), "is empty (0 bytes)"),
    "weights are NaN": (break_weights, (), "NaN"),
    "no such factory": (nothing, ("--arch", "net.py:nett"), "has no function 'nett'; it has net"),
    "no such architecture file": (nothing, ("--arch", "nets.py:net"), "there is no such file"),
    "factory of another network": (
        lambda f: (f / "net.py").write_text("from torch import nn\ndef net(): return nn.Linear(3, 3)\n"),
        (),
        "does not fit net.py:net",
    ),
    "factory that raises": (
        lambda f: (f / "net.py").write_text("def net():\n    raise KeyError('oh')\n"),
        (),
        "KeyError at",
    ),
    "examples of another shape than the network's": (
        lambda f: np.savez(f / "odd.npz", x=np.zeros((9, 1, 7, 7), np.float32), y=np.zeros(9, int)),
        ("--train", "odd.npz", "--test", "odd.npz", "--ood", "odd.npz"),
        "the network does not accept examples of shape (1, 7, 7)",
    ),
    "OOD examples of another shape": (
        other_size,
        ("--ood", "other.npz"),
        "examples of shape (25,), the test set (test.npz) of (1, 6, 6)",
    ),
    "NaN among the test points": (change("test.npz", "x", nan_in), (), "holds NaN or infinity, first in row 3"),
    "NaN in the training set": (change("train.npz", "x", nan_in), (), "train.npz: x holds NaN or infinity"),
    "label out of range": (change("test.npz", "y", lambda y: set_one(y, 7)), (), "run from 0 to 7; expected 0 to 2"),
    "negative label": (change("test.npz", "y", lambda y: set_one(y, -1)), (), "run from -1 to 2"),
    "one-based labels": (change("test.npz", "y", lambda y: y + 1), (), "They look one-based: subtract 1"),
    "labels that are no whole numbers": (change("test.npz", "y", lambda y: y + 0.5), (), "not whole numbers"),
    "fewer labels than points": (change("test.npz", "y", lambda y: y[:-1]), (), "x has 60 examples and y has 59"),
    "empty test set": (empty_test, (), "holds no examples"),
    "no BatchNorm for mcbn": (without_norm, ("--method", "mcbn"), "the network has no BatchNorm layer"),
    "no dropout for mcdo": (without_dropout, ("--method", "mcdo"), "method mcdo cannot be drawn"),
    "one example, repeated": (same_points, ("--method", "mcbn"), "is the training set one example repeated"),
    "batch above the training set": (nothing, ("-b", "97"), "--batch-size is 97; expected 1 to 96"),
    "batch of the whole reference": (nothing, ("-b", "96"), "every mini-batch is the same"),
    "batch of one": (nothing, ("-b", "0"), "--batch-size is 0; expected a whole number of at least 1"),
    "no error allowed": (nothing, ("-T", "auto", "--mc-error", "0"), "--mc-error is 0; expected a number above 0 and"),
    "fewer draws than a round": (nothing, ("-T", "auto", "--max-samples", "8"), "--max-samples is 8; expected a whole"),
    "negative seed": (nothing, ("--seed=-1",), "--seed is -1; expected a whole number of at least 0"),
    "no examples": (nothing, ("--limit", "0"), "--limit is 0"),
    "no chunk": (nothing, ("--chunk-size", "0"), "--chunk-size is 0"),
    "unknown layers": (nothing, ("--layers", "nope.*"), "nope.*"),
    "OOD sets of one name": (nothing, ("--ood", "a=other.npz,a=test.npz"), "different names: --ood a_2=test.npz."),
    "OOD set of a reserved name": (nothing, ("--ood", "test=other.npz"), "another name, which has no meaning yet"),
    "OOD file of a reserved name": (nothing, ("--ood", "train.npz"), "train_set=train.npz"),
    "OOD set that is not there": (nothing, ("--ood", "nope.npz"), "nope.npz"),
    "a suite of OOD sets": (nothing, ("--ood", "openood:cifar10"), "Name OOD sets one by one, svhn or NAME=LIST.txt"),
    "known set that is not there": (
        nothing,
        ("--ood", "svhn"),
        "svhn:test: not found. Fetch it (64 MB): bnuq data get svhn:test\nLooked at:",
    ),
    "out is the test set": (
        nothing,
        ("--out", "test.npz"),
        "test.npz is not a result of bnuq; name another file to write",
    ),
    "out is the checkpoint": (nothing, ("--out", "./model.pt"), "is not a result of bnuq"),
    "out is the run file": (nothing, ("--out", "run.toml"), "is not a result of bnuq"),
    "out is the architecture": (nothing, ("--out", "net.py"), "is not a result of bnuq"),
    "out of too long a name": (nothing, ("--out", "r" * 300), "its name is too long"),
    "out in a folder of too long a name": (nothing, ("--out", f"{'r' * 300}/r.h5"), "does not exist"),
    "a test set of too long a name": (nothing, ("--test", "r" * 300), "there is no such file or folder"),
    "out in a missing folder": (nothing, ("--out", "no/r.h5"), "does not exist"),
    "out is called like a folder": (nothing, ("--out", "results/"), "--out results/ names a folder; expected the file"),
    "out is a folder": (folder_as_out, ("--out", "out.h5"), "is not a file, so it cannot be replaced"),
    "unknown precision": (nothing, ("--precision", "float8"), "--precision is float8; expected auto, float32, tf32"),
    "float16 on a CPU": (nothing, ("--precision", "float16", "--device", "cpu"), "float16 is an arithmetic of acceler"),
    "tf32 on a CPU": (nothing, ("--precision", "tf32", "--device", "cpu"), "tf32 is an arithmetic of CUDA devices"),
    "a date for the factory": (
        lambda f: (f / "run.toml").write_text(
            small_run.RUN.replace("[data]", "arch_args = { when = 2024-01-01 }\n[data]")
        ),
        (),
        "model.arch_args.when is 2024-01-01, a date or a time",
    ),
    "a task of other outputs": (
        lambda f: (f / "run.toml").write_text(small_run.RUN.replace("[data]", 'task = "segmentation"\n[data]')),
        (),
        'task is "segmentation", and the network gives one row of outputs for an example',
    ),
    "wrong normalisation": (
        lambda f: (f / "run.toml").write_text(small_run.RUN + "[data.normalize]\nmean = [1, 2]\nstd = [1, 2]\n"),
        (),
        "data.normalize.mean has 2 numbers, and the examples have 1 channels",
    ),
    "padding of infinity": (
        lambda f: (f / "run.toml").write_text(small_run.RUN + "[data.augment]\npad = 1\npad_value = inf\n"),
        (),
        "data.augment.pad_value is inf; expected a finite number",
    ),
    "too large a seed": (nothing, ("--seed", "1" + "0" * 30), "expected a whole number of at most 4611686018427387904"),
    "layers of many digits": (nothing, ("--layers", "first:" + "9" * 5000), "expected first:k with k from 1 to 1"),
    "wrong augmentation": (
        lambda f: (f / "run.toml").write_text(small_run.RUN + "[data.augment]\ncrop = 9\n"),
        (),
        "data.augment.crop is 9",
    ),
}


def test_padding_that_memory_does_not_hold_is_refused_by_its_key(cli, small, monkeypatch):
    monkeypatch.setattr(memory, "available", lambda _: 2**30)
    (small / "run.toml").write_text(small_run.RUN + "[data.augment]\npad = 9999\n")
    done = cli("evaluate", "run.toml", "-T", "2")
    assert done.code == 2
    assert "data.augment.pad is 9999: a mini-batch of 16 images would take 51 GB with its padding" in done.message


@pytest.mark.parametrize("case", BAD)
def test_a_bad_request_is_one_message_and_leaves_everything_as_it_was(cli, small, case):
    broken, arguments, expected = BAD[case]
    broken(small)
    small_run.old_result(small / "model.bnuq.h5")
    before = {path: path.read_bytes() for path in small.rglob("*") if path.is_file()}
    done = cli("evaluate", "run.toml", "-T", "2", *arguments, "--json")
    assert done.code == 2, done
    assert expected in done.message
    assert done.out == ""
    after = {path: path.read_bytes() for path in small.rglob("*") if path.is_file() and "__pycache__" not in path.parts}
    assert after == before


@pytest.mark.usefixtures("small")
def test_a_model_of_too_long_a_name_is_refused(cli):
    for name in ("m" * 300, "m" * 300 + ".pt", "m" * 300 + ".toml", "m" * 252 + ".pt"):
        done = cli("evaluate", name, "--test", "test.npz")
        assert done.code == 2 and name in done.message


def test_a_known_set_that_is_evaluated_cannot_be_written_over(cli, small):
    folder = small / "root" / "mnist"
    folder.mkdir(parents=True)
    images, labels = (folder / f"t10k-{name}" for name in ("images-idx3-ubyte", "labels-idx1-ubyte"))
    images.write_bytes(bytes([0, 0, 8, 3, 0, 0, 0, 5, 0, 0, 0, 6, 0, 0, 0, 6]) + bytes(range(180)))
    labels.write_bytes(bytes([0, 0, 8, 1, 0, 0, 0, 5, 0, 1, 2, 0, 1]))
    before = images.read_bytes()
    done = cli("evaluate", "run.toml", "--test", "mnist", "--data-root", "root", "-o", images, *TINY)
    assert done.code == 2 and done.message.endswith("is not a result of bnuq; name another file to write.")
    assert images.read_bytes() == before


def test_a_result_that_is_run_again_is_not_written_over(cli, small):
    assert cli("evaluate", "run.toml", *TINY, "-o", "first.h5").code == 0
    before = (small / "first.h5").read_bytes()
    done = cli("evaluate", "--from", "first.h5", "-o", "first.h5")
    assert done.code == 2 and "first.h5 is a file that this run reads" in done.message
    assert (small / "first.h5").read_bytes() == before


def test_a_test_set_needs_no_name_of_its_own(cli, small):
    (small / "test.npz").rename(small / "my test.npz")
    assert cli("evaluate", "run.toml", "--test", "my test.npz", *TINY).code == 0
    sets = ("--test", "my test.npz", "--ood", "my test.npz")
    assert "Give it a name: 'my_test=my test.npz'" in cli("evaluate", "run.toml", *sets).message


@pytest.mark.nightly
def test_a_checkpoint_whose_name_is_not_utf_8_is_evaluated(cli, small):
    name = os.fsdecode(b"caf\xe9.pt")
    (small / "model.pt").rename(small / name)
    sets = ("--test", "test.npz", "--train", "train.npz")
    done = cli("evaluate", name, "--arch", "net.py:net", *sets, *TINY, "-o", "r.h5", "--json")
    assert done.code == 0, done
    assert json.loads(done.out)["model"]["path"] == str(small / name)
    assert cli("evaluate", "--from", "r.h5", "-o", "again.h5", "--trust-code").code == 0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
@pytest.mark.usefixtures("small")
def test_a_device_that_is_not_there_is_one_message(cli):
    assert "--device cuda cannot be used here" in cli("evaluate", "run.toml", "--device", "cuda").message


def test_all_that_is_missing_is_listed_at_once_with_options_and_lines_that_complete_the_request(cli, small):
    given = ("--ood", "other.npz", "--augment", "pad=1,flip", "--normalize", "mnist", "--arch-arg", "rate=0.3")
    done = cli("evaluate", "model.pt", *given)
    assert done.code == 2 and "3 things are missing:" in done.message
    assert "Add to the command: --arch file.py:factory --train REF --test REF" in done.message
    assert "1 BatchNorm layer" in done.message and "probably 3 outputs" in done.message
    lines = done.message.partition("beside the checkpoint:\n\n")[2]
    run_file = tomllib.loads(lines)
    assert run_file["model"] == {"checkpoint": "model.pt", "arch": "file.py:factory", "arch_args": {"rate": 0.3}}
    assert run_file["data"] | {"train": "", "test": ""} == {
        "train": "", "test": "", "ood": ["other.npz"], "normalize": "mnist", "augment": {"pad": 1, "flip": True},
    }  # fmt: skip
    # The lines are a run file that works, once the architecture is filled in; and so is the command.
    (small / "model.toml").write_text(lines.replace("file.py:factory", "net.py:net"))
    assert cli("evaluate", "model.toml", *TINY, "-o", "r.h5").code == 0
    (small / "model.toml").unlink()
    added = ("--arch", "net.py:net", "--train", "train.npz", "--test", "test.npz")
    assert cli("evaluate", "model.pt", *given, *added, *TINY, "-o", "r.h5").code == 0


@pytest.mark.usefixtures("small")
def test_all_that_is_wrong_is_one_error_with_all_that_is_missing(cli):
    done = cli("evaluate", "model.pt", "--ood", "svhn,nope.npz", "--out", "no/r.h5")
    problems = ("no/r.h5: the folder", "bnuq data get svhn:test", "nope.npz: there is no such file or folder")
    assert done.code == 2 and all(text in done.message for text in ("4 problems:\n", *problems))
    assert "Add to the command: --arch file.py:factory --train REF --test REF" in done.message
    for command in ("sweep-batch-size", "inspect", "monitor", "shift"):
        assert cli(command).message.endswith(f"run file (model.toml): bnuq {command} model.pt")


def test_what_a_run_file_lacks_is_shown_as_the_lines_to_add_to_it(cli, small):
    (small / "model.toml").write_text('[model]\narch = "net.py:net"\n')
    done = cli("evaluate", "model.pt")
    assert "Add to the command: --train REF --test REF\n" in done.message
    assert done.message.endswith('\nor to model.toml:\n\n[data]\ntrain = "train.npz"\ntest = "test.npz"')
    (small / "model.toml").write_text('[model]\narch = "net.py:net"\n[data]\ntrain = "train.npz"\ntets = "test.npz"\n')
    done = cli("evaluate", "model.pt")
    assert "data.tets is not known. Did you mean test?" in done.message and 'test = "test.npz"' in done.message


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (("evaluate",), "--arch file.py:factory --train REF --test REF"),
        (("evaluate", "--method", "mcdo"), "--arch file.py:factory --test REF"),
        (("evaluate", "--test", "test.npz"), "--arch file.py:factory --train REF"),
        (("evaluate", "--arch", "net.py:net", "--method", "mcdo"), "--test REF"),
        (("evaluate", "--arch", "net.py:net", "--method", "mcdo", "--normalize", "train"), "--train REF --test REF"),
        (("sweep-batch-size", "--criterion", "auroc"), "--arch file.py:factory --train REF --test REF --ood REF"),
        (("sweep-batch-size", "--arch", "net.py:net", "--test", "test.npz"), "--train REF"),
        (("inspect",), "--arch file.py:factory"),
        (("inspect", "--arch", "net.py:net", "--suggest-pipeline"), "--train REF"),
        (("precise-bn", "-o", "new.pt"), "--arch file.py:factory --train REF"),
        (("precise-bn", "-o", "new.pt", "--arch", "net.py:net"), "--train REF"),
    ],
)
def test_each_command_lists_what_it_needs(cli, arguments, options):
    command, *others = arguments
    done = cli(command, "model.pt", *others)
    assert done.code == 2 and f"Add to the command: {options}\n" in done.message


@pytest.mark.parametrize("arguments", [("evaluate", "--nope"), ("inspect", "a", "b"), ("nope",), ("report",)])
def test_wrong_usage_shows_the_usage_and_is_refused(cli, arguments):
    done = cli(*arguments)
    assert (done.code, done.out) == (2, "")
    assert done.err.startswith("Usage: bnuq")
    assert done.err.count("Error: ") == 1


@pytest.mark.parametrize("arguments", [["report"], ["check"], ["check", "a.h5", "--junit"], ["check", "--baseline"]])
def test_a_nul_in_a_path_is_refused(cli, arguments):
    outcome = cli(*arguments, "a\0b")
    assert outcome.code == 2 and "NUL" in outcome.err
    with pytest.raises(ResultError, match="NUL"), alone(Path("a\0b")):
        pass


@pytest.mark.parametrize(
    "arguments",
    ["inspect run.toml", "monitor run.toml --baseline b.h5", "init model.pt --arch net.py:net --test test.npz"],
)
@pytest.mark.usefixtures("small")
def test_groups_that_no_set_has_are_refused(cli, arguments):
    outcome = cli(*arguments.split(), "--group", "camera")
    assert outcome.code == 2 and 'data.group is "camera", and no set has' in outcome.message
    assert not Path("b.h5").exists()


def test_no_arguments_show_the_commands(cli):
    done = cli()
    assert "evaluate" in done.out + done.err
    assert done.code in (0, 2)
    python = ".".join(map(str, sys.version_info[:3]))
    assert cli("--version").out == f"bnuq 0.2.0, torch {importlib.metadata.version('torch')}, Python {python}\n"


FAULTS = [
    ZeroDivisionError("oh no"), EOFError("oh no"), AssertionError("oh no"), OSError(5000, "oh no"), KeyError("oh no"),
]  # fmt: skip


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: type(fault).__name__)
@pytest.mark.usefixtures("small")
def test_a_fault_of_bnuq_is_exit_code_3_and_one_message(cli, monkeypatch, fault):
    monkeypatch.setattr("bnuq.records.evaluation_file.write", Mock(side_effect=fault))
    done = cli("evaluate", "run.toml", *TINY)
    assert (done.code, done.out) == (3, "")
    assert done.message.startswith(f"a bug in bnuq: {type(fault).__name__}: ")
    assert "--debug" in done.message


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (MemoryError(), 2, "out of memory. Use a smaller --chunk-size, or fewer --samples."),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp:124] DefaultCPUAllocator: can't allocate memory"),
            2,
            "out of memory. Use a smaller --chunk-size, or fewer --samples.",
        ),
        (
            RuntimeError("CUDA error: an illegal memory access was encountered\nCUDA kernel errors might be …"),
            2,
            "the accelerator failed (CUDA error: an illegal memory access was encountered). ",
        ),
        (KeyboardInterrupt(), 130, "interrupted; an unfinished result is not saved."),
    ],
    ids=["numpy", "torch", "accelerator", "Ctrl-C"],
)
@pytest.mark.usefixtures("small")
def test_what_is_no_fault_of_bnuq_has_its_own_code_and_message(cli, monkeypatch, error, code, message):
    monkeypatch.setattr("bnuq.evaluation.setup.load_data", Mock(side_effect=error))
    done = cli("evaluate", "run.toml")
    assert (done.code, done.out) == (code, "")
    assert done.message.startswith(message)
    assert done.message == message or message.endswith(" ")


@pytest.mark.usefixtures("small")
def test_debug_shows_the_traceback_and_keeps_the_exit_code(cli):
    done = cli("evaluate", "run.toml", "-T", "0", "--debug")
    assert done.code == 2
    assert "Traceback (most recent call last)" in done.err
    assert done.err.rstrip().endswith('bnuq: --samples is 0; expected a whole number of at least 1, or "auto".')


def test_strict_makes_a_warning_an_error_and_keeps_the_result(cli, small):
    done = cli("evaluate", "run.toml", *TINY, "--strict")  # two samples are too few for Monte Carlo errors
    assert done.code == 2
    assert "Warnings" in done.out
    assert done.message.startswith("--strict: there were warnings (few-samples")
    assert (small / "model.bnuq.h5").exists()
    assert cli("evaluate", "run.toml", *TINY, "--strict", "--json").out == ""


@pytest.mark.usefixtures("small")
def test_strict_without_a_warning_is_no_error(cli):
    done = cli("evaluate", "run.toml", "--method", "mcdo", "--strict")
    assert (done.code, done.err) == (0, "")


@pytest.mark.usefixtures("small")
def test_quiet_prints_nothing_but_errors(cli):
    done = cli("evaluate", "run.toml", *TINY, "--quiet")
    assert (done.code, done.out, done.err) == (0, "", "")
    assert cli("evaluate", "run.toml", "-T", "0", "--quiet").message


def test_an_existing_result_is_replaced_and_the_report_says_so(cli, small):
    small_run.old_result(small / "model.bnuq.h5")
    done = cli("evaluate", "run.toml", *TINY, "--full")
    assert "an earlier result was replaced: model.bnuq.h5" in " ".join(done.out.split())
    assert [path.name for path in small.glob("*.h5")] == ["model.bnuq.h5"]
    assert not list(small.glob(".*"))


def test_a_message_out_of_a_file_cannot_drive_the_terminal(cli, tmp_path):
    path = tmp_path / "evil.h5"
    with h5py.File(path, "w") as file:
        file.attrs["format"] = 99
        file.attrs["kind"] = "evaluate"
        file.attrs["bnuq"] = "\x1b[2J\x1b]0;owned\x07[bold]"
    done = cli("report", path)
    assert done.code == 2
    assert "\x1b" not in done.err and "\x07" not in done.err
    assert "\\x1b[2J" in done.message and "[bold]" in done.message


def test_lists_and_reports_fit_an_ascii_stream(cli, small, monkeypatch):
    stream = io.TextIOWrapper(io.BytesIO(), encoding="ascii")
    for arguments in (("data",), ("metrics",), ("methods",), ("evaluate", str(small / "run.toml"), *TINY)):
        monkeypatch.setattr(sys, "stdout", stream)
        done = cli(*arguments)
        assert (done.code, done.err) == (0, "")


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_a_rate_of_dropout_left_at_0_is_said_once_with_the_argument_to_set(cli, small):
    small_run.write(small, text=small_run.RUN.replace('ood = ["other.npz"]\n', ""))  # all methods
    (small / "net.py").write_text(
        small_run.NET.replace("rate: float = 0.4", "drop_rate: float = 0.0").replace("(rate)", "(drop_rate)")
    )
    evaluated = json.loads(cli("evaluate", "run.toml", *TINY, "-o", "r.h5", "--json").out)
    assert [text for text in evaluated["notes"] if "drop_rate=0.1" in text and "not given" in text]
    assert not [text for text in evaluated["notes"] if "cannot be sampled" in text]
    assert [text for text in evaluated["notes"] if "its only dropout layer has rate 0" in text]
    inspected = json.loads(cli("inspect", "run.toml", "-o", "i.h5", "--json").out)
    assert [text for text in inspected["notes"] if "--arch-arg drop_rate=0.1" in text]
    refused = cli("evaluate", "run.toml", "--method", "mcdo")
    assert refused.code == 2 and "give the rate: --arch-arg drop_rate=0.1" in refused.message
    assert (
        "mcdo"
        in json.loads(cli("evaluate", "run.toml", *TINY, "--arch-arg", "drop_rate=0.1", "-o", "r.h5", "--json").out)[
            "methods"
        ]
    )


@pytest.mark.nightly
@pytest.mark.usefixtures("small")
def test_strict_warns_of_a_resumed_run(cli, monkeypatch):
    def interrupted(*_, **__):
        raise KeyboardInterrupt

    def unfinished():
        with monkeypatch.context() as patch:
            patch.setattr("bnuq.workflows.evaluate.gallery", interrupted)  # all units are finished
            cli(*command)

    command = ("evaluate", "run.toml", "-T", "2", "--limit", "20")
    unfinished()
    assert "finished parts of an interrupted evaluation were reused" in cli(*command).out
    unfinished()
    strict = cli(*command, "--strict")
    assert strict.out.count("computed again: --strict was given") == 1 and "continued" not in strict.message
    command += ("--work", "units")
    unfinished()
    strict = cli(*command, "--strict")
    assert strict.code == 2 and "evaluation-continued" in strict.message


def test_what_is_kept_is_a_sentence_of_its_own_after_an_error(capsys):
    error = RequestError("the disk is full. Free some space or write elsewhere.")
    error.add_note("finished parts are kept in x: the same command resumes from them.")
    assert reported(error) == 2
    assert "or write elsewhere. Finished parts are kept in x: the same" in capsys.readouterr().err
