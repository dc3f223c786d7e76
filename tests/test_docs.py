"""Every command of README.md and docs/ and every file of sample_configs runs: in a copy of the folder, less work."""

from __future__ import annotations

import importlib.util
import json
import re
import runpy
import shlex
import shutil
import sys
import tomllib
from collections import Counter
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import less_work
import msgspec
import pytest
import torch
from cut_sets import DEMO, write_samples, write_scenes
from safetensors.torch import save_file

import bnuq
from bnuq.cli.main import main
from bnuq.config import read_run_file
from bnuq.config.schema import (
    Augment,
    CertificateSection,
    CheckSection,
    DataSection,
    ModelSection,
    RunsSection,
    SamplingSection,
    ScoreSection,
    ScoringSection,
    Section,
    SweepSection,
)
from bnuq.errors import RequestError
from bnuq.evaluation import recalibration
from bnuq.report.document import Report
from bnuq.studies.inspect import pipelines
from bnuq.studies.score.roles import NAMES, PREFIXES

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
MEASURED = [ROOT / "docs" / "measured" / f"{name}.md" for name in ("benchmarks", "experiments")]  # which have commands
ABOUT = [ROOT / f"{name}.md" for name in ("ARCHITECTURE", "CONTRIBUTING", "SECURITY", "docs/design/decisions")]
LINKING = [*PAGES, *ABOUT, ROOT / "benchmarks" / "README.md", *sorted((ROOT / "sample_configs").rglob("README.md"))]
LINKING += sorted(path for folder in ("measured", "site") for path in (ROOT / "docs" / folder).glob("*.md"))
MADE = {  # by page: the files that its commands leave, but for pictures
    "README.md": "model.inspect.h5 model.bnuq.h5 report.html baseline.h5 iris.score.h5 fashion_cnn.inspect.h5 "
    "fashion_cnn.sweep.h5 fashion_cnn.shift.h5 fashion_cnn.monitor.h5 precise.pt",
    "benchmarks.md": "bf16.h5",
    "deploy.md": "certified.h5 predictor.pt2 tested.h5 tested.pt2",
    "experiments.md": "",
    "first-report.md": "",
    "gate.md": "current.bnuq.h5 baseline.h5 bnuq.xml bnuq.md accepted.md",
    "library.md": "bank.h5 epoch10.h5 scales.pt scales.h5",
    "many-machines.md": "two.h5",
    "methods.md": "auto.h5 noise_models.h5 tta.h5 ensemble.h5 own.h5 laplace.h5 current.h5 other.h5 summary.json "
    "report.html report.md comparison.html without.html points.csv",
    "regression-and-segmentation.md": "diabetes_mlp.bnuq.h5 moment.h5 camvid.bnuq.h5 encoder.h5 b4.h5 maps.h5 arrays",
    "run-file.md": "b16.h5 b16_seed1.h5 model.bnuq.h5 scripted.bnuq.h5 exported.bnuq.h5 shards.inspect.h5",
    "score.md": "both.h5 both.html forest.csv forest_noise.csv forest.score.h5 labels.npy logistic.csv "
    "logistic_noise.csv model.jsonl promised.h5 sklearn.csv sklearn.score.h5 keras.npz keras.score.h5 reviews.jsonl "
    "gold.jsonl reviews.score.h5 table.csv table.score.h5 forecasts.csv forecasts.score.h5",
    "shift.md": "shifted.h5 perturbed.h5 base.h5 days.h5 base2.h5 days2.h5 model.monitor.h5 monitor.html watched.pt2",
    "stability.md": "",
    "worth.md": "model.sweep.h5 pll.sweep.h5 sweep.html model.inspect.h5 pipeline.json domains.inspect.h5 inspect.html "
    "precise_full.pt",
}
SHAPES = """
assert outputs.shape == both.shape == (8, 40, 10) and test.shape == digits.shape == (40,)
assert "several-inputs" in {finding.code for finding in masked.findings}
assert masked.sets["test"].n == same.sets["test"].n == 60
assert omega.samples == 8 and current.path is not None and len(table) > 100 and result.reference_check.passed
"""
OWN_DISTANCE = """
from bnuq.metrics.posthoc import fitted_gaussians, mahalanobis
expected = mahalanobis(features(digits), fitted_gaussians(train, labels.numpy()))
torch.testing.assert_close(distance(digits), expected)
logits = network((digits / 255 - 0.2860) / 0.3530).detach()
assert torch.equal(probabilities(logits).argmax(1), logits.argmax(1)) and 0 < needs_a_person(logits).sum() < len(logits)
"""
CHECKED = {
    "deploy.md": "assert prediction['mean'].shape == (16, 10) and float(prediction['mutual_information'].min()) >= 0",
    "first-report.md": OWN_DISTANCE,
    "library.md": SHAPES,
    "regression-and-segmentation.md": "assert image['predicted'].ndim == 2 < len(maps)",
    "score.md": """
assert sentiment.sets["test"].classes == ("negative", "neutral", "positive") and keras.sampled == ("dropout",)
""",
    "shift.md": "assert 0 < found.p_value <= 1 and found.alarm is None and len(found.layers) == 4",
    "methods.md": "assert value.shape == se.shape and information.shape == (20,)",
}


def blocks(page: Path, language: str) -> list[str]:
    text = page.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def commands(page: Path) -> list[str]:
    return [line for block in blocks(page, "sh") for line in block.splitlines() if line.strip()]


def named_files(page: Path, language: str) -> dict[str, str]:
    """The files that a page shows whole: their first lines name them."""
    named = [(re.match(r"# (\w+\.\w+)\n", block), block) for block in blocks(page, language)]
    return {name[1]: block for name, block in named if name}


def run_files(page: Path) -> dict[str, str]:
    return named_files(page, "toml")


def run_code(page: Path) -> None:
    """All code of a page but for ONNX, where that is not installed."""
    if code := "\n".join(
        block for block in blocks(page, "python") if block not in named_files(page, "python").values()
    ):
        code = re.sub(r"\bsamples=\d+", "samples=8", code).replace("limit=200", "limit=20").replace("(50)", "(5)")
        exec(compile(f"{code}\n{CHECKED[page.name]}", page.name, "exec"), {"__name__": "__main__"})


@pytest.fixture(autouse=True)
def fewer_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    """Less work where no option asks for less: at the reference, for errors, in a search, and one picture a report."""
    pictures_of = Report.pictures.fget
    monkeypatch.setattr(recalibration, "LEAST_POINTS", 4)

    less_work.at_the_reference(monkeypatch, points=64)
    monkeypatch.setattr(pipelines, "THOROUGH", replace(pipelines.THOROUGH, first_batches=2, finalists=2, batches=4))
    monkeypatch.setattr(Report, "pictures", property(lambda report: pictures_of(report)[:1]))


@pytest.fixture
def own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A user's folder as the pages describe it: run files, checkpoints, data and architectures."""
    names = {
        "model.pt": "fashion_cnn.pt", "net.py": "net.py", "train.npz": "fashion_train.npz",
        "test.npz": "fashion_test.npz", "mnist.npz": "mnist.npz",
    }  # fmt: skip
    place = tmp_path / "own"
    samples = write_samples(place / "sample_configs", train=256, points=40)
    for name, source in names.items():
        shutil.copy(samples / "quickstart" / source, place / name)
    state = torch.load(place / "model.pt", weights_only=True)
    for seed, name in enumerate(("second.pt", "third.pt")):  # networks like the first
        generator = torch.Generator().manual_seed(seed)
        moved = {k: v + 0.01 * torch.randn(v.shape, generator=generator) if v.ndim > 1 else v for k, v in state.items()}
        torch.save(moved, place / name)
    shutil.copytree(samples / "quickstart", place / "bnuq-demo")
    shutil.copy(DEMO / "fashion_cnn.toml", place / "bnuq-demo")
    for file in (ROOT / "sample_configs" / "regression").iterdir():
        shutil.copy(file, place / file.name)
    write_scenes(place / "camvid", train=16, test=4, height=16, width=16)
    shutil.copytree(place / "camvid" / "train", place / "indoors", ignore=shutil.ignore_patterns("[01][2-9].png"))
    shutil.copy(ROOT / "sample_configs" / "architectures" / "camvid_segnet.py", place)
    monkeypatch.syspath_prepend(str(place))
    torch.save(importlib.import_module("camvid_segnet").segnet().state_dict(), place / "camvid.pt")
    for page in PAGES:
        for name, text in (run_files(page) | named_files(page, "python")).items():
            (place / name).write_text(text, encoding="utf-8")
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    for name in ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    return place


def write_forms(place: Path) -> None:
    """The network of `model.pt` in other forms."""
    net = bnuq.load(place / "model.pt", arch="net.py:small_cnn", base=place)
    torch.jit.save(torch.jit.script(net), place / "scripted.pt")
    shapes = ({0: torch.export.Dim("points", min=1)},)
    torch.export.save(
        torch.export.export(net, (torch.rand(4, 1, 28, 28),), dynamic_shapes=shapes), place / "exported.pt2"
    )
    (place / "shards").mkdir()
    save_file(net.state_dict(), place / "shards" / "1.safetensors")
    index = {"weight_map": dict.fromkeys(net.state_dict(), "1.safetensors")}
    (place / "shards" / "model.safetensors.index.json").write_text(json.dumps(index))


def run(arguments: list[str]) -> int:
    with pytest.raises(SystemExit) as left:
        main(arguments)
    assert isinstance(left.value.code, int)
    return left.value.code


def test_the_commands_of_every_page_are_run() -> None:
    elsewhere = {"your-network.md"}  # tests/test_your_network.py
    assert {page.name for page in [*PAGES, *MEASURED]} == set(MADE) | elsewhere


def test_no_command_stands_on_two_pages() -> None:
    times = Counter(command for page in [*PAGES, *MEASURED] for command in commands(page))
    assert [command for command in times if times[command] > 1] == []


# Of these pages, with few kinds of commands that do much, `make test` holds only that each command is a request.
LONG = {
    f"{name}.md" for name in ("benchmarks", "deploy", "many-machines", "methods", "regression-and-segmentation")
} | {"run-file.md", "shift.md", "worth.md"}
# And of these nothing, as their commands are of other kinds; tests of cli/ and runs/ call what they call.
LATER = {"gate.md", "library.md", "score.md"}
WORKFLOWS = (
    *("workflows.evaluate.evaluate", "workflows.multirun.evaluate_several"),
    *(f"studies.{name}.compute.{name}" for name in ("export", "inspect", "precise_bn", "sweep")),
)
BEGINNING = ("evaluate", "export", "inspect", "precise-bn", "sweep-batch-size")


@pytest.mark.parametrize("name", sorted(LONG))
def test_every_command_of_a_long_page_is_a_request(name, own_folder, monkeypatch, capsys):
    """Up to where a workflow begins; without those that read what an earlier one writes."""

    def begins(*_: Any, **__: Any) -> None:
        raise RequestError("the workflow begins")

    for place in WORKFLOWS:
        monkeypatch.setattr(f"bnuq.{place}", begins)
    for form in ("scripted.pt", "exported.pt2", "scales.pt"):  # that it is there is seen before
        shutil.copy("model.pt", form)
    (own_folder / "shards").mkdir()
    (page,) = (page for page in [*PAGES, *MEASURED] if page.name == name)
    begun = 0
    for command in commands(page):
        words = shlex.split(command.partition(" > ")[0])
        if words[:1] != ["bnuq"] or words[1] not in BEGINNING or "--from" in words:
            continue
        assert run(words[1:]) == 2
        assert capsys.readouterr().err == "bnuq: the workflow begins\n", command
        begun += 1
    assert begun


@pytest.mark.filterwarnings("ignore:.*(torch.jit|LeafSpec)")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=pytest.mark.nightly if page.name in LONG | LATER else (), id=page.name)
        for page in [*PAGES, *MEASURED]
        if page.name in MADE
    ],
)
def test_every_command_of_a_page_runs(page: Path, own_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    if page.name == "run-file.md":
        write_forms(own_folder)
    scripts = {path.name: shutil.copy(path, own_folder) for path in (ROOT / "sample_configs/your_network").glob("*.py")}
    before = {path.name for path in own_folder.iterdir()}
    if page.name == "gate.md":
        shutil.copy(own_folder / "sample_configs" / "ci" / "bnuq.toml", own_folder)
        shutil.copytree(own_folder / "sample_configs" / "quickstart", own_folder.parent / "quickstart")
        before.add("bnuq.toml")
    for command in commands(page):
        words, _, target = command.partition(" > ")
        name, *arguments = shlex.split(words, comments=True)
        if name == "make":
            assert re.search(rf"^{arguments[0]}:", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
            continue
        if name == "python" and arguments[0] in scripts:
            runpy.run_path(arguments[0], run_name="__main__")
            continue
        if name == "python":  # the experiments: tests/experiments/test_commands.py
            continue
        assert name == "bnuq"
        limit = "40" if page.name == "gate.md" else "20"  # of which enough are right
        less = {
            "evaluate": [
                *("--limit", limit, *(["--max-samples", "16"] if "auto" in arguments else ["--samples", "2"])),
                *([] if page.name in {"README.md", "gate.md"} else ["--no-post-hoc"]),
                *(["--method", "mcbn"] if page.name in {"many-machines.md", "regression-and-segmentation.md"} else []),
                *(["--on", "local:1"] if "--on" in arguments else []),
            ],
            "sweep-batch-size": [
                *("--limit", "20", "--samples", "2", "--draw-sets", "2", "--train-points", "20"),
                *([] if "--batch-sizes" in arguments else ["--batch-sizes", "16,64"]),
            ],
            "inspect": ["--limit", "20", "--points", "32", "--draws", "8", "--samples", "2"],
            "precise-bn": ["--points", "64"],
            "shift": ["--limit", "20", "--samples", "2"] if page.name == "README.md" else [],
            "export": [] if "--from" in arguments else ["--samples", "2"],
        }.get(arguments[0], [])
        assert run([*arguments, *less]) == 0, command
        printed = capsys.readouterr().out
        assert printed.strip(), command
        if target:
            assert json.loads(printed)["bnuq"]
            (own_folder / target.strip()).write_text(printed, encoding="utf-8")
    run_code(page)
    made = {path.name for path in own_folder.iterdir()} - before
    assert made - {"pictures", "__pycache__"} == set(MADE[page.name].split())


def test_the_commonest_files_of_predictions_have_the_roles_that_the_page_shows(tmp_path, monkeypatch, capsys):
    """And every name of the table, and every beginning of a column's, stands on the page."""
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / "score.md"
    runpy.run_path(str(ROOT / "sample_configs/your_network/predictions.py"))
    *outputs, refusal = blocks(page, "text")
    for command, output in zip(commands(page)[1:], outputs, strict=False):
        assert run([*shlex.split(command)[1:], "--calibrate", "cross"]) == 0, command
        printed = " ".join(capsys.readouterr().out.split())
        assert [of for part in output.split("\n\n") if (of := " ".join(part.split())) not in printed] == [], printed
    assert len(outputs) == 5 and run(["score", "table.csv"]) == 2 and refusal in capsys.readouterr().err
    text = page.read_text(encoding="utf-8")
    known = {name for names in NAMES.values() for name in names if name} | {*PREFIXES}
    assert [name for name in known if f"`{name}`" not in text] == []


def test_every_run_file_that_a_page_shows_is_one(own_folder: Path) -> None:
    names = [name for page in PAGES for name in run_files(page)]
    assert sorted(names) == ["camvid.toml", "model.toml", "regression.toml", "several.toml"]
    assert all(read_run_file(own_folder / name).model.checkpoint for name in names)


@pytest.mark.parametrize(
    ("section", "page"),
    [
        *((section, "run-file.md") for section in (ModelSection, DataSection, Augment, SamplingSection)),
        *((ScoringSection, "run-file.md"), (RunsSection, "run-file.md"), (CertificateSection, "run-file.md")),
        *((SweepSection, "worth.md"), (CheckSection, "gate.md"), (ScoreSection, "score.md")),
    ],
)
def test_every_key_of_a_run_file_is_explained(section: type[Section], page: str) -> None:
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    names = [field.encode_name for field in msgspec.structs.fields(section)]
    assert [name for name in names if not re.search(rf"(`|^){name}\b", text, flags=re.MULTILINE)] == []


def test_the_readme_is_short_and_leads_to_every_page() -> None:
    text = PAGES[0].read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 220
    assert [page.name for page in PAGES[1:] if f"(docs/{page.name}" not in text] == []


@pytest.mark.parametrize("page", [page for page in LINKING if page.is_relative_to(ROOT / "docs")], ids=lambda p: p.name)
def test_no_page_opens_with_what_it_is(page: Path) -> None:
    title, opening, *_ = re.sub("<!--.*?-->\n", "", page.read_text(encoding="utf-8")).split("\n\n")
    assert title.startswith("# ") and not opening.startswith("This page")


def test_pages_for_users_are_few_words() -> None:
    words = {page.name: len(page.read_text(encoding="utf-8").split()) for page in PAGES}
    assert {name: count for name, count in words.items() if count > 3_000} == {}
    assert sum(words[name] for name in words.keys() - {"many-machines.md", "stability.md"}) <= 15_000


@pytest.mark.parametrize("page", LINKING, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        there = page.parent / path if path else page
        if "://" not in link and (not there.exists() or (anchor and anchor not in anchors(there))):
            broken.append(link)
    assert broken == []


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_every_file_that_a_page_of_the_code_names_is_there(page: str) -> None:
    named = re.findall(r"`([a-z_]+/[a-z_/]+\.(?:py|toml|yml|md))`", (ROOT / page).read_text(encoding="utf-8"))
    assert len(named) > 15
    assert [path for path in named if not ((ROOT / "bnuq" / path).is_file() or (ROOT / path).is_file())] == []


def anchors(page: Path) -> set[str]:
    """What GitHub calls the headings of a page: without punctuation, blanks as hyphens."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), flags=re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_demo_is_the_quickstart_and_its_output_is_on_the_pages() -> None:
    run_file = (DEMO / "fashion_cnn.toml").read_text(encoding="utf-8")
    sample = (ROOT / "sample_configs" / "quickstart.toml").read_text(encoding="utf-8")
    assert tomllib.loads(sample.replace("../bnuq/demo/", "")) == tomllib.loads(run_file)
    page = ROOT / "docs" / "first-report.md"
    (shown,) = (block for block in blocks(page, "text") if "Leave the" in block)
    (begun,) = (block for block in blocks(PAGES[0], "text") if "Leave the" in block)
    whole, _ = blocks(ROOT / "docs" / "measured" / "evaluate.md", "text")
    decisions = shown.split("\n\n")[1]
    assert decisions.startswith(" · Use ") and decisions in whole and decisions in begun
    for name in ("deterministic", "mcbn", "mcdo", "mcbn+mcdo", "mnist"):
        assert name in shown and name in whole
    temperature, entropy, distance = re.findall(r"logits by ([\d.]+)\.|above ([\d.]+)\)|above (\d+)", decisions)
    explained = {"".join(found) for found in (temperature, entropy, distance)}
    for one in (page, PAGES[0]):
        prose = one.read_text(encoding="utf-8").partition("<!-- /demo -->")[2]
        assert [number for number in explained if number not in prose] == []


WRITTEN = [
    *(("README.md", "demo"), ("docs/first-report.md", "demo"), ("docs/gate.md", "seen")),
    *((f"docs/measured/{name}.md", name) for name in ("certificate", "monitor", "noise-models", "segmentation")),
    *((f"docs/measured/{name}.md", name) for name in ("gate", "shift", "worth")),
    *(("docs/measured/benchmarks.md", "speed"), ("docs/measured/experiments.md", "uci")),
    *(("docs/measured/experiments.md", "uci-learned"), ("docs/measured/experiments.md", "batch-size")),
]


@pytest.mark.parametrize(("page", "name"), WRITTEN)
def test_a_script_replaces_what_it_wrote_on_a_page_and_nothing_else(page, name, tmp_path, make_figures):
    source, copy = ROOT / page, tmp_path / "page.md"
    shutil.copy(source, copy)
    make_figures.put(copy, name, "NEW")
    before, after = (path.read_text(encoding="utf-8") for path in (source, copy))
    head, _, foot = after.partition("\nNEW\n")
    assert before.startswith(head) and before.endswith(foot)
    assert head.splitlines()[-1].startswith(f"<!-- {name}") and foot.startswith(f"<!-- /{name} -->")


def test_the_table_of_costs_is_that_of_the_newest_benchmark(make_figures: ModuleType) -> None:
    page = ROOT / "docs" / "measured" / "benchmarks.md"
    assert make_figures.speed() in page.read_text(encoding="utf-8")


@pytest.mark.nightly  # experiments are not installed
def test_every_measured_number_of_the_experiments_is_that_of_a_stored_result(make_figures) -> None:  # noqa: ARG001
    make_papers = importlib.import_module("make_papers")
    stored, page = make_papers.results(), make_papers.PAGE.read_text(encoding="utf-8")
    for name, text in make_papers.blocks(stored).items():
        assert f"docs/make_papers.py -->\n{text}\n<!-- /{name} -->" in page
    counting, text = make_papers.counted_in(stored)
    assert text == counting.read_text(encoding="utf-8")
    assert sum(make_papers.table(stored)[1].values()) == 55
    for name in ("uci", "uci-learned"):  # of before results were stored: their pages are what was written
        report = (ROOT / "docs" / "measured" / f"{name}.md").read_text(encoding="utf-8").replace("−", "-")
        methods = [method for of in stored[name]["sets"].values() for method in of["methods"].values()]
        for value in (method[score] for method in methods for score in ("crps", "pll")):
            assert f"| {value['value']:.2f} ±{value['se']:.2f} | {value['low']:.2f} to {value['high']:.2f} |" in report


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("rule", "ends", "verdict"),
    [
        ("a:x < 0", [(-2, -1)], "holds"), ("a:x < 0", [(1, 2)], "fails"), ("a:x < 0", [(-1, 2)], "open"),
        ("a:x > .5", [(0.6, 0.9)], "holds"), ("a:x > .5", [(0.4, 0.9)], "open"), ("a:x > .5", [(0.1, 0.4)], "fails"),
        ("|a:x| < .01", [(-0.009, 0.004)], "holds"), ("|a:x| < .01", [(-0.02, 0.001)], "open"),
        ("|a:x| < .01", [(-0.03, -0.02)], "fails"), ("a:x & a:y > 0", [(1, 2), (-1, 2)], "open"),
    ],
)  # fmt: skip
def test_a_verdict_on_a_paper_follows_from_intervals(make_figures, monkeypatch, rule, ends, verdict) -> None:  # noqa: ARG001
    make_papers = importlib.import_module("make_papers")
    monkeypatch.setattr(make_papers, "compared", lambda _: {})
    found = {name: {"low": low, "high": high} for name, (low, high) in zip("xy", ends, strict=False)}
    assert make_papers._verdict({"a": found}, rule) == verdict
    share = make_papers._share(30, 32)
    assert (share["low"], share["high"]) == pytest.approx((0.799, 0.983), abs=1e-3)
    difference = make_papers._minus({"value": 2.0, "se": 0.3}, {"value": 1.0, "se": 0.4}, seeds=3)
    assert difference["se"] == pytest.approx(0.5) and difference["low"] == pytest.approx(1 - 4.303 * 0.5, abs=1e-3)


@pytest.fixture
def make_figures(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, imported as `make figures` runs it."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return importlib.import_module("make_figures")


@pytest.mark.parametrize("path", sorted((ROOT / "sample_configs").glob("*.toml")), ids=lambda p: p.name)
def test_every_sample_config_is_a_run_file_whose_own_files_exist(path: Path) -> None:
    spoken = read_run_file(path)
    assert spoken.model.arch is not None
    file, _, function = spoken.model.arch.rpartition(":")
    assert f"def {function}(" in (path.parent / file).read_text()
    assert tomllib.loads(path.read_text())["data"]["test"]


# Those whose numbers tests/golden/ holds are run there, but for the nightly ones, of which two are only deeper.
def test_the_quickstart_can_be_made_again(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(sys, "argv", ["make_demo.py", "--help"])
    with pytest.raises(SystemExit) as left:
        runpy.run_path(str(ROOT / "docs" / "make_demo.py"), run_name="__main__")
    assert left.value.code == 0
    assert "--data-root DATA_ROOT" in capsys.readouterr().out
