"""`make figures`: runs the shipped run files in full, and writes docs/measured/evaluate.md and the demo's first screen.

With an argument it writes one thing of docs/measured/ alone: `speed`, the table of benchmarks.md, by what `make bench`
measured; `uci`, `uci-learned` and `batch-size`, the tables of experiments.md, and the pages `stochastic-normalization`
and `bn-in-vi`, from what `make reproduce` ran; the page `sweep`, from docs/sweep-NAME.h5 or, where one is missing, from
a sweep that makes it (half an hour of CPU time in all); `segmentation`, likewise from docs/segmentation-NAME.h5 (a
quarter of an hour).

Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About a quarter of an hour on two cores.
"""

from __future__ import annotations

import io
import json
import os
import platform
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

import bnuq
from bnuq.cli.demo import next_steps
from bnuq.cli.progress import Bars
from bnuq.config import Options, resolve, resolve_sweep
from bnuq.estimates import Estimate
from bnuq.methods import method_named
from bnuq.records import evaluation_file
from bnuq.records.evaluation import Result
from bnuq.report.evaluation import report
from bnuq.report.numbers import named, total
from bnuq.report.render import draw_pictures, print_record
from bnuq.report.render.markdown import markdown
from bnuq.store import codec
from bnuq.studies.sweep import record as sweep_file
from bnuq.studies.sweep import view as sweep_report
from bnuq.studies.sweep.compute import sweep
from bnuq.workflows.evaluate import evaluate

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "docs"
MEASURED = DOCS / "measured"  # pages and pictures that are written by programs alone
sys.path.insert(0, str(ROOT))  # where experiments/ lies, which is not installed
HEAD = (
    "run",
    "method",
    "accuracy",
    "PLL",
    "ECE",
    "MI on test",
    "MI on OOD",
    "OOD set",
    "AUROC",
    "reference check",
    "CPU s",
)


@dataclass(frozen=True)
class Job:
    """One run of a shipped run file, with what is changed in it."""

    title: str
    run_file: str
    options: Options = field(default_factory=Options)
    changes: dict[str, Any] = field(default_factory=dict)


def jobs(pack: Path) -> Iterable[Job]:
    """The runs of the tables, in order."""
    for name in ("cifar_resnet20", "cifar_resnet32", "cifar_resnet56", "fmnist_mlp", "mnist_mlp"):
        yield Job(f"{name}, deterministic", f"{name}.toml", Options(methods=("deterministic",)))
    for size in (32, 128, 512):
        yield Job(f"cifar_resnet20, b = {size}", "cifar_resnet20.toml", Options(batch_size=size))
    yield Job("cifar_resnet20, b = 32, no augment", "cifar_resnet20.toml", changes={"augment": None})
    yield Job("fmnist_mlp, 2000 points", "fmnist_mlp.toml", Options(limit=2000, samples=32))
    digits = str(pack / "ood/pcbdigits32.npz")
    pictures = str(pack / "cifar10/lossless_test.npz")
    methods = ("mcbn", "mcdo", "mcbn+mcdo")
    options = Options(train=digits, test=digits, ood=(pictures,), methods=methods, samples=32, limit=846)
    yield Job("svhn_cnn, on printed digits", "svhn_cnn.toml", options)
    yield Job("quickstart", "quickstart.toml")
    yield Job("regression", "regression.toml")


def main() -> None:
    """Run every job, and write what it gave."""
    pages = {"sweep": sweeps, "segmentation": segmentations}
    pages |= {name: partial(learned, name) for name in ("stochastic-normalization", "bn-in-vi")}
    if len(sys.argv) > 1 and sys.argv[1] in pages:
        path, text = MEASURED / f"{sys.argv[1]}.md", pages[sys.argv[1]]()
        if sys.argv[1] == "segmentation":  # below it stands what it shows
            put(path, "segmentation", text)
        else:
            path.write_text(text, encoding="utf-8")
        return
    if len(sys.argv) > 1:
        name = sys.argv[1]
        page, table = {
            "speed": ("benchmarks.md", speed),
            "uci": ("experiments.md", uci),
            "uci-learned": ("experiments.md", partial(uci, "uci-learned")),
            "batch-size": ("experiments.md", batch_size),
        }[name]
        if (text := table()) is None:
            print(f"docs/measured/{page} keeps its table {name}: there is no whole run that it could be taken from.")
        else:
            put(MEASURED / page, name, text)
        return
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make figures needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    pack = Path(named).resolve()
    rows: dict[str, list[str]] = {}
    demo, whole_demo, regression = io.StringIO(), io.StringIO(), io.StringIO()
    with run_files(pack) as place:
        for number, job in enumerate(jobs(pack)):
            options = Options(job.options | {"out": Path(f"out{number}.h5")})
            run = replace(resolve(str(place / job.run_file), options, folder=place.parent), **job.changes)
            begin = time.process_time()
            result = evaluate(run)
            if result.model["task"] == "regression":
                print_record(report, replace(result, path=Path("diabetes_mlp.bnuq.h5")), regression, full=True)
                continue
            rows[job.title] = rows_of(job.title, result, time.process_time() - begin)
            print("\n".join(rows[job.title]), flush=True)
            if job.title == "quickstart":
                shown = replace(result, path=Path("bnuq-demo/fashion_cnn.bnuq.h5"))
                print_record(report, shown, demo)
                print(next_steps("bnuq-demo"), file=demo)
                print_record(report, shown, whole_demo, full=True)
    text = evaluate_page(rows, demo=whole_demo.getvalue(), regression=regression.getvalue())
    (MEASURED / "evaluate.md").write_text(text, encoding="utf-8")
    put(DOCS / "first-report.md", "demo", f"```text\n{demo.getvalue()}```")
    decisions = "\n\n".join(demo.getvalue().split("\n\n")[:2])
    put(ROOT / "README.md", "demo", f"```text\n{decisions}\n```")


@contextmanager
def run_files(pack: Path) -> Iterator[Path]:
    """A copy of sample_configs/ in which the run files find `pack` as their data; gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        place = Path(folder) / "sample_configs"
        shutil.copytree(ROOT / "sample_configs", place, ignore=shutil.ignore_patterns("data"))
        (place / "data").symlink_to(pack)
        (place.parent / "bnuq").symlink_to(ROOT / "bnuq")  # the demo, which quickstart.toml names
        yield place


def rows_of(title: str, result: Result, seconds: float) -> list[str]:
    """One row a method and OOD set, of a run that took so many CPU seconds."""
    found = []
    for name, method in result.methods.items():
        test, sampled = method.sets["test"].estimates, name in result.sampled
        score = "mutual_information" if sampled else "predictive_entropy"
        for ood, scores in method.ood.items():
            mi = [shown(method.sets[one].estimates["mutual_information"]) if sampled else "–" for one in ("test", ood)]
            cells = [title, name, *(shown(test[metric]) for metric in ("accuracy", "pll", "ece")), *mi, ood]
            cells += [shown(scores[score]["auroc"]), check(result), f"{seconds:.0f}"]
            found.append("| " + " | ".join(cells) + " |")
    return found


def shown(estimate: Estimate) -> str:
    """An estimate with its two errors: over points, over draws."""
    errors = [f"{error:.4f}" for error in (estimate.se, estimate.mc_se) if error is not None]
    return f"{estimate.value:.4f} ({', '.join(errors)})".replace("-", "−")


def check(result: Result) -> str:
    """The reference check: the median and the worst layer, in units of what batch noise explains."""
    found = result.reference_check
    if found is None:
        return "–"
    ratios = np.array([found.mean, found.log_variance]) / found.expected
    verdict = "passed" if found.passed else "**warned**"
    return f"{verdict} ({np.median(ratios, axis=1).max():.1f}, {ratios.max():.1f})"


def put(path: Path, name: str, new: str) -> None:
    """Replace what stands between the markers `name` of a page."""
    pattern = rf"(<!-- {name}\b[^>]*-->\n).*(<!-- /{name} -->)"
    text, count = re.subn(
        pattern, lambda match: f"{match[1]}{new}\n{match[2]}", path.read_text(encoding="utf-8"), flags=re.DOTALL
    )
    assert count == 1, f"{path} has no markers for {name}"
    path.write_text(text, encoding="utf-8")


COSTS = {
    "bnuq": "bnuq",
    "bnuq_bfloat16": "bnuq, bfloat16",
    "swap_loop": "loop that swaps statistics",
    "redone": "statistics redone per test batch",
    "dropout_loop": "loop with dropout on",
    "torch_uncertainty": "TorchUncertainty",
}


def speed() -> str | None:
    """The table of costs, from the newest whole run of the benchmarks on a CPU; None where there is none."""
    files = [file for file in (ROOT / "benchmarks" / "results").glob("*.json") if not file.stem.endswith(".part")]
    held = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    whole = [one for one in held if one.get("settings", {}).get("device") == "cpu"]  # launches.json has no settings
    if not whole:
        return None
    found = max(whole, key=lambda one: one["machine"]["date"])
    lines = ["| network, task | " + " | ".join(COSTS.values()) + " |"]
    lines.append("| --- |" + " ---: |" * len(COSTS))
    for row in found["rows"].values():
        costs = [row["contestants"].get(name) for name in COSTS]
        cells = [f"{one['total_at_10000']['cpu']['median']:.2g}" if one else "–" for one in costs]
        method = {"mcbn": "MCBN", "mcdo": "MC dropout"}[row["method"]]
        lines.append(f"| {row['title']}, {method}, T = {row['samples']} | " + " | ".join(cells) + " |")
    about = found["machine"]
    lines += ["", f"{about['cpu']}, {about['threads']} thread, torch {about['torch']}, {about['date']}."]
    return "\n".join(lines) + "\n"


def uci(name: str = "uci") -> str | None:
    """The table of the UCI experiment in short, from docs/NAME.h5; None where there is none."""
    from experiments.uci.record import METHODS, Reproduction

    file = DOCS / f"{name}.h5"
    if not file.is_file():
        return None
    result = codec.read(Reproduction, file)
    lines = [
        "| | CRPS, ours | published | | PLL, ours | published | |",
        "| --- | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    for of, one in result.sets.items():
        for method in one.methods:
            cells = [f"{of.capitalize()} {METHODS[method]}"]
            for metric in ("crps", "pll"):
                found = one.cell(method, metric)
                published = found.published
                cells += [
                    f"{found.value:.2f} ± {found.se:.2f} {found.stars_naive}",
                    "–" if published is None else f"{published.value:.2f} {published.stars}",
                    found.verdict,
                ]
            lines.append("| " + " | ".join(cells).replace("-", "−").replace("*", r"\*") + " |")
    seconds, about = result.seconds, result.provenance
    made = result.protocol.get("learned", result.protocol)
    lines += [
        "",
        f"{made['splits']} splits × {made['seeds']} seeds, T = {made['samples']}; "
        f"{seconds['cpu'] / 60:.0f} minutes of CPU time, {'one core' if result.workers == 1 else 'two cores'}, torch "
        f"{about['torch']}, {about['time'][:10]}.",
    ]
    return "\n".join(lines) + "\n"


def batch_size() -> str | None:
    """The table of the batch-size experiment and what it says, from docs/batch-size.h5; None where there is none."""
    from experiments.batch_size.record import HEADLINE, BatchSizes
    from experiments.batch_size.report import sentences

    file = DOCS / "batch-size.h5"
    if not file.is_file():
        return None
    result = codec.read(BatchSizes, file)
    told, made = result.published, result.experiment
    published = {name: dict(zip(told["batch_sizes"], values, strict=True)) for name, values in told["accuracy"].items()}
    head = ["", "M", "steps", "train loss", "MI on test", f"MI on {result.ood}", "AUROC", "accuracy"]
    head += [f"accuracy of {name}, published" for name in published]
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    for networks in result.series().values():
        for network in networks:
            point = network.matched
            estimates = (
                (point.mutual_information("test"), 5),
                (point.mutual_information(result.ood), 5),
                (point.auroc[HEADLINE][result.ood], 3),
                (point.estimates["accuracy"]["test"], 4),
            )
            cells = [network.schedule, f"{network.batch_size}", f"{network.steps}", f"{network.loss:.4f}"]
            cells += [
                " ± ".join(f"{value:.{digits}f}" for value in (one.value, total(one)) if value is not None)
                for one, digits in estimates
            ]
            cells += [f"{values.get(network.batch_size, np.nan):.4f}" for values in published.values()]
            lines.append("| " + " | ".join(cells).replace("nan", "–") + " |")
    seconds, about = result.seconds, result.provenance
    lines += [
        "",
        f"{made['images']} images, T = {made['samples']}, {made['draw_sets']} draw sets; "
        f"{seconds['training'] / 60:.0f} minutes of CPU time to train and {seconds['evaluation'] / 60:.0f} minutes to "
        f"evaluate, torch {about['torch']}, {about['time'][:10]}.",
        "",
        *(f"- {text}" for text in sentences(result)),
    ]
    return "\n".join(lines) + "\n"


def learned(name: str) -> str:
    """The page of an experiment on learned noise, from docs/NAME.h5, which `make reproduce` made, and its picture."""
    from experiments.__main__ import _kind

    kind = _kind(name)
    record = replace(kind.read(DOCS / f"{name}.h5"), path=None)
    about = record.provenance
    picture = f"![{name}]({name}.svg)"
    made = f"{picture}\n\nMade {about['time'][:10]} on {about['device']}, torch {about['torch']}.\n"
    return f"{markdown(kind.report(record), level=1)}\n{made}"


SWEPT = {  # run file: what is changed in it, and sizes
    "cifar_resnet20": (Options(samples=32), (32, 128, 512)),
    "fmnist_mlp": (Options(samples=32, limit=1000), (32, 128, 512, 2048, 8192)),
}


def sweeps() -> str:
    """docs/measured/sweep.md; draws its pictures beside it."""
    found = {}
    with run_files(Path(os.environ.get("BNUQ_TEST_DATA", ".")).resolve()) as place:
        for name, (options, sizes) in SWEPT.items():
            file = DOCS / f"sweep-{name}.h5"
            if not file.is_file():
                chosen = Options(options | {"out": file})
                asked = {"batch_sizes": sizes, "full_grid": True}
                runs, settings = resolve_sweep([str(place / f"{name}.toml")], chosen, asked, folder=ROOT)
                sweep(runs, settings, progress=Bars())
            found[name] = sweep_file.read(file)
    lines = [
        "| network | b | accuracy | PLL | MI on test | MI on OOD | AUROC | ELBO − its best, nats |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    parts = []
    for name, one in found.items():
        text = io.StringIO()
        print_record(sweep_report.report, replace(one, path=Path(f"{one.models[0].name}.sweep.h5")), text)
        (drawn,) = draw_pictures(sweep_report.report(one), MEASURED)
        drawn.rename(MEASURED / f"sweep-{name}.svg")
        about = f"{one.provenance['time'][:10]}, {one.provenance['device']}, torch {one.provenance['torch']}"
        parts.append(f"## {name}\n\n{about}\n\n![{name}](sweep-{name}.svg)\n\n```text\n{text.getvalue()}```")
        (ood,) = (known.name for known in one.sets if known.role == "ood")
        for point in one.points:
            cells = [name, f"{point.batch_size}"]
            for metric, digits in (("accuracy", 4), ("pll", 4)):
                cells.append(with_total(point.estimates[metric]["test"].estimate, digits))
            spread = point.estimates[one.score]
            cells += [with_total(spread[known].estimate, 5) for known in ("test", ood)]
            cells.append(with_total(point.auroc[one.score][ood].estimate, 3))
            behind = one.recommended.behind[point.batch_size] if one.recommended else None
            cells.append("" if behind is None else "best" if behind.value == 0 else with_total(behind, 0))
            lines.append("| " + " | ".join(cells).replace("-", "−") + " |")
    head = f"""# Sweeps over the mini-batch size

{made_by("python docs/make_figures.py sweep")} Each size b has 5 draw sets of 32 samples;
± is the standard error over points and draws together."""
    return "\n\n".join((head, "\n".join(lines), *parts)) + "\n"


SEGMENTED = {  # of camvid.toml: what is changed in it
    "all": Options(limit=60, methods=("mcbn", "mcdo", "mcbn+mcdo", "tta")),
    "first-2": Options(limit=60, layers="first:2", methods=("mcbn",)),
}


def segmentations() -> str:
    """docs/measured/segmentation.md."""
    found: dict[str, Result] = {}
    with run_files(Path(os.environ.get("BNUQ_TEST_DATA", ".")).resolve()) as place:
        for name, options in SEGMENTED.items():
            file = DOCS / f"segmentation-{name}.h5"
            if not file.is_file():
                chosen = Options(options | {"out": file})
                evaluate(resolve(str(place / "camvid.toml"), chosen, folder=ROOT), progress=Bars())
            found[name] = evaluation_file.read(file)
    whole = found["all"]
    methods = {name: (whole, name) for name in whole.methods}
    methods |= {f"{name}, first 2 layers": (found["first-2"], name) for name in found["first-2"].sampled}
    of_test = ("accuracy", "mean_iou", "pll", "ece", "mutual_information")
    head = ("", "accuracy", "mean IoU", "PLL", "ECE", "MI on test", "score", "pixel AUROC", "AUROC of images")
    rows: list[tuple[str, ...]] = [head]
    classes, separation = list[tuple[str, ...]](), list[tuple[str, ...]]()
    for label, (result, name) in methods.items():
        (method, (ood,)) = result.methods[name], (name for name, one in result.sets.items() if one.kind == "ood")
        estimates = method.sets["test"].estimates
        score = "mutual_information" if "mutual_information" in estimates else "predictive_entropy"
        cells = [with_total(estimates[metric], 4) if metric in estimates else "–" for metric in of_test]
        pixels, images = method.pixel_ood[ood], method.ood[ood]
        aurocs = with_total(pixels[score]["pixel_auroc"], 3), with_total(images[score]["auroc"], 3)
        rows.append((label, *cells, named(score), *aurocs))
        if method_named(name).recalibration is None:
            by_class = method.sets["test"].by_class.values()
            classes.append((label, *(with_total(each["iou"], 3) for each in by_class)))
            separation += [
                (label, named(key), with_total(of_pixels["pixel_auroc"], 3), f"{of_pixels['pixel_fpr95'].value:.3f}")
                for key, of_pixels in pixels.items()
            ]
    by_class = whole.methods["deterministic"].sets["test"].by_class
    total_pixels = sum(each["count"].value for each in by_class.values())
    shares = ("share of pixels", *(f"{each['count'].value / total_pixels:.1%}" for each in by_class.values()))
    about = whole.provenance
    head = f"""# A segmentation: CamVid

Written by `python docs/make_figures.py segmentation` with bnuq {about["bnuq"]} on {about["time"][:10]}
({about["device"]}, {os.cpu_count()} cores, torch {about["torch"]}).

The 60 test images of `sample_configs/camvid.toml`, {total_pixels:,.0f} scored pixels; T = {whole.sampling["samples"]},
b = {whole.sampling["batch_size"]}; OOD are 60 images of CIFAR-10. ± is the standard error over images and draws
together; PLL and MI are in nats. `mcbn, first 2 layers` is `--method mcbn --layers first:2`."""
    parts = ("## IoU by class", table(("", *by_class), [shares, *classes]))
    parts += ("## OOD by pixel", table(("", "score", "pixel AUROC", "pixel FPR95"), separation))
    return "\n\n".join((head, table(rows[0], rows[1:]), *parts)) + "\n"


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column is text."""
    lines = ["| " + " | ".join(head) + " |", "| --- |" + " ---: |" * (len(head) - 1)]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    return re.sub(r"(?<= )-(?=\d)", "−", "\n".join(lines))


def with_total(estimate: Estimate, digits: int) -> str:
    """An estimate and its error over points and draws together."""
    error = total(estimate)
    return f"{estimate.value:,.{digits}f}" + ("" if error is None else f" ± {error:,.{digits}f}")


def made_by(command: str) -> str:
    """The line that says by what, when and where a page was written."""
    machine = f"{platform.machine()}, {os.cpu_count()} cores, torch {torch.__version__}"
    return f"Written by `{command}` on {date.today().isoformat()} with bnuq {bnuq.__version__} ({machine})."


def evaluate_page(rows: dict[str, list[str]], *, demo: str, regression: str) -> str:
    """docs/measured/evaluate.md."""
    table = "\n".join(row for some in rows.values() for row in some)
    return f"""# Evaluations of the shipped run files

{made_by("make figures")}

Each estimate is followed by its standard error over points and, if it was sampled, its Monte Carlo standard error over
draws. AUROC is by mutual information; for the deterministic network, by predictive entropy. T = 32; PLL and MI are in
nats. The reference check shows the median and the worst layer, in units of batch noise; it warns above 3 and 6, and is
left out (–) where no method draws from the reference. Each run evaluates the run file of its name in `sample_configs/`;
the changes to it are in `docs/make_figures.py`.

| {" | ".join(HEAD)} |
|{" --- |" * len(HEAD)}
{table}

## `sample_configs/quickstart.toml`

```text
{demo}```

## `sample_configs/regression.toml`

```text
{regression}```
"""


if __name__ == "__main__":
    main()
