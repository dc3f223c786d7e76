"""The arithmetic of samples, as values: the types of their numbers, and how the factors of products are rounded.

A name is looked up here and compared nowhere else.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from bnuq.frozen import frozen

Precision = Literal["auto", "float32", "tf32", "float16", "bfloat16", "float64"]  # as requested
Rounding = Literal["ieee", "tf32"]  # of the factors of float32 products: none, or to 10 bits
PROBABILITY_TOLERANCE = 1e-2  # of the sum of a point's probabilities, which reduced precision rounds


@frozen
class Arithmetic:
    """How the products of a sample are computed.

    `network` is the type of the network, its inputs and its outputs. In the samples, weights and values have the
    narrower type `half`, where there is one; factors of float32 are rounded as `convolutions` (also recurrent layers of
    cuDNN) and `products` (of matrices) say. One that is there `by_default` is given up for the exact one where it
    deviates from that by more than the Monte Carlo error.
    """

    name: str
    network: Literal["float32", "float64"] = "float32"
    half: Literal["float16", "bfloat16"] | None = None
    convolutions: Rounding = "ieee"
    products: Rounding = "ieee"
    by_default: bool = False

    def __str__(self) -> str:
        return self.name

    @property
    def is_exact(self) -> bool:
        """Whether nothing is rounded to less than the network's own type."""
        return self.half is None and self.convolutions == self.products == "ieee"

    @property
    def exact(self) -> Arithmetic:
        """The arithmetic of the network's own type."""
        return FLOAT64 if self.network == "float64" else FLOAT32

    @property
    def folds(self) -> bool:
        """Whether sampled BatchNorms are folded into weights. The rounding of folded weights differs between draws and
        counts as uncertainty: to the 8 bits of bfloat16 by 5 % of a small mutual information, where 11 bits do not
        matter."""
        return self.half != "bfloat16"

    @property
    def overflows(self) -> bool:
        """Whether values of ordinary size may exceed its largest number: 65,504 of float16."""
        return self.half == "float16"


FLOAT32 = Arithmetic("float32")
FLOAT64 = Arithmetic("float64", network="float64")
_REQUESTED: Mapping[str, Arithmetic] = {
    arithmetic.name: arithmetic
    for arithmetic in (
        FLOAT32,
        FLOAT64,
        Arithmetic("tf32", convolutions="tf32", products="tf32"),
        Arithmetic("float16", half="float16"),
        Arithmetic("bfloat16", half="bfloat16"),
    )
}
_OF_TORCH: Mapping[tuple[bool, bool], Arithmetic] = {  # by whether it uses TF32 in convolutions, and in products
    (False, False): FLOAT32,
    (True, False): Arithmetic("tf32-convolutions", convolutions="tf32", by_default=True),
    (False, True): Arithmetic("tf32-products", products="tf32", by_default=True),
    (True, True): Arithmetic("tf32", convolutions="tf32", products="tf32", by_default=True),
}
_IN_WORDS = {"tf32": "TF32", "tf32-convolutions": "TF32 convolutions", "tf32-products": "TF32 matrix products"}


def arithmetic_named(precision: Precision, torch_uses_tf32: tuple[bool, bool] = (False, False)) -> Arithmetic:
    """The requested arithmetic; of "auto" that of torch, which uses TF32 in convolutions, and in products, or not."""
    return _REQUESTED.get(precision, _OF_TORCH[torch_uses_tf32])


def in_words(name: str) -> str:
    """The name of an arithmetic in a sentence."""
    return _IN_WORDS.get(name, name)
