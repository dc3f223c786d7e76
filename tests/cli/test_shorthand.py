"""Settings written as short texts: on the command line and in a run file alike, resolved to numbers in the record."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import small_run
from hypothesis import given
from hypothesis import strategies as st

from bnuq.config import Augment, Normalize, Options, Run, Split, read_run_file, resolve
from bnuq.config.normalizations import PUBLISHED
from bnuq.config.shorthand import read_arguments, read_augment, read_normalize, read_validation
from bnuq.errors import RequestError

NUMBERS = st.lists(st.floats(-10, 10), min_size=1, max_size=4).map(tuple)
TINY = ("-T", "4", "-b", "8", "--method", "mcbn")


def resolved(tmp_path: Path, data: str = "", **options: Any) -> Run:
    (tmp_path / "run.toml").write_text(f'[model]\ncheckpoint = "m.pt"\n[data]\n{data}\n')
    return resolve("run.toml", Options(options), folder=tmp_path)


@given(NUMBERS, NUMBERS)
def test_numbers_with_a_slash_are_mean_and_std(mean: tuple[float, ...], std: tuple[float, ...]) -> None:
    text = "/".join(",".join(map(repr, values)) for values in (mean, std))
    assert read_normalize(text, "--normalize") == Normalize(mean=mean, std=std)


# Every field of the section is a key, so that a new field needs nothing here.
@given(st.builds(Augment, pad=st.integers(0, 9), crop=st.none() | st.integers(1, 99), flip=st.booleans(),
                 pad_value=st.floats(-1, 1), pad_mode=st.sampled_from(["constant", "reflect"])))  # fmt: skip
def test_an_augmentation_is_its_keys_and_values_with_commas(augment: Augment) -> None:
    values = msgspec.to_builtins(augment)
    text = ",".join(f"{key}={json.dumps(value) if key != 'pad_mode' else value}" for key, value in values.items())
    assert read_augment(text or "pad=0", "--augment") == augment


def test_a_bare_key_is_a_flag_and_spaces_do_not_matter() -> None:
    assert read_augment("pad = 4, crop=32 ,flip", "--augment") == Augment(pad=4, crop=32, flip=True)
    assert read_validation("split_of=test,fraction=0.5", "--validation") == Split("test", 0.5)


@pytest.mark.parametrize("text", ["cifar10", "CIFAR-10", "cifar_10"])
def test_a_published_name_is_its_numbers_in_option_and_run_file(tmp_path: Path, text: str) -> None:
    # mean and standard deviation of the pixels of the 50,000 training images, red, green and blue
    expected = {"mean": (0.4914, 0.4822, 0.4465), "std": (0.2470, 0.2435, 0.2616)}
    for run in (resolved(tmp_path, normalize=text), resolved(tmp_path, f'normalize = "{text}"')):
        assert run.record()["data"]["normalize"] == expected


def test_option_and_run_file_hold_the_same_texts(tmp_path: Path) -> None:
    lines = 'normalize = "0.5/0.25"\nnormalize_targets = "1/2"\naugment = "pad=2,flip"'
    options = {"normalize": "0.5/0.25", "normalize_targets": "1/2", "augment": "pad=2,flip"}
    assert resolved(tmp_path, lines).record() == resolved(tmp_path, **options).record()
    table = "augment = { pad = 2, flip = true }\nnormalize = { mean = [0.5], std = [0.25] }"
    assert resolved(tmp_path, table).record()["data"].items() <= resolved(tmp_path, lines).record()["data"].items()


def test_none_switches_off_what_the_run_file_sets(tmp_path: Path) -> None:
    run = resolved(tmp_path, 'normalize = "imagenet"\naugment = "flip"', normalize="none", augment="none")
    assert run.normalize is None and run.augment is None


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("normalize", "cifr10", "Did you mean cifar10?"),
        ("normalize", "nothing", f"or one of {', '.join(PUBLISHED)}."),
        ("normalize", "0.5", "expected train, none or MEAN/STD"),
        ("normalize", "0.5/", "expected train, none or MEAN/STD"),
        ("normalize", "0.5/0.2/0.1", "expected train, none or MEAN/STD"),
        ("normalize", "1_0/1", "expected train, none or MEAN/STD"),
        ("normalize_targets", "cifar10", "expected train, none or MEAN/STD"),
        ("augment", "padd=4", "padd is not known. Did you mean pad?"),
        ("augment", "pad=-1", "pad is -1; expected a whole number of at least 0."),
        ("augment", "pad", "pad is true; expected a whole number"),
        ("augment", "pad=4,pad=2", "with pad twice"),
        ("augment", "pad=,flip", "expected keys and values, such as pad=4,crop=32,flip."),
        ("augment", "pad_mode=wrap", 'pad_mode is "wrap"; expected one of constant, reflect.'),
        ("augment", f"pad={'9' * 30}", "expected a smaller number."),
        ("augment", "flip=1\npad=4", 'flip is "1'),
    ],
)
def test_a_text_that_stands_for_nothing_is_one_message_that_names_its_place(tmp_path, key, text, message):
    with pytest.raises(RequestError) as option:
        resolved(tmp_path, **{key: text})
    with pytest.raises(RequestError) as file:
        resolved(tmp_path, f"{key} = {json.dumps(text)}")
    assert str(option.value).startswith(f"--{key.replace('_', '-')}") and message in str(option.value)
    assert str(file.value).startswith(f"{tmp_path / 'run.toml'}: data.{key}") and message in str(file.value)


@pytest.mark.parametrize(
    ("text", "value"),
    [("3", 3), ("0.1", 0.1), ("true", True), ("[1, 2]", [1, 2]), ('"3"', "3"), ("relu", "relu"), ("", ""),
     ("a=b", "a=b"), ("1\nx=2", "1\nx=2"), ("2024-01-01", "2024-01-01"), ("{a = 1}", {"a": 1})],
)  # fmt: skip
def test_an_argument_is_a_toml_value_where_it_is_one_else_a_text(text: str, value: Any) -> None:
    assert read_arguments((f"width={text}",)) == {"width": value}


def test_arguments_of_the_command_line_are_added_to_those_of_the_run_file(tmp_path: Path) -> None:
    (tmp_path / "run.toml").write_text('[model]\ncheckpoint = "m.pt"\narch_args = { a = 1, b = 2 }\n')
    run = resolve("run.toml", Options(arch_args=("b=3", "c=x")), folder=tmp_path)
    assert run.arch_args == {"a": 1, "b": 3, "c": "x"}


@pytest.mark.parametrize("text", ["width", "=3", "a b=3", f"a={'[' * 40}{']' * 40}", f"a={'9' * 30}", "a=\0"])
def test_an_argument_that_cannot_be_one_is_one_message(tmp_path: Path, text: str) -> None:
    with pytest.raises(RequestError, match=r"--arch-arg .*; expected|--arch-arg .* nests deeper|NUL") as said:
        resolved(tmp_path, arch_args=(text,))
    assert len(str(said.value)) < 250


def test_a_run_with_short_texts_is_the_run_with_tables_bit_for_bit(small: Path, cli: Any) -> None:
    tables = "normalize = { mean = [0.5], std = [0.25] }\naugment = { pad = 1, flip = true }\n"
    text = (small / "run.toml").read_text().replace("[sampling]", f"{tables}[sampling]")
    small_run.write(small, run_file="tables.toml", text=text)
    first = cli("evaluate", "tables.toml", *TINY, "-o", "a.h5", "--json")
    texts = ("--normalize", "0.5/0.25", "--augment", "pad=1,flip", "--arch-arg", "classes=3")
    second = cli("evaluate", "run.toml", *texts, *TINY, "-o", "b.h5", "--json")
    assert first.code == second.code == 0, (first, second)
    assert json.loads(first.out)["methods"] == json.loads(second.out)["methods"]
    again = cli("evaluate", "--from", "b.h5", "--trust-code", "-o", "c.h5", "--json")
    assert json.loads(again.out)["methods"] == json.loads(second.out)["methods"]


@pytest.mark.usefixtures("small")
def test_a_published_normalisation_of_other_channels_is_refused(cli: Any, small: Path) -> None:
    refused = cli("evaluate", "run.toml", "--normalize", "cifar10", *TINY)
    assert refused.code == 2 and "--normalize cifar10 is for images of 3 channels" in refused.message
    assert "(1, 6, 6)" in refused.message and not (small / "model.bnuq.h5").exists()
    for name in ("train", "test", "other"):
        held = dict(np.load(small / f"{name}.npz"))
        np.savez(small / f"{name}.npz", **held | {"x": np.repeat(held["x"], 3, axis=1)})
    refused = cli("evaluate", "run.toml", "--normalize", "mnist", *TINY)
    assert refused.code == 2 and "--normalize mnist is for images of 1 channel," in refused.message


def test_of_many_unknown_keys_the_first_and_their_number_are_said_at_once(tmp_path: Path) -> None:
    path, start = tmp_path / "run.toml", time.process_time()
    unknown = "\n".join(f"key{number} = 1" for number in range(50_000))
    path.write_text(f"{unknown}\n[data]\ntest = 3\n{'x' * 1000} = 1\n" + "\n".join(f"k{n} = 1" for n in range(20)))
    with pytest.raises(RequestError) as refused:
        read_run_file(path)
    said = str(refused.value)
    assert said.startswith(f"{path}: 18 settings are wrong:") and len(said) < 5_000
    assert "  - key0 is not known." in said and "data.test is 3; expected a text" in said
    assert said.endswith(f"  - {50_000 - 8 + 21 - 8} more keys are not known.")
    assert time.process_time() - start < 2


def test_all_that_is_wrong_in_texts_and_options_is_said_at_once(tmp_path: Path) -> None:
    lines = 'normalize = "cifr10"\naugment = "pad=four,crap=3"\nresize = "0x3"\n[tta]\npad = -1'
    with pytest.raises(RequestError) as file:
        resolved(tmp_path, lines)
    said = str(file.value).splitlines()
    assert said[0] == f"{tmp_path / 'run.toml'}: 5 settings are wrong:" and len(said) == 6
    starts = ("tta.pad is -1", 'data.resize is "0x3"', 'data.normalize is "cifr10"', 'data.augment: pad is "four"')
    for start in (*starts, "data.augment: crap is not known. Did you mean crop?"):
        assert sum(line.startswith(f"  - {start}") for line in said) == 1, start
    with pytest.raises(RequestError) as mixed:
        resolved(tmp_path, lines, normalize="0.5", methods=("mcbx",), batch_size=-1, arch_args=("3", "=4"), test=" ")
    said = str(mixed.value)
    assert said.startswith("10 settings are wrong:") and "data.normalize" not in said  # an option replaces it
    for option in ("--normalize is", "--method is mcbx", "--batch-size is -1", "--test is ' '", '--arch-arg is "=4"'):
        assert said.count(f"  - {option}") == 1, option


@pytest.mark.usefixtures("small")
@pytest.mark.parametrize("command", ["evaluate", "sweep-batch-size", "precise-bn"])
def test_what_is_missing_is_said_with_what_is_wrong(cli: Any, command: str) -> None:
    Path("bad.toml").write_text('[model]\ncheckpoint = "model.pt"\n[data]\nnormalize = "cifr10"\n')
    refused = cli(command, "bad.toml", "--augment", "padd=4", *(["-o", "new.pt"] if command == "precise-bn" else []))
    assert refused.code == 2 and "2 settings are wrong:" in refused.message
    for text in ("Did you mean cifar10?", "Did you mean pad?", "--arch file.py:factory", "--train REF"):
        assert text in refused.message, text
    assert ("--test REF" in refused.message) == (command != "precise-bn")
