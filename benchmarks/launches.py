"""`make bench-launches`: how often a run asks a GPU for a kernel, and how often it waits for one.

Whole small evaluations run on the fake accelerator of the tests, which counts both: nothing is run on hardware, and no
time is measured. `--bnuq PATH` counts those of another checkout first, for a table of before and after.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import warnings
from pathlib import Path
from typing import Any

import torch

ROOT = Path(__file__).resolve().parent.parent
TTA = {"augment": "pad=1,crop=6,flip"}
RUNS: dict[str, tuple[str, dict[str, Any]]] = {  # the builder in tests/builders, and the options
    "mcbn": ("small_run", {"methods": ("mcbn",)}),
    "mcdo": ("small_run", {"methods": ("mcdo",)}),
    "mcbn, bfloat16": ("small_run", {"methods": ("mcbn",), "precision": "bfloat16"}),
    "mcbn, float16": ("small_run", {"methods": ("mcbn",), "precision": "float16"}),
    "laplace": ("small_run", {"methods": ("laplace",)}),
    "learned": ("small_run", {"methods": ("learned",)}),
    "tta": ("small_run", {"methods": ("tta",), **TTA}),
    "mcbn+tta": ("small_run", {"methods": ("mcbn+tta",), **TTA}),
    "mcbn, attacked by fgsm": ("small_run", {"methods": ("mcbn",), "perturb": ("fgsm:0.1",)}),
    "mcbn, multilabel": ("small_multilabel", {"methods": ("mcbn",)}),
    "mcbn, regression": ("small_regression", {"methods": ("mcbn",)}),
    "mcbn, segmentation": ("small_segmentation", {"methods": ("mcbn",)}),
}
BEGIN, END = "<!-- launches -->", "<!-- /launches -->"


def counted(name: str) -> dict[str, dict[str, float]] | str:
    """Kernels and waits of one run of the bnuq that is imported, and what each further chunk adds; or why it fails.

    Chunks are of eight points (one image of a segmentation) under eight draws; a run has one of them, or three. The
    first run is not counted: what a process does once, such as the checks of compiled kernels, is in it.
    """
    import fake_accelerator
    import small_run

    module, options = RUNS[name]
    builder = __import__(module)
    size = 1 if module == "small_segmentation" else 8
    given = {"samples": 8, "chunk_size": size, "post_hoc": False, "ood": (), "calibrate": "off", **options}
    found = []
    with tempfile.TemporaryDirectory() as place, fake_accelerator.standing_in_for_cuda() as log:
        folder = Path(place)
        (small_run.write_noisy if name == "learned" else builder.write)(folder)
        for limit in (size, size, 3 * size):
            log.clear()
            try:
                small_run.evaluated(folder, device="auto", limit=limit, out=folder / f"{limit}.h5", **given)
            except Exception as error:
                return f"{type(error).__name__}: {error}"
            found.append({"kernels": log.kernels.total(), "waits": log.waits.total(), "copies": log.copies})
    _, one, three = found
    return {"run": dict(three), "chunk": {each: (three[each] - one[each]) / 2 for each in three}}


def of_checkout(checkout: Path, name: str) -> dict[str, Any] | str:
    """The counts of one run in a process of its own, which imports bnuq and the builders of this checkout: no run
    finds what another has left in the caches of the process."""
    paths = os.pathsep.join(map(str, (checkout, checkout / "tests" / "builders")))
    environment = os.environ | {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1", "TRITON_INTERPRET": "1"}
    with tempfile.TemporaryDirectory() as cache:
        environment |= {"CUDA_VISIBLE_DEVICES": "", "XDG_CACHE_HOME": cache}
        words = [sys.executable, __file__, "--here", "--only", name]
        child = subprocess.run(words, stdout=subprocess.PIPE, text=True, env=environment, cwd=checkout, check=False)
    if child.returncode:
        raise SystemExit(f"{checkout}: {name} ended with {child.returncode}")
    return json.loads(child.stdout.splitlines()[-1])


def table(counts: dict[str, dict[str, Any]]) -> str:
    """The counts of each checkout, before and after, as a table in Markdown."""
    heads = [f"{what} {per}" for per in ("a run", "a chunk") for what in ("kernels", "waits")]
    lines = ["| run | " + " | ".join(heads) + " |", "| --- |" + " ---: |" * len(heads)]
    for name in next(iter(counts.values())):
        found = [rows[name] for rows in counts.values()]
        cells = [
            " → ".join("–" if isinstance(each, str) else f"{each[per][what]:,g}" for each in found)
            for per in ("run", "chunk")
            for what in ("kernels", "waits")
        ]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    """Count, print the table, and write the file and the table of docs/measured/benchmarks.md."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--bnuq", type=Path, help="another checkout, which is counted first")
    parser.add_argument("--only", action="append", choices=RUNS, help="count this run alone; may be repeated")
    parser.add_argument("--out", type=Path, default=ROOT / "benchmarks" / "results" / "launches.json")
    parser.add_argument("--docs", action="store_true", help="write the table into docs/measured/benchmarks.md too")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)  # in this process
    options = parser.parse_args()
    names = options.only or list(RUNS)
    if options.here:
        warnings.simplefilter("ignore")
        print(json.dumps(counted(names[0])), flush=True)
        os._exit(0)  # at its usual end the process would free tensors of a device that is no longer there
    checkouts = ({"before": options.bnuq.resolve()} if options.bnuq else {}) | {"after": ROOT}
    counts: dict[str, dict[str, Any]] = {label: {} for label in checkouts}
    for name in names:
        for label, checkout in checkouts.items():
            counts[label][name] = of_checkout(checkout, name)
            print(f"{name}, {label}: {counts[label][name]}", flush=True)
    print(f"\n{table(counts)}")
    document = {"device": "fake accelerator", "torch": torch.__version__, "counts": counts}
    options.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    if options.docs:
        page = ROOT / "docs" / "measured" / "benchmarks.md"
        text = page.read_text(encoding="utf-8")
        head, tail = text[: text.index(BEGIN) + len(BEGIN)], text[text.index(END) :]
        page.write_text(f"{head}\n{table(counts)}\n{tail}", encoding="utf-8")


if __name__ == "__main__":
    main()
