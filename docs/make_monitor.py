"""`make monitor`: false alarms and power of `bnuq monitor` on real networks; writes docs/monitor.md.

Features of a few thousand points are computed once; then batches are drawn of them. Needs $BNUQ_TEST_DATA, the folder
that sample_configs/README.md describes. About ten minutes of CPU time; names of networks (cnn, resnet20, resnet56)
as arguments choose others than the first two.
"""

from __future__ import annotations

import io
import os
import sys
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from make_figures import DOCS, made_by, put, run_files
from PIL import Image
from scipy import stats

from bnuq.config import Named, Options, Run, resolve
from bnuq.data import Points
from bnuq.evaluation.datasets import limited, read_named
from bnuq.inspection.load import LoadedNetwork, load_network
from bnuq.metrics import certificates
from bnuq.monitoring.baseline import codes, split, watched_blocks
from bnuq.monitoring.features import Watch, features_of
from bnuq.monitoring.testing import Wealth, absorbed, compared
from bnuq.records.monitor import WatchedBlock
from bnuq.sampling.head import head
from bnuq.tasks import CLASSIFICATION

LEVEL, RESAMPLES, SIZES = 0.01, 199, (10, 20, 50, 100, 200)
FALSE, POWER, STREAMS, LONG = 1000, 50, 50, 30  # batches, batches, streams, batches in each
SHIFTED = 1000  # points of each shifted set
NETWORKS = {
    "cnn": ("Fashion-MNIST, CNN", "quickstart", "fashion-mnist/t10k-images-idx3-ubyte.gz", 4000, 6),
    "resnet20": ("CIFAR-10, ResNet-20", "cifar_resnet20", "cifar10/jpeg_test.zip", 2500, 3),
    "resnet56": ("CIFAR-10, ResNet-56", "cifar_resnet56", "cifar10/jpeg_test.zip", 2500, 3),
}
DIGITS = {"quickstart": "mnist/t10k-images-idx3-ubyte.gz"}


@dataclass(frozen=True)
class Seen:
    """What is known of a set: its coordinates, top probabilities, features of the last layer, and accuracy."""

    rows: np.ndarray
    top: np.ndarray
    features: np.ndarray
    accuracy: float

    def part(self, rows: np.ndarray) -> Seen:
        return replace(self, rows=self.rows[rows], top=self.top[rows], features=self.features[rows])


@dataclass
class Study:
    """A network with its reference, the points held out of it, and shifted sets by name."""

    name: str
    blocks: tuple[WatchedBlock, ...] = ()
    bag: Seen | None = None
    held_out: Seen | None = None
    shifted: dict[str, Seen] = field(default_factory=dict)
    bytes: int = 0

    def p_value(self, batch: np.ndarray, bag: np.ndarray, step: int) -> float:
        starts = [0, *np.cumsum([block.directions.shape[1] for block in self.blocks])[:-1]]
        layers = [number for number, block in enumerate(self.blocks) if block.kind == "layer"]
        return compared(batch, bag, starts, layers, resamples=RESAMPLES, seed=1, step=step).p_value


def main() -> None:
    """Look, draw, and write what came out."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make monitor needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    pack = Path(named).resolve()
    with run_files(pack) as place:
        studies = [studied(place, pack, *NETWORKS[name]) for name in sys.argv[1:] or ("cnn", "resnet20")]
    text = f"{made_by('make monitor')}\n\n" + "\n\n".join(map(section, studies))
    put(DOCS / "monitor.md", "monitor", text)


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def studied(place: Path, pack: Path, name: str, run_file: str, points: str, reference: int, missing: int) -> Study:
    """The coordinates of all sets of a network."""
    run = resolve(str(place / f"{run_file}.toml"), Options({"ood": ()}), folder=place.parent)
    network, study = load_network(run), Study(name)
    watch = Watch(network.model, CLASSIFICATION, network.example)

    def read(text: str) -> Points:
        return read_named(run, Named(str(pack / text), place), "test")

    every = read(points)
    order = np.random.default_rng(0).permutation(len(every))
    fitted_rows, kept_rows = split(reference, 0)
    looked = _Look(run, network, watch)
    features = looked.features(every.subset(order))
    fitted, kept = features[:reference][fitted_rows], features[:reference][kept_rows]
    study.blocks, bag = watched_blocks(fitted, kept, watch.blocks, 0)
    looked.blocks = study.blocks
    kept_rows = kept_rows[: len(bag)]
    study.bag = looked.at(every.subset(order[:reference][kept_rows]), kept[: len(bag)])
    others = every.subset(order[reference:])
    study.held_out = looked.at(others, features[reference:])
    some = limited(others, SHIFTED, 0)
    for title, changed in (
        ("JPEG, quality 75", jpeg(some, 75)),
        ("JPEG, quality 30", jpeg(some, 30)),
        ("brightness + 5 %", brighter(some, 0.05)),
    ):
        study.shifted[title] = looked.at(changed)
    if "jpeg" in points:
        study.shifted["another camera: lossless"] = looked.at(read("cifar10/lossless_test.npz"))
    study.shifted["other digits"] = looked.at(limited(read(DIGITS.get(run_file, "ood/pcbdigits32.npz")), SHIFTED, 0))
    assert others.targets is not None
    study.shifted["a class is missing"] = study.held_out.part(np.flatnonzero(others.targets != missing))
    assert network.train is not None
    study.shifted["the training set"] = looked.at(limited(network.train, SHIFTED, 0))
    return study


@dataclass
class _Look:
    run: Run
    network: LoadedNetwork
    watch: Watch
    blocks: tuple[WatchedBlock, ...] = ()

    def features(self, points: Points) -> np.ndarray:
        return features_of(self.watch, self.network.pipeline, points)

    def at(self, points: Points, features: np.ndarray | None = None) -> Seen:
        """What is known of these points."""
        features = self.features(points) if features is None else features
        columns = {block.name: block.columns for block in self.watch.blocks}
        rows = np.concatenate([codes(features[:, columns[block.name]], block) for block in self.blocks], axis=1)
        p = features[:, columns["outputs"]]
        parts = (slice(start, start + 250) for start in range(0, len(points), 250))
        last = [head(self.network.model, self.network.pipeline.evaluated(points, part)).features for part in parts]
        known = points.targets is not None and points.targets.max() < p.shape[1]
        accuracy = float((p.argmax(1) == points.targets).mean()) if known else float("nan")
        return Seen(rows, p.max(1), np.concatenate([part.numpy() for part in last]), accuracy)


def jpeg(points: Points, quality: int) -> Points:
    """The pictures, compressed once more."""
    return _changed(points, [_compressed(picture, quality) for picture in _pictures(points)])


def _compressed(picture: np.ndarray, quality: int) -> np.ndarray:
    buffer = io.BytesIO()
    Image.fromarray(picture.squeeze()).save(buffer, "JPEG", quality=quality)
    return np.asarray(Image.open(buffer)).reshape(picture.shape)


def brighter(points: Points, by: float) -> Points:
    """The pictures, with a share of the range added to all pixels."""
    return _changed(points, [np.clip(picture + 255.0 * by, 0, 255).astype(np.uint8) for picture in _pictures(points)])


def _pictures(points: Points) -> np.ndarray:
    return np.moveaxis(np.round(255 * points.raw(slice(None))).astype(np.uint8), 1, -1)


def _changed(points: Points, pictures: list[np.ndarray]) -> Points:
    return replace(points, inputs=np.ascontiguousarray(np.moveaxis(np.stack(pictures), -1, 1)))


# ── drawing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def section(study: Study) -> str:
    """What was measured of a network."""
    bag, held_out = study.bag, study.held_out
    assert bag is not None and held_out is not None
    random = np.random.default_rng(0)
    false = []
    for size in (20, 200):
        found = np.array([study.p_value(drawn(held_out, size, random).rows, bag.rows, step) for step in range(FALSE)])
        for level in (0.05, LEVEL):
            false.append(f"n = {size}, {100 * level:g} %: {share(int((found <= level).sum()), FALSE)}")
    reached = sum(stream(study, held_out, None, random) is not None for _ in range(STREAMS))
    laws = [100 * block.law for block in study.blocks if block.kind == "layer"]
    intro = (
        f"**{study.name}**: {len(study.blocks)} blocks, {len(bag.rows):,} points kept, {len(held_out.rows):,} "
        f"held out, accuracy {100 * held_out.accuracy:.1f} %. False alarms of {FALSE:,} held-out batches: "
        f"{'; '.join(false)}. Streams of {LONG} held-out batches of 50 with an alarm at 5 %: "
        f"{share(reached, STREAMS)}. Resampled batches outside the 95 % region of the normal law: "
        f"{np.min(laws):.0f} to {np.max(laws):.0f} % by layer, median {np.median(laws):.0f} %."
    )
    head_row = f"| shift | accuracy | {' | '.join(f'n = {size}' for size in SIZES)} | batches to the alarm |"
    lines = [head_row, f"|{' --- |' * (len(SIZES) + 3)}"]
    lines += [row(study, title, seen, random) for title, seen in study.shifted.items()]
    return f"{intro}\n\n" + "\n".join(lines)


def row(study: Study, title: str, seen: Seen, random: np.random.Generator) -> str:
    """How often a shift is found at 1 %: by the monitor / by KS on the top probability / by MMD on features; and after
    how many shifted batches of 50 a stream of ten clean ones raises the alarm."""
    assert study.bag is not None and study.held_out is not None
    cells = []
    for size in SIZES:
        found = np.zeros(3)
        for step in range(POWER):
            batch = drawn(seen, size, random)
            p = (
                study.p_value(batch.rows, study.bag.rows, step),
                stats.ks_2samp(batch.top, study.bag.top, method="asymp").pvalue,
                mmd(batch.features, study.bag.features[:300], random),
            )
            found += np.array(p) <= LEVEL
        cells.append(" / ".join(f"{100 * count / POWER:.0f}" for count in found))
    waits = [stream(study, study.held_out, seen, random) for _ in range(10)]
    known = [wait for wait in waits if wait is not None]
    wait = f"{np.median(known):.0f}" if len(known) > 5 else f"{len(known)} of 10 within {LONG - 10}"
    accuracy = "" if np.isnan(seen.accuracy) else f"{100 * seen.accuracy:.1f} %"
    accuracy = "as before" if "missing" in title else accuracy
    return f"| {title} | {accuracy} | {' | '.join(cells)} | {wait} |"


def stream(study: Study, clean: Seen, shifted: Seen | None, random: np.random.Generator) -> int | None:
    """The number of batches of 50 after the change with which the alarm came, None if it never did: without a change at
    a level of 5 %, or after ten clean batches at 1 %."""
    assert study.bag is not None
    bag, wealth, seed = study.bag.rows, Wealth(), int(random.integers(2**31))
    for step in range(LONG):
        batch = drawn(clean if shifted is None or step < 10 else shifted, 50, random).rows
        wealth = wealth.after(study.p_value(batch, bag, seed + step))
        if wealth.e_value >= (20 if shifted is None else 100):
            return step - 9
        bag = absorbed(bag, batch, most=4 * len(study.bag.rows), seed=seed, step=step)
    return None


def drawn(seen: Seen, size: int, random: np.random.Generator) -> Seen:
    return seen.part(random.choice(len(seen.rows), size, replace=False))


def share(count: int, of: int) -> str:
    low, high = certificates.exact_interval(count, of)
    return f"{100 * count / of:.1f} % ({100 * low:.1f}–{100 * high:.1f})"


def mmd(batch: np.ndarray, reference: np.ndarray, random: np.random.Generator) -> float:
    """The p-value of the maximum mean discrepancy with a Gaussian kernel of the median distance, by permutation.

    Source: Gretton et al. 2012, A Kernel Two-Sample Test; on features: Rabanser et al. 2019.
    """
    rows = np.concatenate([batch, reference]).astype(np.float64)
    squares = (rows**2).sum(1)
    distances = np.maximum(squares[:, None] + squares - 2 * rows @ rows.T, 0.0)
    kernel = np.exp(-distances / np.median(distances))
    total, size = len(rows), len(batch)
    sides = np.full((RESAMPLES + 1, total), -1 / (total - size))
    sides[0, :size] = 1 / size
    for number in range(1, RESAMPLES + 1):
        sides[number, random.choice(total, size, replace=False)] = 1 / size
    values = np.einsum("ij,ij->i", sides @ kernel, sides)
    return float((values >= values[0] - 1e-12).mean())


if __name__ == "__main__":
    main()
