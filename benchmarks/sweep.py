"""The adaptive sweep against the full grid (the size and CPU time), and against a plain loop of its samples, without
scores: a mini-batch passes in training mode, and then all points."""

from __future__ import annotations

import argparse
import itertools
import json
import tempfile
import time
from pathlib import Path

import torch

from bnuq.config import Options, resolve_sweep
from bnuq.studies.sweep.compute import _networks, sweep

ROOT = Path(__file__).resolve().parent.parent
CONFIGS = {"fashion_cnn": "quickstart.toml", "diabetes_mlp": "regression.toml", "fmnist_mlp": "fmnist_mlp.toml"}


@torch.inference_mode()
def loop_seconds(runs: list, settings: object, draws: dict[int, int]) -> float:
    """The CPU seconds of a plain loop of so many draws of each size."""
    network, total = _networks(runs, settings)[0], 0.0  # type: ignore[arg-type]
    model, read, training = network.prepared.model, network.prepared.pipeline.evaluated, network._training
    sets = [*network.sets.values(), *([training.points] if training else [])]
    chunks = [chunk for points in sets for chunk in read(points, slice(0, len(points))).split(128)]
    norms = [layer for layer in model.modules() if isinstance(layer, torch.nn.modules.batchnorm._BatchNorm)]
    for size, count in draws.items():
        batch, start = read(network._train, slice(0, size)), time.process_time()
        for _ in range(3):
            for layer in norms:
                layer.train().momentum = 1.0
            model(batch)
            model.eval()
            for chunk in chunks:
                model(chunk)
        total += count * (time.process_time() - start) / 3
    return total


def main() -> None:
    """Sweep each network under each seed both ways, and print a line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", choices=CONFIGS)
    parser.add_argument("--configs", type=Path, default=ROOT / "sample_configs")
    for name, default in (("seeds", 5), ("samples", 32), ("limit", None)):
        parser.add_argument(f"--{name}", type=int, default=default)
    options = parser.parse_args()
    for name, seed in itertools.product(options.only or CONFIGS, range(options.seeds)):
        given = Options({"samples": options.samples, "seed": seed, "limit": options.limit})
        line, best = {"network": name, "seed": seed}, {}
        for way in ("full grid", "adaptive"):
            asked = {"full_grid": way == "full grid", "train_points": options.limit or 1000}
            runs, settings = resolve_sweep([str(options.configs / CONFIGS[name])], given, asked, folder=ROOT)
            with tempfile.TemporaryDirectory() as folder:
                start = time.process_time()
                found = sweep(runs, settings, out=Path(folder) / "sweep.h5")
            line[way], best[way] = time.process_time() - start, found.recommended
        draws = {point.batch_size: point.draw_sets * options.samples for point in found.points}
        line |= {"draws": draws, "stopped": found.stopped, "loop": loop_seconds(runs, settings, draws)}
        sizes = {way: choice and choice.batch_size for way, choice in best.items()}
        print(json.dumps(line | {"sizes": sizes, "within one error": best["full grid"].within}), flush=True)


if __name__ == "__main__":
    main()
