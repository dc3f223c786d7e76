"""The plan of a run: which methods this network allows, through which layers, with which batch size."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import msgspec
import torch
from torch import Tensor, nn

from bnuq.config import DEFAULT_BATCH_SIZE, DEFAULT_SAMPLER, Augment, DrawSettings, SamplerSettings, ScoreSettings
from bnuq.data import Points
from bnuq.errors import RequestError, SamplingError
from bnuq.evaluation.batch_composition import check_mini_batches
from bnuq.evaluation.methods import Network, sampler_of
from bnuq.evaluation.subject import Plan
from bnuq.evaluation.task import first_output, task_and_outputs
from bnuq.findings import Finding, note, warning
from bnuq.methods import METHODS, Method, method_named
from bnuq.sampling.exactness import check_exact
from bnuq.sampling.interception import located_forward, undisturbed
from bnuq.sampling.outputs import unconverted
from bnuq.sampling.recorded_calls import largest_batch, slices_in_training, smallest_batch
from bnuq.sampling.site_search import find_sites, listed
from bnuq.sampling.sites import BatchNormSite, Sites, select_layers


def plan_of(
    draws: DrawSettings,
    settings: ScoreSettings,
    model: nn.Module,
    example: Tensor,
    *,
    test: Points,
    train: Points | None,
    augment: Augment | None = None,
    has_members: bool = False,
    trained_with: int | None = None,
    dropout_arguments: Sequence[str] = (),
) -> Plan:
    """The plan for this network; SamplingError for requested methods that cannot be drawn.

    `example` holds a few evaluated points, ready for the network, and `augment` is how evaluated points may be
    augmented; `trained_with` is the training batch size that the checkpoint records, if any; `dropout_arguments` those
    of `LoadedModel`.
    """
    trained_with = draws.train_batch_size or trained_with
    output = first_output(model, example, test)
    task, outputs = task_and_outputs(settings, output, test, train)
    image = (output.shape[2], output.shape[3]) if output.ndim == 4 else None
    sites = find_sites(model, example)
    if image:
        _check_dense(draws, settings)
    elif settings.save_maps or settings.show_images:
        option = "--save-maps" if settings.save_maps else "--images"
        raise RequestError(
            f"{option} is for pixels of a segmentation, and this is a {task}. Leave it out; the scores of each "
            "example are in every result."
        )
    unsampled = "" if sites.batchnorms else _unsampled(model, sites, example)
    network = Network(draws, augment, has_members, model, example, sites, train, task, unsampled)
    findings = [*_not_stochastic(sites, dropout_arguments)]
    methods, notes_on_methods = _methods(network, _rate_hint(sites, dropout_arguments))
    findings += notes_on_methods
    layers = _sampled_layers(draws.layers, methods, sites)
    batch_size = None
    is_sampled = any(method.is_sampled_batchnorm for method in methods)
    if layers:
        least = max(smallest_batch(layers), 2 if any(method.normalizes_jointly for method in methods) else 1)
        batch_size, origin = _batch_size(
            draws.batch_size, model, layers, example, trained_with, None if train is None else len(train), least
        )
        findings += origin
        if train is not None and is_sampled:
            check_mini_batches(draws.sampler, train, batch_size)
    findings += [note("setting-ignored", key=key) for key in _unused_keys(draws.sampler, methods)]
    findings += _findings_on_sites(sites, drawn=is_sampled)
    if test.targets is None:
        findings.append(note("test-unlabelled", test=test.reference))
    with undisturbed(model):
        _, where, shape = located_forward(unconverted(model), example.clone())
    findings += [note("output-taken-from", where=where)] if where else []
    findings += [note("classes-masked")] if not image and bool(output.isneginf().any()) else []
    findings += [note("output-squeezed", shape=list(shape))] if len(shape) > 2 and not image else []
    return Plan(task, outputs, methods, sites, layers, batch_size, trained_with, image, tuple(findings))


def _methods(network: Network, rate_hint: str) -> tuple[tuple[Method, ...], list[Finding]]:
    """The requested methods, or all that can be drawn, with notes; SamplingError for a requested one that cannot."""
    requested, findings = network.draws.methods, list[Finding]()

    def required(method: Method) -> Method:
        if reason := sampler_of(method).why_not(network):
            hint = rate_hint if "masks" in method.differs_by else ""
            raise SamplingError(f"method {method} cannot be drawn: {reason}.{hint}")
        return method

    if requested is None:
        reasons = {method: sampler_of(method).why_not(network) for method in METHODS if method.by_default}
        methods = [method for method, reason in reasons.items() if not reason]
        left_out = {m.name: reason for m, reason in reasons.items() if reason and m.differs_by != {"noise"}}  # few have
        findings += [note("method-left-out", method=names, reason=reason) for reason, names in by_reason(left_out)]
    else:
        methods = [required(method_named(name)) for name in requested]
        approximated = {method_named(method.approximates) for method in methods if method.approximates}
        for method in approximated - {*methods}:
            if not sampler_of(method).why_not(network):
                methods.insert(0, method)
                findings.append(note("mcbn-added"))
    if network.has_members and (ensemble := method_named("ensemble")) not in methods:
        methods.append(required(ensemble))
    return tuple(methods), findings


def by_reason(reasons: Mapping[str, str]) -> list[tuple[str, list[str]]]:
    """Each reason with all that have it."""
    groups: dict[str, list[str]] = {}
    for name, reason in reasons.items():
        groups.setdefault(reason, []).append(name)
    return list(groups.items())


def _rate_hint(sites: Sites, arguments: Sequence[str]) -> str:
    """What gives the network a rate of dropout, where its factory left these at 0."""
    if not arguments or sites.live_dropouts:
        return ""
    zeros = f"{' and '.join(arguments)} {'is' if len(arguments) == 1 else 'are'} 0"
    return f" The factory's {zeros}; give the rate: --arch-arg {arguments[0]}=0.1."


def _sampled_layers(
    selected: str | tuple[str, ...], methods: Sequence[Method], sites: Sites
) -> tuple[BatchNormSite, ...]:
    """The BatchNorms that MCBN samples, or that use evaluated batches, none where no method does; SamplingError where
    others have no statistics."""
    sampled = any(method.is_sampled_batchnorm for method in methods)
    untracked = [site for site in sites.live_batchnorms if not site.tracked]
    if untracked and not sampled:
        raise SamplingError(
            f"BatchNorm {untracked[0].name} keeps no running statistics, so the network has no evaluation mode: its "
            "output for an example depends on the other examples. Have it use the statistics of evaluated examples "
            "(--method deterministic+own), or of the training set (--train REF --method mcbn; deterministic "
            "then uses the pooled ones), or train it with track_running_stats=True."
        )
    if not (sampled or any(method.normalizes_jointly for method in methods)):
        return ()
    layers = select_layers(sites.live_batchnorms, selected)
    _check_noise_models(methods, layers, sites)
    if left_out := [site.name for site in untracked if site not in layers]:
        raise SamplingError(
            f"BatchNorm {left_out[0]} keeps no running statistics and layers leaves it out; expected layers to "
            'include every such layer: use layers = "all".'
        )
    return layers


def findings_on_dropout_rate(sites: Sites, arguments: Sequence[str]) -> Iterator[Finding]:
    """A note where no dropout is live and the factory's parameters `arguments` left rates at 0: one for all layers."""
    if arguments and not sites.live_dropouts:
        yield note("dropout-rate-unset", arguments=list(arguments))


def _not_stochastic(sites: Sites, arguments: Sequence[str]) -> Iterator[Finding]:
    """Notes on layers that cannot be sampled; `arguments` are those of `findings_on_dropout_rate`."""
    rate = tuple(findings_on_dropout_rate(sites, arguments))
    unsaid = [
        site
        for site in (*sites.batchnorms, *sites.dropouts, *sites.noises)
        if site.reason and not (rate and site in sites.dropouts and site.p == 0)
    ]
    for kind in dict.fromkeys(site.kind for site in unsaid):
        for reason, layers in by_reason({site.name: site.reason for site in unsaid if site.kind == kind}):
            yield note("not-stochastic", kind=kind, layer=layers, reason=reason)
    yield from rate


def _unused_keys(sampler: SamplerSettings, methods: Sequence[Method]) -> Iterator[str]:
    """The sampler keys that were set and that no method uses."""
    every = {key for method in METHODS for key in method.settings}
    used = {key for method in methods for key in method.settings}
    if sampler.counts == "nominal" and not any(method.is_fitted_to_mini_batches for method in methods):
        used.discard("noise_model_draws")
    if any(method.is_sampled_batchnorm for method in methods):
        used |= {field.name for field in msgspec.structs.fields(SamplerSettings)} - every
    for field in msgspec.structs.fields(SamplerSettings):
        if field.name not in used and getattr(sampler, field.name) != getattr(DEFAULT_SAMPLER, field.name):
            yield field.name


def check_random(draws: DrawSettings, augment: Augment | None, plan: Plan, train: Points | None) -> None:
    """Raise SamplingError where every mini-batch is the whole reference, so that all samples would be the same."""
    drawn = {source for method in plan.methods if method.is_sampled_batchnorm for source in method.differs_by}
    is_pooled = draws.samples == 1 and "noise model" not in drawn  # one sample, by the statistics of the whole
    if train is None or plan.batch_size is None or augment is not None or is_pooled or not drawn:
        return
    if not draws.sampler.replacement and plan.batch_size == len(train):
        raise SamplingError(
            f"batch_size {plan.batch_size} is the whole training set, so every mini-batch is the same and nothing is "
            "random. Choose a smaller batch size."
        )


def _unsampled(model: nn.Module, sites: Sites, example: Tensor) -> str:
    """What a network without BatchNorm may have in its place, such as batch normalization written by hand; mostly
    empty. What dropout out of reach explains, as in attention, has its own warning."""
    try:
        layers = check_exact(model, sites, example, ()).fixed if len(example) > 1 else ()
    except SamplingError:  # which the checks before the passes raise, with more points
        return ""
    explained = dict(sites.unreachable)
    return listed((layer, reason) for layer, reason in layers if layer not in explained)


def _check_dense(draws: DrawSettings, settings: ScoreSettings) -> None:
    """Raise RequestError for settings that a segmentation does not have."""
    unavailable = {
        "--save-samples": settings.save_samples and "the outputs of all draws are too large to be kept",
        "--samples auto": draws.samples == "auto" and "draws would have to be kept for the next round; name a number",
        "--bank": draws.bank is not None and "all images share the draws",
        f"--mutual-information {settings.mutual_information}": settings.mutual_information != "plug-in"
        and "the mutual information of pixels is the plug-in estimate",
    }
    for option, reason in unavailable.items():
        if reason:
            raise RequestError(f"{option} is not offered for a segmentation: {reason}. Leave it out.")


def _check_noise_models(methods: Sequence[Method], layers: Sequence[BatchNormSite], sites: Sites) -> None:
    """Raise SamplingError where a noise model would be drawn around statistics that are untrained or mix several
    calls."""
    if not any(method.approximates and not method.is_fitted_to_mini_batches for method in methods):
        return
    calls = Counter(site.address for site in sites.batchnorms)
    for site in layers:
        if site.never_trained:
            raise SamplingError(
                f"BatchNorm {site.name} still has its initial running statistics (mean 0, variance 1), and mcbn-chi2 "
                "and mcbn-gaussian draw around them. Give it population statistics first: bnuq precise-bn."
            )
        if calls[site.address] > 1:
            raise SamplingError(
                f"BatchNorm {site.name} is called {calls[site.address]} times per forward pass, and its running "
                "statistics mix the calls; mcbn-chi2 and mcbn-gaussian need those of one call. Use "
                "mcbn-empirical, or mcbn."
            )


def _batch_size(
    requested: int | None,
    model: nn.Module,
    layers: Sequence[BatchNormSite],
    example: Tensor,
    trained_with: int | None,
    population: int | None,
    least: int,
) -> tuple[int, list[Finding]]:
    if requested is not None:
        if requested < least:
            thin = next(site.name for site in layers if site.positions == 1)
            raise SamplingError(
                f"--batch-size is {requested}, and layer {thin} has one value per channel and example; "
                f"expected at least {least}."
            )
        return requested, []
    preferred = trained_with or DEFAULT_BATCH_SIZE
    chosen = max(least, preferred if population is None else min(preferred, population // 2))
    with undisturbed(model):
        slice_size = largest_batch(model, layers, example, chosen)
    if slice_size < chosen:
        repeated = torch.cat([example] * (chosen // len(example) + 1))[:chosen]
        in_evaluation_mode = slices_in_training(model, repeated, slice_size) is False
        return slice_size, [note("batch-size-of-slices", batch_size=slice_size, in_training=not in_evaluation_mode)]
    known = trained_with is not None
    return chosen, [note("batch-size-chosen", batch_size=chosen, preferred=preferred, known=known)]


def _findings_on_sites(sites: Sites, *, drawn: bool) -> Iterator[Finding]:
    """The warnings on the network's layers; where mini-batches are `drawn`, the reference check has those on running
    variances."""
    for reason, layers in by_reason(dict(sites.unreachable)):
        yield warning("unreachable", layer=layers, reason=reason)
    if untrained := [site.name for site in sites.batchnorms if site.never_trained and not site.is_frozen]:
        yield warning("never-trained", layers=untrained, evaluated=True)
    unscaled = {site.name: site.unscaled for site in sites.batchnorms if site.unscaled}
    if unscaled and not drawn:
        yield warning("variance-zero", layers=list(unscaled), channels=sum(unscaled.values()))
