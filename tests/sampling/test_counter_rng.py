"""Random numbers by key. The golden values are part of what a seed means: they may never change."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from bnuq.sampling import counter_rng

SEEDS = st.integers(0, 2**63 - 1)


def test_words_are_the_frozen_ones():
    assert counter_rng.words(0, 0, counter_rng.BATCH, 3).tolist() == [
        213000021201967259,
        4455796210202625458,
        2055444239878205049,
    ]
    assert counter_rng.words(12, 34, counter_rng.AUGMENT, 2, site=5, block=6).tolist() == [
        740799525017255976,
        9529602550693473338,
    ]


def test_words_are_those_of_philox_4x64_10():
    philox = np.random.Generator(np.random.Philox(key=[12, 34], counter=[6, 5, 0, 1]))
    assert (
        counter_rng.words(12, 34, counter_rng.AUGMENT, 9, site=5, block=6).tolist()
        == philox.bit_generator.random_raw(9).tolist()
    )


def test_batches_are_the_frozen_ones():
    assert counter_rng.batch_indices(0, 0, population=1000, batch_size=6).tolist() == [259, 753, 905, 291, 931, 95]
    assert counter_rng.batch_indices(7, 3, population=10, batch_size=10).tolist() == [4, 8, 1, 3, 9, 7, 5, 2, 0, 6]
    assert counter_rng.batch_indices(0, 0, population=1000, batch_size=3, purpose=counter_rng.CHECK).tolist() == [
        393,
        275,
        569,
    ]


def test_quarters_are_the_frozen_ones():
    assert counter_rng.quarters(1, [0, 2], counter_rng.MASK, 5, 4, site=3).tolist() == [
        [64840, 24495, 62318, 25739],
        [10806, 14101, 13588, 62940],
    ]


def test_words_of_an_augmentation_are_the_frozen_ones():
    assert counter_rng.augmentation_words(0, 1, 2).tolist() == [
        [2510202401422219142, 2806831812706925312, 12931252132607379303],
        [16723615719418331162, 5101418294885197263, 4150721494532017594],
    ]


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 300), st.integers(0, 300))
def test_a_batch_has_no_repeats_and_stays_in_range(seed, draw, size, more):
    rows = counter_rng.batch_indices(seed, draw, population=size + more, batch_size=size)
    assert rows.dtype == np.int64 and len(set(rows.tolist())) == size
    assert rows.min() >= 0 and rows.max() < size + more


@given(SEEDS, st.integers(0, 10**6), st.integers(2, 200), st.data())
def test_a_smaller_batch_is_the_beginning_of_a_larger_one(seed, draw, population, data):
    large = data.draw(st.integers(1, population))
    small = data.draw(st.integers(1, large))
    batches = [counter_rng.batch_indices(seed, draw, population=population, batch_size=b) for b in (large, small)]
    assert np.array_equal(batches[0][:small], batches[1])


@given(SEEDS, st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 40), st.integers(0, 40))
def test_fewer_words_are_the_beginning_of_more(seed, draw, purpose, count, more):
    assert np.array_equal(
        counter_rng.words(seed, draw, purpose, count + more)[:count], counter_rng.words(seed, draw, purpose, count)
    )


@given(SEEDS, st.integers(0, 1000))
def test_a_whole_batch_is_a_permutation(seed, draw):
    assert sorted(counter_rng.batch_indices(seed, draw, population=50, batch_size=50)) == list(range(50))


@given(SEEDS, st.integers(0, 10**6), st.integers(0, 5), st.integers(0, 9), st.integers(1, 40))
def test_later_blocks_are_the_later_words(seed, draw, purpose, block, count):
    whole = counter_rng.words(seed, draw, purpose, 4 * block + count)
    assert np.array_equal(counter_rng.words(seed, draw, purpose, count, block=block), whole[4 * block :])


@given(SEEDS, st.lists(st.integers(0, 10**6), max_size=4), st.integers(0, 99), st.integers(1, 99), st.integers(0, 9))
def test_quarters_are_those_of_the_words_wherever_they_begin(seed, draws, first, count, site):
    found = counter_rng.quarters(seed, draws, counter_rng.MASK, first, count, site=site)
    words = [counter_rng.words(seed, draw, counter_rng.MASK, 50, site=site) for draw in draws]
    expected = [[int(w) >> 16 * k & 0xFFFF for w in row for k in range(4)][first : first + count] for row in words]
    assert found.shape == (len(draws), count) and found.tolist() == expected


def test_seed_draw_purpose_and_site_all_tell_streams_apart():
    keys = [(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0), (0, 0, 1, 0), (0, 0, 0, 1)]
    streams = [counter_rng.words(s, d, p, 4, site=site) for s, d, p, site in keys]
    assert len({stream.tobytes() for stream in streams}) == len(keys)
    long = [set(counter_rng.words(s, d, p, 3000, site=site).tolist()) for s, d, p, site in keys]
    assert all(not one & two for i, one in enumerate(long) for two in long[:i])  # nor do they ever overlap


def test_every_row_is_drawn_as_often_as_every_other():
    drawn = np.concatenate([counter_rng.batch_indices(0, t, population=40, batch_size=10) for t in range(2000)])
    counts = np.bincount(drawn, minlength=40)
    # without replacement the counts vary less than multinomial ones, by 1 − 10/40
    assert 0.001 < stats.chi2.sf(((counts - 500) ** 2 / 500).sum() / (1 - 10 / 40) * (39 / 40), df=39) < 0.999


def test_every_row_is_as_often_the_first_one():
    first = [counter_rng.batch_indices(3, t, population=20, batch_size=5)[0] for t in range(4000)]
    assert stats.chisquare(np.bincount(first, minlength=20)).pvalue > 0.001


def test_every_pair_of_rows_is_as_likely():
    pairs = [tuple(sorted(counter_rng.batch_indices(1, t, population=6, batch_size=2))) for t in range(3000)]
    counts = [pairs.count((i, j)) for i in range(6) for j in range(i + 1, 6)]
    assert sum(counts) == 3000 and stats.chisquare(counts).pvalue > 0.001


@given(SEEDS, st.integers(0, 10**6), st.integers(1, 60), st.data())
def test_a_tile_chooses_its_draws_from_the_bank_without_replacement(seed, tile, bank, data):
    samples = data.draw(st.integers(1, bank))
    chosen = counter_rng.draws_of_tile(seed, tile, bank=bank, samples=samples)
    assert len(set(chosen.tolist())) == samples and set(chosen.tolist()) <= set(range(bank))
    fewer = counter_rng.draws_of_tile(seed, tile, bank=bank, samples=data.draw(st.integers(1, samples)))
    assert np.array_equal(chosen[: len(fewer)], fewer)


def test_tiles_choose_for_themselves_and_not_as_mini_batches_do():
    chosen = [tuple(counter_rng.draws_of_tile(0, tile, bank=64, samples=8).tolist()) for tile in range(50)]
    batches = [tuple(counter_rng.batch_indices(0, draw, population=64, batch_size=8).tolist()) for draw in range(50)]
    assert len({*chosen, *batches}) == 100
