"""The request: what wins over what, where paths begin, and what a wrong run file is told."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from bnuq.config import Options, Split, read_run_file, resolve, resolve_again
from bnuq.errors import RequestError
from bnuq.trust import BY_USER, NamedBy

FULL = """
[model]
checkpoint = "weights/model.pt"
arch = "net.py:make"
train_batch_size = 32

[data]
train = "train.npz"
test = "cifar10:test"
ood = ["a.npz", "b=sub/b.npz"]

[sampling]
methods = ["mcbn"]
samples = 16
batch_size = 8
seed = 5
"""


def run_of(folder: Path, text: str = FULL, *, model: str | None = "run.toml", **options):
    (folder / "run.toml").write_text(text)
    return resolve(model, Options(**options), folder=folder)


# ── what wins, and where paths begin ─────────────────────────────────────────────────────────────────────────────────


def test_the_run_file_wins_over_the_defaults_and_an_option_over_the_run_file(tmp_path):
    run = run_of(tmp_path)
    assert (run.samples, run.batch_size, run.seed, run.methods) == (16, 8, 5, ("mcbn",))
    run = run_of(tmp_path, samples=3, batch_size=4, seed=0, methods=("mcdo",), layers=("first:1",), arch="x.py:y")
    assert (run.samples, run.batch_size, run.seed, run.methods, run.layers) == (3, 4, 0, ("mcdo",), "first:1")
    run = run_of(tmp_path, '[model]\ncheckpoint = "model.pt"\n')
    assert (run.samples, run.batch_size, run.seed, run.methods, run.layers) == (64, None, 0, None, "all")


def test_the_training_batch_size_of_the_run_file_wins_over_that_of_the_checkpoint(tmp_path):
    """The rest of the order, which needs a checkpoint, is tested where the network is planned for."""
    assert run_of(tmp_path).train_batch_size == 32


def test_paths_of_a_run_file_begin_at_the_file_and_those_of_options_in_the_working_folder(tmp_path):
    project, here = tmp_path / "project", tmp_path / "here"
    project.mkdir()
    here.mkdir()
    (project / "run.toml").write_text(FULL)
    run = resolve("../project/run.toml", Options(test="mine.npz", out=Path("r.h5")), folder=here)
    assert run.checkpoint == project / "weights" / "model.pt"
    assert run.train is not None and run.train.base.resolve() == project
    assert run.test is not None and (run.test.text, run.test.base) == ("mine.npz", here)
    assert run.arch is not None and run.arch.base.resolve() == project
    assert run.out == here / "r.h5"
    assert resolve("../project/run.toml", Options(), folder=here).out == here / "model.bnuq.h5"


def test_lists_on_the_command_line_replace_those_of_the_run_file(tmp_path):
    run = run_of(tmp_path, ood=("c.npz",))
    assert [ref.text for ref in run.ood] == ["c.npz"]
    assert [ref.text for ref in run_of(tmp_path).ood] == ["a.npz", "b=sub/b.npz"]


def test_code_in_a_run_file_on_the_command_line_is_the_users_and_in_a_found_one_is_not(tmp_path):
    run = run_of(tmp_path)
    assert run.arch is not None and run.arch.named_by == BY_USER
    assert not run.run_file_is_implicit
    (tmp_path / "model.toml").write_text(FULL)
    run = resolve("model.pt", Options(test="mine.py:points"), folder=tmp_path)
    assert run.run_file_is_implicit and run.run_file == tmp_path / "model.toml"
    assert run.arch is not None and run.arch.named_by == NamedBy(tmp_path / "model.toml")
    assert run.test is not None and run.test.named_by == BY_USER
    run = resolve("model.pt", Options(arch="net.py:make"), folder=tmp_path)
    assert run.arch is not None and run.arch.named_by == BY_USER


def test_without_a_model_bnuq_toml_in_the_working_folder_is_taken_as_found(tmp_path):
    with pytest.raises(RequestError, match=r"no model was named and there is no bnuq\.toml in this folder"):
        resolve(None, Options(), folder=tmp_path)
    (tmp_path / "bnuq.toml").write_text(FULL)
    run = resolve(None, Options(), folder=tmp_path)
    assert run.checkpoint == tmp_path / "weights" / "model.pt"
    assert run.arch is not None and run.arch.named_by == NamedBy(tmp_path / "bnuq.toml")


def test_a_checkpoint_without_a_sidecar_is_enough(tmp_path):
    run = resolve("model.pt", Options(), folder=tmp_path)
    assert run.run_file is None and not run.run_file_is_implicit
    assert run.out == tmp_path / "model.bnuq.h5"


def test_validation_may_be_a_part_of_another_set_and_survives_the_record(tmp_path):
    run = run_of(tmp_path, FULL + '[data.validation]\nsplit_of = "train"\nfraction = 0.2\nheld_out = true\n')
    assert run.validation == Split(split_of="train", fraction=0.2, seed=0, held_out=True)
    assert resolve_again(run.record(), tmp_path / "r.h5", Options(), folder=tmp_path).validation == run.validation
    assert resolve_again(run.record(), tmp_path / "r.h5", Options(validation="v.npz"), folder=tmp_path).validation


def test_the_record_names_files_by_absolute_paths_and_is_resolved_again_to_the_same_run(tmp_path):
    for name in ("train.npz", "net.py", "a=1.npz"):
        (tmp_path / name).touch()
    text = FULL.replace('"a.npz"', '"a=1.npz"')
    run = run_of(tmp_path, text, precision="float64", limit=7, chunk_size=3, save_samples=True, data_root=tmp_path)
    record = run.record()
    assert record["data"]["train"] == str(tmp_path / "train.npz")
    assert record["data"]["test"] == "cifar10:test"
    assert record["data"]["ood"][0] == str(tmp_path / "a=1.npz")
    assert record["model"]["arch"] == f"{tmp_path / 'net.py'}:make"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    again = resolve_again(record, elsewhere / "result.h5", Options(seed=9), folder=elsewhere)
    assert (again.seed, again.samples, again.limit, again.precision) == (9, 16, 7, "float64")
    assert (again.chunk_size, again.save_samples, again.data_root) == (3, True, tmp_path)
    assert again.arch is not None and again.arch.named_by == NamedBy(elsewhere / "result.h5")
    assert again.record()["data"] == record["data"]
    assert again.run_file == elsewhere / "result.h5"  # which the run reads, so that it cannot be written over


# ── what a wrong run file is told ────────────────────────────────────────────────────────────────────────────────────

WRONG = {
    "[data]\nbatch = 1": "data.batch is not known. Known are: train, test, ood, perturb, validation, train_size, "
    "target, group, ignore, palette, classes, resize, crop, interpolation, channel_order, normalize, "
    "normalize_targets, augment.",
    "[data]\ntets = 'x'": "data.tets is not known. Did you mean test?",
    "[smapling]\nseed = 1": "smapling is not known. Did you mean sampling?",
    "[data]\ntrain = 5": "data.train is 5; expected a text.",
    '[data]\nood = "x"': 'data.ood is "x"; expected a list.',
    '[data]\nood = ["a", 3]': "data.ood[1] is 3; expected a text.",
    "[sampling]\nsamples = 0": 'sampling.samples is 0; expected a whole number of at least 1, or "auto".',
    '[sampling]\nsamples = "x"': 'sampling.samples is "x"; expected a whole number of at least 1, or "auto".',
    "[sampling]\nsamples = 1.5": 'sampling.samples is 1.5; expected a whole number of at least 1, or "auto".',
    "[sampling]\nbatch_size = 0": "sampling.batch_size is 0; expected a whole number of at least 1.",
    "[sampling]\nseed = -1": "sampling.seed is -1; expected a whole number of at least 0.",
    '[sampling]\nmethods = ["mcbm"]': 'sampling.methods[0] is "mcbm"; expected one of deterministic, mcbn, mcdo, '
    "mcbn+mcdo, learned, mcbn+learned, mcdo+learned, mcbn+mcdo+learned, "
    "mcbn-chi2, mcbn-gaussian, mcbn-empirical, tta, mcbn+tta, laplace, deterministic+own, "
    "ensemble.",
    '[sampling]\npredictions = "p.npz"': "sampling.predictions is not known. It is gone: score the file with "
    "bnuq score, and compare the two with bnuq report.",
    "[sampling]\nlayers = 3": "sampling.layers is 3; expected a text or a list.",
    "[data]\nnormalize = { mean = [1], st = [1] }": "data.normalize.st is not known. Did you mean std?",
    "[data]\nnormalize = { mean = [1] }": "data.normalize.std is missing; it has no default.",
    "[data]\nnormalize_targets = 3": 'data.normalize_targets is 3; expected "train" (mean and std of the training set)'
    ', numbers, as in { mean = [0.5], std = [0.25] }, or "MEAN/STD".',
    "[data]\naugment = { flip = 1 }": "data.augment.flip is 1; expected true or false.",
    '[data]\naugment = { pad_mode = "wrap" }': 'data.augment.pad_mode is "wrap"; expected one of constant, reflect.',
    '[model]\ntask = "ranking"': 'model.task is "ranking"; expected one of classification, regression, segmentation.',
    "[data]\nvalidation = 3": "data.validation is 3; expected a text or a table.",
    '[data]\nvalidation = { split_of = "train", fraction = 2 }': "data.validation.fraction is 2; expected a number "
    "below 1.0.",
    "data = 3": "data is 3; expected a table.",
}


@pytest.mark.parametrize(("text", "message"), WRONG.items(), ids=[text.replace("\n", " ") for text in WRONG])
def test_a_wrong_run_file_is_told_file_key_value_and_what_was_expected(tmp_path, text, message):
    path = tmp_path / "run.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_run_file(path)
    assert str(caught.value) == f"{path}: {message}"


IMPOSSIBLE = {
    "[check]\na" + ".a" * 100_000 + " = 1": "line 2 (a) nests too deep",
    "[check]\nallow = " + "[" * 5000 + "]" * 5000: "line 2 (allow) nests too deep",
    "[model.arch_args." + ".".join("a" * 2000) + "]\nb = 1": "line 1 ([model) nests too deep",
    "[model.arch_args." + ".".join("a" * 40) + "]\nb = 1": "model.arch_args.a.a.a",
    "[sampling]\nsamples = " + "9" * 5000: "line 2 (samples) holds a number of thousands of digits",
    "[sampling]\nsamples = 0x" + "f" * 5000: "sampling.samples is a number of about 6021 digits",
    "[model]\narch_args = { rate = 0x" + "f" * 5000 + " }": "model.arch_args.rate is a number of about 6021 digits",
    "[data]\ntrain_size = 1" + "0" * 400: "data.train_size is a number of about 401 digits",
    "[data]\ntrain_size = 1" + "0" * 18: "data.train_size is 1000000000000000000; expected a whole number of at most",
    "[check]\ntolerance = { pll = 1" + "0" * 400 + " }": "check.tolerance.pll is a number of about 401 digits",
    '[data]\ntest = "te\\u0000st.npz"': r"data.test is 'te\x00st.npz', with a NUL character in it",
    '[data]\nood = ["a", "\\u0000"]': r"data.ood[1] is '\x00', with a NUL character in it",
    "[data]\naugment = { pad = 1000000000 }": "data.augment.pad is 1000000000; expected a whole number of at most",
    "#" * 2**21: "has more than 1,048,576 bytes",
}


@pytest.mark.parametrize(("text", "message"), IMPOSSIBLE.items(), ids=range(len(IMPOSSIBLE)))
def test_what_cannot_be_meant_is_refused_by_its_key_in_a_short_message(tmp_path, text, message):
    path = tmp_path / "bnuq.toml"
    path.write_text(text)
    with pytest.raises(RequestError) as caught:
        read_run_file(path)
    assert str(caught.value).startswith(f"{path}")
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300 + len(str(path))


@pytest.mark.parametrize("option", ["train", "test", "arch", "group"])
@pytest.mark.parametrize("text", ["", " ", "a\0b"])
def test_an_option_that_nothing_can_be_called_is_refused_by_name(tmp_path, option, text):
    with pytest.raises(RequestError, match=rf"--{option} is {re.escape(repr(text))}; expected a name"):
        run_of(tmp_path, **{option: text})
    with pytest.raises(RequestError, match=rf"the model is {re.escape(repr(text))}; expected a checkpoint"):
        run_of(tmp_path, model=text)


def test_a_path_with_a_nul_is_refused_by_its_option(tmp_path):
    with pytest.raises(RequestError, match="--out is"):
        run_of(tmp_path, out=Path("a\0b"))


def test_a_syntax_error_names_its_line(tmp_path):
    with pytest.raises(RequestError, match=r"run\.toml is not a TOML file: .*\(at line 3, column \d+\)"):
        run_of(tmp_path, '[data]\ntest = "a"\ntrain = \n')


def test_a_run_file_that_is_not_text_or_not_there_is_told_so(tmp_path):
    (tmp_path / "run.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RequestError, match=r"run\.toml is not a TOML file"):
        resolve("run.toml", Options(), folder=tmp_path)
    with pytest.raises(RequestError, match=r"other\.toml: there is no such run file"):
        resolve("other.toml", Options(), folder=tmp_path)
    (tmp_path / "folder.toml").mkdir()
    with pytest.raises(RequestError, match=r"folder\.toml: there is no such run file"):
        resolve("folder.toml", Options(), folder=tmp_path)


def test_a_run_file_without_a_checkpoint_is_shown_the_lines_to_add(tmp_path):
    with pytest.raises(RequestError) as caught:
        run_of(tmp_path, "[sampling]\nseed = 1\n")
    assert str(caught.value).endswith('names no checkpoint. Add to it:\n\n[model]\ncheckpoint = "model.pt"')


def test_automatic_samples_come_with_the_error_to_reach_and_the_most_to_draw(tmp_path):
    text = FULL.replace("samples = 16", 'samples = "auto"\nmc_error = 0.05\nmax_samples = 256')
    run = run_of(tmp_path, text)
    assert (run.samples, run.mc_error, run.max_samples) == ("auto", 0.05, 256)
    assert (
        run.record()["sampling"] | {"samples": "auto", "mc_error": 0.05, "max_samples": 256} == run.record()["sampling"]
    )
    assert run_of(tmp_path, text, samples=4).samples == 4
    run = run_of(tmp_path, FULL, samples="auto", mc_error=0.1, max_samples=32)
    assert (run.samples, run.mc_error, run.max_samples) == ("auto", 0.1, 32)


def test_an_unknown_method_on_the_command_line_lists_the_known_ones(tmp_path):
    with pytest.raises(RequestError, match="--method is mcbm; expected deterministic, mcbn, mcdo, mcb"):
        run_of(tmp_path, methods=("mcbm",))


def test_deterministic_alone_asks_for_no_method_and_the_default_leaves_it_to_the_network(tmp_path):
    assert run_of(tmp_path, methods=("deterministic",)).methods == ()
    assert run_of(tmp_path, methods=("mcbn", "deterministic", "mcbn")).methods == ("mcbn",)


@pytest.mark.parametrize("record", [{}, {"model": {}}, {"model": {"checkpoint": 3}}, {"data": []}, {"evil": 1}])
def test_a_record_that_is_no_run_is_refused(tmp_path, record):
    with pytest.raises(RequestError, match=r"r\.h5: "):
        resolve_again(record, tmp_path / "r.h5", Options(), folder=tmp_path)


@pytest.mark.parametrize(
    "options", [{"device": 3}, {"limit": "x"}, {"data_root": 3}, {"precision": "float8"}, {"out": "/etc/x"}, []]
)
def test_the_options_of_a_record_are_checked(tmp_path, options):
    with pytest.raises(RequestError, match=r"r\.h5: options"):
        resolve_again({"model": {"checkpoint": "m"}, "options": options}, tmp_path / "r.h5", Options(), folder=tmp_path)


@pytest.mark.parametrize("leave", ["trust_code", "trust_pickle"])
def test_a_record_cannot_give_itself_leave_to_run_code(tmp_path, leave):
    record = {"model": {"checkpoint": "m.pt", "arch": "evil.py:f"}, "options": {leave: True}}
    with pytest.raises(RequestError, match=f"options.{leave} is not known"):
        resolve_again(record, tmp_path / "r.h5", Options(), folder=tmp_path)


def test_an_option_wins_over_the_record_even_where_it_says_the_default(tmp_path):
    record = {"model": {"checkpoint": "m.pt"}, "options": {"precision": "float64", "device": "cuda"}}
    run = resolve_again(record, tmp_path / "r.h5", Options(precision="float32", device="auto"), folder=tmp_path)
    assert (run.precision, run.device) == ("float32", "auto")


def test_the_record_holds_where_data_and_modules_were_found(tmp_path):
    project, here, elsewhere = tmp_path / "project", tmp_path / "here", tmp_path / "elsewhere"
    for folder in (project, here, elsewhere):
        folder.mkdir()
    (project / "nets").mkdir()
    (here / "points.py").touch()
    (project / "run.toml").write_text(FULL.replace("net.py:make", "nets.small:make"))
    options = Options(test="points:make", ood=("mine=points:other", "svhn:test"), data_root=Path("root"))
    record = resolve("../project/run.toml", options, folder=here).record()
    assert record["options"]["data_root"] == str(here / "root")
    assert record["model"]["arch"] == "nets.small:make"
    again = resolve_again(record, elsewhere / "r.h5", Options(), folder=elsewhere)
    assert again.arch is not None and again.arch.base.resolve() == project
    assert again.arch.named_by == NamedBy(elsewhere / "r.h5")
    assert again.test is not None and again.test.base == here
    assert [ref.base for ref in again.ood] == [here, elsewhere]
    assert again.record()["options"] == record["options"]


@pytest.mark.parametrize("said", ["option", "file"])
def test_a_list_of_no_methods_is_refused_and_deterministic_alone_is_said(tmp_path, said):
    with pytest.raises(RequestError, match="no method is named; expected some of deterministic, mcbn, mcdo, mcbn"):
        run_of(tmp_path, methods=()) if said == "option" else run_of(tmp_path, "[sampling]\nmethods = []\n" + MODEL)
    record = run_of(tmp_path, methods=("deterministic",)).record()
    assert record["sampling"]["methods"] == ("deterministic",)
    assert resolve_again(record, tmp_path / "r.h5", Options(), folder=tmp_path).methods == ()


MODEL = '[model]\ncheckpoint = "model.pt"\n'


@pytest.mark.parametrize("device", ["meta", "cuda:", "cuda:x", "CPU", "", "cpu:0 "])
def test_only_devices_that_a_network_can_run_on_are_known(tmp_path, device):
    shown = device or '""'
    with pytest.raises(RequestError, match=f"--device is {shown}; expected auto, cpu, cuda or cuda:N"):
        run_of(tmp_path, device=device)
    assert run_of(tmp_path, device="cuda:3").device == "cuda:3"


def test_dates_that_json_does_not_know_are_refused_by_their_key(tmp_path):
    for value, key in {"12:00:00": "a", "[1, 2024-01-01]": "a[1]", "{ b = 2024-01-01T00:00:00Z }": "a.b"}.items():
        with pytest.raises(RequestError, match=f"model.arch_args.{re.escape(key)} is .*, a date or a time"):
            run_of(tmp_path, f"{MODEL}arch_args = {{ a = {value} }}\n")


def test_all_that_is_wrong_in_a_run_file_is_said_at_once(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text(
        '[model]\nchekpoint = "a"\narch_args = { a = 1 }\n[data]\nood = [3]\nnormalize = { mean = [1.0], std = "x" }\n'
        "[smapling]\nsamples = 3\n[sampling]\nsamples = -1\n"
    )
    with pytest.raises(RequestError) as refusal:
        read_run_file(path)
    assert str(refusal.value).splitlines() == [
        f"{path}: 5 settings are wrong:",
        "  - model.chekpoint is not known. Did you mean checkpoint?",
        "  - data.ood[0] is 3; expected a text.",
        '  - data.normalize.std is "x"; expected a list.',
        "  - smapling is not known. Did you mean sampling?",
        '  - sampling.samples is -1; expected a whole number of at least 1, or "auto".',
    ]
