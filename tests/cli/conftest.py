"""The command line, called in this process, in a folder with a tiny network."""

from __future__ import annotations

import re
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import small_run

from bnuq.cli.main import main


@dataclass(frozen=True)
class Outcome:
    code: int
    out: str
    err: str

    @property
    def message(self) -> str:
        """The one message of a refusal; fails where there is more or less."""
        assert self.err.startswith("bnuq: "), self.err
        assert len(re.findall("^bnuq: ", self.err, flags=re.MULTILINE)) == 1
        assert "Traceback" not in self.err
        return self.err.removeprefix("bnuq: ").strip()


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the user's own: configuration, data, colours; and the signal handlers put back afterwards."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("BNUQ_DATA", "NO_COLOR", "COLUMNS", "FORCE_COLOR"):
        monkeypatch.delenv(variable, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the tiny network, as the working folder; its run file is run.toml: MCBN, and no OOD set."""
    folder = tmp_path / "work"
    few = 'methods = ["mcbn"]\npost_hoc = false\n'
    small_run.write(folder, text=small_run.RUN.replace('ood = ["other.npz"]\n', "") + few)
    monkeypatch.chdir(folder)
    return folder


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """`bnuq` with these arguments: exit code, standard output, standard error."""

    def call(*arguments: str | Path) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main([str(argument) for argument in arguments])
        said = capsys.readouterr()
        assert isinstance(leave.value.code, int)
        return Outcome(leave.value.code, said.out, said.err)

    return call
