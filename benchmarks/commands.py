"""Whole commands against what a practitioner would write instead: CPU time of both as processes, in turns.

Each task is evaluated by `bnuq evaluate`, and by a loop of loops/ with the same samples. The processes have one thread,
and take turns; the ratio is the median over rounds of the ratio within a round. `first sample` is the CPU time until
then, also as a multiple of 1.5 imports of torch and a plain pass of all points, which the loop times. With --bnuq,
another checkout's package takes part; so does TorchUncertainty where it is installed and has the task's methods (of
three mcbn and mcdo, because it has no mcbn+mcdo). Results stand in results/commands/, written after every task.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from io import BytesIO
from pathlib import Path

import numpy as np
from measuring import file_name, machine, spread
from PIL import Image

ROOT = Path(__file__).resolve().parent.parent
LOOPS = ROOT / "benchmarks" / "loops"
CONFIGS = ROOT / "sample_configs"
CIFAR = ["--mean", "0.485", "0.456", "0.406", "--std", "0.229", "0.224", "0.225", "--pad", "4"]
EVERY = "mcbn,mcdo,mcbn+mcdo"


@dataclass(frozen=True)
class Task:
    """A request to `bnuq evaluate`, and the arguments of the loop that does the same; without a loop the command is
    compared with the import of torch."""

    title: str
    evaluate: list[str]
    loop: list[str] | None = None
    torch_uncertainty: list[str] | None = None


def tasks(configs: Path, data: Path | None) -> dict[str, Callable[[], Task]]:
    """The tasks by name, whose paths are those of a copy of sample_configs/; those that need data only where it is."""
    quickstart, regression, cifar = configs.parent / "bnuq" / "demo", configs / "regression", configs / "data"

    def quickstart_task() -> Task:
        loop = ["classification.py", str(quickstart / "fashion_cnn.pt"), f"{quickstart / 'net.py'}:small_cnn"]
        loop += ["--train", str(quickstart / "fashion_train.npz"), "--set", str(quickstart / "fashion_test.npz")]
        loop += ["--set", str(quickstart / "fashion_validation.npz"), "--ood", str(quickstart / "mnist.npz")]
        loop += ["--samples", "32", "--batch-size", "64", "--mean", "0.286", "--std", "0.353", "--pad", "2"]
        title = "quickstart: 2,600 points, T = 32, three methods"
        of_three, of_two = [*loop, "--methods", EVERY], ["torchuncertainty.py", *loop[1:], "--methods", "mcbn,mcdo"]
        return Task(title, [str(configs / "quickstart.toml")], of_three, of_two)

    def regression_task() -> Task:
        loop = ["regression.py", str(regression / "diabetes_mlp.pt"), f"{regression / 'mlp.py'}:small_mlp"]
        for name in ("train", "validation", "test"):
            loop += [f"--{name}", str(regression / f"diabetes_{name}.csv")]
        loop += ["--methods", EVERY, "--samples", "64", "--batch-size", "32"]
        title = "regression MLP: 89 points, T = 64, three methods"
        return Task(title, [str(configs / "regression.toml")], loop)

    def resnet(title: str, test: Path, ood: Path, limit: int) -> Task:
        evaluate = [str(configs / "cifar_resnet20.toml"), "--samples", "16", "--limit", str(limit)]
        evaluate += ["--test", str(test), "--ood", f"ood={ood}"]
        loop = ["classification.py", str(cifar / "checkpoints" / "resnet20-12fca82f.th")]
        loop += [f"{configs / 'architectures' / 'cifar_resnet.py'}:resnet20"]
        loop += ["--train", str(cifar / "cifar10" / "lossless_train.npz"), "--set", str(test), "--ood", str(ood)]
        loop += ["--samples", "16", "--batch-size", "32", "--limit", str(limit), *CIFAR]
        return Task(title, evaluate, loop, ["torchuncertainty.py", *loop[1:]])

    def resnet20_task() -> Task:
        test, ood = cifar / "cifar10" / "lossless_test.npz", cifar / "ood" / "pcbdigits32.npz"
        return resnet("ResNet-20: 400 + 400 points, T = 16, MCBN", test, ood, 400)

    def large_task() -> Task:
        test, ood = configs / "test5000.npz", configs / "ood5000.npz"
        x, y = decoded(cifar / "cifar10" / "jpeg_test.zip")
        np.savez(test, x=x, y=y)
        crops = np.load(cifar / "ood" / "pcbdigits32.npz")["x"]
        np.savez(ood, x=np.concatenate([crops, crops[:, ::-1], crops[:, :, ::-1]])[:5000], y=np.zeros(5000, np.int64))
        return resnet("ResNet-20: 5,000 + 5,000 points, T = 16, MCBN", test, ood, 5000)

    def camvid_task() -> Task:
        pictures = cifar / "camvid"
        evaluate = [str(configs / "camvid.toml"), "--limit", "20", "--samples", "8", "--method", "mcbn"]
        loop = ["segmentation.py", str(cifar / "checkpoints" / "camvid_seg_bn_dropout.pt")]
        loop += ["--architecture", str(configs / "architectures" / "camvid_segnet.py")]
        loop += ["--train", str(pictures / "train"), "--test", str(pictures / "test")]
        loop += ["--masks", str(pictures / "testannot")]
        loop += ["--ood", str(cifar / "cifar10" / "lossless_test.npz"), "--limit", "20", "--samples", "8"]
        return Task("segmentation: CamVid, 20 + 20 pictures, T = 8, MCBN", evaluate, [*loop, "--batch-size", "10"])

    def smallest_task() -> Task:
        evaluate = [str(configs / "quickstart.toml"), "--limit", "20", "--samples", "2"]
        return Task("smallest evaluate: 20 points of the quickstart, T = 2", evaluate)

    known = {"quickstart": quickstart_task, "regression": regression_task, "smallest": smallest_task}
    if data is not None:
        known |= {"resnet20": resnet20_task, "resnet20-10000": large_task, "camvid": camvid_task}
    return known


def decoded(archive: Path) -> tuple[np.ndarray, np.ndarray]:
    """The pictures of a zip file, and the numbers of the classes, whose folders they are in."""
    with zipfile.ZipFile(archive) as pictures:
        names = sorted(name for name in pictures.namelist() if not name.endswith("/"))
        x = np.stack([np.asarray(Image.open(BytesIO(pictures.read(name))).convert("RGB")) for name in names])
    _, y = np.unique([name.split("/")[-2] for name in names], return_inverse=True)
    return x, y


FIRST_SAMPLE = """
import os, sys, time
from bnuq.sampling.engine import Stochastic
passes = Stochastic.passes
def first(self, inputs, *args, **kwargs):
    outputs = passes(self, inputs[:1], *args, **kwargs)
    print("first", sum(os.times()[:4]), file=sys.stderr, flush=True)
    os._exit(0)
Stochastic.passes = first
from bnuq.__main__ import main
main()
"""


def cpu_seconds(arguments: list[str], package: Path) -> tuple[float, float | None]:
    """CPU seconds of a Python process with one thread, its children included, with `bnuq` of this checkout: of all of
    it, or until the first sample; and what it says of a plain pass."""
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(package)}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)  # a user's Python keeps what it has compiled
    child = subprocess.Popen(
        [sys.executable, *arguments],
        cwd=package,  # from where Python imports first
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    assert child.stderr is not None
    said = child.stderr.read()
    _, status, used = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        raise RuntimeError(f"{' '.join(arguments)} failed:\n{said[-3000:]}")
    times = {word: float(seconds) for word, seconds in re.findall(r"^(first|plain) ([0-9.]+)$", said, re.MULTILINE)}
    return times.get("first", used.ru_utime + used.ru_stime), times.get("plain")


def measured(task: Task, packages: Mapping[str, Path], rounds: int, out: Path) -> dict[str, list[float]]:
    """The CPU seconds of every contestant in each round, whose order is reversed from round to round."""
    contestants: dict[str, tuple[list[str], Path]] = {}
    for name, package in packages.items():
        command = ["evaluate", *task.evaluate, "--out", str(out), "--quiet"]
        contestants[name] = ["-m", "bnuq", *command], package
        contestants[f"{name}, first sample"] = ["-c", FIRST_SAMPLE, *command], package
    if task.loop is not None:
        contestants["loop"] = [str(LOOPS / task.loop[0]), *task.loop[1:]], ROOT
    if task.torch_uncertainty is not None and importlib.util.find_spec("torch_uncertainty") is not None:
        script, *arguments = task.torch_uncertainty
        contestants["TorchUncertainty"] = [str(LOOPS / script), *arguments], LOOPS.parent  # torchvision_operators.py
    contestants["import torch"] = ["-c", "import torch"], ROOT
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for turn in range(rounds):
        for name in list(contestants)[:: 1 if turn % 2 == 0 else -1]:
            shutil.rmtree(out.parent, ignore_errors=True)
            out.parent.mkdir()
            used, plain = cpu_seconds(*contestants[name])
            seconds[name].append(used)
            if plain is not None:
                seconds.setdefault("plain pass", []).append(plain)
    return seconds


def summary(seconds: Mapping[str, list[float]], reference: str) -> dict[str, dict[str, object]]:
    """Seconds and ratios to the reference, in the same round, and of the first sample to the import of torch and to 1.5
    times that and a plain pass."""
    result: dict[str, dict[str, object]] = {}
    for name, values in seconds.items():
        against = seconds["import torch" if name.endswith("first sample") else reference]
        ratios = [value / other for value, other in zip(values, against, strict=True)]
        result[name] = {"seconds": asdict(spread(values)), "ratio": asdict(spread(ratios))}
        if name.endswith("first sample") and "plain pass" in seconds:
            waits = zip(values, seconds["import torch"], seconds["plain pass"], strict=True)
            of_wait = [value / (1.5 * importing + plain) for value, importing, plain in waits]
            result[name]["of_import_and_pass"] = asdict(spread(of_wait))
    return result


def main() -> None:
    """Measure the tasks that were asked for, and print all that is known of this machine."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", help="measure this task alone; may be repeated")
    parser.add_argument("--rounds", type=int, default=3, help="times that each process is started (default: 3)")
    parser.add_argument("--bnuq", type=Path, help="another checkout, whose bnuq is measured beside")
    parser.add_argument("--out", type=Path, help="the file of results (default: results/commands/MACHINE.json)")
    options = parser.parse_args()
    about = machine("cpu") | {"threads": 1}
    out = options.out or ROOT / "benchmarks" / "results" / "commands" / f"{file_name(about)}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    results = json.loads(out.read_text(encoding="utf-8"))["tasks"] if out.exists() else {}
    packages = {"bnuq": ROOT} | ({"bnuq before": options.bnuq.resolve()} if options.bnuq else {})
    named = os.environ.get("BNUQ_TEST_DATA")
    with tempfile.TemporaryDirectory() as folder:
        configs = Path(folder) / "sample_configs"
        shutil.copytree(CONFIGS, configs, ignore=shutil.ignore_patterns("data"))
        (configs.parent / "bnuq").symlink_to(ROOT / "bnuq")  # the demo, which quickstart.toml names
        if named:
            (configs / "data").symlink_to(Path(named).resolve())
        known = tasks(configs, Path(named) if named else None)
        for name in options.only or known:
            task = known[name]()
            if task.loop is not None and not (LOOPS / task.loop[0]).exists():
                print(f"{task.title}: {task.loop[0]} is not there", flush=True)
                continue
            seconds = measured(task, packages, options.rounds, Path(folder) / "results" / "result.h5")
            reference = "import torch" if task.loop is None else "loop"
            results[name] = {"title": task.title, "reference": reference, "date": about["date"]}
            results[name] |= {"load": os.getloadavg()[0], "contestants": summary(seconds, reference)}
            text = json.dumps({"machine": about, "tasks": results}, indent=1)
            out.write_text(text + "\n", encoding="utf-8")
            print_task(results[name])


def print_task(task: dict) -> None:
    """The medians of a task, with the range of the ratio."""
    print(task["title"])
    for name, of in task["contestants"].items():
        seconds, ratio = of["seconds"]["median"], of["ratio"]
        against = "import torch" if name.endswith("first sample") else task["reference"]
        text = f"{ratio['median']:.2f} ({ratio['min']:.2f}–{ratio['max']:.2f}) × {against}"
        if wait := of.get("of_import_and_pass"):
            text += f", {wait['median']:.2f} × (1.5 import torch + plain pass)"
        print(f"  {name:26}{seconds:8.2f} CPU s   {text}", flush=True)


if __name__ == "__main__":
    main()
