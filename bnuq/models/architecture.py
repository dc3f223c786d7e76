"""Building the untrained network that a checkpoint's weights go into, from the name of its architecture."""

from __future__ import annotations

import difflib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from torch import Tensor, nn

from bnuq.errors import ModelError, RequestError
from bnuq.frozen import frozen
from bnuq.randomness import generators_restored
from bnuq.trust import BY_USER, NamedBy, resolve_factory, running

_FORMS = "file.py:factory, package.module:factory, timm:NAME or torchvision:NAME"
# These would fetch or read weights, in libraries that need no trust because they are given a name and numbers only.
_WEIGHT_ARGUMENTS = {
    "timm": ("pretrained", "checkpoint_path", "pretrained_cfg", "pretrained_cfg_overlay", "cache_dir", "scriptable"),
    "torchvision": ("weights", "weights_backbone", "pretrained", "pretrained_backbone", "progress"),
}
_TRANSFORMING = ("torchvision:googlenet", "torchvision:inception_v3")
TRANSFORMERS = "transformers"  # its architectures come with a config, in the folder of the weights
# What factories call the number of classes, and what the names of rates of dropout look like, the likeliest first.
_CLASSES = ("num_classes", "n_classes", "nb_classes", "classes", "num_labels", "n_labels", "num_class", "n_class")
_DROPOUT = r"drop_?rate|drop(out)?|drop(out)?_?(rate|p|prob)|p_?drop(out)?", r"p|rate", r"\w*drop\w*"
_NO_DROPOUT = r"\w*drop_?(path|block|connect|last)\w*"


@frozen
class Built:
    """A network as its factory made it. `defaults` are the factory's parameters that were not given, with the defaults
    that were used for them; `classes` is the parameter that was given the number of classes because it has no default.
    """

    module: nn.Module
    defaults: Mapping[str, Any]
    classes: str | None = None

    @property
    def classes_left_open(self) -> str | None:
        """The parameter for the number of classes, where it was not given."""
        return next((name for name in _CLASSES if name in self.defaults), None)

    @property
    def dropout_left_at_0(self) -> tuple[str, ...]:
        """The parameters that look like rates of dropout, were not given and have a default of 0, the likeliest
        first."""
        zeros = [name for name, rate in self.defaults.items() if type(rate) in (int, float) and rate == 0]
        alike = [name for pattern in _DROPOUT for name in zeros if re.fullmatch(pattern, name, re.IGNORECASE)]
        return tuple(name for name in dict.fromkeys(alike) if not re.fullmatch(_NO_DROPOUT, name, re.IGNORECASE))


def build(
    arch: str,
    *,
    arch_args: Mapping[str, Any] | None = None,
    classes: int | None = None,
    base: Path | None = None,
    named_by: NamedBy = BY_USER,
    trust: bool = False,
    keys: tuple[str, str] = ("--arch (model.arch)", "model.arch_args"),
) -> Built:
    """The network that `arch` names, freshly made: a factory of the user's, or a model of timm or torchvision.

    A factory that needs a number of classes, and is given none in `arch_args`, is given `classes`. A file is looked for
    from `base`, the working folder by default. No weights are fetched, and the global random generators are left as
    they were. A factory may also be a class, or give one. `keys` are where the architecture of a library and its
    arguments are named, for messages.

    Raises RequestError for an `arch` that names nothing and for `arch_args` that do not fit, UntrustedCodeError for
    code that only a found file names, ModelError where what comes back is not a network.
    """
    arguments = dict(arch_args or {})
    library, _, name = arch.partition(":")
    needed = None
    # Factories draw initial weights: the caller's random numbers must not depend on how many.
    with generators_restored():
        if library == TRANSFORMERS:
            factory, network = _from_transformers(arch, arguments)
        elif library in _WEIGHT_ARGUMENTS:
            factory, network = _from_library(arch, library, name, arguments, keys)
        else:
            if not arch.rpartition(":")[0]:
                raise RequestError(f"--arch (model.arch) is {arch!r}; expected {_FORMS}.")
            factory = resolve_factory(arch, base=base or Path.cwd(), named_by=named_by, trust=trust)
            # A factory that requires a number of classes gets the file's, so that the common case needs no --arch-arg.
            needed = next((key for key in _CLASSES if _parameters(factory).get(key) is inspect.Parameter.empty), None)
            needed = None if classes is None or needed in arguments else needed
            arguments |= {} if needed is None else {needed: classes}
            _check_arguments(arch, factory, arguments)
            network = factory(**arguments)
            if isinstance(network, type) and issubclass(network, nn.Module):
                with running(arch, "calling it"):
                    network = network()
    if not isinstance(network, nn.Module):
        raise ModelError(f"{arch}: gave a {type(network).__name__}; expected a torch.nn.Module, or a class of them.")
    passed_on = _parameters(type(network)) if _takes_any(factory) else {}
    defaults = {key: value for key, value in (passed_on | _parameters(factory)).items() if key not in arguments}
    return Built(network, defaults, needed)


def _parameters(function: Callable[..., Any]) -> dict[str, Any]:
    """The defaults of the named parameters of a function, or of a class; `inspect.Parameter.empty` for none."""
    return {name: known.default for name, known in _signature(function) if known.kind in _NAMED}


def _takes_any(function: Callable[..., Any]) -> bool:
    """Whether a function takes any keyword argument, as one that passes them on."""
    return any(known.kind is inspect.Parameter.VAR_KEYWORD for _, known in _signature(function))


_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def _signature(function: Callable[..., Any]) -> Iterator[tuple[str, inspect.Parameter]]:
    try:
        yield from inspect.signature(function).parameters.items()
    except (TypeError, ValueError):  # not every callable has one
        return


def _check_arguments(arch: str, factory: Callable[..., Any], arguments: Mapping[str, Any]) -> None:
    try:
        signature = inspect.signature(factory)
    except (TypeError, ValueError):  # not every callable has one; then the call itself will tell
        return
    try:
        signature.bind(**arguments)
    except TypeError as error:
        passed = ", ".join(f"{name}={value!r}" for name, value in arguments.items()) or "no arguments"
        raise RequestError(
            f"{arch}: model.arch_args do not fit ({error}): the factory takes {signature}, {passed} was given. "
            f"Correct --arch-arg, or arch_args in the run file."
        ) from error


def _from_library(
    arch: str, library: str, name: str, arguments: Mapping[str, Any], keys: tuple[str, str]
) -> tuple[Callable[..., Any], Any]:
    """The function of the library that makes the network, and the network."""
    if not name or not all(c.isalnum() or c in "._-" for c in name):
        raise RequestError(f"{keys[0]} is {arch!r}; expected the plain name of a model, like {library}:resnet50.")
    if refused := [key for key in _WEIGHT_ARGUMENTS[library] if key in arguments]:
        raise RequestError(
            f"{arch}: {keys[1]} has {refused[0]!r}, which is about weights to fetch; the weights come "
            f"from the checkpoint. Leave it out."
        )
    if arch in _TRANSFORMING and "transform_input" not in arguments:
        raise RequestError(
            f"{arch}: its weights do not tell whether it scales its inputs: transform_input is true in the network "
            "that torchvision pretrained, false in one that was trained afresh. Say which: "
            f"--arch {arch} --arch-arg transform_input=true (or false), or in {keys[1]}."
        )
    module = imported(arch, library)
    known = list(module.list_models() if library == "timm" else module.models.list_models())
    # timm takes a tag of pretrained weights behind a full stop
    if name not in known and name.partition(".")[0] not in known:
        near = difflib.get_close_matches(name, known, n=5)
        raise RequestError(
            f"{arch}: {library} {getattr(module, '__version__', '')} has no model {name!r}"
            f"{'; it has ' + ', '.join(near) if near else ''}. Check the name."
        )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torchvision's, of how weights are initialised that are replaced anyway
            if library == "timm":
                return module.create_model, module.create_model(name, pretrained=False, **arguments)
            factory = module.models.get_model_builder(name)
            backbone = {"weights_backbone": None} if "weights_backbone" in _parameters(factory) else {}
            return factory, module.models.get_model(name, weights=None, **backbone, **arguments)
    except Exception as error:
        passed = ", ".join(f"{key}={value!r}" for key, value in arguments.items())[:300] or "no arguments"
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise RequestError(
            f"{arch}: {library} could not build it with {passed} ({type(error).__name__}: {reason}). Fix {keys[1]}."
        ) from error


def _from_transformers(arch: str, config: Mapping[str, Any]) -> tuple[Callable[..., Any], Any]:
    """The image classifier that a config of transformers describes, by the library's own code alone."""
    module = imported(arch, TRANSFORMERS)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            described = module.AutoConfig.for_model(**config)
            factory = module.AutoModelForImageClassification.from_config
            return factory, factory(described, trust_remote_code=False)
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise RequestError(
            f"{arch}: transformers {getattr(module, '__version__', '')} could not make it of its config "
            f"({type(error).__name__}: {reason}). Use a release that knows {str(config.get('model_type'))[:80]!r}."
        ) from error


def renamed_by_transformers(module: nn.Module, state: Mapping[str, Tensor]) -> Mapping[str, Tensor]:
    """`state` with the names that the installed release of transformers has for the tensors of other releases; as it is
    where that leaves anything out."""
    logging = importlib.import_module("transformers").utils.logging
    level = logging.get_verbosity()
    logging.set_verbosity(logging.CRITICAL)
    logging.disable_progress_bar()
    try:
        made: Any = type(module)
        options = {"config": module.config, "state_dict": {**state}, "output_loading_info": True}
        filled, mismatches = made.from_pretrained(None, **options)
    except Exception:  # the names as they are will tell what does not fit
        return state
    finally:
        logging.enable_progress_bar()
        logging.set_verbosity(level)
    return state if any(mismatches.values()) else filled.state_dict()


def imported(arch: str, library: str) -> ModuleType:
    """The library that `arch` is of. RequestError where it is not installed, or cannot be imported: beside another
    build of torch, torchvision raises RuntimeError, and timm imports it."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return importlib.import_module(library)
    except ModuleNotFoundError as error:
        raise RequestError(
            f"{arch}: {error.name} is not installed. Install it with: {_installation(str(error.name))}"
        ) from error
    except Exception as error:
        reason = " ".join(str(error).split())[:200].rstrip(".")
        raise RequestError(
            f"{arch}: {library} cannot be imported ({type(error).__name__}: {reason}). The torchvision here is "
            f"probably not the one that belongs to torch {torch.__version__}. Install the matching one with: "
            f"{matching_torchvision()}"
        ) from error


def _installation(missing: str) -> str:
    """The command that installs the missing module, and leaves the installed torch alone: every torchvision requires
    one version of torch, and timm requires torchvision."""
    missing = missing.partition(".")[0]
    if missing not in _WEIGHT_ARGUMENTS:  # another dependency, which requires no torch
        return f"pip install {_DISTRIBUTIONS.get(missing, missing)}"
    first = "pip install huggingface_hub pyyaml && " if missing == "timm" else ""
    packages = ["timm"] if missing == "timm" else []
    if missing == "torchvision" or importlib.util.find_spec("torchvision") is None:
        packages.append(_torchvision_of_torch())
    return f"{first}pip install --no-deps {' '.join(packages)}"


def matching_torchvision() -> str:
    """The command that puts the torchvision of the installed torch in the place of another build, also of one with the
    same version, which pip would leave."""
    return f"pip install --force-reinstall --no-deps {_torchvision_of_torch()}"


_DISTRIBUTIONS = {"yaml": "pyyaml"}  # by module, where the name is another


def _torchvision_of_torch() -> str:
    """The torchvision of the installed torch, for pip: 0.15 came with torch 2.0, 0.16 with 2.1, and so on."""
    version, _, build = torch.__version__.partition("+")
    if (minor := re.match(r"2\.(\d+)\.", version)) is None:
        return "torchvision"
    index = f" --extra-index-url https://download.pytorch.org/whl/{build}" if _BUILD.fullmatch(build) else ""
    return f"'torchvision==0.{15 + int(minor[1])}.*'{index}"


_BUILD = re.compile(r"cpu|cu\d+|rocm[\d.]+|xpu")
