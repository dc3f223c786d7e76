"""Make the demo: cut its data sets out of the published files, train its network, save it and a part of each set.

    python docs/make_demo.py --data-root DATA

DATA holds `fashion-mnist/` and `mnist/`, each with the published `*-ubyte.gz` files (of MNIST only the test images
and labels are read). Takes a few minutes on one CPU core. Seeds are fixed and one thread is used, so the same
version of torch on the same kind of processor gives the same network; elsewhere the last digits may differ.
"""

import argparse
import gzip
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.demo.net import small_cnn

MEAN, STD = 0.2860, 0.3530  # Fashion-MNIST's training pixels, scaled to 0-1
PAD, CROP = 2, 28
BATCH_SIZE = 64
EPOCHS = 40
PEAK_LEARNING_RATE = 0.05
WEIGHT_DECAY = 1e-4
SEED = 0
DEMO = Path(__file__).resolve().parent.parent / "bnuq" / "demo"
KEPT = {"fashion_train": 1000, "fashion_validation": 600}  # points, of a package of 1.5 MB


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-root", type=Path, required=True, help="folder with fashion-mnist/ and mnist/")
    parser.add_argument("--out", type=Path, default=DEMO, help="where to write (default: bnuq/demo)")
    arguments = parser.parse_args()

    torch.set_num_threads(1)
    torch.use_deterministic_algorithms(True)
    torch.manual_seed(SEED)

    sets = cut_sets(arguments.data_root)
    arguments.out.mkdir(parents=True, exist_ok=True)
    for name, (x, y) in sets.items():
        kept = KEPT.get(name, len(x))
        save(arguments.out / f"{name}.npz", x=x[:kept], y=y[:kept])

    model = small_cnn()
    train(model, *sets["fashion_train"])
    torch.save(model.state_dict(), arguments.out / "fashion_cnn.pt")

    for name in ("fashion_train", "fashion_validation", "fashion_test"):
        accuracy, nll = score(model, *sets[name])
        print(f"{name:20s} accuracy {accuracy:.4f}   NLL {nll:.4f}")


def cut_sets(data_root: Path) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """The four data sets, images as uint8 of shape (n, 1, 28, 28), labels as int64. No image is in two of them."""
    fashion, digits = data_root / "fashion-mnist", data_root / "mnist"
    x, y = read_set(fashion, "train")
    x_test, y_test = read_set(fashion, "t10k")
    x_digits, y_digits = read_set(digits, "t10k")
    return {
        "fashion_train": (x[:6000], y[:6000]),
        "fashion_validation": (x[6000:7000], y[6000:7000]),  # never trained on
        "fashion_test": (x_test[::10], y_test[::10]),
        "mnist": (x_digits[::10], y_digits[::10]),
    }


def save(path: Path, **arrays: np.ndarray) -> None:
    """An npz file as numpy reads it, compressed by LZMA: an eighth smaller than numpy's own."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            member = zipfile.ZipInfo(f"{name}.npy")  # of a fixed date
            member.compress_type = zipfile.ZIP_LZMA
            with archive.open(member, "w") as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def read_set(folder: Path, part: str) -> tuple[np.ndarray, np.ndarray]:
    images = read_idx(folder / f"{part}-images-idx3-ubyte.gz")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte.gz")
    return images[:, None], labels.astype(np.int64)


def read_idx(path: Path) -> np.ndarray:
    """The array in an idx file of unsigned bytes: two zeros, type 8, the number of axes, their lengths, the values."""
    content = gzip.decompress(path.read_bytes())
    zeros, kind, axes = struct.unpack_from(">HBB", content)
    if (zeros, kind) != (0, 8):
        raise SystemExit(f"{path}: not an idx file of unsigned bytes")
    shape = struct.unpack_from(f">{axes}I", content, offset=4)
    return np.frombuffer(content, dtype=np.uint8, offset=4 + 4 * axes).reshape(shape)


def train(model: nn.Module, x: np.ndarray, y: np.ndarray) -> None:
    """Nesterov SGD on shuffled, augmented full batches; the learning rate rises, then falls to nothing."""
    pixels, labels = torch.tensor(x) / 255, torch.tensor(y)
    batches = len(pixels) // BATCH_SIZE  # the incomplete last one is dropped
    optimizer = torch.optim.SGD(
        model.parameters(), lr=PEAK_LEARNING_RATE, momentum=0.9, nesterov=True, weight_decay=WEIGHT_DECAY
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=PEAK_LEARNING_RATE, total_steps=EPOCHS * batches, pct_start=0.2
    )
    model.train()
    started = time.perf_counter()
    for epoch in range(EPOCHS):
        losses = 0.0
        for chosen in torch.randperm(len(pixels))[: batches * BATCH_SIZE].split(BATCH_SIZE):
            loss = F.cross_entropy(model(normalize(augment(pixels[chosen]))), labels[chosen])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            losses += loss.item()
        elapsed = time.perf_counter() - started
        print(f"epoch {epoch + 1:2d}/{EPOCHS}   loss {losses / batches:.4f}   {elapsed:.0f} s", flush=True)


def augment(pixels: Tensor) -> Tensor:
    """Pad with black, crop at random, mirror about half of the images."""
    padded = F.pad(pixels, (PAD, PAD, PAD, PAD))
    n, _, height, width = padded.shape
    top = torch.randint(height - CROP + 1, (n, 1))
    left = torch.randint(width - CROP + 1, (n, 1))
    rows = top + torch.arange(CROP)
    columns = left + torch.arange(CROP)
    columns = torch.where(torch.rand(n, 1) < 0.5, columns.flip(1), columns)
    return padded[torch.arange(n)[:, None, None], :, rows[:, :, None], columns[:, None, :]].permute(0, 3, 1, 2)


def normalize(pixels: Tensor) -> Tensor:
    return (pixels - MEAN) / STD


@torch.no_grad()
def score(model: nn.Module, x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """Accuracy and mean negative log-likelihood of the deterministic network, on images as they are."""
    model.eval()
    logits, labels = model(normalize(torch.tensor(x) / 255)), torch.tensor(y)
    return (logits.argmax(1) == labels).double().mean().item(), F.cross_entropy(logits, labels).item()


if __name__ == "__main__":
    main()
