"""`make bench-gpu`: what only a GPU can tell of bnuq, in nine minutes: is it right there, how fast, and why not faster.

    python benchmarks/gpu.py --device cuda
    python benchmarks/gpu.py --device cpu --tiny      # tries the recipe out, without a GPU

Each part has a budget of seconds. A part that fails, or has used its budget up, says so, and the next one begins; what
one contestant raises costs its line alone. The results are written after every part.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import traceback
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
BUDGETS = {  # seconds
    "about": 15, "right": 75, "fast": 170, "profile": 25, "masks": 20, "waits": 15, "memory": 20, "whole": 200,
}  # fmt: skip
DECIDES = {
    "about": "The ceilings of the machine, and of copies to it.",
    "right": "The networks of the tests in float64 against the CPU; rounding of statistics and of the plan.",
    "fast": "Samples × points a second beside plain forwards and TorchUncertainty in the same arithmetic; what "
    "compiled kernels and CUDA graphs would save.",
    "profile": "Which kernels the time of a chunk of ResNet-50 goes to.",
    "masks": "Dropout: the same as on the CPU, bit by bit, and its cost; sums over the pixels of a segmentation.",
    "waits": "How often the host waits for the device, as torch counts it.",
    "memory": "The estimate of memory against what was taken.",
    "whole": "`bnuq evaluate` from start to finish.",
}


@dataclass
class Part:
    """What one part measured: `lines` with a title and facts, and what `failed`. `error` where the part stopped."""

    budget: float
    ends: bool = True  # once the budget is used up
    seconds: float = 0.0
    lines: list[dict[str, Any]] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    error: str | None = None

    def __post_init__(self) -> None:
        self._begun = time.perf_counter()

    def say(self, title: str, **facts: Any) -> None:
        """Print and keep a measurement."""
        self.lines.append({"what": title, **facts})
        print(f"  {title:56}", *(f"{name} {_shown(value)}" for name, value in facts.items()), sep="  ", flush=True)

    def each(self, items: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
        """The items, as long as there is time for a further one."""
        for number, (name, item) in enumerate(items.items()):
            if number and self.ends and time.perf_counter() - self._begun > self.budget:
                self.say(f"{name}: left out, the time is up")
                continue
            yield name, item

    @contextmanager
    def attempt(self, title: str) -> Iterator[None]:
        """Where the block fails, say so and go on after it."""
        try:
            yield
        except Exception as error:
            self.failed.append(title)
            self.say(f"{title}: failed", why=_shortened(error))
            traceback.print_exc(limit=6)

    def end(self) -> None:
        self.seconds = round(time.perf_counter() - self._begun, 1)


def main(arguments: list[str] | None = None) -> None:
    """Run the requested parts; print their lines, and write them as JSON and as Markdown."""
    options = _options(arguments)
    names = options.only.split(",") if options.only else [*BUDGETS]
    if unknown := [name for name in names if name not in BUDGETS]:
        sys.exit(f"--only {unknown[0]}: there is no such part; expected some of {', '.join(BUDGETS)}.")
    sys.path[:0] = [str(HERE), str(HERE.parent), str(HERE.parent / "tests" / "builders")]
    import torch

    if options.device == "cuda" and not torch.cuda.is_available():
        sys.exit("--device cuda: torch sees no GPU here. `--device cpu --tiny` tries the recipe out.")
    import gpu_parts
    from contestants import torch_uncertainty_version
    from measuring import machine

    import bnuq

    bench = gpu_parts.Bench(torch.device(options.device), tiny=options.tiny)
    about = machine(options.device) | {
        "bnuq": bnuq.__version__,
        "torch_uncertainty": torch_uncertainty_version() or "not installed",
    }
    out = (
        options.out
        or HERE / "results" / "gpu" / f"{_file_name(about)}{'.part' if options.only or options.tiny else ''}.json"
    )
    out.parent.mkdir(parents=True, exist_ok=True)
    parts = {}
    for name in names:
        print(f"{name} ({BUDGETS[name]} s): {DECIDES[name]}", flush=True)
        parts[name] = part = Part(BUDGETS[name], ends=not options.tiny)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                gpu_parts.PARTS[name](bench, part)
        except Exception as error:
            part.error = _shortened(error)
            traceback.print_exc(limit=6)
        part.end()
        print(f"  ({part.seconds} s)\n", flush=True)
        record = {"machine": about, "settings": {"device": options.device, "tiny": options.tiny}}
        record["parts"] = {name: asdict(part) for name, part in parts.items()}
        out.write_text(json.dumps(record, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
        out.with_suffix(".md").write_text(markdown(record), encoding="utf-8")
    print(f"{out}\n{out.with_suffix('.md')}")
    if any(part.error or part.failed for part in parts.values()):
        sys.exit(1)


def markdown(record: Mapping[str, Any]) -> str:
    """The record as a page: the machine, and the lines of each part."""
    text = ["# bnuq on a GPU", "", ", ".join(f"{key} {value}" for key, value in record["machine"].items() if value)]
    if record["settings"]["tiny"]:
        text += ["", "**Tiny networks, to try the recipe out: no figure here says anything about speed.**"]
    for name, part in record["parts"].items():
        text += ["", f"## {name}", "", f"{DECIDES[name]} {part['seconds']} s of {part['budget']}.", ""]
        for line in part["lines"]:
            facts = ", ".join(f"{key} {_shown(value)}" for key, value in line.items() if key != "what")
            text.append(f"- {line['what']}{': ' if facts else ''}{facts}")
        if part["error"]:
            text.append(f"- stopped by {part['error']}")
    return "\n".join(text) + "\n"


def _shortened(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:300]}"


def _shown(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/gpu.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    parser.add_argument(
        "--tiny", action="store_true", help="small networks: tries the recipe out, whatever time it takes"
    )
    parser.add_argument("--only", metavar="PART,…", help=f"these parts alone: {', '.join(BUDGETS)}")
    parser.add_argument("--out", type=Path, metavar="FILE.json", help="the results; a page lies beside them")
    return parser.parse_args(arguments)


def _file_name(about: Mapping[str, Any]) -> str:
    text = str(about.get("gpu") or f"{about['cpu']} {about['cores']} cores").lower()
    return "-".join("".join(c if c.isalnum() else " " for c in text).split())


if __name__ == "__main__":
    main()
