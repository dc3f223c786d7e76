"""The scores of the pixels of a segmentation, as its estimates and its certificate take them. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

import numpy as np

from bnuq.evaluation.estimates import SetScores
from bnuq.frozen import frozen
from bnuq.shapes import Float


@frozen
class PixelScores(SetScores):
    """The scores of one set of images. `points` are means over the pixels of each image, and its number of `pixels`.

    `of_pixels` are the sums over all pixels that other estimates follow from, under every replicate: by class, by bin
    of confidence, and histograms of the scores; `of_images` are those of each image under all draws.
    """

    of_pixels: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    of_images: Mapping[str, np.ndarray] = field(default_factory=dict, kw_only=True)
    by_temperature: Float[np.ndarray, "likelihood image"] | None = field(default=None, kw_only=True)
