"""Table 2 of Teye, Azizpour & Smith 2018 on a network of the user's: PLL against the number of stochastic passes."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path

from bnuq.config import DETERMINISTIC, Run, Split
from bnuq.errors import RequestError
from bnuq.progress import Progress, silent
from bnuq.results.pll_over_samples import PllOverSamples
from bnuq.workflows.evaluate import evaluate

SOURCE = "Teye, Azizpour & Smith 2018, Table 2: ResNet-32 on CIFAR-10"
REPLICATION = "a third party's replication in PyTorch (Glutamat42/mcbn-pytorch)"

_SAMPLES = (1, 2, 4, 8, 16, 32, 64, 128)
_PLL = (-0.36, -0.32, -0.30, -0.29, -0.29, -0.28, -0.28, -0.28)
_REPLICATED = (-0.37, -0.33, -0.30, -0.29, -0.28, -0.27, -0.27, -0.27)


def reproduce(run: Run, *, progress: Progress = silent) -> PllOverSamples:
    """PLL on the test set of `run` by MCBN with 1, 2, 4, … and `run.samples` draws, beside the published row.

    Mini-batches have `run.batch_size` images, by default as many as in training. Draws are shared by all points; how
    far chance moves a figure of k draws is told by disjoint groups of k. Nothing but the test set is evaluated, and no
    file is written.

    RequestError for fewer than 2 samples or a number that is not settled, and for a regression; what `evaluate` raises.
    """
    if not isinstance(run.samples, int) or run.samples < 2:
        raise RequestError(f"--samples is {run.samples}; expected a whole number of at least 2.")
    if run.bank is not None:
        raise RequestError("sampling.bank gives points different draws, and groups of draws are compared here.")
    with tempfile.TemporaryDirectory() as folder:
        held_out = run.validation if isinstance(run.validation, Split) else None  # which says what the test set is
        asked = replace(run, methods=("mcbn",), ood=(), validation=held_out, save_samples=False)
        result = evaluate(replace(asked, out=Path(folder) / "result.h5"), progress=progress)
    if result.model["task"] != "classification":
        raise RequestError(f"{run.checkpoint} is a regression; this experiment needs a classification.")
    test, sets = result.sets["test"], {name: one.sets["test"] for name, one in result.methods.items()}
    drawn, alone = sets["mcbn"], sets[DETERMINISTIC]
    assert drawn.log_likelihood is not None
    convergence = result.methods["mcbn"].convergence
    accuracies = zip(convergence["samples"].tolist(), convergence["accuracy"].tolist(), strict=True)
    return PllOverSamples(
        experiment={
            "model": Path(result.model["path"]).name,
            "sha256": result.model["sha256"],
            "parameters": result.model["parameters"],
            "batchnorm_layers": result.model["batchnorm_layers"],
            "train_batch_size": run.train_batch_size,
            "batch_size": result.sampling["batch_size"],
            "samples": result.sampling["samples"],
            "seed": run.seed,
            "device": result.sampling["device"],
            "test": test.reference,
            "n": test.n,
            "test_points": result.sampling["test_points"],
            "train": "" if run.train is None else run.train.text,
            "reference_points": result.sampling["reference_points"],
            "train_size": run.train_size,
            "augment": run.augment is not None,
        },
        published={
            "source": SOURCE,
            "samples": list(_SAMPLES),
            "pll": list(_PLL),
            "baseline": -0.32,
            "replication_source": REPLICATION,
            "replication": list(_REPLICATED),
            "replication_baseline": -0.33,
        },
        log_likelihood=drawn.log_likelihood.astype("float64"),
        deterministic=alone.points["pll"].astype("float64"),
        accuracies={0: alone.figures["accuracy"].value} | dict(accuracies),
        notes=tuple(caution.text for caution in result.cautions),
        seconds={"total": result.seconds["total"]},
        provenance={k: str(v) for k, v in result.provenance.items() if k not in ("request", "network", "outputs")},
        group=test.group,
    )
