"""The methods that make a network stochastic, as values: what their samples differ by, when they run, and their help.

How each is drawn is in `evaluation/methods/`. A name is looked up here (`method_named`) and never parsed elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Literal, get_args

from bnuq.frozen import frozen

Source = Literal[
    "mini-batches",  # of the reference, whose statistics normalise
    "noise model",  # of the statistics of mini-batches
    "masks",  # of dropout
    "noise",  # of the network's own layers
    "augmentation",  # of the evaluated points
    "weights",  # of the last layer
    "networks",  # of several checkpoints
    "file",  # of samples from other software
]
Recalibration = Literal["temperature", "vector"]  # one scale of all logits, or a scale and a shift for each class
Variance = Literal["biased", "unbiased"]  # of a mini-batch: divisor n, as training normalises; or n − 1
Curvature = Literal["kron", "diag"]  # what is kept of the last layer's curvature: Kronecker factors, or its diagonal
RECALIBRATIONS: tuple[Recalibration, ...] = get_args(Recalibration)
DETERMINISTIC = "deterministic"  # always runs, and first
POPULATION = "deterministic+population"  # runs beside methods that draw mini-batches where the reference check fails
NETWORKS = DETERMINISTIC, POPULATION
OWN = "deterministic+own"


@frozen
class Method:
    """A way of making samples. They differ by the sources `differs_by`; without any there is a single sample.

    `approximates` names the method that it is a model of. Methods `by_default` run where none is requested, if the
    network allows it. `settings` are keys of the sampler that no other source of samples has. A method with a
    `recalibration` has the samples of the `plain` one, with recalibrated logits.
    """

    name: str
    differs_by: frozenset[Source]
    help: str
    approximates: str = ""
    by_default: bool = False
    settings: tuple[str, ...] = ()
    recalibration: Recalibration | None = None

    def __str__(self) -> str:
        return self.name

    @property
    def is_single(self) -> bool:
        """Whether there is one sample of a point, and so no uncertainty between samples."""
        return not self.differs_by

    @property
    def normalizes_jointly(self) -> bool:
        """Whether BatchNorms use the statistics of the evaluated points that pass together: a prediction then depends
        on the other points of its batch."""
        return self.plain.name == OWN

    @property
    def is_sampled_batchnorm(self) -> bool:
        """Whether the statistics of BatchNorms are drawn."""
        return self.draws_mini_batches or "noise model" in self.differs_by

    @property
    def draws_mini_batches(self) -> bool:
        """Whether every sample normalises with a mini-batch of the reference."""
        return "mini-batches" in self.differs_by

    @property
    def is_fitted_to_mini_batches(self) -> bool:
        """Whether it is a noise model that recorded mini-batches are needed for, whatever its settings."""
        return "noise model" in self.differs_by and "counts" not in self.settings

    @property
    def is_drawn(self) -> bool:
        """Whether the user chooses how many samples there are."""
        return bool(self.differs_by - {"networks"})

    @property
    def plain(self) -> Method:
        """The method whose logits this one recalibrates, or itself."""
        return self if self.recalibration is None else method_named(self.name.removesuffix(f"+{self.recalibration}"))

    @property
    def omega_key(self) -> str:
        """The method whose ω this one shares: "mcbn" where mini-batches are drawn, or "mcbn+learned" where they pass
        through noise of the network's own layers."""
        if not self.draws_mini_batches:
            return self.plain.name
        return "mcbn+learned" if "noise" in self.differs_by else "mcbn"

    def recalibrated(self, by: Recalibration) -> Method:
        """This method with recalibrated logits."""
        return method_named(f"{self.name}+{by}")


_FACTORISED: dict[str, Any] = {
    "differs_by": frozenset({"noise model"}),
    "approximates": "mcbn",
    "settings": ("counts", "noise_model_draws"),
}
METHODS: tuple[Method, ...] = (
    Method("deterministic", frozenset(), "The deterministic network, in evaluation mode. Always included."),
    Method(
        "mcbn",
        frozenset({"mini-batches"}),
        "Monte Carlo Batch Normalization: every sample normalises with the statistics of a random mini-batch of "
        "training examples (Teye, Azizpour & Smith 2018). Needs a BatchNorm layer and --train.",
        by_default=True,
    ),
    Method(
        "mcdo",
        frozenset({"masks"}),
        "Monte Carlo dropout: dropout stays active (Gal & Ghahramani 2016). Needs a dropout layer of rate above 0.",
        by_default=True,
    ),
    Method("mcbn+mcdo", frozenset({"mini-batches", "masks"}), "Both at once.", by_default=True),
    Method(
        "learned",
        frozenset({"noise"}),
        "Noise of the network's own layers, drawn once for each sample: weights, scales or flows with a learned "
        "deviation (Blundell et al. 2015; Shekhovtsov & Flach 2018). Runs if the network has such layers.",
        by_default=True,
    ),
    Method("mcbn+learned", frozenset({"mini-batches", "noise"}), "Both at once. Only on request."),
    Method("mcdo+learned", frozenset({"masks", "noise"}), "Both at once. Only on request."),
    Method("mcbn+mcdo+learned", frozenset({"mini-batches", "masks", "noise"}), "All three at once. Only on request."),
    Method(
        "mcbn-chi2",
        help="An approximation of mcbn: statistics drawn around the running ones, means Gaussian and variances χ², "
        "each channel independently (Shekhovtsov & Flach 2018). Needs no training set; with one, it is compared with "
        "mcbn.",
        **_FACTORISED,
    ),
    Method(
        "mcbn-gaussian",
        help="The same with Gaussian standard deviations (Teye, Azizpour & Smith 2018, footnotes 8 and 9).",
        **_FACTORISED,
    ),
    Method(
        "mcbn-empirical",
        frozenset({"noise model"}),
        "An approximation of mcbn: a Gaussian fitted to the statistics of recorded mini-batches, jointly over a "
        "channel, a layer or the network (covariance). Needs --train.",
        approximates="mcbn",
        settings=("covariance", "noise_model_draws"),
    ),
    Method(
        "tta",
        frozenset({"augmentation"}),
        "Test-time augmentation: the deterministic network on randomly augmented inputs. Needs augment, or [tta]. Only "
        "on request.",
    ),
    Method(
        "mcbn+tta",
        frozenset({"mini-batches", "augmentation"}),
        "Both at once: sample t uses mini-batch t and augmentation t. Only on request.",
    ),
    Method(
        "laplace",
        frozenset({"weights"}),
        "Last-layer Laplace approximation: the weights of the last linear layer are drawn from a Gaussian posterior "
        "(Daxberger et al. 2021). Needs a classifier that ends in one linear layer, and --train. Only on request.",
        settings=("laplace",),
    ),
    Method(
        OWN,
        frozenset(),
        "Prediction-time BatchNorm: one pass in batches of evaluated examples, normalised by their statistics (Nado et "
        "al. 2020), so predictions depend on each other. Needs a BatchNorm layer. Only on request.",
    ),
    Method(
        "ensemble",
        frozenset({"networks"}),
        "The deterministic networks of several checkpoints: bnuq evaluate a.pt b.pt c.pt (Lakshminarayanan, Pritzel & "
        "Blundell 2017). Runs if they are given.",
    ),
)
_PREDICTIONS = Method("predictions", frozenset({"file"}), "Samples from a file, of a result of bnuq 0.2.")
_POPULATION = Method(POPULATION, frozenset(), "The deterministic network with statistics of all drawn mini-batches.")
_BY_NAME: Mapping[str, Method] = {
    named.name: named
    for method in (*METHODS, _PREDICTIONS, _POPULATION)
    for named in (
        method,
        *(replace(method, name=f"{method.name}+{kind}", recalibration=kind) for kind in RECALIBRATIONS),
    )
}
METHOD_NAMES = tuple(_BY_NAME)  # of all methods that a result may have


def method_named(name: str) -> Method:
    """The method of this name: one of METHOD_NAMES, or predictions from a file that is called so, which are not drawn
    by bnuq."""
    if (known := _BY_NAME.get(name)) is not None:
        return known
    recalibration = next((kind for kind in RECALIBRATIONS if name.endswith(f"+{kind}")), None)
    return Method(name, frozenset({"file"}), "Predictions from a file.", recalibration=recalibration)
