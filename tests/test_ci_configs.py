"""Every file of sample_configs/ci does what docs/gate.md says: in a copy of the folders, with less work, on the
quickstart's network and on broken ones."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import zipfile
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from string import Template
from xml.etree import ElementTree

import less_work
import numpy as np
import pytest
import torch
import yaml

from bnuq.cli.main import main
from bnuq.config import read_run_file
from bnuq.gate import GateSettings
from bnuq.metrics import METRICS

ROOT = Path(__file__).resolve().parent.parent
CI = ROOT / "sample_configs" / "ci"
PAGE = (ROOT / "docs" / "gate.md").read_text(encoding="utf-8")
FOLDERS = ("sample_configs/ci", "bnuq/demo")
LESS = ("--limit", "60", "--samples", "8")
RUN_FILE = Path("sample_configs/ci/bnuq.toml")


@dataclass(frozen=True)
class Job:
    """What a CI service runs: scripts of its shell with these variables, the files that it keeps, and where it unpacks
    those of the first job for the second, whose checkout is the working folder."""

    scripts: tuple[str, ...]
    variables: Mapping[str, str]
    uploaded: tuple[str, ...]
    unpacked: str

    @property
    def commands(self) -> list[list[str]]:
        return [words for script in self.scripts for words in bnuq_commands(script, self.variables)]


def bnuq_commands(script: str, variables: Mapping[str, str] | None = None) -> list[list[str]]:
    """What a script gives to bnuq, as the shell would: variables filled in, quotes taken away."""
    lines = [line for line in script.splitlines() if line.startswith("bnuq ")]
    return [[Template(word).substitute(variables or {}) for word in shlex.split(line)[1:]] for line in lines]


def github() -> Job:
    file = yaml.safe_load((CI / "github-actions.yml").read_text(encoding="utf-8"))
    steps = [step for job in [file["jobs"][name] for name in ("evaluate", "check")] for step in job["steps"]]
    uploads = [step for step in steps if "upload-artifact" in step.get("uses", "")]
    assert uploads[1]["if"] == "always()"  # of a failed check, too
    scripts = tuple(step["run"] for step in steps if "run" in step)
    uploaded = tuple(name for step in uploads for name in step["with"]["path"].split())
    (download,) = (step["with"] for step in steps if "download-artifact" in step.get("uses", ""))
    unpacked = download.get("path", ".").replace("${{ runner.temp }}", "../temp")
    return Job(scripts, file["env"] | {"RUNNER_TEMP": "../temp"}, uploaded, unpacked)


def gitlab() -> Job:
    file = yaml.safe_load((CI / "gitlab-ci.yml").read_text(encoding="utf-8"))
    evaluating, checking = (file[f"uncertainty-{name}"] for name in ("evaluate", "check"))
    artifacts = checking["artifacts"]
    assert artifacts["when"] == "always"
    uploaded = (*evaluating["artifacts"]["paths"], *artifacts["paths"], artifacts["reports"]["junit"])
    scripts = (*evaluating["script"], *checking["script"], *checking["after_script"])
    assert checking["needs"] == ["uncertainty-evaluate"] and "cache" not in {*checking, *file[".uncertainty"]}
    assert checking["variables"] == {"GIT_STRATEGY": "none"}
    return Job(scripts, file[".uncertainty"]["variables"], uploaded, "../job")


def handed_over() -> None:
    """Put the result where the second job of each service has it: outside its checkout, the working folder."""
    for place in (Path("../temp/result"), Path("..")):
        place.mkdir(parents=True, exist_ok=True)
        shutil.copy("current.bnuq.h5", place)


def hooks() -> dict[str, dict]:
    (local,) = yaml.safe_load((CI / "pre-commit-config.yaml").read_text(encoding="utf-8"))["repos"]
    return {hook["id"]: hook for hook in local["hooks"]}


def action() -> dict:
    return yaml.safe_load((ROOT / "action.yml").read_text(encoding="utf-8"))


def action_scripts(inputs: Mapping[str, str]) -> dict[str, tuple[str, dict[str, str]]]:
    """The scripts of the action's steps by name, and the environment of each with these inputs."""
    defaults = {name: value["default"] for name, value in action()["inputs"].items()}
    assert set(inputs) <= set(defaults)
    scripts = {}
    for step in action()["runs"]["steps"]:
        if "run" in step:
            named = {key: re.fullmatch(r"\$\{\{ inputs\.(\w+) \}\}", value) for key, value in step["env"].items()}
            assert all(named.values())
            environment = {key: (defaults | inputs)[found[1]] for key, found in named.items() if found}
            scripts[step["name"]] = step["run"], environment
    return scripts


def code_blocks(text: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)


def run(arguments: list[str]) -> int:
    less = LESS if arguments[0] == "evaluate" else ()
    with pytest.MonkeyPatch.context() as patch, pytest.raises(SystemExit) as left:
        less_work.at_the_reference(patch)
        main([*arguments, *less])
    assert isinstance(left.value.code, int)
    if less and Path("current.bnuq.h5").exists():
        handed_over()
    return left.value.code


@pytest.fixture(scope="module")
def with_baseline(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The repository after the commands of the folder's README, which make its baseline."""
    place = tmp_path_factory.mktemp("repository")
    for folder in FOLDERS:
        shutil.copytree(ROOT / folder, place / folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        patch.setenv("XDG_CONFIG_HOME", str(place / "config"))
        (block,) = code_blocks((CI / "README.md").read_text(encoding="utf-8"), "sh")
        commands = bnuq_commands(block)
        assert len(commands) == len(block.splitlines()) == 2
        for command in commands:
            assert run(command) == 0
    assert (place / "sample_configs/ci/baseline.h5").is_file()
    (place / "current.bnuq.h5").unlink()
    yield place


@pytest.fixture
def repository(
    with_baseline: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Path:
    """A copy of it, as the working folder of a runner of GitHub's."""
    place = tmp_path / "repository"
    shutil.copytree(with_baseline, place)
    monkeypatch.chdir(place)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("GITHUB_ACTIONS", raising=False)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    capsys.readouterr()
    return place


def add_noise(place: Path, *, relative: float) -> None:
    """Noise of so many times their own spread on the weights of the network."""
    path = place / "bnuq/demo/fashion_cnn.pt"
    generator = torch.Generator().manual_seed(0)
    weights = torch.load(path, weights_only=True)
    for value in weights.values():
        if value.ndim > 1:
            value += relative * value.std() * torch.randn(value.shape, generator=generator)
    torch.save(weights, path)


def replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")


CHECKING = {"actions": "check", "nightly": "history", "predictions": "score"}


@pytest.mark.parametrize("name", CHECKING)
def test_what_checks_runs_no_code_of_the_network_and_has_what_it_made_outside_the_checkout(name: str) -> None:
    file = yaml.safe_load((CI / f"github-{name}.yml").read_text(encoding="utf-8"))
    checking = file["jobs"].pop(CHECKING[name])
    [(making, job)] = file["jobs"].items()
    assert checking["needs"] == making and file["permissions"] == {"contents": "read"} and "permissions" not in job
    uses = {step.get("uses", "").partition("@")[0]: step.get("with", {}) for step in checking["steps"]}
    assert name == "nightly" or "pull_request.base.sha" in uses["actions/checkout"]["ref"]
    assert uses["actions/checkout"]["persist-credentials"] is False and "cache" not in uses["actions/setup-python"]
    assert uses["actions/download-artifact"]["path"] == "${{ runner.temp }}/result"
    assert "evaluate" not in uses.get("bnuq/bnuq", {})
    assert not [step for step in checking["steps"] if re.search("bnuq evaluate|predict.py", step.get("run", ""))]
    assert all("if" not in step for step in checking["steps"] if step.get("name") == "Keep")  # of a good night alone


def files_of(folder: Path) -> dict[str, bytes]:
    """What a checkout has, but for the reports of a check."""
    files = [path for path in folder.rglob("*") if path.is_file() and ".git" not in path.parts]
    files = [path for path in files if path.name not in ("bnuq.xml", "bnuq.md")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


@pytest.mark.parametrize("service", [github, gitlab])
@pytest.mark.parametrize("inside", ["current.bnuq.h5/", "", "../repository/", "../target/"])
def test_a_result_that_was_turned_into_a_folder_replaces_nothing_and_is_exit_code_2(
    repository: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, service: Callable[[], Job], inside: str
) -> None:
    def git(*arguments: str) -> None:
        name = ("-c", "user.name=a", "-c", "user.email=a@b", "-c", "init.defaultBranch=main")
        subprocess.run(["git", *name, *arguments], check=True, capture_output=True)

    before, said, place = files_of(repository), service(), repository
    git("init")
    git("add", "--force", ".")
    git("commit", "-qm", "target")
    loose, setting = '[check.tolerance]\n"*" = 1e9\n', "[core]\nfsmonitor = touch ../ran\n"
    made = {"sample_configs/ci/bnuq.toml": loose, "bnuq.toml": loose, "sitecustomize.py": "raise SystemExit(0)\n"}
    made |= {"sample_configs/ci/baseline.h5": "", ".git/config": setting, "bnuq.md": "good"}
    with zipfile.ZipFile(tmp_path / "artifact.zip", "w") as archive:
        for name, text in made.items():
            archive.writestr(inside + name, text)
    zipfile.ZipFile(tmp_path / "artifact.zip").extractall(said.unpacked)  # as runners do: .. leads nowhere
    if service is gitlab:
        lines = [script for script in said.scripts if script.startswith(("find ", "git ", "cd "))]
        environment = os.environ | {"CI_MERGE_REQUEST_TARGET_BRANCH_NAME": "main", "CI_REPOSITORY_URL": str(repository)}
        subprocess.run(["bash", "-ec", "\n".join(lines)], cwd=said.unpacked, env=environment, check=True)
        monkeypatch.chdir(place := tmp_path / "job" / "target")
    assert run([*said.commands[-1], "--strict"]) == 2
    assert files_of(place) == before and not [*tmp_path.rglob("ran")]
    assert "good" not in [path.read_text() for path in tmp_path.glob("job/bnuq.md")]


def test_both_jobs_pass_on_the_network_as_it_is(repository: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = github().commands
    assert [command[0] for command in commands] == ["evaluate", "check"]
    assert [run(command) for command in commands] == [0, 0]
    assert "every change is 0" in capsys.readouterr().out
    assert all((repository / name).is_file() for name in github().uploaded)


def test_a_broken_network_fails_both_jobs_and_is_named_wherever_they_show_it(repository, monkeypatch, capsys):
    add_noise(repository, relative=1.0)
    summary = repository / "summary.md"
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    assert [run(command) for command in github().commands] == [0, 1]
    log = capsys.readouterr().out
    assert re.search(
        r"^::error title=bnuq check.*predictive log-likelihood of .* on the test set", log, flags=re.MULTILINE
    )
    assert re.search(r"^::error .*mcbn\.sets\.test\.accuracy.*not met", log, flags=re.MULTILINE)
    assert summary.read_text(encoding="utf-8").strip() == told_by_markdown(repository).strip()
    assert all((repository / name).is_file() for name in github().uploaded)

    for name in ("bnuq.md", "bnuq.xml", "summary.md"):
        (repository / name).unlink()
    monkeypatch.delenv("GITHUB_ACTIONS")
    monkeypatch.delenv("GITHUB_STEP_SUMMARY")
    assert run(gitlab().commands[-1]) == 1
    assert "::error" not in capsys.readouterr().out
    repository = repository.parent
    assert told_by_markdown(repository) and not summary.exists()
    failed = {
        (case.get("classname"), case.get("name"))
        for case in ElementTree.parse(repository / "bnuq.xml").iter("testcase")
        if case.find("failure") is not None
    }
    assert {("bnuq.deterministic.sets.test", "pll"), ("bnuq.mcbn.sets.test", "accuracy >= 0.85")} <= failed
    assert all((repository / name).is_file() for name in gitlab().uploaded)


def told_by_markdown(place: Path) -> str:
    """The Markdown of a check that failed."""
    text = (place / "bnuq.md").read_text(encoding="utf-8")
    assert "❌" in text.splitlines()[0]
    assert all(what in text for what in ("PLL", "AUROC", "mnist", "mcbn"))
    return text


def test_without_a_baseline_the_check_could_not_be_carried_out(repository, capsys):
    (repository / "sample_configs/ci/baseline.h5").rename("current.bnuq.h5")
    handed_over()
    check = github().commands[-1]
    assert run(check) == 2
    assert "sample_configs/ci/baseline.h5" in capsys.readouterr().err
    assert run([*check, "--update"]) == 0
    assert run(check) == 0


@pytest.mark.nightly  # the jobs above give these commands
def test_the_hooks_pass_on_the_network_as_it_is_and_stop_a_commit_that_breaks_it(repository, capsys):
    commands = {name: shlex.split(hook["entry"])[1:] for name, hook in hooks().items()}
    codes = {name: run(command) for name, command in commands.items()}
    assert codes == {"bnuq-evaluate": 0, "bnuq-check": 0, "bnuq-floors": 0}
    capsys.readouterr()
    replace(repository / RUN_FILE, "mean = [0.2860], std = [0.3530]", "mean = [0.5], std = [0.5]")
    assert run(commands["bnuq-evaluate"]) == 0
    capsys.readouterr()
    assert run(commands["bnuq-check"]) == 1
    assert "AUROC" in capsys.readouterr().out
    replace(repository / RUN_FILE, "mcbn.sets.test.accuracy>=0.85", "mcbn.sets.test.accuracy>=0.99")
    assert run(commands["bnuq-floors"]) == 1
    assert capsys.readouterr().out.startswith("Not met: 1 of 2 requirements")


def test_the_hooks_run_in_commits_that_touch_the_network_or_its_baseline_and_in_no_other() -> None:
    network, check, baseline = (re.compile(hook["files"]) for hook in hooks().values())
    assert check == network
    run_file = read_run_file(CI / "bnuq.toml")
    data, model = run_file.data, run_file.model
    assert model.checkpoint and model.arch and data.train and data.test
    named = [model.checkpoint, model.arch.rpartition(":")[0], data.train, data.test, *data.ood, "bnuq.toml"]
    assert all(network.search((CI / name).resolve().relative_to(ROOT).as_posix()) for name in named)
    assert all(pattern.search("sample_configs/ci/baseline.h5") for pattern in (network, baseline))
    for other in ("README.md", "bnuq/demo/README.md", "current.bnuq.h5", "bnuq/metrics/registry.py"):
        assert not network.search(other) and not baseline.search(other)
    assert all(hook["language"] == "system" and not hook["pass_filenames"] for hook in hooks().values())


@pytest.mark.parametrize("job", [github, gitlab])
def test_the_scripts_are_shell_and_install_what_the_repository_has(job) -> None:
    said = job()
    for script in said.scripts:
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, script
    install, again = (shlex.split(script) for script in said.scripts if " pip install " in script)
    assert again == install
    assert install[:4] == ["python", "-m", "pip", "install"]
    assert (ROOT / install[install.index("--constraint") + 1]).is_file()
    assert (ROOT / Template(install[-1]).substitute(said.variables) / "pyproject.toml").is_file()
    assert (ROOT / said.variables["RUN_FILE"]).is_file()


def test_the_check_section_that_the_page_shows_is_one(tmp_path: Path) -> None:
    (shown,) = code_blocks(PAGE, "toml")
    path = tmp_path / "bnuq.toml"
    path.write_text(shown, encoding="utf-8")
    settings = GateSettings.of(read_run_file(path).check)
    assert len(settings.tolerances) == 5 and len(settings.floors) == 1 and settings.allow == ("missing:mcdo",)
    auroc = settings.tolerance("mcbn.ood.mnist.mutual_information.auroc", "auroc", directed=True, decided_by=())
    assert auroc is not None and auroc.amount == 0.02


def test_the_page_tells_the_tolerances_of_all_metrics() -> None:
    section = PAGE[PAGE.index("## Tolerances") : PAGE.index("```toml")]
    rows = re.findall(r"^\| (`[^|]+) \| ([^ |]+) \|", section, flags=re.MULTILINE)
    documented = {name: amount for names, amount in rows for name in re.findall(r"`(\w+)`", names)}
    assert documented == {metric.name: metric.tolerance for metric in METRICS.values() if metric.tolerance}


def test_the_action_uses_all_its_inputs_and_installs_what_the_repository_has(tmp_path: Path) -> None:
    text = (ROOT / "action.yml").read_text(encoding="utf-8")
    assert all(f"inputs.{name}" in text for name in action()["inputs"])
    scripts = action_scripts({})
    for script, _ in scripts.values():
        assert subprocess.run(["bash", "-n"], input=script, text=True, check=False).returncode == 0, script
    fake = tmp_path / "python"
    fake.write_text('#!/bin/bash\nprintf "%s\\n" "$@"\n')
    fake.chmod(0o755)
    for install, expected in (
        ("", ["--constraint", f"{ROOT}/constraints.txt", str(ROOT)]),
        ("bnuq==0.2.0 torch==2.13.0", ["bnuq==0.2.0", "torch==2.13.0"]),
    ):
        environment = {"PATH": f"{tmp_path}:/usr/bin:/bin", "INSTALL": install, "GITHUB_ACTION_PATH": str(ROOT)}
        script = scripts["Install"][0]
        found = subprocess.run(["bash", "-ec", script], env=environment, check=True, text=True, capture_output=True)
        assert found.stdout.split("\n")[:-1] == ["-m", "pip", "install", "--quiet", *expected]


@pytest.mark.nightly  # the commands are those of the jobs above
def test_the_action_evaluates_and_fails_where_the_network_is_worse(repository: Path) -> None:
    add_noise(repository, relative=1.0)
    inputs = {"evaluate": "sample_configs/ci/bnuq.toml --limit 60 --samples 8 --quiet"}
    inputs |= {"baseline": "sample_configs/ci/baseline.h5", "check": "--config sample_configs/ci/bnuq.toml"}
    scripts = action_scripts(inputs)
    codes = {}
    for name in ("Evaluate or score", "Check"):
        script, environment = scripts[name]
        environment = os.environ | environment | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
        codes[name] = subprocess.run(["bash", "-ec", script], env=environment, check=False).returncode
    assert codes == {"Evaluate or score": 0, "Check": 1}
    (keep,) = (step for step in action()["runs"]["steps"] if step["name"] == "Keep")
    files = [line for line in keep["with"]["path"].splitlines() if "inputs" not in line]
    assert all((repository / name).is_file() for name in [*files, "current.bnuq.h5"])
    assert json.loads((repository / "bnuq.json").read_text())["command"] == "evaluate"


def test_the_hooks_for_other_repositories_call_commands_that_exist() -> None:
    hooks = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text(encoding="utf-8"))
    entries = {hook["id"]: hook["entry"].split() for hook in hooks}
    assert entries == {"bnuq-check": ["bnuq", "check"], "bnuq-evaluate": ["bnuq", "evaluate"]}
    assert all(hook["language"] == "system" and re.compile(hook["files"]) for hook in hooks)


@pytest.mark.nightly  # its commands: runs/test_score.py and cli/test_cli_check.py
def test_the_action_scores_predictions_as_its_sample_asks(tmp_path: Path) -> None:
    """The inputs of the sample are inputs of the action, and its scripts run with them and with the baseline that the
    sample's first lines make; worse predictions fail."""
    text = (CI / "github-predictions.yml").read_text(encoding="utf-8")
    steps = yaml.safe_load(text.replace("${{ runner.temp }}/result", "."))["jobs"]["score"]["steps"]
    (inputs,) = (step["with"] for step in steps if step.get("uses", "").startswith("bnuq/"))
    scripts = action_scripts(inputs)
    (baseline,) = (line.strip("# ") for line in text.splitlines() if line.startswith("#     bnuq "))
    random = np.random.default_rng(0)
    labels = random.integers(4, size=300)
    logits = random.normal(size=(300, 4)) + 2 * np.eye(4)[labels]
    np.savez(tmp_path / "test.npz", label=labels, id=np.arange(300))
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}

    def codes(noise: float, *steps: tuple[str, dict[str, str]]) -> list[int]:
        noisy = logits + noise * random.normal(size=logits.shape)
        np.savez(tmp_path / "predictions.npz", logits=noisy, id=np.arange(300))
        return [
            subprocess.run(["bash", "-ec", script], env=os.environ | variables | path, cwd=tmp_path).returncode
            for script, variables in steps
        ]

    steps = scripts["Evaluate or score"], scripts["Check"]
    assert codes(0.0, (baseline, {}), *steps) == [0, 0, 0]
    assert codes(4.0, *steps) == [0, 1]
    assert "❌" in (tmp_path / "bnuq.md").read_text(encoding="utf-8")
