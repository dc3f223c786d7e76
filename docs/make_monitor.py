"""`make monitor`: false alarms and power of `bnuq monitor` on five networks; writes docs/measured/monitor.md.

Features of all points are computed once; then batches are drawn of them. What lies in docs/monitor-NAME.json is not
computed again. Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About seven minutes of CPU
time; an argument names one network, which is only measured.
"""

from __future__ import annotations

import io
import json
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
from make_figures import DOCS, MEASURED, made_by, put, run_files
from PIL import Image
from scipy import stats

from bnuq.config import Named, Options, Run, resolve
from bnuq.data import Points
from bnuq.evaluation.datasets import limited, read_named
from bnuq.metrics import certificates
from bnuq.sampling.head import head
from bnuq.sampling.interception import forward, undisturbed
from bnuq.studies.inspect.load import LoadedNetwork, load_network
from bnuq.studies.monitor.baseline import codes, split, watched_blocks
from bnuq.studies.monitor.features import Watch, features_of
from bnuq.studies.monitor.program import LEVELS as OF_DRIFT
from bnuq.studies.monitor.program import Law, law_of, threshold, thresholds
from bnuq.studies.monitor.record import STEPS, WatchedBlock
from bnuq.studies.monitor.testing import Wealth, absorbed, compared
from bnuq.tasks import CLASSIFICATION, REGRESSION, SEGMENTATION, Task

LEVEL, LEVELS = 0.01, (0.05, 0.01)
RESAMPLES, OF_STREAMS = 99, 199  # random batches for a p-value, and for one of a stream
FALSE, POWER, STREAMS, LONG = 1000, 50, 20, 30  # batches, batches, streams, batches in each
DRIFTS = 2000  # batches whose exported score is compared with its thresholds
WAITS = 4  # streams in which a shift comes
SHIFTED = 1000  # points of each shifted set
IMAGES, FEW = (10, 20, 50, 100, 200), (5, 10, 20, 40)  # points of a batch


@dataclass(frozen=True)
class Network:
    """A network, its points of which so many are the reference, and a class that is once left out. Where points are
    few, they are divided in several ways, from which batches are drawn in turn."""

    title: str
    run_file: str
    points: tuple[str, ...]
    reference: int
    limit: int = 10_000
    task: Task = CLASSIFICATION
    missing: int | None = None
    digits: str = ""
    divisions: int = 1
    sizes: tuple[int, ...] = IMAGES
    intro: str = ""


CIFAR = {
    "points": ("data/cifar10/jpeg_test.zip",),
    "reference": 2000,
    "limit": 3500,
    "missing": 3,
    "digits": "ood/pcbdigits32.npz",
}
NETWORKS = {
    "cnn": Network(
        "Fashion-MNIST, CNN",
        "quickstart",
        ("data/fashion-mnist/t10k-images-idx3-ubyte.gz",),
        4000,
        missing=6,
        digits="mnist/t10k-images-idx3-ubyte.gz",
    ),
    "resnet20": Network("CIFAR-10, ResNet-20", "cifar_resnet20", **CIFAR),
    "resnet56": Network("CIFAR-10, ResNet-56", "cifar_resnet56", **CIFAR),
    "camvid": Network(
        "CamVid, segmentation",
        "camvid",
        ("data/camvid/train:data/camvid/trainannot", "data/camvid/test:data/camvid/testannot"),
        120,
        task=SEGMENTATION,
        divisions=20,
        sizes=FEW,
        intro="60 test images and 120 that it was trained on",
    ),
    "regression": Network(
        "Regression, diabetes",
        "regression",
        ("regression/diabetes_test.csv", "regression/diabetes_validation.csv"),
        120,
        task=REGRESSION,
        divisions=20,
        sizes=FEW,
        intro="the patients of the test and the validation set",
    ),
}


@dataclass(frozen=True)
class Seen:
    """What is known of a set: its features, one number that a univariate test looks at (the top probability, of
    pixels its mean; or the prediction), the features of the last layer (of pixels the mean probabilities), and what
    each point adds to accuracy, or to the mean square error."""

    features: np.ndarray
    univariate: np.ndarray
    last: np.ndarray
    right: np.ndarray
    rows: np.ndarray = field(default_factory=lambda: _NONE)

    def part(self, rows: np.ndarray) -> Seen:
        return Seen(**{key: values[rows] if values.size else values for key, values in vars(self).items()})

    @property
    def quality(self) -> float:
        return float(np.mean(self.right))


@dataclass(frozen=True)
class Division:
    """A reference, as a baseline keeps it, the points held out of it, and shifted sets by name."""

    blocks: tuple[WatchedBlock, ...]
    bag: Seen
    held_out: Seen
    shifted: dict[str, Seen]

    @cached_property
    def starts(self) -> list[int]:
        return [0, *np.cumsum([block.directions.shape[1] for block in self.blocks]).tolist()[:-1]]

    def p_value(self, batch: np.ndarray, bag: np.ndarray, step: int, resamples: int = RESAMPLES) -> float:
        layers = [number for number, block in enumerate(self.blocks) if block.kind == "layer"]
        return compared(batch, bag, self.starts, layers, resamples=resamples, seed=1, step=step).p_value


def main() -> None:
    """Look, draw, and write what came out."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make monitor needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    pack = Path(named).resolve()
    with run_files(pack) as place:
        found = {name: measured(name, place) for name in sys.argv[1:] or NETWORKS}
    if not sys.argv[1:]:
        text = [made_by("make monitor"), rates(found), *(section(name, of) for name, of in found.items())]
        put(MEASURED / "monitor.md", "monitor", "\n\n".join(text))


def measured(name: str, place: Path) -> dict[str, Any]:
    """What was found of a network, now or earlier."""
    file = DOCS / f"monitor-{name}.json"
    if not file.is_file():
        file.write_text(json.dumps(drawn_of(NETWORKS[name], divided(NETWORKS[name], place)), indent=1))
    return json.loads(file.read_text())


# ── looking ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def divided(network: Network, place: Path) -> list[Division]:
    """The coordinates of all sets of a network, once for each division of its points."""
    run = resolve(str(place / f"{network.run_file}.toml"), Options({"ood": ()}), folder=place.parent)
    loaded = load_network(run)
    looked = _Look(network, place, run, loaded, Watch(loaded.model, network.task, loaded.example))
    every = limited(looked.read(_together(network.points, place)), network.limit, 0)
    seen, targets, random = looked.at(every), every.targets, np.random.default_rng(0)
    orders = [random.permutation(len(every)) for _ in range(network.divisions)]
    divisions, others = [], [np.sort(order[network.reference :]) for order in orders]
    for number, order in enumerate(orders):
        fitted, kept = (order[rows] for rows in split(network.reference, number))
        blocks, bag = watched_blocks(seen.features[fitted], seen.features[kept], looked.watch.blocks, number)
        known = replace(seen.part(kept[: len(bag)]), rows=bag, features=_NONE)
        divisions.append(Division(blocks, known, looked.coded(seen.part(others[number]), blocks), {}))
    del seen
    changed = np.sort(random.choice(others[0], SHIFTED, replace=False)) if len(orders) == 1 else np.arange(len(every))
    for title, points in looked.changed(every.subset(changed)):
        new = looked.at(points)
        for division, held_out in zip(divisions, others, strict=True):
            division.shifted[title] = looked.coded(new.part(np.isin(changed, held_out)), division.blocks)
    for title, points in looked.other_sets():
        new = looked.at(points)
        for division in divisions:
            division.shifted[title] = looked.coded(new, division.blocks)
    for division, held_out in zip(divisions, others, strict=True):
        if network.missing is not None:
            rest = np.asarray(targets)[held_out] != network.missing
            division.shifted["a class is missing"] = division.held_out.part(rest)
        if network.task is SEGMENTATION:
            trained = {file.name for file in (place / "data/camvid/train").iterdir()}
            known = np.array([Path(str(name)).name in trained for name in np.asarray(every.names)[held_out]])
            division.shifted["the training images alone"] = division.held_out.part(known)
            division.shifted["the test images alone"] = division.held_out.part(~known)
    return divisions


_NONE = np.zeros((0, 0))


def _together(references: Sequence[str], place: Path) -> str:
    """One reference for the points of all: tables one below the other, pictures and masks in folders of links."""
    if len(references) == 1:
        return str(place / references[0])
    if references[0].endswith(".csv"):
        texts = [(place / reference).read_text().splitlines() for reference in references]
        (place / "all.csv").write_text("\n".join([*texts[0], *(line for text in texts[1:] for line in text[1:])]))
        return str(place / "all.csv")
    for reference in references:
        for name, folder in zip(("all", "allannot"), reference.split(":"), strict=True):
            (place / name).mkdir(exist_ok=True)
            for file in (place / folder).resolve().iterdir():
                (place / name / file.name).symlink_to(file)
    return f"{place / 'all'}:{place / 'allannot'}"


@dataclass(frozen=True)
class _Look:
    network: Network
    place: Path
    run: Run
    loaded: LoadedNetwork
    watch: Watch

    def read(self, text: str) -> Points:
        return read_named(self.run, Named(text, self.place), "test")

    def at(self, points: Points) -> Seen:
        """What is known of these points, but for their coordinates."""
        pipeline, model = self.loaded.pipeline, self.loaded.model
        features = features_of(self.watch, pipeline, points)
        columns = {block.name: block.columns for block in self.watch.blocks}
        outputs, last, right = features[:, columns["outputs"]], [], []
        at_once = 20 if self.network.task is SEGMENTATION else 250
        for part in (slice(start, start + at_once) for start in range(0, len(points), at_once)):
            inputs = pipeline.evaluated(points, part)
            if self.network.task is SEGMENTATION:
                with undisturbed(model):
                    predicted = forward(model, inputs).argmax(1).numpy()
                assert points.masks is not None
                masks = points.masks[np.arange(len(points))[part]]
                scored = masks != self.run.ignore
                right.append(((predicted == masks) & scored).sum((1, 2)) / scored.sum((1, 2)))
                continue
            last.append(head(model, inputs).features.numpy())
        if self.network.task is SEGMENTATION:
            confidence = 1 - features[:, columns["least_confidence"]][:, 0]
            return Seen(features, confidence, outputs, np.concatenate(right))
        if self.network.task is REGRESSION:
            scale, offset = np.std(self.loaded.train.targets), np.mean(self.loaded.train.targets)  # pyrefly: ignore
            errors = scale * outputs[:, 0] + offset - np.asarray(points.targets).reshape(-1)
            return Seen(features, outputs[:, 0], np.concatenate(last), errors**2)
        known = points.targets is not None and points.targets.max() < outputs.shape[1]
        correct = (outputs.argmax(1) == points.targets).astype(float) if known else np.full(len(outputs), np.nan)
        return Seen(features, outputs.max(1), np.concatenate(last), correct)

    def coded(self, seen: Seen, blocks: Sequence[WatchedBlock]) -> Seen:
        """With the coordinates in these blocks in place of the features."""
        columns = {block.name: block.columns for block in self.watch.blocks}
        rows = np.concatenate([codes(seen.features[:, columns[block.name]], block) for block in blocks], axis=1)
        return replace(seen, rows=rows, features=_NONE)

    def changed(self, points: Points) -> Iterator[tuple[str, Points]]:
        """These points, changed."""
        if self.network.task is REGRESSION:
            yield from _changed_rows(points, np.std(self.loaded.train.raw(slice(None)), axis=0))  # pyrefly: ignore
            return
        if self.network.task is CLASSIFICATION:
            yield "JPEG, quality 75", jpeg(points, 75)
        yield "JPEG, quality 30", jpeg(points, 30)
        yield "brightness + 5 %", brighter(points, 0.05)
        if self.network.task is SEGMENTATION:
            yield "brightness − 15 %", brighter(points, -0.15)

    def other_sets(self) -> Iterator[tuple[str, Points]]:
        """Points of other sets."""
        pack = self.place / "data"
        if "jpeg" in self.network.points[0]:
            yield "another camera: lossless", limited(self.read(str(pack / "cifar10/lossless_test.npz")), SHIFTED, 0)
        if self.network.digits:
            yield "other digits", limited(self.read(str(pack / self.network.digits)), SHIFTED, 0)
        if self.network.task is not SEGMENTATION:
            assert self.loaded.train is not None
            yield "the training set", limited(self.loaded.train, SHIFTED, 0)


def _changed_rows(points: Points, deviation: np.ndarray) -> Iterator[tuple[str, Points]]:
    """The rows of a table, changed in units of each column's standard deviation; `bmi` is the third column."""
    rows, random = points.raw(slice(None)).astype(np.float64), np.random.default_rng(0)
    one, permuted = np.zeros(rows.shape[1]), rows.copy()
    one[2], permuted[:, 2] = deviation[2], random.permutation(rows[:, 2])
    for title, changed in (
        ("one column + 0.5 sd", rows + 0.5 * one),
        ("one column + 1 sd", rows + one),
        ("noise of 0.5 sd", rows + 0.5 * deviation * random.normal(size=rows.shape)),
        ("noise of 1 sd", rows + deviation * random.normal(size=rows.shape)),
        ("one column permuted", permuted),
        ("two columns exchanged", rows[:, [0, 1, 3, 2, *range(4, rows.shape[1])]]),
    ):
        yield title, replace(points, inputs=changed.astype(np.float32))


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


def drawn_of(network: Network, divisions: Sequence[Division]) -> dict[str, Any]:
    """How often batches of these divisions are found to differ."""
    random, first, many = np.random.default_rng(0), divisions[0], len(divisions) == 1
    ends = (20, 200) if many else (10, 40)
    false, drift, by_law = {}, {}, {}
    laws = [law_of(of.bag.rows, of.starts) for of in divisions]
    limits = [thresholds(of.bag.rows, of.starts, 0) for of in divisions]
    normal = [{level: threshold(len(of.blocks), level) for level in OF_DRIFT} for of in divisions]
    for size in ends:
        p = np.array([
            of.p_value(drawn(of.held_out, size, random).rows, of.bag.rows, step)
            for step, of in zip(range(FALSE), cycle(divisions))
        ])  # fmt: skip
        false[size] = {level: int((p <= level).sum()) for level in LEVELS}
        scores = drifts(divisions, laws, size, random)
        drift[size], by_law[size] = (beyond(scores, each) for each in (limits, normal))
    shares = [100 * block.law for of in divisions for block in of.blocks if block.kind == "layer"]
    return {
        "blocks": len(first.blocks),
        "kept": len(first.bag.rows),
        "held_out": len(first.held_out.rows),
        "quality": float(np.mean([of.held_out.quality for of in divisions])),
        "false": false,
        "drift": drift,
        "by_law": by_law,
        "streams": sum(stream(first, None, random) is not None for _ in range(STREAMS)) if many else None,
        "laws": [float(np.min(shares)), float(np.median(shares)), float(np.max(shares))],
        "shifts": {title: power(network, divisions, title, random) for title in first.shifted},
    }


def drifts(divisions: Sequence[Division], laws: Sequence[Law], size: int, random: np.random.Generator) -> list[float]:
    """The exported scores of held-out batches."""
    found = []
    for _, of, law in zip(range(DRIFTS), cycle(divisions), cycle(laws)):
        mean = drawn(of.held_out, size, random).rows.mean(0) / STEPS
        found.append(float(max(law.scores(mean, size, of.starts))))
    return found


def beyond(scores: Sequence[float], limits: Sequence[dict[float, float]]) -> dict[float, int]:
    """How many of the scores are beyond the thresholds of their divisions, by level."""
    pairs = [*zip(scores, cycle(limits))]
    return {level: sum(score > limit[level] for score, limit in pairs) for level in OF_DRIFT}


def power(network: Network, divisions: Sequence[Division], title: str, random: np.random.Generator) -> dict[str, Any]:
    """How often a shift is found at 1 %: by the monitor, by KS on one number, by MMD on features; and after how many
    shifted batches of 50 a stream of ten clean ones raises the alarm."""
    found = {}
    for size in network.sizes:
        counts, batches = np.zeros(3, int), 0
        for step, of in zip(range(POWER), cycle(divisions)):
            if len(of.shifted[title].rows) < size:
                continue
            batch = drawn(of.shifted[title], size, random)
            batches += 1
            counts += np.array((
                of.p_value(batch.rows, of.bag.rows, step),
                stats.ks_2samp(batch.univariate, of.bag.univariate, method="asymp").pvalue,
                mmd(batch.last, of.bag.last[:300], random),
            )) <= LEVEL  # fmt: skip
        if batches == POWER:
            found[size] = [*map(int, counts)]
    waits = [stream(divisions[0], title, random) for _ in range(WAITS)] if len(divisions) == 1 else []
    quality = float(np.mean([of.shifted[title].quality for of in divisions]))
    return {"quality": quality, "found": found, "waits": waits}


def stream(of: Division, title: str | None, random: np.random.Generator) -> int | None:
    """The number of batches of 50 after the change with which the alarm came, None if it never did: without a change at
    a level of 5 %, or after ten clean batches at 1 %."""
    bag, wealth, seed = of.bag.rows, Wealth(), int(random.integers(2**31))
    for step in range(LONG):
        batch = drawn(of.held_out if title is None or step < 10 else of.shifted[title], 50, random).rows
        wealth = wealth.after(of.p_value(batch, bag, seed + step, OF_STREAMS))
        if wealth.e_value >= (20 if title is None else 100):
            return step - 9
        bag = absorbed(bag, batch, most=4 * len(of.bag.rows), seed=seed, step=step)
    return None


def drawn(seen: Seen, size: int, random: np.random.Generator) -> Seen:
    return seen.part(random.choice(len(seen.rows), size, replace=False))


# ── writing ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def rates(studies: dict[str, dict[str, Any]]) -> str:
    """How often clean batches are called different, a row for each network and number of points."""
    lines = [RATES, "|" + " --- |" * (RATES.count("|") - 1)]
    for name, found in studies.items():
        for size, false in found["false"].items():
            cells = [NETWORKS[name].title, size, *(share(count, FALSE) for count in false.values())]
            cells += [share(count, DRIFTS) for count in found["drift"][size].values()]
            cells.append(" / ".join(f"{100 * count / DRIFTS:.1f}" for count in found["by_law"][size].values()))
            lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


RATES = "| network | n | p ≤ 5 % | p ≤ 1 % | `drift` at 5 % | at 1 % | at 0.1 % | by the normal law alone |"


def section(name: str, found: dict[str, Any]) -> str:
    """How often shifts of the inputs of a network were found."""
    network = NETWORKS[name]
    quality, (low, middle, high) = _QUALITIES[network.task.name], found["laws"]
    points = f"{found['kept']:,} reference points kept, {found['held_out']:,} held out"
    if network.intro:
        points += f" ({network.intro}, divided at random in {network.divisions} ways)"
    text = (
        f"**{network.title}**: {found['blocks']} blocks, {points}, {quality} {shown(network, found['quality'])}. "
        f"Outside the 95 % region of the normal law: {low:.0f} to {high:.0f} % of "
        f"batches by layer, median {middle:.0f} %."
    )
    if found["streams"] is not None:
        text += f" Streams of {LONG} clean batches of 50 with an alarm at 5 %: {found['streams']} of {STREAMS}."
    head_row = f"| shift | {quality} | {' | '.join(f'n = {size}' for size in network.sizes)} |"
    lines = [head_row + " batches to the alarm |" * (network.divisions == 1)]
    lines.append("|" + " --- |" * (lines[0].count("|") - 1))
    lines += [row(network, title, of) for title, of in found["shifts"].items()]
    return f"{text}\n\n" + "\n".join(lines)


_QUALITIES = {"classification": "accuracy", "segmentation": "pixel accuracy", "regression": "RMSE"}


def shown(network: Network, quality: float) -> str:
    """An accuracy, or the root of a mean square error."""
    if np.isnan(quality):
        return ""
    return f"{quality**0.5:.1f}" if network.task is REGRESSION else f"{100 * quality:.1f} %"


def row(network: Network, title: str, found: dict[str, Any]) -> str:
    cells = [title, "as before" if "missing" in title else shown(network, found["quality"])]
    for size in network.sizes:
        counts = found["found"].get(str(size))
        cells.append("–" if counts is None else " / ".join(f"{100 * count / POWER:.0f}" for count in counts))
    if network.divisions == 1:
        known = [wait for wait in found["waits"] if wait is not None]
        reached = f"{len(known)} of {WAITS} within {LONG - 10}"
        cells.append(f"{np.median(known):.0f}" if 2 * len(known) > WAITS else reached)
    return f"| {' | '.join(cells)} |"


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
