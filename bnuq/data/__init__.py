"""References to points: read from files, factories and the published data sets, and prepared as in training."""

from bnuq.data.known import KnownSet, known_sets
from bnuq.data.pipeline import augmented, normalized
from bnuq.data.points import Points, check_labels, check_targets, points_of
from bnuq.data.reading import load_points, parse_reference, points_in_memory, set_name

__all__ = [
    "KnownSet",
    "Points",
    "augmented",
    "check_labels",
    "check_targets",
    "known_sets",
    "load_points",
    "normalized",
    "parse_reference",
    "points_in_memory",
    "points_of",
    "set_name",
]
