"""MC batch normalisation of the CamVid network by a plain loop: one pass in training mode for each draw, then a pass of
every image with the statistics of that draw. Prints accuracy, mean IoU, MI and the pixel AUROC of test against OOD, and
on standard error the CPU seconds of a pass of all images.

python benchmarks/loops/segmentation.py CHECKPOINT --architecture camvid_segnet.py --train DIR --test DIR --masks DIR
    --ood FILE.npz [--limit 20] [--samples 8] [--batch-size 10]
"""

import argparse
import json
import runpy
import sys
import time
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn
from torch.nn import functional

CLASSES, IGNORE = 11, 11
MEAN, STD = (torch.tensor(values)[:, None, None] for values in ([0.40, 0.41, 0.42], [0.3, 0.3, 0.3]))


def images(folder: Path, limit: int | None = None) -> torch.Tensor:
    files = sorted(folder.iterdir())[:limit]
    return torch.stack([torch.from_numpy(np.array(Image.open(file)).transpose(2, 0, 1)) / 255 for file in files])


def draw_statistics(model: nn.Module, batch: torch.Tensor) -> None:
    """Give every BatchNorm the statistics of this mini-batch."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.train()
            module.reset_running_stats()
            module.momentum = None
    model(batch)
    model.eval()


def auroc(inside: torch.Tensor, outside: torch.Tensor) -> float:
    scores = np.concatenate([inside.numpy().ravel(), outside.numpy().ravel()])
    _, place, count = np.unique(scores, return_inverse=True, return_counts=True)
    ranks = (np.cumsum(count) - (count - 1) / 2)[place]
    n, m = inside.numel(), outside.numel()
    return (ranks[n:].sum() - m * (m + 1) / 2) / (n * m)


def evaluate(options: argparse.Namespace) -> dict[str, float]:
    model = runpy.run_path(str(options.architecture))["segnet"]()
    model.load_state_dict(torch.load(options.checkpoint, weights_only=True))
    model.eval()
    train, test = images(options.train), (images(options.test, options.limit) - MEAN) / STD
    masks = np.stack([np.array(Image.open(file)) for file in sorted(options.masks.iterdir())[: options.limit]])
    ood = torch.from_numpy(np.load(options.ood)["x"][: options.limit].transpose(0, 3, 1, 2)) / 255
    ood = (functional.interpolate(ood, test.shape[2:], mode="bilinear", antialias=True) - MEAN) / STD
    points, random = torch.cat([test, ood]), np.random.default_rng(options.seed)
    p, entropy, plain = 0.0, 0.0, 0.0
    for _ in range(options.samples):
        rows = random.choice(len(train), options.batch_size, replace=False)
        batch = torch.stack([train[row].flip(-1) if random.random() < 0.5 else train[row] for row in rows])
        draw_statistics(model, (batch - MEAN) / STD)
        log_probabilities = []
        for chunk in points.split(4):
            before = time.process_time()
            logits = model(chunk)
            plain += (time.process_time() - before) / options.samples
            log_probabilities.append(functional.log_softmax(logits, 1))
        log_p = torch.cat(log_probabilities)
        p = p + log_p.exp() / options.samples
        entropy = entropy - (log_p.exp() * log_p).sum(1) / options.samples
    print(f"plain {plain:.3f}", file=sys.stderr)
    information = -(p * p.clamp_min(1e-30).log()).sum(1) - entropy
    scored, truth = torch.from_numpy(masks != IGNORE), torch.from_numpy(masks.astype(np.int64))
    truth, predicted = truth[scored], p.argmax(1)[: len(test)][scored]
    table = torch.bincount(truth * CLASSES + predicted, minlength=CLASSES**2).view(CLASSES, CLASSES).double()
    iou = table.diag() / (table.sum(0) + table.sum(1) - table.diag())
    inside, outside = information[: len(test)][scored], information[len(test) :]
    return {
        "accuracy": float(table.diag().sum() / table.sum()),
        "mean_iou": float(iou.nanmean()),
        "mutual_information": float(inside.mean()),
        "pixel_auroc": float(auroc(inside, outside)),
    }


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n\n")[0])
    parser.add_argument("checkpoint", type=Path)
    for name in ("architecture", "train", "test", "masks", "ood"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    for name, default in {"limit": 20, "samples": 8, "batch-size": 10, "seed": 0}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    with torch.inference_mode():
        print(json.dumps(evaluate(parser.parse_args())))
