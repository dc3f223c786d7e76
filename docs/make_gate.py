"""`make gate`: measures `bnuq check` on trained networks, and writes docs/measured/gate.md and docs/gate.md's table.

How often does it fail on equally good networks, what does it detect, and how small a change? The results that this
takes are made in docs/gate/ and kept there: an interrupted run goes on, and a result is found again by the request in
its record. Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About an hour of CPU time where
all has to be made, ten minutes where nothing has. With the argument `power` it measures and writes only what a check
says that it can see, and histories: about six minutes.
"""

from __future__ import annotations

import json
import os
import sys
import textwrap
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from gate_measures import (
    Alarms,
    Kind,
    by_chance,
    by_exchange,
    errors_of_changes,
    failing,
    of_one_draw,
    share_of_all,
    share_of_pairs,
    smallest_in_median,
    spread,
    verdicts,
    without_draws,
)
from gate_power import Found, of_histories, of_requests, of_scores, power_of, seen_by_size
from make_figures import DOCS, MEASURED, Job, made_by, put, run_files

from bnuq.config import Normalize, Options, Run, resolve
from bnuq.estimates import Estimate
from bnuq.files.content import sha256_of_file
from bnuq.gate import CheckVerdict, EstimateComparison, Tolerance
from bnuq.methods import DETERMINISTIC
from bnuq.metrics import METRICS
from bnuq.records.evaluation import Result
from bnuq.records.evaluation_file import read
from bnuq.report.numbers import count, named, number
from bnuq.studies.check.findings import estimate_name
from bnuq.studies.check.numbers import chance
from bnuq.workflows.evaluate import evaluate

FOLDER = DOCS / "gate"
SEEDS = {"resnet20": 12, "fmnist_mlp": 30, "quickstart": 30}
NOISE = {0.01: 1, 0.02: 3, 0.04: 3, 0.08: 3, 0.16: 1}  # level, of the weights' sd: networks
TYPICAL = (0.04, 0.08)  # the levels whose errors tell the smallest change
EXCHANGES = 2000
FEW = 12  # estimates that are named where they never fail
OOD = "pcbdigits32"
AUROC = f"mcbn.ood.{OOD}.mutual_information.auroc"
SHOWN = ("mcbn.sets.test.accuracy", "mcbn.sets.test.pll", "mcbn.sets.test.ece", AUROC)
SPREAD = {
    **{f"mcbn.sets.test.{metric}": named(metric) for metric in ("accuracy", "pll", "brier", "ece", "aurc")},
    AUROC: "AUROC by MI",
    f"mcbn.ood.{OOD}.mutual_information.aupr_in": "AUPR-in by MI",
    f"mcbn.ood.{OOD}.mutual_information.fpr95": "FPR95 by MI",
}
SIZED = (
    *(f"mcbn.sets.test.{metric}" for metric in ("accuracy", "pll", "brier", "ece")),
    AUROC,
    f"mcbn.ood.{OOD}.predictive_entropy.auroc",
)
CHANGES = {  # what was changed, and the sets of results: the current ones, the baselines
    "no `augment`": ("no augment", "resnet20"),
    "no `augment`, b = 128": ("no augment, b = 128", "resnet20, b = 128"),
    "`normalize` by 0.5 and 0.5": ("half", "resnet20"),
    "ResNet-56 in its place": ("resnet56", "resnet20"),
    "ResNet-20 in place of ResNet-56": ("resnet20", "resnet56"),
    **{f"noise of {100 * level:.0f} % in the weights": (f"noise {level}", "resnet20") for level in NOISE},
}
WHOLE = "`normalize` by 0.5 and 0.5"  # affects the deterministic network alone
IN_SHORT = (
    "no `augment`",
    WHOLE,
    "ResNet-20 in place of ResNet-56",
    "noise of 8 % in the weights",
    "noise of 16 % in the weights",
)
OF_DETERMINISTIC = (
    *(f"{DETERMINISTIC}.sets.test.{metric}" for metric in ("accuracy", "pll", "ece")),
    f"{DETERMINISTIC}.ood.{OOD}.predictive_entropy.auroc",
)


def main() -> None:
    """Make what is not there yet, measure, write."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make gate needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    pack = Path(named).resolve()
    FOLDER.mkdir(exist_ok=True)
    if sys.argv[1:] == ["power"]:
        with run_files(pack) as place:
            put(MEASURED / "gate.md", "power", of_power(place, pack))
            put(DOCS / "gate.md", "seen", of_sizes(place, pack))
        return
    with run_files(pack) as place:
        powers = of_power(place, pack)
        put(DOCS / "gate.md", "seen", of_sizes(place, pack))
        found = {name: [result_of(job, place) for job in some] for name, some in jobs(pack, FOLDER).items()}
    measured = measure(found)
    (MEASURED / "gate.md").write_text(
        f"{page(measured)}\n<!-- power -->\n{powers}\n<!-- /power -->\n", encoding="utf-8"
    )
    put(MEASURED / "gate.md", "gate", in_short(measured))


# ── the results ──────────────────────────────────────────────────────────────────────────────────────────────────────


def jobs(pack: Path, folder: Path) -> dict[str, list[Job]]:
    """The evaluations, by set; their titles are the names of their files. Writes the noisy networks to `folder`."""
    cifar, fmnist = "cifar_resnet20.toml", "fmnist_mlp.toml"
    checkpoints = pack / "checkpoints"
    half = Normalize(mean=(0.5,) * 3, std=(0.5,) * 3)
    found = {
        "resnet20": seeds("resnet20", cifar, SEEDS["resnet20"]),
        "fmnist_mlp": seeds("fmnist_mlp", fmnist, SEEDS["fmnist_mlp"]),
        "quickstart": seeds("quickstart", "quickstart.toml", SEEDS["quickstart"]),
        "no augment": seeds("resnet20-no-augment", cifar, 4, augment=None),
        "half": seeds("resnet20-normalize-half", cifar, 1, normalize=half),
        "resnet56": seeds("resnet56", "cifar_resnet56.toml", 1),
        "resnet20, b = 128": seeds("resnet20-b128", cifar, 1, Options(batch_size=128)),
        "no augment, b = 128": seeds("resnet20-b128-no-augment", cifar, 1, Options(batch_size=128), augment=None),
    }
    for level, networks in NOISE.items():
        paths = [
            noisy(checkpoints / "resnet20-12fca82f.th", folder, level=level, seed=seed) for seed in range(networks)
        ]
        found[f"noise {level}"] = [
            Job(f"resnet20-noise{level}-{seed}", cifar, changes={"checkpoint": path}) for seed, path in enumerate(paths)
        ]
    path = noisy(checkpoints / "fmnist_mlp_bn.pt", folder, level=TYPICAL[0], seed=0)
    found["fmnist_mlp, noisy"] = [Job(f"fmnist_mlp-noise{TYPICAL[0]}", fmnist, changes={"checkpoint": path})]
    return found


def seeds(name: str, run_file: str, count: int, options: Options = Options(), **changes: Any) -> list[Job]:  # noqa: B008
    """A run with other seeds: 0, 1, 2, …"""
    return [Job(f"{name}-seed{seed}", run_file, Options(options | {"seed": seed}), changes) for seed in range(count)]


def noisy(checkpoint: Path, folder: Path, *, level: float, seed: int) -> Path:
    """A copy of the network with normal noise added to the weights of each layer: `level` times their sd."""
    path = folder / f"{checkpoint.stem.partition('-')[0]}-{level}-{seed}.pt"
    if not path.is_file():
        held = torch.load(checkpoint, weights_only=True, map_location="cpu")
        state = dict(held.get("state_dict", held))
        random = torch.Generator().manual_seed(seed)
        for name, values in state.items():
            if values.ndim >= 2:
                state[name] = values + level * values.std() * torch.randn(values.shape, generator=random)
        torch.save({"state_dict": state}, path)
    return path


def result_of(job: Job, place: Path) -> Result:
    """The result of the job: the one that lies in docs/gate/ if it is of just that request, else a new one."""
    out = FOLDER / f"{job.title}.h5"
    run = resolve(str(place / job.run_file), Options(job.options | {"out": out}), folder=place.parent)
    run = replace(run, **job.changes)
    held = read(out, log_likelihoods=False) if out.is_file() else None
    if held is None or not is_of(held, run):
        print(f"{job.title} …", flush=True)
        evaluate(run)
        held = read(out, log_likelihoods=False)
    return held


def is_of(result: Result, run: Run) -> bool:
    """Whether the result is of this request: wherever its files lay, what was asked, of the same network."""
    same_network = result.model["sha256"] == sha256_of_file(run.checkpoint)
    return same_network and placeless(result.run) == placeless(run.record())


def placeless(asked: object) -> object:
    """A request without the folders of its files, and without the checkpoint's name, as JSON has it."""
    if isinstance(asked, dict):
        return {key: placeless(value) for key, value in asked.items() if key != "checkpoint"}
    if isinstance(asked, list | tuple):
        return [placeless(value) for value in asked]
    return asked.rpartition("/")[2] if isinstance(asked, str) else json.loads(json.dumps(asked))


# ── what they tell ───────────────────────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Measured:
    """All that the page tells.

    By set of seeds: `chance` by both errors and over points alone, `stated`, what Monte Carlo errors are to be and are,
    and `carried`, which share of AUROC's Monte Carlo variance is one draw's. `exchange` by pair of networks; `changes`
    the verdicts by what was changed, those on seed 0 first. By address: the errors of the changes that noise makes with
    the `same_seed` and with an `other_seed`, as (standard error, degrees of freedom). `gated` is how many estimates a
    check of ResNet-20 holds together.
    """

    chance: dict[str, tuple[Alarms, Alarms]]
    stated: dict[str, dict[str, tuple[float, float, float]]]
    carried: dict[str, float]
    exchange: dict[str, Alarms]
    changes: dict[str, list[CheckVerdict]]
    same_seed: dict[str, list[tuple[float, float]]]
    other_seed: dict[str, list[tuple[float, float]]]
    gated: int


def measure(found: dict[str, list[Result]]) -> Measured:
    """From all results, by set."""
    print("checking …", flush=True)
    resnet20, typical = found["resnet20"], [one for level in TYPICAL for one in found[f"noise {level}"]]
    pairs = {
        "ResNet-20 and ResNet-56": (found["resnet56"][0], resnet20[0]),
        f"ResNet-20 and itself with a noise of {100 * TYPICAL[1]:.0f} %": (
            found[f"noise {TYPICAL[1]}"][0],
            resnet20[0],
        ),
        f"fmnist_mlp and itself with a noise of {100 * TYPICAL[0]:.0f} %": (
            found["fmnist_mlp, noisy"][0],
            found["fmnist_mlp"][0],
        ),
    }
    changes = {name: list(verdicts(found[new], found[old])) for name, (new, old) in CHANGES.items()}
    return Measured(
        chance={
            name: (by_chance(found[name]), by_chance([without_draws(one) for one in found[name]])) for name in SEEDS
        },
        stated={
            name: {told: spread(found[name], _own(address, name)) for address, told in SPREAD.items()} for name in SEEDS
        },
        carried={name: of_one_draw(found[name], _own(AUROC, name)) for name in SEEDS},
        exchange={name: by_exchange(pair, exchanges=EXCHANGES, seed=0) for name, pair in pairs.items()},
        changes=changes,
        same_seed=errors_of_changes(((one, resnet20[0]) for one in typical), SIZED),
        other_seed=errors_of_changes(((one, other) for one in typical for other in resnet20[1:]), SIZED),
        gated=changes["ResNet-56 in its place"][0].gated,
    )


def _own(address: str, name: str) -> str:
    """The estimate of another network's OOD set."""
    return address if name == "resnet20" else address.replace(f".{OOD}.", ".mnist.")


# ── in words and tables ──────────────────────────────────────────────────────────────────────────────────────────────


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """As Markdown, its first column of words and the others of numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def percent(share: Estimate) -> str:
    """A share with its error; without where it has none to tell, at 0 and at 1."""
    error = f" ± {100 * share.se:.1f}" if share.se else ""
    return f"{100 * share.value:.1f}{error} %"


def counted(entries: np.ndarray, of: int) -> str:
    """How many checks fail, as 3 of 132."""
    return f"{entries.sum():.0f} of {of}"


def kinds(many: Iterable[Alarms]) -> list[Kind]:
    """The methods and metrics of all these, in the order of the metrics."""
    order = list(METRICS)
    return sorted({kind for one in many for kind in one.of}, key=lambda kind: (kind[0], order.index(kind[1])))


def of_chance(chance_of: dict[str, tuple[Alarms, Alarms]]) -> str:
    """Checks of a network against itself with another seed that fail."""
    rows = []
    for name, (both, alone) in chance_of.items():
        seeds = len(both.strict)
        pairs = seeds * (seeds - 1)
        apart = ~np.eye(seeds, dtype=bool)
        strict = f"{counted(both.strict, pairs)}, {percent(share_of_pairs(both.strict))}"
        cells = [name, f"{seeds}", f"{both.gated}", counted(both.tolerant, pairs), strict]
        cells += [
            f"{both.least[apart].min():.2g}",
            *(percent(share_of_pairs(each)) for each in (alone.tolerant, alone.strict)),
        ]
        rows.append(cells)
    head = ["network", "seeds", "estimates", "fail", "fail, no tolerance", "least adjusted p"]
    return table([*head, "points alone: fail", "points alone, no tolerance"], rows)


def of_stated(stated: dict[str, dict[str, tuple[float, float, float]]]) -> str:
    """The spread of estimates over seeds, and the Monte Carlo errors that are stated."""
    rows = [
        [told, *(" / ".join(f"{value:.5f}" for value in one[told]) for one in stated.values())]
        for told in SPREAD.values()
    ]
    return table(["estimate of MCBN", *stated], rows)


def by_metric(chance_of: dict[str, tuple[Alarms, Alarms]]) -> str:
    """The shares of p-values below .05 of a network against itself with another seed."""
    columns = {f"{name}, {method}": (name, method) for name in chance_of for method in _methods(chance_of[name][0])}
    rows = []
    known = {metric for both, _ in chance_of.values() for method, metric in both.of if method != DETERMINISTIC}
    for metric in (one for one in METRICS if one in known):
        cells = [named(metric)]
        for name, method in columns.values():
            both, alone = chance_of[name]
            kind = method, metric
            held = [(both.low, both.of), (alone.low, alone.of), (both.drawn, both.of)]
            shares = [percent(share_of_pairs(low[kind], of[kind])) for low, of in held if kind in of]
            cells.append(" / ".join(shares) or "–")
        rows.append(cells)
    return table(["metric", *columns], rows)


def highest(chance_of: dict[str, tuple[Alarms, Alarms]]) -> str:
    """The largest share of p-values below .05 of an estimate."""
    shares = [
        share_of_pairs(both.low[k], of) for both, _ in chance_of.values() for k, of in both.of.items() if of.any()
    ]
    return percent(max(shares, key=lambda share: share.value))


def _methods(one: Alarms) -> list[str]:
    order = ("mcbn", "mcdo", "mcbn+mcdo")
    return [method for method in order if any(kind[0] == method for kind in one.of)]


def of_exchange(exchange: dict[str, Alarms]) -> str:
    """The alarms of two networks whose scores were exchanged, together and by estimate."""
    rows = [["a check fails", *(percent(share_of_all(one.tolerant)) for one in exchange.values())]]
    rows.append(["a check fails, no tolerance", *(percent(share_of_all(one.strict)) for one in exchange.values())])
    for kind in kinds(exchange.values()):
        cells = [
            percent(share_of_all(one.low[kind], one.of[kind])) if kind in one.of else "–" for one in exchange.values()
        ]
        rows.append([f"p < .05: {named(kind[1])}", *cells])
    return table(["", *exchange], rows)


def of_changes(changes: dict[str, list[CheckVerdict]]) -> str:
    """What real changes do to the estimates that are shown, and how many checks they fail."""
    rows = []
    for name, said in changes.items():
        known = {one.address: one for one in said[0].comparisons}
        rows.append([name, failed(said), *(moved(known[address]) for address in SHOWN)])
    return table(["change", "checks that fail", "accuracy", "PLL", "ECE", "AUROC by MI"], rows)


def failed(said: Sequence[CheckVerdict]) -> str:
    """How many of the checks fail: with paired draws, and without, where there are both."""
    paired = [not one.passed for one in said if one.pairing is not None and one.pairing.draws]
    apart = [not one.passed for one in said if one.pairing is None or not one.pairing.draws]
    counts = [f"{sum(some)} of {len(some)}" for some in (paired, apart) if some]
    return " paired, ".join(counts)


def moved(one: EstimateComparison) -> str:
    """A change, its error and its adjusted p-value; in bold where that is a failure."""
    if not one.se:
        return "0"
    p = "" if one.p_adjusted is None else f", {chance(one.p_adjusted)}"
    text = f"{one.change:+.4f} ± {one.se:.4f}{p}".replace("-", "−")
    return f"**{text}**" if one.outcome == "worse" else text


def what_fails(changes: dict[str, list[CheckVerdict]]) -> str:
    """Which estimates fail, and in how many of the checks; of a method of which some do, which never."""
    lines = []
    for name, said in changes.items():
        counts = failing(said)
        parts = (
            [_of_method(method, said, counts) for method in (DETERMINISTIC, "mcbn")]
            if any(counts.values())
            else ["None."]
        )
        lines.append(f"- **{name}**, of {count(len(said), 'check')}. {' '.join(part for part in parts if part)}")
    return "\n".join(lines)


def _of_method(method: str, said: Sequence[CheckVerdict], counts: dict[str, int]) -> str:
    known = {one.address: one for one in said[0].comparisons if one.method == method and one.address in counts}
    names = {
        address: estimate_name(known[address]).replace("mutual information", "MI")
        for address in counts
        if address in known
    }
    fails = [names[a] + (f" {counts[a]}" if len(said) > 1 else "") for a in names if counts[a]]
    never = [names[a] for a in names if not counts[a]]
    others = f"the other {len(never)}" if len(never) > FEW else ", ".join(never)
    whose = "Deterministic" if method == DETERMINISTIC else method.upper()
    if not fails:
        return f"{whose}: none." if names else ""
    return f"{whose}: {', '.join(fails)}{f'; never {others}' if never else ''}."


def of_deterministic(changes: dict[str, list[CheckVerdict]]) -> str:
    """The changes of the deterministic network, where there are any."""
    rows = []
    for name, said in changes.items():
        known = {one.address: one for one in said[0].comparisons}
        if any(known[address].se for address in OF_DETERMINISTIC):
            rows.append([name, *(moved(known[address]) for address in OF_DETERMINISTIC)])
    return table(["change", "accuracy", "PLL", "ECE", "AUROC by entropy"], rows)


def of_smallest(measured: Measured) -> str:
    """The smallest change that is detected, by estimate."""
    rows = []
    for address in SIZED:
        cells = [_of_address(address)]
        for gated in (1, measured.gated):
            for errors in (measured.same_seed, measured.other_seed):
                cells.append(found_from(errors[address], address, gated=gated))
        rows.append(cells)
    together = f"among {measured.gated}"
    head = ["estimate", "alone, same seed", "alone, other seed", f"{together}, same seed", f"{together}, other seed"]
    return table(head, rows)


def found_from(errors: Iterable[tuple[float, float]], address: str, *, gated: int) -> str:
    """The change that is found in one of two and in four of five cases; a star where the tolerance decides."""
    metric = address.rpartition(".")[2]
    tolerance = Tolerance.of(METRICS[metric].tolerance, key=metric).in_unit(baseline=np.nan, se=None)
    one = smallest_in_median(errors, tolerance=tolerance, gated=gated)
    return f"{number(one.half)}{'*' * one.tolerated} / {number(one.most)}"


def _of_address(address: str) -> str:
    *_, score, metric = address.split(".")
    by = {"mutual_information": " by MI", "predictive_entropy": " by entropy"}
    return named(metric) + by.get(score, "")


# ── what it says that it can see ─────────────────────────────────────────────────────────────────────────────────────

POWERS = (  # of fmnist_mlp with noise, and how many checks of each
    "sets.test.pll",
    "sets.test.brier",
    "sets.test.by_class.7.accuracy",
    "ood.mnist.energy.aupr_in",
)
TRIED, REQUESTS, HISTORIES = 60, 100, 15
WORKERS = 3
SCORED = ("predictive_entropy", "energy")
AS_GOOD, WORSE = 0.04, 0.24  # the noise of a network as good, and of one that is worse
CLASS, WORSE_BY, NIGHTS = 4, 0.05, 6
SIZES, SIZED_BY = (200, 500, 1000, 10_000), ("accuracy", "pll")


def networks_of(place: Path, pack: Path) -> tuple[Result, Result, Result]:
    """fmnist_mlp as it is, a copy that is as good, and one that is worse: without draws."""
    paths = {
        level: noisy(pack / "checkpoints/fmnist_mlp_bn.pt", FOLDER, level=level, seed=0) for level in (AS_GOOD, WORSE)
    }
    options = Options(methods=(DETERMINISTIC,), post_hoc=False, calibrate="off")
    changes = {0.0: {}, **{level: {"checkpoint": path} for level, path in paths.items()}}
    jobs = [Job(f"fmnist_mlp-plain-{level}", "fmnist_mlp.toml", options, each) for level, each in changes.items()]
    network, as_good, worse = (of_scores(result_of(job, place), SCORED) for job in jobs)
    return network, as_good, worse


def of_sizes(place: Path, pack: Path) -> str:
    """The table of docs/gate.md on what is found by so many points."""
    network, _, worse = networks_of(place, pack)
    seen = seen_by_size((worse, network), SIZED_BY, SIZES, tried=9, seed=3)
    rows = [
        [f"{points:,}", *(f"{value:.3f}" for metric in SIZED_BY for value in of_metric[metric])]
        for points, of_metric in seen.items()
    ]
    gates = ("alone", "by default", "everything")
    head = ["images", *(f"{named(metric)}, {gate}" for metric in SIZED_BY for gate in gates)]
    return f"{table(head, rows)}\n\n{made_by('make gate ONLY=power')}"


def of_power(place: Path, pack: Path) -> str:
    """The section of docs/measured/gate.md on points that are drawn anew from those of fmnist_mlp."""
    network, as_good, worse = networks_of(place, pack)
    addresses = [f"{DETERMINISTIC}.{name}" for name in POWERS]
    requested = {f"{points:,}": points for points in (10_000, 2500)}
    declines = {"as good every night": 0.0, "declining": 1.0}
    print("what checks find of points drawn anew …", flush=True)
    with ProcessPoolExecutor(WORKERS) as pool:
        powers = [pool.submit(power_of, (worse, network), address, tried=TRIED, seed=0) for address in addresses]
        common: dict[str, Any] = {"share": WORSE_BY, "tried": REQUESTS, "seed": 1}
        of_each = [pool.submit(of_requests, network, as_good, CLASS, points=n, **common) for n in requested.values()]
        common = {"points": 5000, "nights": NIGHTS, "tried": HISTORIES, "seed": 2}
        nights = [pool.submit(of_histories, network, as_good, worse, share, **common) for share in declines.values()]
        rows = [
            [
                *(f"`{name}`", f"{one.worsening:.4f}", f"{one.points:,}", f"{one.stated:.4f}"),
                *(in_interval(one.found, strictly=True), in_interval(one.found)),
            ]
            for name, one in zip(POWERS, (task.result() for task in powers), strict=True)
        ]
        requests, histories = (
            [[told, *map(in_interval, task.result().values())] for told, task in zip(names, tasks, strict=True)]
            for names, tasks in ((requested, of_each), (declines, nights))
        )
    return filled(f"""## What it says that it can see

{made_by("make gate ONLY=power")}

The deterministic network of fmnist_mlp, a copy that is as good (noise of {100 * AS_GOOD:.0f} % in the weights), and one
that is worse ({100 * WORSE:.0f} %). Points are drawn anew for each check, with replacement, from the 10,000 test and
10,000 OOD points, the same ones for both sides: what all points give is then the truth. Draws are not involved, and OOD
points are separated by predictive entropy and energy alone. Shares have exact 95 % intervals.

First, the worse copy against the network: the true worsening, the number of points of each set for which the median
check says that it can see just that worsening, and the share of {TRIED} checks that found it: at p < .05/m for m gated
estimates, which the statement is about and which should be 80 %, and by the whole check, where Holm's later steps find
a little more. Of the accuracy of a class more is found than stated: the error is that of as many wrong points as the
worsening makes, and a check in which chance makes fewer also has a smaller error.

{table(["estimate", "true worsening", "points", "can see", "found at .05/m", "found"], rows)}

Next, pull requests of a network that is neither better nor worse, as half of the points have the scores of the other
copy; and the same with class {CLASS} worse by {100 * WORSE_BY:.0f} points: that share of its points, all right before,
have the scores of points of the class that are wrong. Each of {REQUESTS} requests is checked once.

{table(["test points", "passes if nothing is worse", "fails with a worse class", "names the class"], requests)}

Last, histories of {NIGHTS} results on 5000 points, each with other half of its scores from the copy that is as good. A
declining one moves point by point to the scores of the worse copy, so that the last result has all of them. Of
{HISTORIES} histories, in how many the line through all results fails the check, the whole check against the mean of the
first {NIGHTS - 1} fails, and any of the {NIGHTS - 1} checks of two neighbours does.

{table(["history", "line", "check --history", "any two neighbours"], histories)}""").strip()


def in_interval(found: Found, *, strictly: bool = False) -> str:
    """A share and its interval, as 79 % (71 to 86)."""
    low, high = found.interval(strictly)
    count = found.strictly if strictly else found.found
    return f"{100 * count / found.tried:.0f} % ({100 * low:.0f} to {100 * high:.0f})"


def in_short(measured: Measured) -> str:
    """The table of docs/gate.md."""
    rows = []
    for name, (both, _) in measured.chance.items():
        pairs = both.strict.size - len(both.strict)
        kept = [("mcbn", address.rpartition(".")[2]) for address in SHOWN]
        cells = [percent(share_of_pairs(both.low[kind], both.of[kind])) for kind in kept]
        rows.append([f"{name}, other seeds; p < .05", counted(both.tolerant, pairs), *cells])
    for name in IN_SHORT:
        said = measured.changes[name]
        known = {one.address: one for one in said[0].comparisons}
        told, shown = (f"{name}; deterministic", OF_DETERMINISTIC) if name == WHOLE else (name, SHOWN)
        rows.append([told, failed(said), *(shortly(known[address]) for address in shown)])
    for told, errors in (("same", measured.same_seed), ("another", measured.other_seed)):
        cells = [found_from(errors[address], address, gated=measured.gated) for address in SHOWN]
        rows.append([f"detected in 1 of 2 / 4 of 5, {told} seed", "", *cells])
    whole = [share_of_all(one.strict).value for one in measured.exchange.values()]
    alone = [share_of_pairs(one.strict).value for _, one in measured.chance.values()]
    strict = _range(share_of_pairs(one.strict).value for one, _ in measured.chance.values())
    words = (
        f"{made_by('make gate')}\n\n"
        "The first rows compare equally good networks: how many checks failed and, for each estimate, the share of "
        f"p-values below 0.05. With tolerances of 0, {strict} of these checks fail. For pairs of networks whose scores "
        f"were swapped at random it is {_range(whole)}. The test allows 5 %. A test over points alone, which ignores "
        f"that all points share the draws, would fail {_range(alone)} of the checks of other seeds. Then real changes "
        "of ResNet-20: their effect on MCBN's estimates, or on those of the deterministic network (AUROC by entropy), "
        "seed 0 against seed 0; bold is worse by more than its tolerance and significantly. Last, the "
        "smallest degradation that fails one of two and four of five checks, T = 32 and n = 846, among "
        f"{measured.gated} gated estimates (\\*: its tolerance)."
    )
    head = ["checked", "fail", "accuracy", "PLL", "ECE", "AUROC by MI"]
    return filled(f"{table(head, rows)}\n\n{words}").rstrip()


def _range(values: Iterable[float]) -> str:
    low, *_, high = sorted(round(100 * value, 1) for value in values)
    return f"{high:g} %" if low == high else f"{low:g} to {high:g} %"


def shortly(one: EstimateComparison) -> str:
    """A change and its error; in bold where that is a failure."""
    if not one.se:
        return "0"
    text = f"{one.change:+.3f} ± {one.se:.3f}".replace("-", "−")
    return f"**{text}**" if one.outcome == "worse" else text


def page(measured: Measured) -> str:
    """docs/measured/gate.md."""
    return filled(f"""# What `bnuq check` detects, and how often it raises a false alarm

{made_by("make gate")}

All on trained networks, T = 32: ResNet-20 and ResNet-56 on CIFAR-10 (846 test points, 2000 of {OOD}, b = 32),
a dense network on Fashion-MNIST (10,000 and 10,000, b = 128), and the CNN of the quickstart (1000 and 1000, b = 64).
Each run evaluates the run file of its name in `sample_configs/`; the changes to it are in `docs/make_gate.py`. A share
has a standard error, except at 0 and 100 %, where none can be estimated.

## In short

<!-- gate -->
<!-- /gate -->

## The same network with another seed

Nothing is worse, so every failure is a false alarm. All ordered pairs of seeds were checked. Seeds are independent and
pairs are not, so errors are jackknife errors over seeds, each left out with all its pairs. A check, all its estimates
together, should fail in at most 5 % of cases without any tolerance, and less often with the tolerances. *Points alone*
is the same check, paired over points, but it ignores the draws, which all points share and which therefore do not
average out over points.

{of_chance(measured.chance)}

Next, by metric, the share of p-values below .05, each estimate by itself, by both errors / by the error over points
alone / by the error over draws alone. Only the draws vary here, so the third share is 5 % where the Monte Carlo error
is right. The first should be smaller: it also allows for other points, and se² + mc_se² counts the interaction of point
and draw twice. For MC dropout, whose masks are independent across points, that interaction is nearly all there is, and
the error over points alone is right.

{by_metric(measured.chance)}

The largest of the first shares is {highest(measured.chance)}, of an OOD separation. A few of the 32 mini-batches carry
most of the Monte Carlo error of these: the largest one alone has {_carried(measured.carried)} of the variance of
MCBN's AUROC by MI in the median run; with normal contributions it would have 16 %. A run may therefore state too small
an error. Next, by network, the standard deviation of an estimate over seeds / the root mean square of the stated Monte
Carlo errors / their median. Where the median is below the standard deviation, most runs state too small an error and a
few too large a one. All estimates together still keep the level, because they are correlated, which Holm's correction
does not use.

{of_stated(measured.stated)}

## Two equally good networks

The scores of each point under two deterministic networks were swapped by a coin, {EXCHANGES} times. Neither network is
then better in any estimate, and the differences of points are as large and as heavy-tailed as the two networks make
them. Each row should be 5 %, the first two at most that.

{of_exchange(measured.exchange)}

## Real changes

The baseline is the correct ResNet-20, with each of its seeds; the changed network or pipeline is current. The numbers
are MCBN's, seed 0 against seed 0: change ± standard error over points and draws, and the p-value adjusted among
{measured.gated}; bold fails the check. Failing checks are counted over all seeds, with paired draws (same seed) and
without.

{of_changes(measured.changes)}

The deterministic network, where a change affects it:

{of_deterministic(measured.changes)}

In how many checks each estimate fails:

{what_fails(measured.changes)}

The batch statistics undo an affine change of the input, except for the zeros that the first layer pads with. A wrong
`normalize` therefore hardly affects MCBN, and affects the deterministic network in full; a wrong `augment` affects MCBN
alone. An estimate that is not listed as failing did not fail: with so few points, worse probabilities do not show in
every score of them.

## The smallest detectable change

From the standard errors of real comparisons: copies with a noise of {_levels()} in the weights against the network
itself, with the same seed (paired draws) and with the {SEEDS["resnet20"] - 1} others (unpaired draws). The first
number is the degradation that fails a check in one of two cases: t standard errors, with t at .05 for an estimate that
is gated alone, and at .05/{measured.gated} for the clearest of {measured.gated}; but at least the tolerance (\\*, where
that decides). The second number is the degradation that fails in four of five. Medians over the comparisons, n = 846.

{of_smallest(measured)}

The same seed pairs the draws. What remains is the error over points, which more test points reduce; more samples reduce
the error over draws.
""")


def filled(text: str) -> str:
    """The same with paragraphs filled to 120 characters; not headings, lists and tables."""
    parts = text.strip().split("\n\n")
    return "\n\n".join(part if part[0] in "#|-" else _paragraph(part) for part in parts) + "\n"


def _paragraph(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 120, break_long_words=False, break_on_hyphens=False)


def _carried(carried: dict[str, float]) -> str:
    return ", ".join(f"{100 * share:.0f} % ({name})" for name, share in carried.items())


def _levels() -> str:
    return " and ".join(f"{100 * level:.0f}" for level in TYPICAL) + " %"


if __name__ == "__main__":
    main()
