"""References to points: read from files, factories and the published data sets, and prepared as in training."""

from bnuq.data.common_layout import points_of
from bnuq.data.decoded import Decoded, MemoryBudget, ahead
from bnuq.data.download import fetch
from bnuq.data.fitting import are_grey_files, fitted, in_colour
from bnuq.data.known import KnownSet, known_sets
from bnuq.data.masks import Masks
from bnuq.data.numbering import Fingerprints, in_one_numbering, natural_order
from bnuq.data.pipeline import (
    augmented,
    check_ranges,
    crop_of,
    flips,
    jitter_of,
    jittered,
    mean_and_std,
    normalized,
    padded,
    places,
)
from bnuq.data.points import Points
from bnuq.data.readers.classes import read_classes
from bnuq.data.reading import (
    check_found,
    factory_of,
    load_points,
    missing_set,
    parse_reference,
    points_in_memory,
    set_name,
)
from bnuq.data.resizing import WORDS, Fit, resized_crop
from bnuq.data.target_checks import (
    MULTILABEL_KEY,
    check_label_matrix,
    check_labels,
    check_masks,
    check_targets,
    labelled,
)
