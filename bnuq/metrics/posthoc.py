"""Post-hoc OOD scores of a deterministic classifier, point by point: from its logits, and from its features, which are
the input of its last linear layer. Of all of them, larger is more uncertain.

What is fitted to features of the training data is a frozen record, made by the function `fitted_…`. A function
`by_…` fits a score to a `Reference`, and returns it as a function of a `LastLayer`.
"""

from collections.abc import Callable, Iterator
from functools import cached_property

import numpy as np
from array_api_compat import device, is_torch_array

from bnuq.frozen import frozen
from bnuq.metrics.arrays import Array, array_namespace
from bnuq.shapes import Float, Int64

_ROWS = 4096  # features converted to float64 at once
_COSINES = 2**20  # at once: 4 MB, which stay in the cache
_DEPTH = 16  # cosines of which only the largest is looked at first


@frozen
class LastLayer:
    """The input of a network's last linear layer for some points, its output in float64, and their probabilities."""

    features: Float[Array, "point feature"]
    logits: Float[Array, "point class"]
    probabilities: Float[Array, "point class"]


@frozen
class Reference:
    """The input of the last linear layer for reference points, their labels where they have them, and the weight and
    bias of that layer."""

    features: Float[Array, "reference feature"]
    weight: Float[Array, "class feature"]
    bias: Float[Array, "class"]
    labels: Int64[np.ndarray, "reference"] | None = None

    @cached_property
    def gaussians(self) -> "Gaussians":
        """Those of the classes, which must be known."""
        assert self.labels is not None
        return fitted_gaussians(self.features, self.labels)


PointScore = Callable[[LastLayer], Array]


def max_logit(logits: Float[Array, "*sample point class"]) -> Float[Array, "*sample point"]:
    """Minus the largest logit, in (−∞, ∞).

    Source: Hendrycks et al. 2022, Scaling Out-of-Distribution Detection for Real-World Settings, §3.
    """
    return -array_namespace(logits).max(logits, axis=-1)


def energy(logits: Float[Array, "*sample point class"]) -> Float[Array, "*sample point"]:
    """The free energy −ln Σ exp(z) at temperature 1, in (−∞, ∞).

    Source: Liu et al. 2020, Energy-based Out-of-distribution Detection, eq. 4.
    """
    xp = array_namespace(logits)
    largest = xp.max(logits, axis=-1, keepdims=True)
    return -(largest[..., 0] + xp.log(xp.sum(xp.exp(logits - largest), axis=-1)))


def generalized_entropy(
    p: Float[Array, "point class"], *, gamma: float = 0.1, classes: int = 100
) -> Float[Array, "point"]:
    """Σ p^γ (1 − p)^γ over the most probable `classes`, in [0, classes/4^γ].

    Source: Liu, Lochman & Zach 2023, GEN: Pushing the Limits of Softmax-Based OOD Detection, eq. 4; γ = 0.1, M = 100.
    """
    xp = array_namespace(p)
    largest = xp.flip(xp.sort(p, axis=-1), axis=-1)[..., :classes]
    return xp.sum(largest**gamma * xp.clip(1 - largest, min=0.0) ** gamma, axis=-1)


@frozen
class Neighbours:
    """Training features of length 1, and which neighbour's distance is taken."""

    bank: Float[Array, "reference feature"]
    k: int


def fitted_neighbours(features: Float[Array, "reference feature"], *, k: int = 50) -> Neighbours:
    """The k-th nearest neighbour among these features, or the last if there are fewer.

    Source: Sun et al. 2022, Out-of-Distribution Detection with Deep Nearest Neighbors; k = 50 as for CIFAR-10.
    """
    return Neighbours(_unit_length(features), min(k, features.shape[0]))


def neighbour_distance(features: Float[Array, "point feature"], neighbours: Neighbours) -> Float[Array, "point"]:
    """Euclidean distance to the k-th nearest training feature, all scaled to length 1; in [0, 2]."""
    xp, units, count = array_namespace(features), _unit_length(features), features.shape[0]
    step = max(1, _COSINES // neighbours.bank.shape[0])
    # A program takes all points at once: it is traced for any number of them, which is no int.
    blocks = [units[i : i + step] for i in range(0, count, step)] if isinstance(count, int) else [units]
    cosine = xp.concat([_kth_largest(block @ neighbours.bank.T, neighbours.k) for block in blocks])
    return xp.sqrt(xp.clip(2 - 2 * cosine, min=0.0))


def _kth_largest(values: Float[Array, "row entry"], k: int) -> Float[Array, "row"]:
    """The value number k, from 1, of each row in descending order. The k largest lie in the k columns of the row, laid
    out as a table, whose largest values are the largest: only those are ordered."""
    xp, columns = array_namespace(values), values.shape[-1] // _DEPTH
    if columns > k:
        table = xp.reshape(values[:, : columns * _DEPTH], (values.shape[0], _DEPTH, columns))
        largest = xp.max(table, axis=1)
        if is_torch_array(values):
            among = table.gather(2, largest.topk(k, sorted=False).indices[:, None].expand(-1, _DEPTH, -1))
        else:
            among = np.take_along_axis(table, np.argpartition(largest, columns - k)[:, None, columns - k :], axis=2)
        values = xp.concat([xp.reshape(among, (values.shape[0], -1)), values[:, columns * _DEPTH :]], axis=1)
    return _kth_smallest(values, values.shape[-1] - k)


def _kth_smallest(values: Float[Array, "*any entry"], k: int) -> Float[Array, "*any"]:
    """The value number k, from 0, along the last axis in ascending order, without sorting all."""
    if is_torch_array(values):
        return values.kthvalue(k + 1, dim=-1).values
    return np.partition(values, k, axis=-1)[..., k].copy()  # a view would keep all


def _unit_length(features: Float[Array, "row feature"]) -> Float[Array, "row feature"]:
    xp = array_namespace(features)
    return features / (xp.sqrt(xp.sum(features**2, axis=-1, keepdims=True)) + 1e-10)


@frozen
class Gaussians:
    """A Gaussian for each class, with one covariance, and one for all points: means, and matrices that make the
    covariance the identity. `shrinkage` is the share of the spherical target in the covariances; 0 is the maximum
    likelihood."""

    means: Float[Array, "class feature"]
    whitening: Float[Array, "feature direction"]
    mean: Float[Array, "feature"]
    whitening_of_all: Float[Array, "feature direction_of_all"]
    shrinkage: float


def fitted_gaussians(features: Float[Array, "reference feature"], labels: Int64[np.ndarray, "reference"]) -> Gaussians:
    """Gaussians of these features by maximum likelihood, directions without variance left out. If there are no more
    points than features beyond one for each class, covariances are shrunk by the oracle approximating formula.

    Source: Lee et al. 2018, A Simple Unified Framework for Detecting Out-of-Distribution Samples, eq. 1; Ren et al.
    2021, A Simple Fix to Mahalanobis Distance, §3; Chen et al. 2010, Shrinkage Algorithms for MMSE Covariance
    Estimation, eq. 23.
    """
    xp, location = array_namespace(features), device(features)
    classes, numbers = np.unique(labels, return_inverse=True)
    n, width = features.shape
    rows = (xp.asarray(np.flatnonzero(numbers == i), device=location) for i in range(len(classes)))
    means = xp.stack([_mean(features[of_class]) for of_class in rows])
    class_means = means[xp.asarray(numbers, device=location)]
    mean = _mean(features)
    within, total = _scatter(features, class_means), _scatter(features, mean[None, :])
    shrinkage = _oas(within, n) if n - len(classes) <= width else 0.0
    return Gaussians(means, _whitening(within, shrinkage), mean, _whitening(total, shrinkage), shrinkage)


def mahalanobis(features: Float[Array, "point feature"], gaussians: Gaussians) -> Float[Array, "point"]:
    """Squared Mahalanobis distance to the nearest class mean, in [0, ∞).

    Source: Lee et al. 2018, eq. 2, of the last features alone, without their input perturbation.
    """
    xp = array_namespace(features)
    inside = xp.astype(features, gaussians.means.dtype) @ gaussians.whitening
    centres = gaussians.means @ gaussians.whitening
    distances = [xp.sum((inside - centres[i]) ** 2, axis=-1) for i in range(centres.shape[0])]
    return xp.min(xp.stack(distances), axis=0)


def relative_mahalanobis(features: Float[Array, "point feature"], gaussians: Gaussians) -> Float[Array, "point"]:
    """`mahalanobis` minus the squared distance to the mean of all classes under the covariance of all points, in
    (−∞, ∞).

    Source: Ren et al. 2021, A Simple Fix to Mahalanobis Distance for Improving Near-OOD Detection, eq. 5.
    """
    xp = array_namespace(features)
    centred = xp.astype(features, gaussians.mean.dtype) - gaussians.mean
    return mahalanobis(features, gaussians) - xp.sum((centred @ gaussians.whitening_of_all) ** 2, axis=-1)


@frozen
class VirtualLogit:
    """The origin of the features, the directions in which training features vary least, and the scale of the virtual
    logit."""

    origin: Float[Array, "feature"]
    residual: Float[Array, "feature direction"]
    scale: float


def principal_directions(width: int) -> int:
    """How many principal directions ViM takes of so many features: 1000 of 2048 or more, 512 of 768 or more, else half.

    Source: Wang et al. 2022, their code.
    """
    return 1000 if width >= 2048 else 512 if width >= 768 else width // 2


def fitted_virtual_logit(
    features: Float[Array, "reference feature"],
    weight: Float[Array, "class feature"],
    bias: Float[Array, "class"],
    *,
    principal: int | None = None,
) -> VirtualLogit | None:
    """The virtual logit of a network with this last layer. `principal` is the number of principal directions, by
    default that of `principal_directions`. None if no training feature has a residual.

    Source: Wang et al. 2022, ViM: Out-Of-Distribution with Virtual-logit Matching, §4 and their code.
    """
    xp, width = array_namespace(features), features.shape[-1]
    principal = principal_directions(width) if principal is None else principal
    wide, shift = _wide(weight), _wide(bias)
    smallest = max(wide.shape) * float(xp.finfo(wide.dtype).eps)  # what the standard says, and numpy alone does not do
    origin = -(xp.linalg.pinv(wide, rtol=smallest) @ shift)
    _, vectors = xp.linalg.eigh(_scatter(features, origin[None, :]))
    residual = vectors[:, : width - principal]  # eigenvalues ascend
    lengths, largest = [], []
    for rows in _blocks(features):
        lengths.append(_length((rows - origin) @ residual))
        largest.append(xp.max(rows @ wide.T + shift, axis=-1))
    length = float(xp.mean(xp.concat(lengths)))
    if not length > 0:
        return None
    return VirtualLogit(origin, residual, float(xp.mean(xp.concat(largest))) / length)


def virtual_logit(
    features: Float[Array, "point feature"], logits: Float[Array, "point class"], fitted: VirtualLogit
) -> Float[Array, "point"]:
    """The virtual logit plus the `energy`, in (−∞, ∞).

    Source: Wang et al. 2022, eq. 7, in its logarithm.
    """
    wide = array_namespace(features).astype(features, fitted.origin.dtype)
    return fitted.scale * _length((wide - fitted.origin) @ fitted.residual) + energy(logits)


def react_threshold(features: Float[Array, "reference feature"], *, quantile: float = 0.9) -> float:
    """The activation below which this share of all training activations lies.

    Source: Sun, Guo & Li 2021, ReAct: Out-of-distribution Detection With Rectified Activations, §3; 90 %.
    """
    flat = array_namespace(features).reshape(features, (-1,))
    position = quantile * (flat.shape[0] - 1)
    low = int(position)
    below, above = (float(_kth_smallest(flat, min(rank, flat.shape[0] - 1))) for rank in (low, low + 1))
    return below + (position - low) * (above - below)


def react_energy(
    features: Float[Array, "point feature"],
    weight: Float[Array, "class feature"],
    bias: Float[Array, "class"],
    *,
    threshold: float,
) -> Float[Array, "point"]:
    """`energy` of the logits of features that are clipped at `threshold`, in (−∞, ∞).

    Source: Sun, Guo & Li 2021, eq. 2 and 3.
    """
    return energy(array_namespace(features).clip(features, max=threshold) @ weight.T + bias)


def by_neighbours(reference: Reference) -> PointScore:
    """`neighbour_distance` to the reference."""
    neighbours = fitted_neighbours(reference.features)
    return lambda last: neighbour_distance(last.features, neighbours)


def by_virtual_logit(reference: Reference) -> PointScore | str:
    """`virtual_logit`; why there is none if no feature of the reference has a residual."""
    virtual = fitted_virtual_logit(reference.features, reference.weight, reference.bias)
    if virtual is None:
        return "features of the training set do not vary beyond their principal directions"
    return lambda last: virtual_logit(last.features, last.logits, virtual)


def by_clipped_energy(reference: Reference) -> PointScore:
    """`react_energy` with the threshold of the reference."""
    threshold, weight, bias = react_threshold(reference.features), _wide(reference.weight), _wide(reference.bias)
    return lambda last: react_energy(_wide(last.features), weight, bias, threshold=threshold)


def by_mahalanobis(reference: Reference) -> PointScore:
    """`mahalanobis` from the classes of the reference."""
    gaussians = reference.gaussians  # not the reference, whose features would stay in memory
    return lambda last: mahalanobis(last.features, gaussians)


def by_relative_mahalanobis(reference: Reference) -> PointScore:
    """`relative_mahalanobis` from the classes of the reference."""
    gaussians = reference.gaussians
    return lambda last: relative_mahalanobis(last.features, gaussians)


def _wide(values: Float[Array, "..."]) -> Float[Array, "..."]:
    xp = array_namespace(values)
    return xp.astype(values, xp.float64)


def _blocks(features: Float[Array, "row feature"]) -> Iterator[Array]:
    for first in range(0, features.shape[0], _ROWS):
        yield _wide(features[first : first + _ROWS])


def _mean(features: Float[Array, "row feature"]) -> Float[Array, "feature"]:
    xp = array_namespace(features)
    return sum(xp.sum(rows, axis=0) for rows in _blocks(features)) / features.shape[0]


def _scatter(features: Float[Array, "row feature"], centres: Float[Array, "#row feature"]) -> Float[Array, "f f"]:
    """The mean over rows of (x − c)(x − c)ᵀ."""
    total, first = 0.0, 0
    for rows in _blocks(features):
        centred = rows - (centres if centres.shape[0] == 1 else centres[first : first + rows.shape[0]])
        total = total + centred.T @ centred
        first += rows.shape[0]
    return total / features.shape[0]


def _oas(covariance: Float[Array, "feature feature"], n: int) -> float:
    xp, width = array_namespace(covariance), covariance.shape[0]
    trace, squares = float(xp.linalg.trace(covariance)), float(xp.sum(covariance**2))
    denominator = (n + 1 - 2 / width) * (squares - trace**2 / width)
    return 1.0 if denominator <= 0 else min(1.0, ((1 - 2 / width) * squares + trace**2) / denominator)


def _whitening(covariance: Float[Array, "feature feature"], shrinkage: float) -> Float[Array, "feature direction"]:
    xp, width = array_namespace(covariance), covariance.shape[0]
    values, vectors = xp.linalg.eigh(covariance)
    values = (1 - shrinkage) * values + shrinkage * float(xp.linalg.trace(covariance)) / width
    varying = values > width * float(xp.finfo(values.dtype).eps) * float(xp.max(values))
    return vectors[:, varying] / xp.sqrt(values[varying])


def _length(rows: Float[Array, "row direction"]) -> Float[Array, "row"]:
    return array_namespace(rows).sqrt(array_namespace(rows).sum(rows**2, axis=-1))
