"""Warnings and notes on how data sets and checkpoints were read, and on points that two sets share."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.findings import Catalogue, Entry, joined


def _adapted(channels: Sequence[int], size: Sequence[str], resized: bool) -> str:
    changes = [f"from {size[0]}{' sizes' * (size[0] == 'several')} to {size[1]} pixels"] if resized else []
    if channels[0] != channels[1]:
        changes.append("from grey to RGB" if channels[1] == 3 else "from RGB to grey (luma)")
    return f"pictures are converted {' and '.join(changes)}, as the test set's"


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


def _entries_unchanged(entry: str, others: Sequence[str]) -> str:
    names = ", ".join(map(repr, others))
    return f"the statistics in its entry {entry!r} were changed; those in {names} are what they were"


INPUTS: Catalogue = {
    # data: files
    "arrays-unused": Entry(lambda names: f"also there and not used: {', '.join(names[:10])}"),
    "parts-unused": Entry(
        "each item's first two parts are its input and its label; {parts} more {parts:is|are} not used. Several inputs "
        "are given as ((a, b), label)"
    ),
    "no-label-file": Entry("no file of labels beside the pictures"),
    "label-file": Entry("labels from {file}"),
    "read-from-factory": Entry("read from {factory}"),
    "points-on-last-axis": Entry("the points are on the last axis (H, W, C, N)"),
    "svhn-label-10": Entry("label 10 is the digit 0, as in SVHN"),
    "no-class-folders": Entry("no class folders: no labels"),
    "class-folders": Entry("{count} class folders"),
    "class-names": Entry(
        lambda names: (
            f"{len(names)} class names, numbered in sorted order: {', '.join(names[:10])}" + ", …" * (len(names) > 10)
        )
    ),
    "masks": Entry("masks from {folder}"),
    "masks-ignored": Entry(
        lambda count, names, ignore: (
            f"every pixel is {ignore}, which is ignored, in {count} mask{'s' * (count > 1)}, which count for nothing: "
            f"{', '.join(names)}" + ", …" * (count > len(names))
        ),
        "Check that they are the masks of these pictures, and --ignore.",
    ),
    "set-adapted": Entry(_adapted),
    "picture-mode": Entry("pictures are {mode}"),
    "crop-pads": Entry("pictures of {size} pixels get a black border: the crop is {crop}"),
    "target-column": Entry("the target is the {last:last column|column}{last:,|} {column!r}"),
    "split-file": Entry("split {split} by {file}"),
    # data: layouts
    "one-hot-targets": Entry("targets are one-hot rows of {classes}: taken as labels"),
    "inputs-as-they-are": Entry("inputs are {dtype}: taken as they are"),
    "no-feature-axis": Entry("inputs have no feature axis: one feature a point"),
    "no-channel-axis": Entry("pictures have no channel axis (N, H, W): one channel"),
    "floats-without-channel-axis": Entry(
        "float inputs (N, a, b) are taken as they are, without a channel axis: pictures need (N, 1, H, W)"
    ),
    "ambiguous-layout": Entry(
        lambda shape, channel: f"the layout of {_shape(shape)} is ambiguous: taken as channel-{channel}"
    ),
    "channel-last": Entry("pictures are channel-last (N, H, W, C)"),
    "no-axis-like-channels": Entry(
        lambda shape: f"neither axis of {_shape(shape)} looks like channels: taken as channel-first"
    ),
    # data: sets
    "limited": Entry("at most {limit} points of each evaluated set, drawn at random with seed {seed} (--limit)"),
    "inputs-of-another-scale": Entry(
        "the inputs of {set} ({source}) lie between {low:.3g} and {high:.3g}, with a standard deviation of {sd:.3g}, "
        "those of the reference ({reference}) between {reference_low:.3g} and {reference_high:.3g}, with "
        "{reference_sd:.3g}: they were prepared differently, so estimates on {set} mean nothing.",
        "Prepare both files as in training. Only uint8 pixels are scaled to 0 to 1 here; floats are taken as they are, "
        "so save pixels from 0 to 255 as uint8, or divide them by 255. Rows of a table need the same units. No key "
        "helps, since `normalize` is applied to all sets alike.",
    ),
    "validation-in-test": Entry(
        "{shared} of the {points} validation points are also in the test set ({test}): what is fitted to them (τ, the "
        "constant baseline) is tested on the same points.",
        "Name validation points that are in no other set.",
    ),
    "test-in-reference": Entry(
        "{shared} of the {points} test points are also in the reference ({reference}): the network was trained on "
        "them, so estimates are too optimistic.",
        "Remove these points from the test set, or report that the estimates include training points.",
    ),
    "validation-in-reference": Entry(
        "{shared} of the {points} validation points are also in the reference ({reference}): what is fitted to them "
        "(τ, the constant baseline) is too optimistic, as the network was trained on them.",
        "Name validation points that the network never trained on.",
    ),
    # checkpoints, and where the network runs
    "weights-in-entry": Entry("the weights were taken from its entry {entry!r}."),
    "prefix-removed": Entry("the prefix {prefix!r} was taken off the names of the weights."),
    "tensors-left-out": Entry("{count} tensors outside {prefix!r} were left out: {names}."),
    "entries-left-out": Entry("{count} entries that are no tensors were left out: {names}."),
    "architecture-unused": Entry("the file holds the whole network; the architecture {architecture} was not used."),
    "hub-config": Entry(
        "{settings:joined} {settings:is|are} as its config.json says ({architecture}); options and the run file "
        "override it."
    ),
    "architecture-recognised": Entry(
        lambda architecture, others, classes, releases: (
            f"its tensors have the names and shapes of {architecture} with {classes} classes, and of nothing else in "
            f"{releases}{f' but {joined(others)}, which compute the same' if others else ''}: it was built as that. "
            "--arch names another."
        )
    ),
    "export-static": Entry(
        "it was exported for batches of exactly {points}; its operations were found to give the same for any number."
    ),
    "export-decomposed": Entry(
        "it was decomposed (run_decompositions), which removes dropout: only its BatchNorms can be sampled."
    ),
    "classes-from-file": Entry("the factory's {argument} was not given: it is {classes}, as in the file."),
    "weights-converted": Entry("{stored} weights were converted to {used}."),
    "no-batch-counters": Entry(
        "{layers} BatchNorm layers have no num_batches_tracked, as before torch 0.4.1; nothing here needs it."
    ),
    "gpu-unusable": Entry("the GPU cannot be used ({reason}), so everything ran on the CPU"),
    "entry-shared": Entry("its entry {shared!r} holds the very tensors of {entry!r}, and changed with it"),
    "entries-unchanged": Entry(_entries_unchanged),
}
