"""Networks of the Hugging Face hub by name, `hf:owner/name[@revision]`: fetched into its cache, never with code.

What is fetched lies in `…/models--OWNER--NAME/snapshots/COMMIT`. Of such a path, its name with the commit is known
again: that is what results and run files record, and it fetches the same bytes later.
"""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

from bnuq.errors import ModelError, RequestError, first_line
from bnuq.files.content import is_file
from bnuq.files.folders import expanded
from bnuq.files.hub import CONFIG, PREPROCESSOR

_HUB, _TIMM = "hf:", "timm:"
_NAME = re.compile(r"hf:(\w[\w.-]*/\w[\w.-]*)(?:@(\w[\w./-]*))?", re.ASCII)
_WEIGHTS = "model.safetensors"
_FETCHED = (CONFIG, PREPROCESSOR, "model*.safetensors", f"{_WEIGHTS}.index.json")  # no pickles, no code
_FORM = "hf:owner/name, or hf:owner/name@revision"


def model_path(text: str, base: Path, *, fetch: bool = True) -> Path:
    """The path of a checkpoint that is named from `base`, or by its name on the hub: then that of its folder in the
    cache, or of its weights where there is no config beside them. With `fetch`, what is missing is fetched.

    `timm:NAME` is a network of timm whose pretrained weights the cache has. Raises RequestError where `text` names
    nothing that can be had.
    """
    if not text.startswith((_HUB, _TIMM)):
        return base / expanded(text)
    name = _cached_of_timm(text) if text.startswith(_TIMM) else text
    if (parts := _NAME.fullmatch(name)) is None:
        raise RequestError(f"the model is {text[:200]!r}; expected {_FORM}.")
    repository, revision = parts.groups()
    folder = _snapshot(text, repository, revision, fetch=fetch and name == text)
    if is_file(folder / CONFIG) or not is_file(folder / _WEIGHTS):
        return folder
    return folder / _WEIGHTS


def hub_name(path: Path) -> str | None:
    """`hf:owner/name@commit` of a path in the cache; None for any other."""
    folder = path.parent if path.name == _WEIGHTS else path
    repository = re.fullmatch(r"models--([\w.-]+?)--([\w.-]+)", folder.parent.parent.name)
    if folder.parent.name != "snapshots" or repository is None or not re.fullmatch(r"[0-9a-f]{40}", folder.name):
        return None
    return f"{_HUB}{repository[1]}/{repository[2]}@{folder.name}"


def named_or_path(path: Path) -> str:
    """A checkpoint as records name it: by its name on the hub, or by its path."""
    return hub_name(path) or str(path)


def stem_of(path: Path) -> str:
    """What files that are made of a checkpoint are called after."""
    name = hub_name(path)
    return path.stem if name is None else name.partition("@")[0].rpartition("/")[2]


def timm_architecture(path: Path) -> str | None:
    """The architecture of weights that timm has published and that lie in the cache without their config."""
    name = hub_name(path)
    if name is None or path.name != _WEIGHTS or not name.startswith(f"{_HUB}timm/"):
        return None
    return f"{_TIMM}{stem_of(path)}"


def _snapshot(text: str, repository: str, revision: str | None, *, fetch: bool) -> Path:
    module = _huggingface_hub(text)
    if not sys.stderr.isatty():
        module.utils.disable_progress_bars()
    try:
        folder = module.snapshot_download(
            repository, revision=revision, allow_patterns=list(_FETCHED), local_files_only=not fetch
        )
    except Exception as error:
        if not fetch:
            commit = f"@{revision}" if revision else ""
            raise RequestError(
                f"{text} is not in the cache of the hub, and is fetched only if you name it: give "
                f"hf:{repository}{commit} as the model."
            ) from error
        raise RequestError(
            f"{text} could not be fetched ({type(error).__name__}: {first_line(error)[:300]}). Check the name, the "
            "revision, and the network; private and gated ones need `hf auth login`."
        ) from error
    path = Path(folder)
    if not any(path.glob("model*.safetensors")):
        raise ModelError(
            f"{text}: has no {_WEIGHTS}, and other weights, which may be pickles, are not fetched. Download the file "
            "yourself and name it, with --arch."
        )
    return path


def _cached_of_timm(text: str) -> str:
    """The name on the hub of the pretrained weights `timm:NAME`, of which the cache has one set."""
    name = text.removeprefix(_TIMM)
    if not re.fullmatch(r"\w[\w.-]*", name, re.ASCII):
        raise RequestError(f"the model is {text[:200]!r}; expected timm:NAME, or timm:NAME.TAG.")
    cache = Path(_huggingface_hub(text).constants.HF_HUB_CACHE)
    start = "models--timm--"
    cached = sorted(path.name.removeprefix(start) for path in cache.glob(f"{start}{name}*"))
    found = [each for each in cached if each == name or each.startswith(f"{name}.")]
    if len(found) != 1:
        have = f"has several of: {', '.join(found)}; name one" if found else "has no pretrained weights of it"
        raise RequestError(f"{text}: the cache of the hub {have}. To fetch some, name them: hf:timm/{name}.TAG")
    return f"{_HUB}timm/{found[0]}"


def _huggingface_hub(text: str) -> ModuleType:
    try:
        return importlib.import_module("huggingface_hub")
    except ImportError as error:
        raise RequestError(f'{text}: networks of the hub need huggingface_hub: pip install "bnuq[hub]"') from error
