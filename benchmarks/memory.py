"""Prints the peak memory of a contestant above the network and its points; run in a separate process each time.

python benchmarks/memory.py NETWORK CONTESTANT '{"points": 256, "samples": 8, "batch_size": 32, "batch": 128}'
"""

from __future__ import annotations

import json
import sys

import torch
from contestants import Bnuq, Job, Plain, SwapLoop
from measuring import Peak
from networks import NETWORKS, load

CONTESTANTS = {
    "plain": Plain,
    "bnuq": Bnuq,
    "bnuq_bfloat16": lambda job: Bnuq(job, precision="bfloat16"),
    "swap_loop": SwapLoop,
}


def main(network: str, contestant: str, sizes: dict[str, int]) -> None:
    """Draw, then compute all passes, and print the peak in bytes."""
    torch.set_num_threads(1)
    samples, size = sizes["samples"], sizes["batch_size"]
    loaded = load(NETWORKS[network], points=sizes["points"], reference=samples * size)
    job = Job(
        loaded.model,
        loaded.points,
        samples=samples,
        batch=sizes["batch"],
        chunk=sizes["chunk"],
        batches=loaded.reference.unflatten(0, (samples, size)),
    )
    with torch.inference_mode():
        loaded.model(loaded.points[:1])  # excludes what torch allocates at its first forward
    peak = Peak()
    running = CONTESTANTS[contestant](job)
    running.draw()
    running.passes()
    print(json.dumps(peak.bytes()))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], json.loads(sys.argv[3]))
