"""Made-up records of a monitor: batches that differ and do not, a baseline and a stream of a few points."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np

from bnuq.estimates import Estimate
from bnuq.findings import note, warning
from bnuq.studies.monitor.record import Baseline, BlockTest, Monitored, Stream, WatchedBlock

PROVENANCE = {"bnuq": "0.1.0", "torch": "2.13.0", "time": "2026-11-26T00:00:00+00:00"}
MODEL = {"path": "net.pt", "fingerprint": "0" * 64, "task": "classification", "outputs": "classes"}
REFERENCE = {"reference": "test.npz", "n": 800, "fitted": 266, "kept": 534}


def quiet() -> Monitored:
    """One batch, which does not differ."""
    blocks = (
        BlockTest("bn1", "layer", 0.9, 0.05, mean_shift=0.0, variance_shift=0.4),
        BlockTest("bn2", "layer", 0.31, 0.07, mean_shift=0.2, variance_shift=0.0),
        BlockTest("outputs", "outputs", 1.0, 0.06),
        BlockTest("energy", "score", 0.7, 0.05),
    )
    return Monitored(
        run={"model": {"checkpoint": "net.pt"}},
        model=MODEL | {"batchnorm_layers": 2},
        reference=REFERENCE | {"points": 534},
        batch="monday.npz",
        points=200,
        p_value=0.31,
        resamples=1999,
        together=0.5,
        blocks=blocks,
        scores={"reference": {"energy": Estimate(-11.1, se=0.2)}, "batch": {"energy": Estimate(-8.6, se=0.3)}},
        unit=64,
        level=0.01,
        names=("monday",),
        p_values=np.array([0.31]),
        e_values=np.array([0.9]),
        alarm=None,
        findings=(note("shift-unit-assumed", batch_size=64),),
        seconds={"total": 1.25},
        provenance=PROVENANCE,
    )


def alarmed() -> Monitored:
    """The second of two batches, which raises the alarm."""
    made = quiet()
    first, second, outputs, energy = made.blocks
    blocks = (
        replace(first, p_value=0.0005, mean_shift=3.2, variance_shift=1.5),
        replace(second, p_value=0.004, mean_shift=math.nan, variance_shift=0.7),
        outputs,
        replace(energy, p_value=0.0005),
    )
    return replace(
        made,
        batch="tuesday.npz",
        p_value=0.0005,
        together=0.0005,
        blocks=blocks,
        names=("monday", "tuesday"),
        p_values=np.array([0.31, 0.0005]),
        e_values=np.array([0.9, 120.0]),
        alarm=2,
        findings=(warning("reference-trained-on", reference="train.npz"),),
    )


def many_layers() -> Monitored:
    """More layers than a report shows."""
    made = quiet()
    layers = [BlockTest(f"stage.{n}.bn", "layer", 1 / (n + 1), 0.05, n / 10, n / 20) for n in range(40)]
    return replace(made, blocks=(*layers, *made.blocks[2:]), p_value=0.025, together=0.002)


def baseline() -> Baseline:
    """Of one layer of two channels and one score."""
    random = np.random.default_rng(0)
    layer = WatchedBlock(
        name="bn", kind="layer", centre=np.zeros(4, np.float32), scale=np.array([1, 1, 2, 0], np.float32),
        directions=np.eye(4, 3, dtype=np.float32), mean=np.array([0, 0, 1, 1], np.float32),
        noise=np.array([1, 1, 2, 0], np.float32), law=0.05,
    )  # fmt: skip
    one = np.ones(1, np.float32)
    return Baseline(
        model=MODEL | {"batchnorm_layers": 1},
        inputs={"shape": [1, 8, 8], "layout": "", "normalize": None},
        reference=REFERENCE,
        blocks=(layer, WatchedBlock("energy", "score", 0 * one, one, one[:, None], 0 * one, one, math.nan)),
        bag=random.integers(-40, 40, (30, 4)).astype(np.int8),
        seed=0,
        findings=(),
        provenance=PROVENANCE,
    )


def stream() -> Stream:
    made = baseline()
    return Stream(
        baseline=made.digest, level=0.01, bag=made.bag, bets=np.array([0.1, 0.2, 0.3, 0.4]),
        names=("monday", "tuesday"), p_values=np.array([0.31, 0.2]), e_values=np.array([0.9, 0.8]), findings=(),
        provenance=PROVENANCE, path=Path("stream.h5"),
    )  # fmt: skip


ALL = {"quiet": quiet, "alarmed": alarmed, "many layers": many_layers}
