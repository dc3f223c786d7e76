"""What a practitioner would write instead of `bnuq evaluate`, for a classifier: samples, and five figures of them.

python benchmarks/loops/classification.py CHECKPOINT NET.PY:FUNCTION --train NPZ --set NPZ --ood NPZ ...
"""

import argparse
import importlib.util
import sys
import time

import numpy as np
import torch
from torch import nn

parser = argparse.ArgumentParser()
parser.add_argument("checkpoint")
parser.add_argument("architecture")
parser.add_argument("--train", required=True)
parser.add_argument("--set", action="append", required=True)  # the first is the test set
parser.add_argument("--ood", required=True)
parser.add_argument("--methods", default="mcbn")
parser.add_argument("--samples", type=int, required=True)
parser.add_argument("--batch-size", type=int, required=True)
parser.add_argument("--limit", type=int)
parser.add_argument("--mean", type=float, nargs="+", required=True)
parser.add_argument("--std", type=float, nargs="+", required=True)
parser.add_argument("--pad", type=int, required=True)
options = parser.parse_args()

torch.manual_seed(0)
mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (options.mean, options.std))


def read(file, limit=None):
    """Pictures and labels."""
    arrays = np.load(file)
    x = torch.from_numpy(arrays["x"][:limit])
    x = x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2)
    return (x.float() / 255 - mean) / std, torch.from_numpy(arrays["y"][:limit])


def augmented(batch):
    """Each picture shifted by up to `--pad` pixels, and every other one flipped."""
    size, padded = batch.shape[-1], nn.functional.pad(batch, [options.pad] * 4)
    result = torch.empty_like(batch)
    for i, (top, left) in enumerate(torch.randint(2 * options.pad + 1, (len(batch), 2)).tolist()):
        crop = padded[i, :, top : top + size, left : left + size]
        result[i] = crop.flip(-1) if torch.rand(()) < 0.5 else crop
    return result


def auroc(test, ood):
    """The share of pairs in which the OOD point scores higher."""
    scores = torch.cat([test, ood])
    _, inverse, count = scores.unique(return_inverse=True, return_counts=True)
    rank = (count.cumsum(0) - (count - 1) / 2)[inverse]  # ties share their mean rank
    return (rank[len(test) :].sum() - len(ood) * (len(ood) + 1) / 2) / (len(test) * len(ood))


path, function = options.architecture.rsplit(":", 1)
spec = importlib.util.spec_from_file_location("net", path)
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
state = state.get("state_dict", state)
model = getattr(module, function)()
model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
model.eval()
norms = [layer for layer in model.modules() if isinstance(layer, nn.modules.batchnorm._BatchNorm)]
dropouts = [layer for layer in model.modules() if isinstance(layer, nn.Dropout)]
running = [(layer.running_mean.clone(), layer.running_var.clone()) for layer in norms]
train = read(options.train)[0]
sets = [read(file, options.limit) for file in [*options.set, options.ood]]

with torch.inference_mode():
    for method in ["deterministic", *options.methods.split(",")]:
        samples = [[] for _ in sets]
        for _ in range(1 if method == "deterministic" else options.samples):
            for layer, (average, variance) in zip(norms, running, strict=True):
                layer.running_mean.copy_(average)
                layer.running_var.copy_(variance)
            if "mcbn" in method:  # one pass in training mode: the statistics are those of the mini-batch
                for layer in norms:
                    layer.train()
                    layer.momentum = 1.0
                model(augmented(train[torch.randperm(len(train))[: options.batch_size]]))
                for layer in norms:
                    layer.eval()
            for layer in dropouts:
                layer.train("mcdo" in method)
            before = time.process_time()
            for drawn, (x, _) in zip(samples, sets, strict=True):
                drawn.append(torch.cat([model(chunk) for chunk in x.split(128)]).softmax(-1))
            if method == "deterministic":
                print(f"plain {time.process_time() - before:.3f}", file=sys.stderr)  # CPU seconds of a pass of all sets
        information = []
        for drawn, (_, y) in zip(samples, sets, strict=True):
            p = torch.stack(drawn)
            average = p.mean(0)
            entropy = -average.xlogy(average).sum(-1)
            information.append(entropy + p.xlogy(p).sum(-1).mean(0) if len(p) > 1 else entropy)
            if drawn is samples[-1]:
                break  # out of distribution: no labels
            confidence, predicted = average.max(-1)
            right = (predicted == y).float()
            bins = (confidence * 15).long().clamp(max=14)
            gap = torch.zeros(15).index_add(0, bins, right - confidence).abs().sum() / len(y)
            pll = average[torch.arange(len(y)), y].clamp(min=1e-30).log().mean()
            print(
                f"{method}: accuracy {right.mean():.4f}, PLL {pll:.4f}, ECE {gap:.4f}, MI {information[-1].mean():.4f}"
            )
        print(f"{method}: AUROC {auroc(information[0], information[-1]):.4f}")
