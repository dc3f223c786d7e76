"""`make bench`: times bnuq against T plain forwards, typical hand-written loops, and TorchUncertainty.

README.md in this folder describes what is compared, and how.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent


def main(arguments: list[str] | None = None) -> None:
    """Run the requested benchmarks; write tables to the terminal, a JSON file, and a figure if matplotlib is
    installed."""
    options = _options(arguments)
    os.environ["OMP_NUM_THREADS"] = str(options.threads)  # before torch is imported, and for the processes it starts

    import torch
    from comparing import ROUND_SECONDS, ROWS, compare
    from drawing import Terminal, draw_figure, write_json
    from measuring import accelerator, file_name, machine
    from networks import AbsentError
    from targets import Extra, verdicts
    from whole import end_to_end, peaks, scaling

    torch.set_num_threads(options.threads)
    device = options.device
    names = options.only or (QUICK if options.quick else (*ROWS, *PARTS))
    if unknown := [name for name in names if name not in (*ROWS, *PARTS)]:
        sys.exit(f"--only {unknown[0]}: there is no such row; expected one of {', '.join((*ROWS, *PARTS))}.")
    minutes = options.minutes or (0.7 if options.quick else 15)
    shares = {name: ROWS[name].share for name in names if name in ROWS} | {"scaling": 2.0}
    second = 60 * minutes / sum(shares[name] for name in names if name in shares) if set(names) & set(shares) else 0.0
    min_rounds, max_rounds = (2, 3) if options.quick else (3, 15)
    unit = 0.25 if options.quick else ROUND_SECONDS

    about = machine(device)
    terminal = Terminal(about)
    rows, absent = {}, {}
    for name in names:
        if name not in ROWS:
            continue
        try:
            rows[name] = compare(
                ROWS[name],
                device=device,
                seconds=second * shares[name],
                min_rounds=min_rounds,
                max_rounds=max_rounds,
                unit=unit,
                gpu=accelerator(device),
            )
        except AbsentError as error:
            absent[name] = str(error)
            terminal.absent(name, str(error))
            continue
        terminal.row(rows[name])
    scaled, memory, run = [], [], None
    if "scaling" in names:
        scaled = scaling(seconds=second * shares["scaling"], device=device)
        terminal.scaling(scaled)
    if "memory" in names and device == "cpu":
        memory = peaks()
        terminal.memory(memory)
    if "evaluate" in names and device == "cpu":
        try:
            run = end_to_end()
            terminal.end_to_end(run)
        except AbsentError as error:
            absent["evaluate"] = str(error)
            terminal.absent("evaluate", str(error))
    extra = Extra(memory=tuple(peak.ratio for peak in memory), overhead=tuple(run.overhead) if run else ())
    judgements = verdicts(rows, extra, device)
    terminal.targets(judgements)

    whole_run = not (options.only or options.quick)
    out = options.out or HERE / "results" / f"{file_name(about)}{'' if whole_run else '.part'}.json"
    out.parent.mkdir(parents=True, exist_ok=True)
    settings = {"device": device, "threads": options.threads, "quick": options.quick, "rows": list(names)}
    write_json(
        out,
        machine=about,
        settings=settings,
        rows=rows,
        absent=absent,
        scaling=scaled,
        memory=memory,
        evaluate=run,
        targets=judgements,
    )
    terminal.print(f"Figures: {out}")
    if rows and importlib.util.find_spec("matplotlib"):
        draw_figure(out.with_suffix(".svg"), rows, about, device=device)
        terminal.print(f"Figure:  {out.with_suffix('.svg')}")


QUICK = ("resnet20", "mlp50-n32", "resnet20-dropout", "mlp50-dropout")
PARTS = ("scaling", "memory", "evaluate")


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks/run.py", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--quick", action="store_true", help="a minute: the small networks, few rounds")
    parser.add_argument("--only", action="append", metavar="NAME", help="this row alone; may be given again")
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--threads", type=int, default=1, metavar="K", help="threads of torch on the CPU (1)")
    parser.add_argument("--minutes", type=float, metavar="M", help="about how long the rounds may take (15)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="the JSON file; the figure lies beside it")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main()
