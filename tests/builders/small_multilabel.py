"""A tiny network with several labels per point: weights, data, run file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import small_run
import torch

LABELS, SAMPLES = 4, 8
RUN = small_run.RUN.replace(
    "train_batch_size", f'outputs = "multilabel"\narch_args = {{classes = {LABELS}}}\ntrain_batch_size'
)
RUN = RUN.replace("samples = 8", f'samples = {SAMPLES}\nmethods = ["mcbn", "mcdo"]').replace(
    "[sampling]", 'validation = "validation.npz"\n\n[sampling]'
)


def write(folder: Path) -> Path:
    """The tiny network with four outputs, and sets with 0/1 matrices: what its logits say, and some noise."""
    small_run.write(folder, text=RUN, classes=LABELS)
    random, model = np.random.default_rng(1), small_run.stored(folder, classes=LABELS)
    for name, source in (("train", "train"), ("test", "test"), ("validation", "train")):
        x = np.load(folder / f"{source}.npz")["x"][: 40 if name == "validation" else None]
        with torch.no_grad():
            z = model(torch.from_numpy(x)).numpy()
        y = z + 0.5 * z.std(axis=0) * random.normal(size=z.shape) > np.median(z, axis=0)
        np.savez(folder / f"{name}.npz", x=x, y=y.astype(np.int64), group=np.arange(len(x)) // 3)
    state = torch.load(folder / "model.pt", weights_only=True)
    state["7.weight"][2] *= -1  # one label is predicted the wrong way round
    torch.save(state, folder / "collapsed.pt")
    (folder / "collapsed.toml").write_text(RUN.replace("model.pt", "collapsed.pt"))
    return folder
