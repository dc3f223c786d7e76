"""Reading a checkpoint as it comes: recognised by content, checked before loading, never run unless trusted."""

from __future__ import annotations

import argparse
import datetime
import hashlib
import io
import json
import os
import re
import sys
import types
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import chain
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath
from typing import Any, Literal, NoReturn, TypeGuard

import numpy as np
import safetensors.torch
import torch
from torch import Tensor, nn

from bnuq.errors import BnuqError, ModelError, UntrustedCodeError, is_out_of_memory
from bnuq.files.content import Kind, is_file, kind_of, what_is_wrong_with
from bnuq.files.hub import CONFIG, HubConfig, read_hub_config
from bnuq.files.limits import read_whole
from bnuq.findings import Finding, note
from bnuq.models.architecture import matching_torchvision
from bnuq.models.archives import Archive, opened
from bnuq.models.exported import read_exported
from bnuq.models.pickles import Survey, survey_legacy
from bnuq.models.shards import Weights, read_safetensors_files
from bnuq.models.torchscript import read_torchscript

Form = Literal[
    "state dict (zip)",
    "state dict (legacy pickle)",
    "safetensors",
    "pickled module",
    "TorchScript",
    "exported program",
    "sharded safetensors",
    "timm folder",
    "transformers folder",
    "in memory",
]
Plain = str | int | float | bool

# Where training scripts put the weights, averaged ones first: they are what the script evaluated.
_NESTS = ("state_dict_ema", "model_ema", "ema", "state_dict", "model", "net", "weights", "model_state_dict")
_DEEPEST_NEST = 3
_LONGEST_NAME = 1000  # letters of a tensor's name, or of the entry it is in
_MOST_WRAPPERS = 8  # within each other
_MOST_OVERLAP = 8  # how often tensors may share the bytes of the file, as flat parameters and views of them do
_AVERAGES = re.compile(r"(^|_)(ema|swa|averaged|shadow)(_|$)")  # an entry, or the first part of a tensor's name
_WRAPPERS = ("module.", "model.", "net.")  # DataParallel, Lightning, habit
COMPILED = "_orig_mod."  # what torch.compile adds to every name
_AVERAGED = "n_averaged"  # the counter of torch.optim.swa_utils.AveragedModel
_BATCH_SIZES = ("train_batch_size", "batch_size", "batch-size")
_BEFORE = "Give the network from before the conversion."
_INDEX = ".safetensors.index.json"
_EXPECTED = "expected weights or a network of torch.save, torch.jit.save or torch.export.save, or a safetensors file"


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint file holds: `state` or, for a pickled network, `module`.

    `key` is the dotted path of the dict entry that was taken, None where there was nothing to choose; `entries` are all
    that hold weights in the outermost dict. `stripped` are the prefixes taken off every name, outermost first.
    `metadata` are the small plain values beside the weights, `hub` the config beside them in a folder.
    """

    path: Path
    sha256: str
    form: Form
    state: dict[str, Tensor] | None
    module: nn.Module | None
    key: str | None = None
    stripped: tuple[str, ...] = ()
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    findings: tuple[Finding, ...] = ()
    entries: tuple[str, ...] = ()
    hub: HubConfig | None = None

    @property
    def train_batch_size(self) -> int | None:
        """The mini-batch size of the training, where the file records one."""
        for name in _BATCH_SIZES:
            for key, value in self.metadata.items():
                if key.rpartition(".")[2] == name and type(value) is int and value > 0:
                    return value
        return None


def read_checkpoint(
    path: str | os.PathLike[str],
    *,
    entry: str | None = None,
    trust_pickle: bool = False,
    only_finite: bool = True,
) -> Checkpoint:
    """The weights in the file at `path`, on the CPU, with the prefixes that wrappers add taken off.

    `entry` is the dotted path of the dict entry that holds them; without it, averaged weights come first.

    Raises ModelError for a file that is not a checkpoint, is damaged, asks for more memory than it fills, or, with
    `only_finite`, holds NaN or infinite weights; UntrustedCodeError where loading would run code and `trust_pickle` is
    not given.
    """
    path = Path(path)
    kind = _kind(path)
    if kind in ("folder", "text"):
        return _of_several_files(path, entry, only_finite=only_finite)
    with _as_model_error(path):
        data = read_whole(path, copies=2, error=ModelError)  # the file's bytes and, for a while, the tensors
        size, sha256 = len(data), hashlib.sha256(data).hexdigest()
        if kind == "safetensors":
            if entry is not None:
                raise ModelError(f"{path}: is a safetensors file, which has no entries; leave out --entry {entry}.")
            state, metadata = _from_safetensors(data)
            checkpoint = Checkpoint(path, sha256, "safetensors", state, None, metadata=metadata)
            return _checked(checkpoint, size=size, only_finite=only_finite)
        archive = opened(path, data) if kind == "zip" else None
        if archive is not None and archive.form != "checkpoint":
            checkpoint = _program(archive, sha256, entry, trust_pickle=trust_pickle)
            assert checkpoint.module is not None
            _check_values(path, checkpoint.module.state_dict(), size=size, only_finite=only_finite)
            return checkpoint
        survey = _survey_of_zip(archive) if archive is not None else _survey_of_legacy(path, data)
        holds = _unpickled(path, data, survey, trust_pickle=trust_pickle)
        del data
    form: Form = "state dict (zip)" if kind == "zip" else "state dict (legacy pickle)"
    key, weights = _weights_in(path, holds, entry)
    entries = tuple(str(key) for key, value in _entries(holds) if _leads_to_weights(value))
    unused = () if entry else tuple(_unused_averages(holds, key))
    if isinstance(weights, nn.Module):
        check_not_quantized(weights, path)  # these may have no state dict
        _check_values(path, weights.state_dict(), size=size, only_finite=only_finite)
        module = Checkpoint(
            path, sha256, "pickled module", None, weights, key, (), _plain_values(holds), entries=entries
        )
        return replace(module, findings=unused)
    checkpoint = Checkpoint(path, sha256, form, weights, None, key, (), _plain_values(holds), unused, entries)
    return _checked(checkpoint, size=size, only_finite=only_finite)


def content_of(checkpoint: Checkpoint) -> tuple[Any, dict[str, str]]:
    """Everything that the file of a checkpoint holds, read again, and the metadata of safetensors.

    Raises ModelError where the file has changed: what it holds was trusted, if need be, as it was.
    """
    path = checkpoint.path
    with _as_model_error(path):
        data = read_whole(path, copies=2, error=ModelError)
        if hashlib.sha256(data).hexdigest() != checkpoint.sha256:
            raise ModelError(f"{path}: has changed since it was read. Run it again.")
        if checkpoint.form == "safetensors":
            return _from_safetensors(data)
        is_zip = _kind(path) == "zip"
        survey = _survey_of_zip(opened(path, data)) if is_zip else _survey_of_legacy(path, data)
        return _unpickled(path, data, survey, trust_pickle=True), {}


def fitted(checkpoint: Checkpoint, expected: Collection[str]) -> Checkpoint:
    """`checkpoint` with those of its prefixes restored that the `expected` names have too.

    Where only some of the names carry a prefix, and those alone are all that is expected, the others are left out and
    a note says so: Lightning keeps the weights of losses beside those of the network.
    """
    if checkpoint.state is None:
        return checkpoint
    wanted = set(expected)
    best, most = checkpoint, len(wanted & checkpoint.state.keys())
    for count in range(len(checkpoint.stripped) - 1, -1, -1):
        prefix = "".join(checkpoint.stripped[count:])
        candidate = _renamed(checkpoint.state, lambda name, prefix=prefix: prefix + name)
        matching = len(wanted & candidate.keys())
        if matching > most:
            best, most = replace(checkpoint, state=candidate, stripped=checkpoint.stripped[:count]), matching
    assert best.state is not None
    flat = {f"ema_{name.replace('.', '_')}" for name in best.state} - wanted
    if copies := [name for name in best.state if name in flat]:
        state = _renamed({name: value for name, value in best.state.items() if name not in flat}, str)
        findings = (*best.findings, note("averages-beside", count=len(copies), names=_listed(copies)))
        best = replace(best, state=state, findings=findings)
    if most == len(wanted):
        return best
    assert best.state is not None
    firsts = dict.fromkeys(name.partition(".")[0] for name in best.state)
    averaged = [f"{first}.{inner}" for first in firsts if _AVERAGES.search(first) for inner in ("", "module.")]
    for prefix in (*averaged, *_WRAPPERS, "online_model."):
        inside = {name.removeprefix(prefix): value for name, value in best.state.items() if name.startswith(prefix)}
        if wanted <= inside.keys():
            outside = [name for name in best.state if not name.startswith(prefix)]
            left_out = note("tensors-left-out", count=len(outside), prefix=prefix, names=_listed(outside))
            findings = (*best.findings, left_out)
            return replace(best, state=inside, stripped=(*best.stripped, prefix), findings=findings)
    return best


def _kind(path: Path) -> Kind:
    """The kind of file, where weights can be read from that kind. Raises ModelError where not."""
    kind = kind_of(path)
    wrong = what_is_wrong_with(kind)
    if wrong:
        raise ModelError(f"{path}: {wrong}")
    if kind == "folder" or (kind == "text" and path.name.endswith(_INDEX)):
        return kind
    if kind in ("zip", "safetensors", "pickle"):
        return kind
    with _as_model_error(path), path.open("rb") as file:
        head = file.read(4096)
    if kind != "hdf5" and _looks_like_onnx(head):
        raise ModelError(
            f"{path}: is an ONNX graph, in which BatchNorm is folded into the convolutions and dropout is gone: "
            f"nothing is left to sample. Give the PyTorch checkpoint that it was exported from."
        )
    if kind == "text":
        start = head.decode("utf-8", "replace").lstrip()
        if start[:200].lower().startswith(("<!doctype", "<html")):
            raise ModelError(f"{path}: is a web page, so the download went wrong; {_EXPECTED}. Fetch the file again.")
        first = "".join(c if c.isprintable() else " " for c in start.splitlines()[0][:60]) if start else ""
        raise ModelError(f"{path}: is a text file (it begins {first!r}); {_EXPECTED}.")
    description = {
        "hdf5": "an HDF5 file (Keras weights, or a result of bnuq)",
        "gzip": "a gzip archive: unpack it first",
        "tar": "a tar archive, or a checkpoint of torch 0.1: unpack it, or save it again with a newer torch",
        "npy": "a NumPy array",
        "mat": "a MATLAB file",
        "idx": "a file of images or labels (idx)",
        "parquet": "a Parquet table",
    }.get(kind, "no kind of file that is known here, or damaged at its start")
    raise ModelError(f"{path}: is {description}; {_EXPECTED}.")


def _looks_like_onnx(head: bytes) -> bool:
    """A protobuf whose first field is a small `ir_version` and whose second is one that ONNX has."""
    return len(head) > 3 and head[0] == 0x08 and head[1] < 32 and head[2] in (0x12, 0x1A, 0x22, 0x28, 0x32, 0x3A, 0x42)


@contextmanager
def _as_model_error(path: Path) -> Iterator[None]:
    """Turn any exception into one ModelError: loaders of hostile files raise EOFError, KeyError, struct.error, …"""
    try:
        yield
    except BnuqError:
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise ModelError(f"{path}: there is not enough memory to load it. Use a machine with more.") from error
        reason = " ".join(str(error).split())[:200].rstrip(".")
        if operator := re.search(r"(?:operator|Unknown builtin op:) (\w+)::\w+", reason):
            cure = f"Install the matching one with: {matching_torchvision()}"
            if operator[1] != "torchvision":
                cure = "Install that library, of a release that belongs to this torch."
            raise ModelError(
                f"{path}: needs operators of {operator[1]} that torch {torch.__version__} does not have ({reason}): "
                f"the library is missing here, or of another build. {cure}"
            ) from error
        told = f" ({type(error).__name__}{': ' if reason else ''}{reason})" * (not isinstance(error, _OF_THE_READER))
        raise ModelError(f"{path}: is damaged or incomplete{told}; {_EXPECTED}. Fetch or write it again.") from error


_OF_THE_READER = (AttributeError, TypeError, LookupError, AssertionError)  # their texts are about code, not the file


def _from_safetensors(data: bytes) -> tuple[dict[str, Tensor], dict[str, str]]:
    state = safetensors.torch.load(data)  # which has checked the header
    header = json.loads(data[8 : 8 + int.from_bytes(data[:8], "little")], object_pairs_hook=_each_once)
    return {name: state[name] for name in sorted(state)}, header.get("__metadata__") or {}


def _each_once(entries: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(by_name := dict(entries)) < len(entries):
        raise ValueError("its header lists a name twice")
    return by_name


def _of_several_files(path: Path, entry: str | None, *, only_finite: bool) -> Checkpoint:
    """The weights of a folder, or of an index of safetensors files."""
    folder = path if path.is_dir() else path.parent
    form: Form = "sharded safetensors"
    with _as_model_error(path):
        hub = read_hub_config(folder) if folder == path else None
        if folder == path and hub is None and is_file(path / ".metadata"):
            raise ModelError(
                f"{path}: is a distributed checkpoint, which is not read; {_EXPECTED}. Convert it: "
                "python -m torch.distributed.checkpoint.format_utils dcp_to_torch FOLDER model.pt"
            )
        if hub is not None:
            form, weights = "timm folder" if hub.package == "timm" else "transformers folder", _of_hub(path)
        else:
            weights = read_safetensors_files(path, folder, path.name if folder != path else _index_in(path))
    key, state = _weights_in(path, weights.holds, entry)
    assert isinstance(state, dict)
    entries = tuple(str(key) for key, value in _entries(weights.holds) if _leads_to_weights(value))
    checkpoint = Checkpoint(path, weights.sha256, form, state, None, key, entries=entries, hub=hub)
    return _checked(checkpoint, size=weights.size, only_finite=only_finite)


def _of_hub(folder: Path) -> Weights:
    """The weights beside a config.json; the digest covers both."""
    if is_file(folder / "model.safetensors"):
        return read_safetensors_files(folder, folder, None, "model.safetensors", CONFIG)
    if is_file(folder / f"model{_INDEX}"):
        return read_safetensors_files(folder, folder, f"model{_INDEX}", CONFIG)
    raise ModelError(
        f"{folder}: has a {CONFIG} and no model.safetensors; expected both (timm writes both with "
        "safe_serialization=True). For other weights (pytorch_model.bin) name their file."
    )


def _index_in(folder: Path) -> str:
    """The only index of safetensors files in a folder."""
    indices = [place.name for place in folder.iterdir() if place.name.endswith(_INDEX)]
    if len(indices) != 1:
        raise ModelError(
            f"{folder}: is a folder without a config.json (of timm or transformers) or an index of safetensors files; "
            f"{_EXPECTED}. Name the file inside it."
        )
    return indices[0]


def _tensors(path: Path, data: bytes) -> Any:
    """What `torch.save` wrote, unpickled as tensors alone."""
    return _unpickled(path, data, _survey_of_zip(opened(path, data)), trust_pickle=False)


def _program(archive: Archive, sha256: str, entry: str | None, *, trust_pickle: bool) -> Checkpoint:
    """The network of a TorchScript archive or an exported program."""
    path, form = archive.path, archive.form
    assert form != "checkpoint"
    if entry is not None:
        raise ModelError(f"{path}: holds a network ({form}), which has no entries; leave out --entry {entry}.")
    if form == "TorchScript":
        return Checkpoint(path, sha256, form, None, read_torchscript(archive, trust=trust_pickle))

    module, findings = read_exported(archive, partial(_tensors, path))
    return Checkpoint(path, sha256, form, None, module, findings=findings)


def _survey_of_zip(archive: Archive) -> Survey:
    """What the `data.pkl` of torch's zip asks for; ModelError for a zip that no `torch.save` wrote."""
    names = archive.sizes
    if f"{archive.root}/data.pkl" not in names:
        content = "NumPy arrays (.npz)" if any(n.endswith(".npy") for n in names) else f"{_listed(names) or 'nothing'}"
        raise ModelError(f"{archive.path}: is a zip archive without a data.pkl; it holds {content}; {_EXPECTED}.")
    return archive.survey()


def _survey_of_legacy(path: Path, data: bytes) -> Survey:
    survey = survey_legacy(io.BytesIO(data), size=len(data))
    if survey is None:
        raise ModelError(f"{path}: is a pickle, but not one that torch.save wrote, so it was not opened; {_EXPECTED}.")
    return survey


# Objects of the standard library that scripts save with weights. Making one runs no code but its own, which only stores
# what it is given; paths of any system become pure ones, which cannot touch a file.
_PATHS = {"PosixPath": PurePosixPath, "PurePosixPath": PurePosixPath, "WindowsPath": PureWindowsPath,
          "PureWindowsPath": PureWindowsPath, "Path": PurePath, "PurePath": PurePath}  # fmt: skip


class _NumpyDtype:
    """Stands for the dtype of a pickled NumPy scalar."""

    def __init__(self, code: str, *_: object) -> None:
        self._code, self._order = code, "="

    def __setstate__(self, state: Sequence[Any]) -> None:
        if state[1] not in ("<", ">", "|", "="):
            raise ValueError("it holds a NumPy scalar without a byte order")
        self._order = state[1]

    def value(self, data: bytes) -> complex | str | bytes | None:
        """The number or text whose bytes these are; None for anything else, such as a date."""
        if not re.fullmatch(r"[biufcSU]\d{1,9}", self._code):
            return None
        dtype = np.dtype(self._order + self._code)
        if len(data) != dtype.itemsize:
            raise ValueError(f"a NumPy scalar has {len(data)} bytes; expected {dtype.itemsize}")
        return np.frombuffer(data, dtype)[0].item()


class _NumpyArray:
    """Stands for a pickled NumPy array, such as the state of a random generator, whose values nobody needs."""

    def __init__(self, *_: object) -> None: ...

    def __setstate__(self, state: object) -> None: ...

    @staticmethod
    def reconstructed(*_: object) -> _NumpyArray:
        return _NumpyArray()


_NUMPY: tuple[Any, ...] = (
    (_NumpyDtype, "numpy.dtype"),
    (_NumpyArray, "numpy.ndarray"),
    *((_NumpyDtype.value, f"numpy.{core}.multiarray.scalar") for core in ("_core", "core")),
    *((_NumpyArray.reconstructed, f"numpy.{core}.multiarray._reconstruct") for core in ("_core", "core")),
)
_PLAIN_OBJECTS: list[Any] = [
    *_NUMPY,
    argparse.Namespace,
    types.SimpleNamespace,
    *(getattr(datetime, name) for name in ("datetime", "date", "time", "timedelta", "timezone")),
    *((kind, f"{module}.{name}") for module in ("pathlib", "pathlib._local") for name, kind in _PATHS.items()),
]


def _unpickled(path: Path, data: bytes, survey: Survey, *, trust_pickle: bool) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of deprecated storages and pickle protocols: nothing the user can change
        try:
            with torch.serialization.safe_globals(_PLAIN_OBJECTS):
                return torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
        except Exception as refusal:
            if trust_pickle:
                return _run(path, data)
            if survey.code:
                _refuse_to_run(path, survey, refusal)
            raise


def _refuse_to_run(path: Path, survey: Survey, refusal: Exception) -> NoReturn:
    lightning = " It is a Lightning checkpoint: these are in its hyper-parameters or callbacks." * (
        "pytorch-lightning_version" in survey.keys
    )
    raise UntrustedCodeError(
        f"{path}: holds more than weights: to load it, {_listed(survey.code, order=False)} would have to run. "
        f"Nothing was run.{lightning} Save the weights alone (torch.save(model.state_dict(), …)) or, if you trust "
        f"whoever made the file, add --trust-pickle (in Python: trust_pickle=True)."
    ) from refusal


def _run(path: Path, data: bytes) -> Any:
    """Unpickle for real, with the folder of the file importable: a pickled network names its class, not its code."""
    folders = [str(path.resolve().parent), str(Path.cwd())]
    sys.path.extend(folders)
    try:
        return torch.load(io.BytesIO(data), map_location="cpu", weights_only=False)
    except (ImportError, AttributeError) as error:
        raise ModelError(
            f"{path}: needs code that is not here: {error}. A pickled network is found by the name of its class; "
            f"put the file that defines it beside the checkpoint, or save the state dict and name --arch."
        ) from error
    finally:
        for folder in folders:
            sys.path.reverse()
            sys.path.remove(folder)
            sys.path.reverse()


def _weights_in(path: Path, holds: Any, entry: str | None) -> tuple[str | None, dict[str, Any] | nn.Module]:
    """The state dict or network in what a file holds, or in its `entry`, and the dotted path of the entry it was found
    under."""
    way: list[str] = []
    at: Any = holds
    for name in _path_of(holds, entry):
        at = _entry(at, name)
        if not _leads_to_weights(at):
            entries = [str(key) for key, value in _entries(holds) if _leads_to_weights(value)]
            there = "it has no entry with weights"
            if entries:
                there = f"the entries with weights are {_listed(entries, order=False)}"
            elif _leads_to_tensors(holds):
                there = "the file is a single state dict, without entries: leave --entry out"
            raise ModelError(f"{path}: --entry is {_cut(str(entry))!r}, which holds no weights; {there}.")
        way.append(name)
    for _ in range(_DEEPEST_NEST + 1):
        nest = _nest_of(path, at)
        if nest is None:
            break
        _check_name(path, nest)
        way.append(nest)
        at = _entry(at, nest)
    if isinstance(at, nn.Module) or _has_tensors(at):
        return ".".join(way) or None, at
    content = (
        f"a dict of {_listed(map(str, at), order=False) or 'nothing'}" if isinstance(at, Mapping) else f"a {_name(at)}"
    )
    raise ModelError(f"{path}: holds no state dict but {content}; {_EXPECTED}.")


def _path_of(holds: Any, entry: str | None) -> Sequence[str]:
    """The names on the way to `entry`, a dotted path; a name of the outermost dict may have full stops in it."""
    if entry is None:
        return ()
    return (entry,) if isinstance(holds, Mapping) and entry in holds else entry.split(".")


def _entries(holds: Any) -> Iterable[tuple[Any, Any]]:
    return holds.items() if isinstance(holds, Mapping) else ()


def _entry(at: Any, name: str) -> Any:
    return at.get(name) if isinstance(at, Mapping) else None


def _nest_of(path: Path, at: Any) -> str | None:
    if not isinstance(at, Mapping):
        return None
    averaged = [name for name, value in at.items() if name not in _NESTS and _is_average(name, _tensors_in(value))]
    plain = max((_tensors_in(at.get(name)) for name in _NESTS), default=0)
    if len(averaged) == 1 and _tensors_in(at[averaged[0]]) >= plain:  # fewer are without the buffers of BatchNorms
        return averaged[0]
    for name in _NESTS:
        if isinstance(at.get(name), nn.Module) or _leads_to_tensors(at.get(name)):
            return name
    if _has_tensors(at):
        return None
    others = [name for name, value in at.items() if isinstance(name, str) and _has_tensors(value)]
    if len(others) > 1:
        raise ModelError(
            f"{path}: holds several state dicts, {_listed(others)}, and nothing says which is the network's. "
            f'Name it with --entry {others[0]}, or under [model]: entry = "{others[0]}".'
        )
    return others[0] if others else None


def _is_average(name: Any, tensors: int) -> bool:
    return isinstance(name, str) and tensors > 0 and bool(_AVERAGES.search(name))


def _unused_averages(holds: Any, key: str | None) -> Iterator[Finding]:
    """A note on each entry of averaged weights that is not read, such as a list of them without names."""
    if not _AVERAGES.search(key or ""):
        entries = [(name, value) for name, value in _entries(holds) if not isinstance(value, Tensor)]
        names = [name for name, value in entries if _is_average(name, _holds_tensors(value))]
        yield from (note("averages-unused", entry=_cut(name), key=key) for name in names)


def _tensors_in(value: Any, depth: int = 0) -> int:
    """How many tensors the state dict or network in a value has."""
    if isinstance(value, nn.Module):
        return len(value.state_dict())
    if _has_tensors(value):
        return sum(isinstance(item, Tensor) for item in value.values())
    inner = (item for name, item in _entries(value) if name in _NESTS and depth < _DEEPEST_NEST)
    return max((_tensors_in(item, depth + 1) for item in inner), default=0)


def _holds_tensors(value: Any, depth: int = 0) -> bool:
    inner = value.values() if isinstance(value, Mapping) else value if isinstance(value, list | tuple) else ()
    return isinstance(value, Tensor | nn.Module) or (
        depth < _DEEPEST_NEST and any(_holds_tensors(item, depth + 1) for item in inner)
    )


def _leads_to_weights(value: Any) -> bool:
    """Whether a value holds weights: a state dict, a network, or a dict with one in it."""
    return _leads_to_tensors(value) or any(_leads_to_tensors(item) for _, item in _entries(value))


def _leads_to_tensors(value: Any, depth: int = 0) -> bool:
    if isinstance(value, nn.Module):
        return True
    if not isinstance(value, Mapping):
        return False
    return _has_tensors(value) or (
        depth < _DEEPEST_NEST and any(_leads_to_tensors(value.get(name), depth + 1) for name in _NESTS)
    )


def _has_tensors(value: Any) -> bool:
    return isinstance(value, Mapping) and any(isinstance(k, str) and isinstance(v, Tensor) for k, v in value.items())


def _plain_values(holds: Any) -> dict[str, Plain]:
    """The small plain values beside the weights, and in the dicts of settings that training scripts keep there."""
    values: dict[str, Plain] = {}
    if not isinstance(holds, Mapping):
        return values
    for key, value in holds.items():
        settings = key in ("args", "hyper_parameters", "hparams", "config", "cfg", "opt")
        inner = {}
        if settings:
            inner = value if isinstance(value, Mapping) else getattr(value, "__dict__", {})
        values |= {f"{key}.{name}": v for name, v in inner.items() if isinstance(name, str) and _is_plain(v)}
        if isinstance(key, str) and _is_plain(value):
            values[key] = value
    return {name: value for name, value in values.items() if len(name) <= _LONGEST_NAME}


def _is_plain(value: Any) -> TypeGuard[Plain]:
    if isinstance(value, int):  # which may have a million digits
        return abs(value) < 2**63
    return isinstance(value, float) or (isinstance(value, str) and len(value) <= 200)


def _checked(checkpoint: Checkpoint, *, size: int, only_finite: bool) -> Checkpoint:
    """`checkpoint` without non-tensors and prefixes, its values checked."""
    state = checkpoint.state
    assert state is not None
    tensors = {
        name: value.detach() for name, value in state.items() if isinstance(name, str) and isinstance(value, Tensor)
    }
    for name in tensors:
        _check_name(checkpoint.path, name)
    others = [str(name) for name in state if name not in tensors]
    for name, value in state.items():
        if isinstance(value, tuple) and any(isinstance(each, Tensor) and each.is_quantized for each in value):
            raise ModelError(f"{checkpoint.path}: is a quantized network: {name} holds whole numbers. {_BEFORE}")
    findings = (note("entries-left-out", count=len(others), names=_listed(others)),) if others else ()
    if not tensors:
        raise ModelError(f"{checkpoint.path}: holds no tensors; {_EXPECTED}.")
    _check_values(checkpoint.path, tensors, size=size, only_finite=only_finite)
    versions = getattr(state, "_metadata", None)
    if isinstance(versions, Mapping) and all(isinstance(v, Mapping) for v in versions.values()):
        tensors = OrderedDict(tensors)
        tensors._metadata = versions  # type: ignore[attr-defined]  # by it torch reads what older layers wrote
    tensors, stripped = _strip(checkpoint.path, tensors)
    return replace(checkpoint, state=tensors, stripped=stripped, findings=(*checkpoint.findings, *findings))


def _check_name(path: Path, name: str) -> None:
    if len(name) > _LONGEST_NAME:
        raise ModelError(
            f"{path}: {_cut(name)} is a name of {len(name):,} letters; expected at most {_LONGEST_NAME:,}."
        )


def check_not_quantized(module: nn.Module, path: Path) -> None:
    """Raise ModelError for a network with quantized layers."""
    for name, layer in module.named_modules():
        kinds = chain((type(layer),), map(type, layer.parameters(recurse=False)))  # a fused layer may have lost these
        if any(re.search(r"(^|\.)(quantized|torchao)(\.|$)", kind.__module__) for kind in kinds):
            raise ModelError(
                f"{path}: is a quantized network: {name or 'it'} is a {type(layer).__name__} of "
                f"{type(layer).__module__}. BatchNorm is folded into such layers, and nothing is "
                f"left to sample. {_BEFORE}"
            )


def _check_values(path: Path, state: Mapping[str, Any], *, size: int, only_finite: bool) -> None:
    bad: list[str] = []
    views: dict[tuple[Any, ...], bool] = {}  # those looked at, and whether they are finite: tied weights are one
    total = 0
    for name, value in state.items():
        if not isinstance(value, Tensor) or nn.parameter.is_lazy(value):
            continue
        if value.layout != torch.strided or value.is_quantized or value.device.type != "cpu":
            odd = "quantized" if value.is_quantized else "empty (meta)" if value.is_meta else "sparse"
            raise ModelError(
                f"{path}: {name} is {'an' if odd[0] == 'e' else 'a'} {odd} tensor; expected plain weights. "
                f"Give the checkpoint from before the conversion."
            )
        if value.numel() * value.element_size() > size:
            raise ModelError(f"{path}: {name} has shape {_shape(value)}, more than the file holds: it is forged.")
        view = value.data_ptr(), value.dtype, value.shape, value.stride()
        if view not in views:
            total += value.numel() * value.element_size()
            if total > _MOST_OVERLAP * size:
                raise ModelError(
                    f"{path}: its tensors overlap and hold more than {_MOST_OVERLAP} times the file's {size} bytes: it "
                    "is forged."
                )
            views[view] = not (only_finite and value.is_floating_point()) or _is_finite(value)
        if not views[view]:
            bad.append(name)
    if bad:
        raise ModelError(
            f"{path}: {bad[0]} holds NaN or infinite values ({len(bad)} of {len(state)} tensors do); "
            f"expected finite weights. The training diverged, or the file is damaged: give an earlier checkpoint."
        )


def _is_finite(value: Tensor) -> bool:
    if value.element_size() == 1:  # float8 has no isfinite
        value = value.float()
    # A mask of attention or classes is 0 or -inf; weights that diverged are not.
    return bool(torch.isfinite(value).all()) or bool((value.isneginf() | (value == 0)).all())


def _strip(path: Path, state: dict[str, Tensor]) -> tuple[dict[str, Tensor], tuple[str, ...]]:
    """`state` without the prefixes that all names share, however many; and those prefixes."""
    stripped: list[str] = []
    if any(COMPILED in name for name in state):
        first: dict[str, str] = {}
        for name, value in state.items():
            other = first.setdefault(plain := name.replace(COMPILED, ""), name)
            if other != name and not torch.equal(state[other], value):
                raise ModelError(
                    f"{path}: {other} and {name} are both {plain} of the network, once the prefixes are off. Save the "
                    "network's own state dict (torch.save(model.state_dict(), …)) and name that."
                )
        state = _renamed(state, lambda name: name.replace(COMPILED, ""))
        stripped.append(COMPILED)
    if _AVERAGED in state and all(name.startswith("module.") for name in state if name != _AVERAGED):
        state = _renamed({name: value for name, value in state.items() if name != _AVERAGED}, str)
    while state and len(stripped) < _MOST_WRAPPERS:
        prefix = next((p for p in _WRAPPERS if all(n.startswith(p) and n != p for n in state)), None)
        if prefix is None:
            break
        state = _renamed(state, lambda name, prefix=prefix: name.removeprefix(prefix))
        stripped.append(prefix)
    return state, tuple(stripped)


def _renamed(state: dict[str, Tensor], new: Callable[[str], str]) -> dict[str, Tensor]:
    renamed: OrderedDict[str, Tensor] = OrderedDict((new(name), value) for name, value in state.items())
    versions = getattr(state, "_metadata", None)  # a module's path to the version of its layout
    if versions:
        renamed._metadata = OrderedDict(  # type: ignore[attr-defined]
            (new(f"{module}.").strip("."), version) for module, version in versions.items()
        )
    return renamed


def _listed(names: Any, *, order: bool = True) -> str:
    """The first five, and how many more there are."""
    listed = sorted(names) if order else list(names)
    return ", ".join(map(_cut, listed[:5])) + (f" and {len(listed) - 5} more" if len(listed) > 5 else "")


def _cut(name: str) -> str:
    return name if len(name) <= 200 else f"{name[:199]}…"


def _shape(value: Tensor) -> str:
    return str(tuple(value.shape))


def _name(value: object) -> str:
    return type(value).__name__
