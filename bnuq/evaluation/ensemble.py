"""The other networks of an ensemble: read from their checkpoints, and checked to do what the first one does."""

from __future__ import annotations

from collections import Counter

from torch import nn

from bnuq.config import Run
from bnuq.errors import ModelError
from bnuq.evaluation.setup import Prepared, as_taken, network_of
from bnuq.models.loading import LoadedModel
from bnuq.sampling.outputs import as_logits
from bnuq.sampling.plain_loop import Evaluation
from bnuq.sampling.site_search import find_sites


def other_networks(
    run: Run, prepared: Prepared, outputs: tuple[int, ...]
) -> tuple[tuple[nn.Module, ...], tuple[LoadedModel, ...]]:
    """The networks of an ensemble after the first, ready for its inputs, and how they were loaded. `outputs` is the
    shape of the first one's for a point.

    Raises ModelError for one that cannot be read, has another number of outputs than the first network, keeps no
    running statistics, or is there twice.
    """
    sets = (prepared.data.test, prepared.data.train, prepared.data.validation, *prepared.data.ood.values())
    read = [points for points in sets if points is not None]
    networks, loaded = list[nn.Module](), list[LoadedModel]()
    for member in run.single[1:]:
        member_model = _loaded(member, alone=len({single.arch for single in run.single}) == 1)
        module = member_model.module.to(prepared.pipeline.device, prepared.pipeline.dtype)
        network = as_logits(as_taken(module, prepared.pipeline, read)[0], run.outputs)
        given = Evaluation(network).passes(prepared.example)
        if given.shape[2:] != outputs:
            sizes = [" × ".join(map(str, shape)) for shape in (given.shape[2:], outputs)]
            raise ModelError(
                f"{member.checkpoint}: the network gives {sizes[0]} outputs for a point, "
                f"and that of {run.checkpoint} gives {sizes[1]}; expected networks of an ensemble to predict the same."
            )
        if untracked := [s.name for s in find_sites(network, prepared.example).live_batchnorms if not s.tracked]:
            raise ModelError(
                f"{member.checkpoint}: BatchNorm {untracked[0]} keeps no running statistics, so the network has no "
                "evaluation mode of its own; expected networks of an ensemble to have one."
            )
        networks.append(network)
        loaded.append(member_model)
    _check_different([prepared.loaded, *loaded])
    return tuple(networks), tuple(loaded)


def _loaded(member: Run, *, alone: bool) -> LoadedModel:
    """The network of a member; where `alone` one architecture was named for all, the error says so."""
    try:
        return network_of(member)
    except ModelError as error:
        if member.arch is None or not alone:
            raise
        raise ModelError(f"{error} Networks of other architectures need one --arch for each, in this order.") from error


def _check_different(loaded: list[LoadedModel]) -> None:
    """Raise ModelError where two checkpoints are the same."""
    sha256, times = Counter(model.checkpoint.sha256 for model in loaded).most_common(1)[0]
    if times > 1:
        same = " and ".join(str(model.checkpoint.path) for model in loaded if model.checkpoint.sha256 == sha256)
        raise ModelError(f"{same}: these are the same; expected each network of an ensemble once.")
