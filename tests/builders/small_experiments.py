"""Every experiment, made small, as its command runs it."""

from __future__ import annotations

import contextlib
import io
from dataclasses import dataclass
from pathlib import Path

import pytest
import small_run
import tiny_networks

from experiments import toy
from experiments.__main__ import main
from experiments.batch_size import experiment, networks
from experiments.uci import protocol

_LEARNED = ["--images", "32", "--epochs", "1", "--width", "4", "--limit", "10", "--samples", "2", "--workers", "1"]
EXPERIMENTS = {  # what each takes, whom it cites, and the kind of its result
    "uci": (["--sets", "smoke", "--workers", "1", "--markdown", "page.md"], "Teye, Azizpour", "uci"),
    "precise-bn": (
        ["--images", "64", "--epochs", "2", "--width", "4", "--limit", "10", "--workers", "1"],
        "Wu & Johnson 2021",
        "precise-bn",
    ),
    "toy": (["--samples", "100", "--figures", "pictures"], "Teye, Azizpour", "toy"),
    "batch-size": (
        [
            *("--images", "200", "--epochs", "1", "--batch-sizes", "8,16,32", "--limit", "20", "--samples", "4"),
            *("--workers", "1", "--keep", "networks", "--figures", "pictures"),
        ],
        "Mukhoti et al. 2020",
        "batch-size",
    ),
    "pll-over-samples": (["run.toml", "--samples", "8", "--figures", "pictures"], "Teye, Azizpour", "pll-over-samples"),
    "bn-noise": (
        ["run.toml", "-b", "16", "--draws", "16", "--figures", "pictures"],
        "Shekhovtsov & Flach",
        "inspection",
    ),
    "stochastic-normalization": (
        [*_LEARNED, "--figures", "pictures"],
        "Shekhovtsov & Flach",
        "stochastic-normalization",
    ),
    "variance-divisor": (
        ["run.toml", "--samples", "4", "--limit", "20", "--batch-sizes", "2,4,8,16,32,48"],
        "Wu & Johnson 2021",
        "variance-divisor",
    ),
    "normalization-batch": (_LEARNED, "Shekhovtsov & Flach", "normalization-batch"),
    "optimum-over-n": (
        [
            *("--numbers", "128,240", "--batch-sizes", "16,32,64", "--steps", "3", "--seeds", "2", "--samples", "2"),
            *("--train-points", "40", "--limit", "20", "--workers", "1"),
        ],
        "Mukhoti et al. 2020",
        "optimum-over-n",
    ),
    "bn-in-vi": ([*_LEARNED, "--seeds", "2", "--figures", "pictures"], "Mukhoti et al. 2020", "bn-in-vi"),
}
ALL = EXPERIMENTS | {"resnet32": (_LEARNED, "Teye, Azizpour", "pll-over-samples")}  # whose report is that of another
_WITHOUT_DEVICE = ("toy", "precise-bn", "resnet32", "stochastic-normalization", "normalization-batch", "bn-in-vi")


@dataclass(frozen=True)
class Finished:
    """An experiment that was run in `folder`: its name, the kind of its result, and what it printed."""

    name: str
    kind: str
    folder: Path
    printed: str

    @property
    def path(self) -> Path:
        return self.folder / f"reproduce-{self.name}.h5"


def run(name: str, folder: Path, data_root: Path, uci: protocol.Protocol, *, code: int = 0) -> Finished:
    """Run the experiment in an empty folder but for what it takes; its result replaces an old one."""
    small_run.write(folder, rate=0.0)
    arguments, _, kind = ALL[name]
    small_run.old_result(Finished(name, kind, folder, "").path)
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        patch.setattr(protocol, "SMOKE", uci)
        patch.setattr(toy, "STEPS", 800)
        patch.setattr(experiment, "DRAW_SETS", 2)
        patch.setattr(networks, "small_resnet", tiny_networks.small_resnet)
        patch.setattr(experiment, "_NETWORKS", Path(tiny_networks.__file__))
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        patch.setenv("BNUQ_DATA", str(data_root))
        patch.delenv("COLUMNS", raising=False)
        patch.chdir(folder)
        with pytest.raises(SystemExit) as leave:
            main([name, *arguments, *([] if name in _WITHOUT_DEVICE else ["--device", "cpu"])])
        assert leave.value.code == code
    return Finished(name, kind, folder, printed.getvalue())
