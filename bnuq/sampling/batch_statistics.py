"""The bank: T joint draws of ω as plain arrays, stored independently of the network and the training data."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

import numpy as np

from bnuq.errors import ResultError
from bnuq.files.hdf5 import image_of, open_hdf5
from bnuq.files.writing import write_bytes
from bnuq.frozen import frozen
from bnuq.methods import Variance
from bnuq.shapes import Float, Int64


@frozen
class LayerStatistics:
    """T draws of a layer's statistics: mean and variance of each channel over a mini-batch (and its positions)."""

    name: str
    eps: float
    mean: Float[np.ndarray, "sample channel"]
    var: Float[np.ndarray, "sample channel"]
    count: Int64[np.ndarray, " sample"]  # values per channel that the statistics were taken over

    @property
    def dead_channels(self) -> int:
        """The number of channels whose variance falls below 10 ε in some draw: ε then determines their effect."""
        return int((self.var < 10 * self.eps).any(axis=0).sum())


@frozen
class BatchStatistics:
    """T joint draws of every stochastic BatchNorm layer, in execution order. Source: Teye et al. 2018, Algorithm 1.

    `fingerprint` identifies the network of the draws; `indices` (T, b) are the reference rows of each mini-batch, None
    where the mini-batches were given. `variance` is the divisor of the variances: n ("biased"), as in training, or
    n − 1.
    """

    layers: tuple[LayerStatistics, ...]
    fingerprint: str
    batch_size: int
    seed: int | None = None
    indices: Int64[np.ndarray, "sample batch"] | None = None
    variance: Variance = "biased"

    @property
    def samples(self) -> int:
        return len(self.layers[0].mean)

    def __getitem__(self, draws: int | slice) -> BatchStatistics:
        """The bank of these draws, in order; also for a single draw."""
        if not isinstance(draws, slice):
            number = range(self.samples)[draws]
            draws = slice(number, number + 1)
        layers = tuple(replace(m, mean=m.mean[draws], var=m.var[draws], count=m.count[draws]) for m in self.layers)
        return replace(self, layers=layers, indices=None if self.indices is None else self.indices[draws])

    def joined(self, other: BatchStatistics) -> BatchStatistics:
        """These draws followed by those of `other`; both are of the same layers of the same network."""
        layers = tuple(
            replace(
                layer,
                mean=np.concatenate([layer.mean, other_layer.mean]),
                var=np.concatenate([layer.var, other_layer.var]),
                count=np.concatenate([layer.count, other_layer.count]),
            )
            for layer, other_layer in zip(self.layers, other.layers, strict=True)
        )
        if self.indices is None or other.indices is None:
            return replace(self, layers=layers, indices=None)
        return replace(self, layers=layers, indices=np.concatenate([self.indices, other.indices]))

    def pooled(self) -> BatchStatistics:
        """A single draw: the population statistics over all mini-batches together, with biased variance.

        Source: Wu & Johnson 2021 (PreciseBN).
        """
        layers = tuple(_pooled(layer, self.variance) for layer in self.layers)
        return replace(self, layers=layers, indices=None, variance="biased")

    def save(self, path: str | Path) -> None:
        """Write the bank to an HDF5 file, through a temporary file that is renamed."""

        def lay_out(file: Any) -> None:
            file.attrs["bnuq_bank"] = 1
            self.write_to(file)

        write_bytes(Path(path), image_of(lay_out))

    def arrays(self) -> dict[str, np.ndarray]:
        """The bank as arrays by name, of which `of_arrays` makes it again."""
        facts = {
            "fingerprint": self.fingerprint,
            "batch_size": self.batch_size,
            "seed": self.seed,
            "variance": self.variance,
        }
        layers = [(layer.name, layer.eps) for layer in self.layers]
        arrays = {"facts": np.array(json.dumps([facts, layers]))}
        for order, layer in enumerate(self.layers):
            arrays |= {f"{order}/mean": layer.mean, f"{order}/var": layer.var, f"{order}/count": layer.count}
        return arrays if self.indices is None else arrays | {"indices": self.indices}

    @classmethod
    def of_arrays(cls, arrays: Mapping[str, np.ndarray]) -> BatchStatistics:
        """The bank that `arrays` was made of."""
        facts, layers = json.loads(str(arrays["facts"]))
        of_layers = tuple(
            LayerStatistics(name, eps, *(arrays[f"{order}/{part}"] for part in ("mean", "var", "count")))
            for order, (name, eps) in enumerate(layers)
        )
        return cls(layers=of_layers, indices=arrays.get("indices"), **facts)

    def write_to(self, group: Any) -> None:
        """Write the bank to an open HDF5 group: one group per layer, numbered in execution order."""
        group.attrs["fingerprint"] = self.fingerprint
        group.attrs["batch_size"] = self.batch_size
        group.attrs["variance"] = self.variance
        if self.seed is not None:
            group.attrs["seed"] = self.seed
        draw = group.create_dataset("draw", data=np.arange(self.samples))
        draw.make_scale("draw")
        if self.indices is not None:
            indices = group.create_dataset("indices", data=self.indices, compression="gzip", compression_opts=1)
            position = group.create_dataset("position", data=np.arange(self.indices.shape[1]))
            position.make_scale("position")
            indices.dims[0].attach_scale(draw)
            indices.dims[1].attach_scale(position)
        for order, layer in enumerate(self.layers):
            layer_group = group.create_group(f"layer{order:03d}")
            layer_group.attrs["name"], layer_group.attrs["eps"] = layer.name, layer.eps
            channel = layer_group.create_dataset("channel", data=np.arange(layer.mean.shape[1]))
            channel.make_scale("channel")
            for name, values in (("mean", layer.mean), ("var", layer.var), ("count", layer.count)):
                data = layer_group.create_dataset(name, data=values)
                data.dims[0].attach_scale(draw)
                if values.ndim == 2:
                    data.dims[1].attach_scale(channel)

    @classmethod
    def load(cls, path: str | Path) -> BatchStatistics:
        """The bank saved in `path`; ResultError where the file is not a bank."""
        with open_hdf5(Path(path), what="bank of batch statistics") as file:
            if not np.array_equal(file.attrs.get("bnuq_bank", 0), 1):
                raise ResultError(f"{path} is not a bank of batch statistics; expected a file written by omega.save().")
            return cls.read_from(file, str(path))

    @classmethod
    def read_from(cls, group: Any, where: str) -> BatchStatistics:
        """The bank in an open HDF5 group."""
        try:
            variance: Any = str(group.attrs.get("variance", "biased"))  # missing in files of the first versions
            numbers = [name.removeprefix("layer") for name in group if name.startswith("layer")]
            layers = tuple(
                LayerStatistics(
                    name=str(layer_group.attrs["name"]),
                    eps=float(layer_group.attrs["eps"]),
                    mean=layer_group["mean"][()],
                    var=layer_group["var"][()],
                    count=layer_group["count"][()],
                )
                for layer_group in (group[f"layer{number}"] for number in sorted(numbers, key=int))
            )
            bank = cls(
                layers=layers,
                fingerprint=str(group.attrs["fingerprint"]),
                batch_size=int(group.attrs["batch_size"]),
                seed=int(group.attrs["seed"]) if "seed" in group.attrs else None,
                indices=group["indices"][()] if "indices" in group else None,
                variance=variance,
            )
        except (KeyError, TypeError, ValueError, OSError) as error:
            raise ResultError(f"{where}: the bank of batch statistics is incomplete or damaged ({error}).") from error
        if complaint := _complaint(bank):
            raise ResultError(f"{where}: {complaint}")
        return bank


def _complaint(bank: BatchStatistics) -> str | None:
    arrays = [array for m in bank.layers for array in (m.mean, m.var, m.count)]
    if not bank.layers or not all(isinstance(array, np.ndarray) for array in arrays):
        return "the bank of batch statistics is incomplete: it holds no layers, or a layer without draws."
    if bank.variance not in get_args(Variance):
        return f"the variance of the bank is {bank.variance!r}; expected {' or '.join(get_args(Variance))}."
    shapes = {(m.mean.shape == m.var.shape and m.mean.ndim == 2, len(m.mean), m.count.shape) for m in bank.layers}
    if shapes != {(True, bank.samples, (bank.samples,))} or bank.samples < 1:
        return "the layers of the bank do not hold the same number of draws."
    for m in bank.layers:
        floats = m.mean.dtype.kind == m.var.dtype.kind == "f" and m.count.dtype.kind in "iu"
        if not floats or not (np.isfinite(m.mean).all() and np.isfinite(m.var).all() and (m.var >= 0).all()):
            return f"layer {m.name} holds invalid batch statistics (NaN, inf, or a negative variance)."
    return None


def _pooled(layer: LayerStatistics, variance: Variance) -> LayerStatistics:
    values = layer.var if variance == "biased" else layer.var * (1 - 1 / layer.count)[:, None]
    weight = (layer.count / layer.count.sum())[:, None]
    mean = (weight * layer.mean.astype(np.float64)).sum(0)
    var = (weight * (values + (layer.mean.astype(np.float64) - mean) ** 2)).sum(0)
    return replace(
        layer,
        mean=mean[None].astype(layer.mean.dtype),
        var=var[None].astype(layer.var.dtype),
        count=layer.count.sum(keepdims=True),
    )
