"""Which batch sizes are as good as the recommended one."""

from __future__ import annotations

import pytest

from bnuq.estimates import Estimate
from bnuq.sweeping.recommendation import within_one_error


@pytest.mark.parametrize(("difference", "within"), [(-4.99, True), (-5.0, True), (-5.01, False), (0.0, True)])
def test_a_size_is_as_good_where_it_lies_behind_by_no_more_than_both_errors_together(difference, within):
    behind = {16: Estimate(0.0, se=0.0, mc_se=0.0), 32: Estimate(difference, se=3.0, mc_se=4.0)}
    assert within_one_error(behind) == ((16, 32) if within else (16,))


def test_a_difference_without_an_error_must_be_0():
    assert within_one_error({16: Estimate(0.0), 32: Estimate(-1e-9)}) == (16,)
