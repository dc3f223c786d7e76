"""`make zoo`: samples a network of every family of timm and torchvision, and writes docs/measured/zoo.md.

Needs timm and torchvision. No weights are fetched. Of each family the smallest candidate with BatchNorm is taken, or
the smallest where none has; all rates of dropout that its constructor takes are set. Each network is checked in a
process of its own with limits of time and memory; what is done is kept in docs/zoo/. About half an hour of CPU time.
"""

from __future__ import annotations

import argparse
import importlib
import json
import logging
import multiprocessing
import re
import resource
import signal
import sys
import time
import traceback
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import islice, product
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any, cast

import torch
from make_figures import DOCS, MEASURED, made_by
from torch import Tensor, nn
from zoo_checks import BATCH, checked, is_refused, settled
from zoo_spellings import SHAPE, SPELLINGS

KEPT = DOCS / "zoo"
CLASSES = 10
FRAMES = 16  # of a video
CANDIDATES = 5  # members of a family that are built to find the smallest: those whose names say that they are small
SMALL = re.compile(
    r"atto|femto|pico|nano|zepto|tiny|mini|xxs|xs|small|_[sta]?0\d*|00[2-9]|_s\d?(_|$)|b0|[a-z]1[0148]t?$"
)
SIZES = (32, 64, 96, 128, 160, 192, 224, 240, 256, 320, 384, 448, 512)
RATES = {  # arguments of constructors, as far as they take them
    "drop_rate": 0.2,
    "drop_path_rate": 0.1,
    "attn_drop_rate": 0.1,
    "proj_drop_rate": 0.1,
    "pos_drop_rate": 0.1,
    "patch_drop_rate": 0.25,
    "drop_block_rate": 0.1,
    "dropout": 0.2,
    "attention_dropout": 0.1,
    "stochastic_depth_prob": 0.1,
}
SHALLOW = {"deepseek_vit_412m": {"depth": 4}}  # whose 32 equal blocks would take over 20 GB
CPU_SECONDS, MEMORY = 900, 14  # for one network, where nothing else is said; memory in GiB


def main() -> None:
    """Check what is not checked yet, and write the page."""
    asked = arguments()
    start()
    KEPT.mkdir(exist_ok=True)
    zoo = (each for networks in (spelled(), of_torchvision(), of_timm()) for each in networks)
    zoo = (each for each in zoo if asked.only in (None, each.name) and asked.family in (None, each.family))
    zoo = check_all(islice(zoo, asked.limit), asked)
    if (asked.only, asked.family, asked.limit) == (None, None, None):
        records = [json.loads(each.file.read_text()) for each in zoo]
        (MEASURED / "zoo.md").write_text(page(records), encoding="utf-8")
        sys.exit(1 if any(record.get("faults") for record in records) else 0)


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="the name of one network")
    parser.add_argument("--family", help="the name of one family: a module of timm.models or of torchvision.models")
    parser.add_argument("--limit", type=int, help="check the first networks alone")
    parser.add_argument("--jobs", type=int, default=1, help="networks that are checked at a time")
    parser.add_argument("--again", action="store_true", help="check what is done once more")
    parser.add_argument("--seconds", type=int, default=CPU_SECONDS, help=f"CPU time for one network ({CPU_SECONDS})")
    parser.add_argument("--memory", type=int, default=MEMORY, help=f"GiB of memory for one network ({MEMORY})")
    return parser.parse_args()


def start() -> None:
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    torch.set_num_threads(1)
    importlib.import_module("timm")


# Which networks


@dataclass(frozen=True)
class Network:
    """A network of the zoo, and how many members its family has."""

    package: str
    family: str
    name: str
    members: int = 1

    @property
    def file(self) -> Path:
        return KEPT / f"{self.package}.{self.name.replace(' ', '_').replace('/', '_')}.json"


def spelled() -> Iterator[Network]:
    yield from (Network("spellings", "spellings", name) for name in SPELLINGS)


def of_timm() -> Iterator[Network]:
    """The smallest member of each module that defines networks, without those that are for tests alone."""
    families = defaultdict[str, list[str]](list)
    for family, names in sys.modules["timm.models._registry"]._module_to_models.items():
        families[family] += sorted(name for name in names if not name.startswith("test_"))
    yield from smallest_of("timm", families)


def of_torchvision() -> Iterator[Network]:
    """The smallest classifier of each module, and every network for segmentation and video."""
    models = sys.modules["torchvision"].models
    families = defaultdict[str, list[str]](list)
    for name in models.list_models(module=models):
        families[models.get_model_builder(name).__module__.rpartition(".")[2]].append(name)
    yield from smallest_of("torchvision", families)
    for module in (models.segmentation, models.video):
        for name in models.list_models(module=module):
            yield Network("torchvision", module.__name__.rpartition(".")[2], name)


def smallest_of(package: str, families: Mapping[str, list[str]]) -> Iterator[Network]:
    """The smallest candidate with BatchNorm of each family; of all, where none has any."""
    file = KEPT / f"{package}.sizes.json"
    sizes: dict[str, tuple[bool, int]] = json.loads(file.read_text()) if file.exists() else {}
    for family, names in sorted(families.items()):
        small = sorted(names, key=lambda name: (not SMALL.search(name), len(name), name))[:CANDIDATES]
        for name in small:
            if name not in sizes:
                sizes[name] = size_of(package, name)
        file.write_text(json.dumps(sizes))
        yield Network(package, family, min(small, key=lambda name: tuple(sizes[name])), len(names))


def size_of(package: str, name: str) -> tuple[bool, int]:
    """Whether a network is without BatchNorm, and its parameters; infinitely many where it cannot be built."""
    for device in ("meta", "cpu"):  # some compute sizes with tensors while they are made
        with suppress(Exception), torch.device(device):
            network = built(package, name, {})
            without = not any(key.endswith("running_mean") for key, _ in network.named_buffers())
            return without, sum(value.numel() for value in network.parameters())
    return True, sys.maxsize


def built(package: str, name: str, arguments: Mapping[str, Any]) -> nn.Module:
    """The network with random weights; it is given the arguments that its constructor takes."""
    given = dict(arguments)
    while True:
        try:
            if package == "timm":
                return sys.modules["timm"].create_model(name, pretrained=False, num_classes=CLASSES, **given)
            backbone = {"weights_backbone": None} if is_of(package, name, "segmentation") else {}
            models = sys.modules["torchvision"].models
            with of_any_size(models.video.mvit, arguments.get("spatial_size")):
                return models.get_model(name, weights=None, num_classes=CLASSES, **backbone, **given)
        except TypeError as error:
            unknown = given.keys() & set(re.findall(r"'(\w+)'", str(error)))
            if not unknown:
                raise
            for argument in unknown:
                del given[argument]


@contextmanager
def of_any_size(module: Any, size: Any) -> Iterator[None]:
    """Within, MViT is built for pictures of this size, which its builders do not take."""
    original = module.MViT
    if size is not None:
        module.MViT = lambda **given: original(**given | {"spatial_size": size})
    try:
        yield
    finally:
        module.MViT = original


def is_of(package: str, name: str, module: str) -> bool:
    models = sys.modules["torchvision"].models
    return package == "torchvision" and name in models.list_models(module=getattr(models, module))


# The check of one


def check_all(networks: Iterator[Network], asked: argparse.Namespace) -> list[Network]:
    """Check every network that is not checked yet, or all again, in a process of its own, so many at a time and with
    such limits as are asked for. Each writes its file."""
    running, zoo = dict[int, tuple[Any, Network]](), list[Network]()
    while True:
        while len(running) < asked.jobs and (network := next(networks, None)) is not None:
            zoo.append(network)
            if network.file.exists() and not asked.again:
                continue
            process = multiprocessing.get_context("fork").Process(
                target=limited, args=(network, asked.seconds, asked.memory)
            )
            process.start()
            running[process.sentinel] = process, network
        if not running:
            return zoo
        for sentinel in wait(list(running)):
            process, network = running.pop(cast(int, sentinel))
            process.join()
            if process.exitcode:
                stopped = {-signal.SIGXCPU: f"over {asked.seconds} s of CPU time"}
                why = stopped.get(process.exitcode, f"its process ended with {process.exitcode}")
                network.file.write_text(json.dumps(asdict(network) | {"stopped": why}))
            print(f"{network.name}: {verdict(json.loads(network.file.read_text()))}", flush=True)


def limited(network: Network, seconds: int, memory: int) -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + memory * 2**30
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    used = int(time.process_time())
    resource.setrlimit(resource.RLIMIT_CPU, (used + seconds, used + seconds + 5))
    record = asdict(network) | checked_record(network)
    record["seconds"] = time.process_time() - used
    new = network.file.with_suffix(".new")
    new.write_text(json.dumps(record))
    new.rename(network.file)


def checked_record(network: Network) -> dict[str, Any]:
    torch.manual_seed(0)
    try:
        module, images = ready(network)
    except Exception as error:  # of any kind of network
        return {"stopped": f"cannot be run: {type(error).__name__}: {' '.join(str(error).split())[:200]}"}
    record = {
        "parameters": sum(value.numel() for value in module.parameters()),
        "shape": list(images.shape[1:]),
        "dtype": str(images.dtype).removeprefix("torch."),
    }
    try:
        result = checked(module, images)
        modules = dict(module.named_modules())
        kinds = Counter(type(modules.get(layer, module)).__name__ for layer in result.named)
        return record | asdict(result) | {"kinds": kinds}
    except Exception as error:
        if isinstance(error, MemoryError) or "alloc" in str(error):
            return record | {"stopped": "memory ran out"}
        text = "".join(traceback.format_exception(error)[-3:])
        return record | {"faults": [f"error: {type(error).__name__}: {error}"], "traceback": text}


def ready(network: Network) -> tuple[nn.Module, Tensor]:
    """The network with random weights and statistics, and points for it, in float64, or in float32 where its forward
    holds to that. Points have the smallest size for which both modes work."""
    if network.package == "spellings":
        images = torch.randn(2 * BATCH, *SHAPE, dtype=torch.float64)
        return settled(SPELLINGS[network.name]().double(), images[:BATCH]), images
    failures = list[Exception]()
    given = {"temporal_size": FRAMES} | SHALLOW.get(network.name, {})
    of_rates = RATES, {name: rate for name, rate in RATES.items() if name != "patch_drop_rate"}  # with which some fail
    for rates, size in product(of_rates, SIZES):
        of_size = {"img_size": size, "image_size": size, "input_size": (size, size), "spatial_size": (size, size)}
        frames = (FRAMES,) if is_of(network.package, network.name, "video") else ()
        for dtype in (torch.float64, torch.float32):
            images = torch.randn(2 * BATCH, 3, *frames, size, size, dtype=dtype)
            try:
                module = built(network.package, network.name, rates | of_size | given)
                return settled(module.to(dtype), images[:BATCH]), images
            except Exception as error:  # of any kind of network
                failures.append(error)
    raise failures[0]


# The page


def verdict(record: Mapping[str, Any]) -> str:
    """A network's outcome in one line."""
    if record.get("stopped"):
        return f"not checked: {record['stopped']}"
    if record["faults"]:
        return f"FAULT: {'; '.join(record['faults'])}"
    counts = (f"{record[key]} {key}" for key in ("batchnorms", "dropouts", "noises"))
    return f"{', '.join(counts)}, {len(record['named'])} named, {record['seconds']:.0f} s"


def page(records: list[dict[str, Any]]) -> str:
    """docs/measured/zoo.md."""
    releases = ", ".join(f"{name} {version(name)}" for name in ("timm", "torchvision"))
    published = [record for record in records if record["package"] != "spellings"]
    small = len(records) - len(published)
    tables = (table(published), table([record for record in records if record["package"] == "spellings"]))
    return f"""# The zoo: what is sampled exactly in published networks

{made_by("make zoo")[:-2]}, {releases}).

One small network of every family of timm and of torchvision, with BatchNorm where there is one, and every
segmentation and video network of torchvision; then {small} small networks that say dropout in other ways. Random
weights and statistics, float64, rates of dropout above 0 where a constructor takes them; deepseek_vit_412m has 4 of
its 32 blocks. bnuq is held against the network's own training-mode forward: what is random there must be sampled, or be
named in a warning or a refusal.

{summary(published)}

**Deviation** is that of MCBN from the training-mode forward of the same mini-batch, relative to the largest output.
**Named** are the layers that are random in training, and that bnuq says it does not sample. **Loop**: no plan of the
operations agrees with the network, so that every sample is a forward of its own.

{tables[0]}

## Dropout in every spelling

{tables[1]}
"""


def summary(records: list[dict[str, Any]]) -> str:
    """The counts, and the reasons of what is not sampled."""
    done = [record for record in records if not record.get("stopped")]
    exact = [record for record in done if record["deviation"] is not None and not record["faults"]]
    worst = max((record["deviation"] for record in exact), default=0)
    refused = [(record["name"], record["refusals"]["mcbn"]) for record in done if is_refused(record["refusals"])]
    layers = sum(record["batchnorms"] for record in exact)
    kinds = sum((Counter(record["kinds"]) for record in done), Counter[str]())
    networks = Counter(kind for record in done for kind in record["kinds"])
    lines = [
        f"- **{len(records)} networks** of {len({(r['package'], r['family']) for r in records})} families, "
        f"{len(done)} checked.",
        f"- **MCBN is exact in {len(exact)}** of the {len(exact) + len(refused)} with BatchNorm: {layers:,} layers, "
        f"largest deviation {worst:.1e}.",
        *(f"- {name}: refused, {text}" for name, text in refused),
        f"- **Dropout is sampled in {sum(record['dropouts'] > 0 for record in done)}**: "
        f"{sum(record['dropouts'] for record in done):,} calls.",
        f"- **Named in {sum(bool(record['named']) for record in done)}**: "
        + ", ".join(f"{kind} ({count} in {networks[kind]})" for kind, count in kinds.most_common())
        + ".",
        f"- **Silent or wrong: {sum(bool(record['faults']) for record in done)}.** No network was changed.",
        f"- A plan runs {sum(not record['loop'] for record in done)}; "
        f"{sum(bool(record['loop']) for record in done)} are run in a loop.",
        *(f"- Not checked: {record['name']}, {record['stopped']}." for record in records if record.get("stopped")),
    ]
    return "\n".join(lines)


def table(records: list[dict[str, Any]]) -> str:
    rows = ["| network | parameters | point | BatchNorm | deviation | dropout | named | loop | s |"]
    rows.append("| --- | --- | --- | --- | --- | --- | --- | --- | --- |")
    for record in records:
        family = record["family"] if record["package"] != "spellings" else ""
        name = f"{family}: {record['name']}" if family and family != record["name"] else record["name"]
        if record.get("stopped"):
            rows.append(f"| {name} | | | not checked: {record['stopped']} | | | | | |")
            continue
        shape = " × ".join(map(str, record["shape"])) + (", float32" if record["dtype"] == "float32" else "")
        deviation = "–" if record["deviation"] is None else f"{record['deviation']:.0e}"
        batchnorms = "refused" if is_refused(record["refusals"]) else record["batchnorms"] or "–"
        named = ", ".join(f"{count} {kind}" for kind, count in record["kinds"].items()) or "–"
        loop = record["loop"] or "–"
        dropouts = str(record["dropouts"] or "–") + (f" + {record['noises']} noise" if record["noises"] else "")
        cells = (name, f"{record['parameters']:,}", shape, batchnorms, deviation, dropouts, named, loop)
        cells = (*cells, "**" + "; ".join(record["faults"]) + "**") if record["faults"] else cells
        rows.append("| " + " | ".join(map(str, cells)) + f" | {record['seconds']:.0f} |")
    return "\n".join(rows)


if __name__ == "__main__":
    main()
