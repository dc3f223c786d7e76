"""What all tests share: where the real data lie, and the small real networks."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import hypothesis
import jaxtyping
import pytest
import shapes

hypothesis.settings.register_profile("few", max_examples=30, deadline=None)  # the machine may be busy
hypothesis.settings.load_profile("few")
jaxtyping.jaxtyped = shapes.jaxtyped
os.environ.setdefault("OMP_NUM_THREADS", "1")  # the tests run side by side, a process a core
# The tests hold figures of the CPU to the last bit. tests/test_cuda.py needs a GPU, and runs where this names one.
os.environ.setdefault("CUDA_VISIBLE_DEVICES", "")
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # as of a shell's background job; what a test starts inherits it
    signal.signal(signal.SIGINT, signal.default_int_handler)

TESTS = Path(__file__).resolve().parent
ROOT = TESTS.parent

# Where shape annotations are checked: in the tests of the functions that bear them, in test_evaluate.py, and in the
# whole runs marked `held`. In the other tests a whole run is a means to an end, and the checks would take more time
# than everything else; so they would in tests of these folders that are marked `held(False)`.
HELD = {"metrics", "evaluation", "inspection", "test_evaluate.py", "test_shapes.py"}
# Where whole runs do less work at the reference, as it is not what they are about: but for tests marked `less(False)`.
LESS = {"cli", "golden", "experiments", "gate", "records", "report", "runs", "store"}
LESS |= {f"test_{name}.py" for name in ("docs", "your_network", "ci_configs", "cuda")}
LESS |= {f"test_{name}.py" for name in ("segmentation", "temperatures", "units", "vectors")}  # of evaluation
# Where tests are about functions and records: see `pytest_collection_modifyitems`. Those of evaluation/, inspection/,
# and sampling/ take as long as all these together.
UNITS = {"data", "files", "gate", "metrics", "models", "nn", "records", "report", "store"}
UNITS |= {"test_catalogue.py", "test_floors.py", "test_shapes.py"}
_patch = pytest.MonkeyPatch()


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """No test writes to the user's cache, or to the state folder, which is believed here: notes of results, a key."""
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("CI", raising=False)
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.mktemp("cache")))
        patch.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--remake", action="store_true", help="write the numbers of tests/golden/ again")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    import less_work

    jaxtyping.config.update("jaxtyping_disable", not _wanted(item, "held", HELD))
    shapes.calls.clear()
    _patch.undo()
    if _wanted(item, "less", LESS):
        less_work.everywhere(_patch)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark as `unit` what starts no whole run, process or compiler, as `run` the others, but for the nightly."""
    import whole_runs

    for item in items:
        if any(item.get_closest_marker(name) for name in ("nightly", "hostile", "run")):
            continue
        is_unit = item.path.relative_to(TESTS).parts[0] in UNITS and not whole_runs.starts_one(item)
        item.add_marker("unit" if is_unit else "run")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m unit`, the folders without units are not even imported."""
    if config.getoption("markexpr") != "unit" or collection_path.suffix != ".py":
        return None
    return True if collection_path.relative_to(TESTS).parts[0] not in UNITS else None


def _wanted(item: pytest.Item, name: str, places: set[str]) -> bool:
    """Whether the test is in one of these places, unless a marker of this name says otherwise."""
    marker = item.get_closest_marker(name)
    return bool(places.intersection(item.path.relative_to(TESTS).parts)) if marker is None else marker.args != (False,)


def pytest_collection() -> None:
    """Register the fake accelerator before a test module runs autograd, which counts the devices once in a process."""
    gc.disable()  # nothing that is collected is garbage: a sixth of the time
    if not os.environ["CUDA_VISIBLE_DEVICES"]:
        import fake_accelerator  # noqa: F401 - only here, as it brings torch along


def pytest_collection_finish() -> None:
    gc.enable()  # without gc.freeze(): the fake accelerator looks for functions among all objects
    # Among 650,000 objects the defaults of 700, 10 and 10 take a twentieth of the time.
    gc.set_threshold(10_000, 20, 20)


@pytest.fixture(scope="session")
def data_pack() -> Path:
    """The folder of real checkpoints and data that $BNUQ_TEST_DATA names; a test that needs it skips without."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        pytest.skip("BNUQ_TEST_DATA is not set: no folder of real checkpoints and data")
    return Path(named)


@pytest.fixture(scope="session")
def sample_configs() -> Path:
    """The run files that ship."""
    return ROOT / "sample_configs"


@pytest.fixture(scope="module")
def accelerator() -> Iterator[Any]:
    """The log of a device that stands in for CUDA in every test of the module."""
    import fake_accelerator

    if not fake_accelerator.AVAILABLE:
        pytest.skip("this torch cannot register a device written in Python")
    with fake_accelerator.standing_in_for_cuda() as log:
        yield log
