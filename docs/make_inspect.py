"""`make inspect`: inspects real networks, mends their statistics, and writes docs/measured/inspect.md.

Needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes. About a quarter of an hour on two cores.
"""

from __future__ import annotations

import io
import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from make_figures import MEASURED, made_by, run_files

from bnuq.cli.progress import Bars
from bnuq.config import Named, Options, Run, resolve
from bnuq.report.render import print_record
from bnuq.studies.inspect.compute import Settings, inspect
from bnuq.studies.inspect.record import Inspection
from bnuq.studies.inspect.view import report
from bnuq.studies.precise_bn.compute import precise_bn
from bnuq.studies.precise_bn.record import PreciseBN

NETWORKS = ("cifar_resnet20", "cifar_resnet32", "cifar_resnet56", "fmnist_mlp", "mnist_mlp")


def main() -> None:
    """Run everything, and write what it gave."""
    named = os.environ.get("BNUQ_TEST_DATA")
    if not named:
        sys.exit("make inspect needs $BNUQ_TEST_DATA, the folder that sample_configs/README.md describes.")
    pack = Path(named).resolve()
    with run_files(pack) as place, tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        gaps = dict(inspections(place, out))
        pipelines = {name: pipeline(place, name, out) for name in NETWORKS}
        mended = dict(population(place, out))
        apart = domains(place, pack, out)
    tables = {"gap": gap_table(gaps), "pipelines": pipeline_table(pipelines), "mended": mended_table(mended)}
    (MEASURED / "inspect.md").write_text(page(tables, apart), encoding="utf-8")


def asked(place: Path, name: str, out: Path) -> Run:
    return resolve(str(place / f"{name}.toml"), Options(out=out), folder=place.parent)


def inspections(place: Path, out: Path) -> Iterator[tuple[str, Inspection]]:
    """Each network through its own pipeline, and ResNet-20 through wrong ones."""
    for name in NETWORKS:
        yield name, inspect(asked(place, name, out / f"{name}.h5"), progress=Bars())
    resnet20 = asked(place, "cifar_resnet20", out / "wrong.h5")
    yield "cifar_resnet20, no `augment`", inspect(replace(resnet20, augment=None), progress=Bars())
    yield "cifar_resnet20, no `normalize`", inspect(replace(resnet20, normalize=None), progress=Bars())


def pipeline(place: Path, name: str, out: Path) -> Inspection:
    """What the statistics of a network say of its pipeline, of which nothing else is said."""
    unknown = replace(asked(place, name, out / f"{name}.pipeline.h5"), normalize=None, augment=None)
    return inspect(unknown, Settings(suggest_pipeline=True), progress=Bars())


def population(place: Path, out: Path) -> Iterator[tuple[str, PreciseBN]]:
    """Networks with population statistics: as they were, reset, and through a pipeline that is not theirs."""
    resnet20 = asked(place, "cifar_resnet20", out / "resnet20.pt")
    yield "fmnist_mlp", precise_bn(asked(place, "fmnist_mlp", out / "fmnist.pt"), progress=Bars())
    yield "cifar_resnet20", precise_bn(resnet20, progress=Bars())
    yield "cifar_resnet20, reset to (0, 1)", precise_bn(_reset(resnet20, out), progress=Bars())
    wrong = replace(resnet20, augment=None, out=out / "wrong.pt")
    yield "cifar_resnet20, no `augment`", precise_bn(wrong, progress=Bars())


def _reset(run: Run, out: Path) -> Run:
    """`run` of a copy of its checkpoint whose running statistics are those of a new network."""
    holds = torch.load(run.checkpoint, map_location="cpu")
    for name, values in holds["state_dict"].items():
        if name.endswith("running_mean"):
            values.zero_()
        elif name.endswith("running_var"):
            values.fill_(1)
    torch.save(holds, out / "reset.pt")
    return replace(run, checkpoint=out / "reset.pt", out=out / "mended.pt")


def domains(place: Path, pack: Path, out: Path) -> str:
    """The report on CIFAR-10 as JPEG pictures, and on digits, as domains of ResNet-20."""
    here = Path()
    of = {"jpeg": pack / "cifar10" / "jpeg_test.zip", "digits": pack / "ood" / "pcbdigits32.npz"}
    settings = Settings(domains=tuple(Named(f"{name}={path}", here) for name, path in of.items()))
    found = inspect(asked(place, "cifar_resnet20", out / "domains.h5"), settings, progress=Bars())
    findings = tuple(replace(finding, subject=finding.subject.replace(f"{place}/", "")) for finding in found.findings)
    stream = io.StringIO()
    print_record(
        report, replace(found, path=Path("resnet20-12fca82f.inspect.h5"), findings=findings), stream, width=100
    )
    return stream.getvalue()


def gap_table(found: Mapping[str, Inspection]) -> str:
    """How far the running averages lie from the population, over batch noise."""
    rows = ["| run | passed | mean × median, worst | ln var × median, worst | worst layer | slope of the noise |"]
    rows.append("| --- | --- | --- | --- | --- | --- |")
    for name, one in found.items():
        assert one.gap is not None and one.noise is not None
        by = {
            key: sorted(getattr(layer, key) for layer in one.gap.layers) for key in ("ratio_mean", "ratio_log_variance")
        }
        middle = [f"{v[len(v) // 2]:.1f}, {v[-1]:.1f}" for v in by.values()]
        worst = max(one.gap.layers, key=lambda layer: max(layer.ratio_mean, layer.ratio_log_variance))
        slopes = [layer.slope.value for layer in one.noise.layers if layer.slope is not None]
        slope = f"{min(slopes):.2f} to {max(slopes):.2f}".replace("-", "−")
        verdict = "yes" if one.gap.passed else "**no**"
        rows.append(f"| {name} | {verdict} | {middle[0]} | {middle[1]} | {worst.name} | {slope} |")
    return "\n".join(rows)


def pipeline_table(found: Mapping[str, Inspection]) -> str:
    """The training pipeline that fits each network's statistics best, and the next that is no twin of it."""
    rows = [
        "| network | best pipeline | worst layer × | next distinguishable pipeline | × | fits |",
        "|" + " --- |" * 6,
    ]
    for name, one in found.items():
        assert one.pipelines is not None
        best, *others = one.pipelines.candidates
        other = next(candidate for candidate in others if not candidate.tied)
        left = "".join(f"; {text}" for text in one.pipelines.undetermined)
        rows.append(
            f"| {name} | {_named(best.normalize, best.channel_order, best.augment)}{left} | {best.worst:.1f} | "
            f"{_named(other.normalize, other.channel_order, other.augment)} | {other.worst:.1f} | "
            f"{'yes' if best.passed else '**none**'} |"
        )
    return "\n".join(rows)


def _named(normalize: str | None, order: str, augment: str) -> str:
    return ", ".join(
        (normalize or "not normalised", *(["BGR"] if order == "bgr" else []), augment or "no augmentation")
    )


def mended_table(found: Mapping[str, PreciseBN]) -> str:
    """What population statistics do to accuracy and PLL."""
    rows = ["| `precise-bn` | accuracy before | after | change | PLL before | after | change |", "|" + " --- |" * 7]
    for name, one in found.items():
        assert one.test is not None
        accuracy, pll = one.test.estimates["accuracy"], one.test.estimates["pll"]
        cells = (
            *(f"{100 * estimate.value:.2f} %" for estimate in (accuracy.before, accuracy.after)),
            f"{100 * accuracy.change.value:+.2f} ± {100 * (accuracy.change.se or 0):.2f}",
            *(f"{estimate.value:.4f}" for estimate in (pll.before, pll.after)),
            f"{pll.change.value:+.4f} ± {pll.change.se or 0:.4f}",
        )
        rows.append(f"| {name} | {' | '.join(cells)} |".replace("-", "−"))
    return "\n".join(rows)


def page(tables: Mapping[str, str], apart: str) -> str:
    """docs/measured/inspect.md."""
    return f"""# What BatchNorm's statistics say

{made_by("make inspect")}

## Running averages against the population

×: the difference in units of batch noise; up to 3 in the median layer and 6 in the worst is normal.

{tables["gap"]}

## Which pipeline a checkpoint was trained with

{tables["pipelines"]}

## Population statistics

Computed through the pipeline of the run file, from at most 10,000 reference points; ± over test points, paired.

{tables["mended"]}

## CIFAR-10 as JPEG, and printed digits, as domains of ResNet-20

```text
{apart}```
"""


if __name__ == "__main__":
    main()
