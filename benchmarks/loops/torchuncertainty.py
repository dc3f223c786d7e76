"""The same evaluation by TorchUncertainty, for a classifier: its wrappers for the samples, its routine for the metrics.

python benchmarks/loops/torchuncertainty.py CHECKPOINT NET.PY:FUNCTION --train NPZ --set NPZ --ood NPZ ...
"""

import argparse
import copy
import importlib.util
import logging
import warnings

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, RandomSampler, TensorDataset

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

warnings.filterwarnings("ignore")
logging.disable(logging.WARNING)
torch.manual_seed(0)
mean, std = (torch.tensor(values).view(1, -1, 1, 1) for values in (options.mean, options.std))


def read(file, limit=None):
    """Pictures and labels."""
    arrays = np.load(file)
    x = torch.from_numpy(arrays["x"][:limit])
    x = x if x.shape[1] in (1, 3) else x.permute(0, 3, 1, 2)
    return TensorDataset((x.float() / 255 - mean) / std, torch.from_numpy(arrays["y"][:limit]).long())


def augmented(pictures):
    """Pictures and labels of a mini-batch, each shifted by up to `--pad` pixels, and every other one flipped."""
    x, y = (torch.stack(values) for values in zip(*pictures, strict=True))
    size, padded = x.shape[-1], nn.functional.pad(x, [options.pad] * 4)
    for i, (top, left) in enumerate(torch.randint(2 * options.pad + 1, (len(x), 2)).tolist()):
        crop = padded[i, :, top : top + size, left : left + size]
        x[i] = crop.flip(-1) if torch.rand(()) < 0.5 else crop
    return x, y


import torchvision_operators  # noqa: E402

torchvision_operators.make_importable()
from torch_uncertainty import TUTrainer  # noqa: E402
from torch_uncertainty.methods.mc_dropout import mc_dropout  # noqa: E402
from torch_uncertainty.post_processing.mc_batch_norm import MCBatchNorm  # noqa: E402
from torch_uncertainty.routines import ClassificationRoutine  # noqa: E402

path, function = options.architecture.rsplit(":", 1)
spec = importlib.util.spec_from_file_location("net", path)
spec.loader.exec_module(module := importlib.util.module_from_spec(spec))
state = torch.load(options.checkpoint, map_location="cpu", weights_only=True)
state = state.get("state_dict", state)
model = getattr(module, function)()
model.load_state_dict({name.removeprefix("module."): value for name, value in state.items()})
model.eval()
reference = read(options.train)
order = RandomSampler(reference, num_samples=options.samples * options.batch_size)  # also if it has fewer pictures
train = DataLoader(reference, options.batch_size, sampler=order, collate_fn=augmented)
sets, ood = [read(file, options.limit) for file in options.set], DataLoader(read(options.ood, options.limit), 128)
classes = int(max(points.tensors[1].max() for points in sets)) + 1

for method in ["deterministic", *options.methods.split(",")]:
    network = copy.deepcopy(model)
    if method == "mcbn":
        network = MCBatchNorm(network, num_estimators=options.samples, mc_batch_size=options.batch_size)
        with torch.inference_mode():
            network.fit(train)
    elif method == "mcdo":
        network = mc_dropout(network, num_estimators=options.samples)
    elif method != "deterministic":
        parser.error(f"TorchUncertainty has no {method}")
    sampled = method != "deterministic"
    for number, points in enumerate(sets):
        routine = ClassificationRoutine(
            network.eval(),
            classes,
            is_ensemble=sampled,
            eval_ood=number == 0,
            ood_criterion="mutual_information" if sampled else "msp",
        )
        trainer = TUTrainer(accelerator="cpu", logger=False, enable_progress_bar=False, enable_model_summary=False)
        loaders = [DataLoader(points, 128), *([ood] if number == 0 else [])]
        print(method, trainer.test(routine, loaders, verbose=False))
