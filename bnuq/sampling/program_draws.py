"""Draws that a program of plain torch operations computes by itself, as an evaluation draws them: dropout masks, the
augmentation of points, and which draws of a bank a point uses. All are functions of (seed, draw, point).

`numbers` are the draws of each point: (draw, 1) where all points share them, (draw, point) with a bank.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from bnuq.sampling import counter_rng
from bnuq.sampling.dropout import Dropout, dropped_by
from bnuq.sampling.interception import DropoutCall
from bnuq.sampling.sites import DropoutSite
from bnuq.shapes import Float, Int64

Numbers = Int64[Tensor, "draw point_or_1"]


class _Keyed(nn.Module):
    """Random words of a seed, for the first points of a set."""

    one: Tensor

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self.register_buffer("one", torch.ones(1, dtype=torch.int64))
        self.philox = Philox()

    def counted(self, count: int) -> Int64[Tensor, " count"]:
        """1, 2, …; a range of torch would tie the program to a device."""
        return self.one.expand(count).cumsum(0)

    def of_blocks(self, numbers: Numbers, blocks: int, size: int, per_row: int, rows: int) -> Numbers:
        """The draws of so many blocks of `size` parts, of which a point takes `per_row`. They are those of the point of
        the first part, since a tile of a bank begins with a block."""
        if numbers.shape[1] == 1:
            return numbers
        return numbers[:, ((self.counted(blocks) - 1) * size // max(1, per_row)).clamp(max=rows - 1)]

    def words(self, numbers: Numbers, blocks: int, purpose: int, *, site: int = 0) -> Int64[Tensor, "draw word"]:
        """The words of so many blocks, of four words each, of a stream under each draw."""
        block = self.counted(blocks)
        first = torch.stack([block, torch.zeros_like(block)])[:, None]
        second = torch.stack([self.one * site, self.one * purpose])[:, None]
        keys = torch.stack([(self.one * self._seed).expand_as(numbers), numbers])
        return self.philox(first, second, keys)


class BankDraws(_Keyed):
    """Which `samples` of the `draws` of a bank each point uses."""

    places: Tensor

    def __init__(self, draws: int, samples: int, seed: int) -> None:
        super().__init__(seed)
        self._samples = samples
        self.register_buffer("places", torch.arange(draws))

    def forward(self, rows: int) -> Numbers:
        """The draws of so many points; those of a tile are the same."""
        tile = (self.counted(rows) - 1) // counter_rng.TILE
        words = self.words(tile[:, None], -(-self._samples // 4), counter_rng.TILE_DRAWS)
        order, chosen = self.places.expand(rows, -1), list[Tensor]()
        for position in range(self._samples):  # of a Fisher–Yates shuffle
            other = position + remainder(words[:, position : position + 1], order.shape[1] - position)
            chosen.append(order.gather(1, other))
            order = order.scatter(1, other, order[:, position : position + 1])
        return torch.cat(chosen, 1).mT


class Augmentation(_Keyed):
    """Test-time augmentation of normalised pictures: padded with a `border` or by reflection, cropped, and flipped left
    and right, as `bnuq.data.augmented` does with raw pixels."""

    border: Tensor

    def __init__(
        self, seed: int, *, border: Float[Tensor, "channel 1 1"] | None, pad: int, crop: tuple[int, int], flip: bool
    ) -> None:
        super().__init__(seed)
        self._pad, self._crop, self._flip, self._reflects = pad, crop, flip, border is None
        self.register_buffer("border", torch.zeros(1, 1, 1) if border is None else border)

    def forward(self, pictures: Tensor, numbers: Numbers) -> tuple[Tensor, Tensor | None]:
        """Pictures (draw·point, channels, height, width) of each draw, and which are flipped (draw·point)."""
        rows, _, height, width = pictures.shape
        padded = F.pad(pictures, [self._pad] * 4, mode="reflect" if self._reflects else "constant")
        if self._pad and not self._reflects:
            around = F.pad(torch.zeros_like(self.border).expand(-1, height, width), [self._pad] * 4, value=1.0)
            padded = padded + around * self.border
        crop, sizes = self._crop, padded.shape[2:]
        words = self.words(self.of_blocks(numbers, rows, 4, 3, rows), rows, counter_rng.TTA)
        words = words[:, : 3 * rows].unflatten(1, (-1, 3))
        top, left = (remainder(words[..., k], sizes[k] - crop[k] + 1)[..., None] for k in (0, 1))
        across, flipped = self.counted(crop[1]) - 1, words[..., 2:] < 0
        if self._flip:
            across = torch.where(flipped, crop[1] - 1 - across, across)
        down = top + self.counted(crop[0]) - 1
        taken = windows(padded, down, left + across)
        return taken, flipped.flatten() if self._flip else None


def windows(pictures: Tensor, down: Tensor, across: Tensor) -> Tensor:
    """Of each picture (point, channel, …) for each draw the rows `down` and columns `across`, (draw, point, …) both:
    (draw·point, channel, height, width)."""
    size, width = (down.shape[2], across.shape[2]), pictures.shape[3]
    places = ((down * width)[..., None] + across[..., None, :]).flatten(2)
    places = places[:, :, None].expand(-1, -1, pictures.shape[1], -1)
    taken = pictures.flatten(2).expand(places.shape[0], -1, -1, -1).gather(3, places)
    return taken.unflatten(3, size).flatten(0, 1)


class MaskDraws(_Keyed):
    """The masks of one dropout.

    They are those of an evaluation, except for the one entry in 65,536 whose first 16 bits do not decide: it is kept
    where that is more likely.
    """

    def __init__(self, dropout: Dropout, site: DropoutSite) -> None:
        super().__init__(dropout.seed)
        self._site = site

    def forward(self, x: Tensor, rows: int, numbers: Numbers, *, in_place: bool) -> Tensor:
        """`x` of so many points for each of the draws, after the dropout."""
        call = DropoutCall(x, self._site.p, self._site.variety, in_place, training=False)

        def entries(first: int, count: int) -> Tensor:
            assert first == 0
            per_row = int(count // rows)
            # Enough blocks of 16 entries, as a product: a quotient would tie the program to its number of points.
            enough = rows * (1 + per_row // 16) + 1
            keys = self.of_blocks(numbers, enough, 16, per_row, rows)
            random = self.words(keys, enough, counter_rng.MASK, site=self._site.order)
            quarters = torch.stack([random >> shift & 0xFFFF for shift in (0, 16, 32, 48)], -1)
            threshold = self._site.p * 2**16
            return (quarters.flatten(1)[:, :count] >= int(threshold + 0.5)).to(torch.uint8)

        return dropped_by(call, self._site, entries, numbers.shape[0], 0)


def remainder(words: Int64[Tensor, " *size"], divisor: int) -> Int64[Tensor, " *size"]:
    """The remainders of unsigned words."""
    return (_upper(words) % divisor * (2**32 % divisor) + (words & 0xFFFFFFFF)) % divisor


class Philox(nn.Module):
    """numpy's Philox, in signed numbers.

    Source: Salmon et al. 2011, "Parallel random numbers: as easy as 1, 2, 3", Philox4x64-10.
    """

    factors: Tensor
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        factors = (0xD2E7470EE14C6C93, 0xCA5A826395121157)
        parts = [[factor >> 32, factor & 0xFFFFFFFF, _signed(factor)] for factor in factors]
        self.register_buffer("factors", torch.tensor(parts).mT[..., None, None].contiguous())  # (part, word, 1, 1)
        steps = [_signed(constant) for constant in (0x9E3779B97F4A7C15, 0xBB67AE8584CAA73B)]
        self.register_buffer("steps", torch.tensor(steps)[:, None, None])

    def forward(self, first: Tensor, second: Tensor, keys: Tensor) -> Int64[Tensor, "draw word"]:
        """The words of each draw and block, of four each: `first` are words 0 and 2 of the counters and `second` are
        words 1 and 3, (2, 1, block); `keys` are seed and draw, (2, draw, block or 1)."""
        for _ in range(10):
            high, low = self._product(first)
            first, second = high.flip(0) ^ second ^ keys, low.flip(0)
            keys = keys + self.steps
        words = torch.stack([first[0], second[0].expand_as(first[0]), first[1], second[1].expand_as(first[1])], -1)
        return words.flatten(1)

    def _product(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The high and the low word of the product of unsigned words with the factors."""
        high, low, whole = self.factors[0], self.factors[1], self.factors[2]
        x_high, x_low = _upper(x), x & 0xFFFFFFFF
        middle = high * x_low + _upper(low * x_low)
        other = low * x_high + (middle & 0xFFFFFFFF)
        return high * x_high + _upper(middle) + _upper(other), x * whole


def _upper(x: Tensor) -> Tensor:
    return x >> 32 & 0xFFFFFFFF


def _signed(word: int) -> int:
    return word - 2**64 if word >= 2**63 else word
