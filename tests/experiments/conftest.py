"""Small data, a protocol small enough for them, and the command line of the experiments."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
import small_experiments
import small_pictures
from small_experiments import Finished
from uci_tables import write_made_up

from experiments.__main__ import main
from experiments.uci.protocol import SMOKE, Protocol


@pytest.fixture(autouse=True)
def own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nothing of the user's own, and the signal handlers put back."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for variable in ("BNUQ_DATA", "COLUMNS"):
        monkeypatch.delenv(variable, raising=False)
    before = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture
def made_up(tmp_path: Path) -> Path:
    """A data root with a made-up boston and yacht."""
    return write_made_up(tmp_path / "data")


@pytest.fixture(scope="session")
def small_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A data root with small images, a made-up boston and a made-up yacht."""
    return write_made_up(small_pictures.write_data(tmp_path_factory.mktemp("data")))


@pytest.fixture(scope="session")
def tiny() -> Protocol:
    """Seconds of work: two splits, two seeds."""
    return replace(
        SMOKE, weight_decays=(1e-3, 1e-5), batch_sizes=(8, 16), dropouts=(0.05,), splits=2, folds=2, samples=20,
        selection_samples=5, interval=5, patience=2, max_epochs=20, race_from=5, race_from_step=0,
    )  # fmt: skip


@pytest.fixture(scope="session")
def ran(small_root: Path, tiny: Protocol, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Finished]:
    """The finished experiment of a name: run once, for the tests to read."""
    return cache(lambda name: small_experiments.run(name, tmp_path_factory.mktemp(name), small_root, tiny))


@pytest.fixture
def called(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> Callable[..., tuple[object, str, str]]:
    """`python -m experiments` with these arguments, in a folder of the test's: exit code, standard output, standard
    error."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: str | Path) -> tuple[object, str, str]:
        capsys.readouterr()
        with pytest.raises(SystemExit) as leave:
            main([*map(str, arguments)])
        printed = capsys.readouterr()
        return leave.value.code, printed.out, printed.err

    return call
