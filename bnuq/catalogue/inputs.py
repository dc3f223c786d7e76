"""Warnings and notes on how data sets and checkpoints were read, and on points that two sets share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bnuq.findings import Catalogue, Entry, joined


def _adapted(channels: Sequence[int], size: Sequence[str], resized: bool) -> str:
    changes = [f"from {size[0]}{' sizes' * (size[0] == 'several')} to {size[1]} pixels"] if resized else []
    if channels[0] != channels[1]:
        changes.append("from grey to RGB" if channels[1] == 3 else "from RGB to grey (luma)")
    return f"images are converted {' and '.join(changes)}, like those of the test set"


def _numbered(classes: Iterable[tuple[int, str]], most: int = 10) -> str:
    """0 = cat, 1 = dog, …"""
    texts = [f"{number} = {name}" for number, name in sorted(classes)]
    return ", ".join(texts if len(texts) <= most else [*texts[: most - 1], "…", texts[-1]])


def _shape(shape: Sequence[int]) -> str:
    return str(tuple(shape))


INPUTS: Catalogue = {
    # predictions of other software
    "predictions-found": Entry(
        lambda file, of, found, shape: f"{of}: predictions are {found}, of shape {_shape(shape)}, in {file}"
    ),
    "outputs-together": Entry(
        "{file}: the RMSE is the root of the sum of the outputs' mean squared errors; MAE and CRPS are means over them"
    ),
    "probabilities-rounded": Entry(
        lambda file, scale, off: (
            f"{file}: the probabilities sum to {scale:g} to within {off:.2g} of it; they are divided by their sums, "
            "and what is below 0 or above 1 by rounding is 0 or 1"
        )
    ),
    "points-on-last-axis": Entry("the examples are on the last axis (H, W, C, N)"),
    "hard-predictions-differ": Entry(
        "{method}: {count} of {points} hard predictions are not the class of the largest value.",
        "Was another threshold used, or are the columns in another order (--classes)? Else leave them out: --ignore.",
    ),
    "hard-predictions-unknown": Entry(
        "{method}: the hard predictions hold {word}, which is not one of the classes ({classes:joined}).",
        "They are not used. Name the classes in the order of the columns: --classes NAME,NAME.",
    ),
    "words-differ": Entry(
        "{method}: no label is {predicted:joined}, and no prediction {labels:joined}: such predictions count as wrong.",
        "Are they the same classes? Write the same words in both.",
    ),
    "words-differ-in-form": Entry("{method}: {count} of {points} predictions are wrong by case or spaces alone."),
    "quantiles-scored": Entry(
        "{method}: {inside:.4g} of the targets lie between the quantiles at {low:g} and {high:g}, {share:.4g} should. "
        "The CRPS is twice the mean pinball loss of {count} levels, which is below that of a whole distribution; RMSE "
        "and PLL are of a normal distribution with the mean and the variance of the quantiles"
    ),
    "correctness-differs": Entry("{method}: in {count} of {points} examples correctness contradicts the labels."),
    "labels-are-predictions": Entry("{method}: all {points} labels are the predictions.", "Are they labels?"),
    "logits-sum-to-one": Entry("{file}: the logits sum to 1, from 0 to 1.", "Say what they are: --outputs."),
    "class-without-probability": Entry("{file}: no probability is of class {classes:joined} (counted from 0)"),
    "ids-repeat": Entry(
        "{file}: {column} repeats; --groups {column} makes its rows one group, whose errors are then wider.",
        "For several models, give each its own file.",
    ),
    "labels-left-out": Entry(
        "{file}: {count:,} rows have ids that no prediction has; they are left out.",
        "If they were left out by the model, such as hard ones, the scores are too good.",
    ),
    "paired-by-ids": Entry(
        lambda column, files, moved: (
            f"rows of {joined([Path(file).name for file in files])} are paired by {column}, "
            + ("in another order" if moved else "which is in one order")
        )
    ),
    "labels-found": Entry("labels are {found} in {file}"),
    "columns-by-name": Entry(
        lambda files, by, names: (
            f"{joined(files)}: the columns are in another order, and were brought to one order by their {by}: "
            f"{_numbered(enumerate(names))}"
        )
    ),
    "columns-by-place": Entry(
        lambda files, names: (
            f"{joined(files)}: the columns have no names of classes, and are taken in this order: "
            f"{_numbered(enumerate(names))}"
        )
    ),
    "classes-by-order": Entry(
        lambda names, alphabet: (
            f"the columns have no names: column 1 is class {names[0]}{', the first in the alphabet' * alphabet}, "
            f"column 2 class {names[1]}{', …' * (len(names) > 2)}. For another order: --classes NAME,NAME"
        )
    ),
    "classes-in-another-order": Entry(
        lambda names, right, order, better: (
            f"{right:.1%} of the predictions are right if the columns are the classes {joined(names)}, and "
            f"{better:.1%} if they are {joined(order)}."
        ),
        "Say which class each column is: --classes NAME,NAME, in the order of the columns.",
    ),
    "labels-numbered": Entry(
        lambda names: (
            f"the labels are numbers, and are taken in the order of the columns: {_numbered(enumerate(names))}. For "
            "another order: --classes NAME,NAME"
        )
    ),
    "probabilities-of-zero": Entry(
        "{method}: {count} of {points} examples give their class a probability of 0. Their log-likelihood is −∞, and "
        "is counted as {least:.1f}: the PLL says little.",
        "Give logits, or probabilities that were not rounded to 0; for hard decisions, read accuracy and Brier score.",
    ),
    "ids-in-one-file": Entry("only {file} has ids, so examples are matched row by row"),
    # data: files
    "arrays-unused": Entry(lambda names: f"also present but not used: {', '.join(names[:10])}"),
    "parts-unused": Entry(
        "the first two elements of each item are its input and its label; {parts} more {parts:is|are} not used. Pass "
        "several inputs as ((a, b), label)"
    ),
    "entries-unused": Entry(
        "entries that are text, or that number the examples, are not inputs and were not used: {names:joined}"
    ),
    "list-is-batches": Entry(
        "a list of two arrays is two batches of {points} inputs, without labels: (x, y) is a tuple"
    ),
    "svhn-label-10": Entry("label 10 is the digit 0, as in SVHN"),
    "no-class-folders": Entry(
        lambda table="": (
            "no class folders: no labels"
            + f"; if {table} lists the images and their labels, name it in place of the folder" * bool(table)
        )
    ),
    "class-folders": Entry("{count} class folders"),
    "class-names": Entry(
        lambda names: f"{len(names)} class names: {', '.join(names[:10])}" + ", …" * (len(names) > 10)
    ),
    "class-numbers": Entry(
        lambda names: (
            f"its classes are numbered in the sorted order of their names, as train does not name them: "
            f"{_numbered(enumerate(names))}. If the network's outputs are in another order, list the names: classes = "
            '[...] or classes = "names.txt" under [data]'
        )
    ),
    "class-order": Entry(
        lambda names, natural: (
            f"its classes are sorted as texts, as torchvision does: {_numbered(enumerate(names))}. timm sorts numbers "
            f"by value and ignores case: {_numbered(enumerate(natural))}. For a network trained with that order, list "
            'the names: classes = [...] or classes = "names.txt" under [data]'
        )
    ),
    "classes-by-name": Entry(
        lambda numbers, source: (
            f"its {len(numbers)} classes have the numbers that they have in {source}: "
            f"{_numbered((k, name) for name, k in numbers.items())}"
        )
    ),
    "fewer-classes-than-outputs": Entry(
        lambda names, outputs: (
            f"the network has {outputs} outputs, and only {len(names)} classes are named, which were numbered in "
            f"sorted order ({_numbered(enumerate(names))}): the outputs that they belong to are not known, so "
            "estimates that need labels may be meaningless."
        ),
        "Name a training set (--train) in which all classes occur, or list the names in the order of the outputs: "
        'classes = [...] or classes = "names.txt" (a name on each line) under [data].',
    ),
    "masks": Entry("masks from {folder}"),
    "masks-ignored": Entry(
        lambda count, names, ignore: (
            f"every pixel of {count} mask{'s' * (count > 1)} is {ignore}, the value that is not scored: "
            f"{', '.join(names)}" + ", …" * (count > len(names))
        ),
        "Check --ignore, and that these are the masks of the images.",
    ),
    "set-adapted": Entry(_adapted),
    "grey-as-rgb": Entry("images are grey: they are repeated to three channels (RGB), as the network takes them"),
    "crop-pads": Entry("images of {size} pixels get a black border: the crop is {crop}"),
    "index-column": Entry(
        lambda column: (
            f"the {f'column {column!r}' if column else 'first column, without a name,'} is an index: left out"
        )
    ),
    "target-column": Entry("the target is the {last:last column|column}{last:,|} {column!r}"),
    "known-set-hidden": Entry("{path} is the one here, which hides the known set: that is {known}"),
    # data: layouts
    "one-hot-targets": Entry("targets are one-hot rows of {classes}: used as labels"),
    "inputs-as-they-are": Entry("inputs are {dtype}: used unchanged"),
    "no-feature-axis": Entry("inputs have no feature axis: one feature per example"),
    "no-channel-axis": Entry("images have no channel axis (N, H, W): one channel"),
    "floats-without-channel-axis": Entry(
        "float inputs (N, a, b) are used unchanged, without a channel axis: images need (N, 1, H, W)"
    ),
    "ambiguous-layout": Entry(
        lambda shape, channel: f"the layout of {_shape(shape)} is ambiguous: read as channel-{channel}"
    ),
    "channel-last": Entry("images are channel-last (N, H, W, C)"),
    "no-axis-like-channels": Entry(
        lambda shape: f"neither axis of {_shape(shape)} looks like channels: read as channel-first"
    ),
    # data: sets
    "reference-unused": Entry(
        "the training set ({reference}) has examples of {shape}, the test set of {test}: no method draws from it, so "
        "it was left out, and with it its check and the scores that are fitted to it"
    ),
    "dataset-sampled": Entry(
        "the training set ({reference}) is a Dataset of {points} items. Only {sample} of them, drawn at random, show "
        "whether it changed since an interruption or an earlier result: changes of other items are not noticed.",
        "After a change of its items, remove the units of unfinished runs (RESULT.work); or give arrays.",
    ),
    "limited": Entry(
        "at most {limit} {limit:example|examples} of each evaluated set, drawn at random with seed {seed} (--limit)"
    ),
    "inputs-of-another-scale": Entry(
        "the inputs of {set} ({source}) lie between {low:.3g} and {high:.3g}, with a standard deviation of {sd:.3g}, "
        "and those of the training set ({reference}) between {reference_low:.3g} and {reference_high:.3g}, with "
        "{reference_sd:.3g}: they were prepared differently, so estimates on {set} are meaningless.",
        "Prepare both files as in training. Only uint8 pixels are scaled to 0 to 1 here; floats are used unchanged, so "
        "save pixels from 0 to 255 as uint8, or divide them by 255. Rows of a table need the same units. No key helps, "
        "since `normalize` is applied to all sets alike.",
    ),
    "validation-in-test": Entry(
        "{shared} of {points} validation examples are also in the test set ({test}): the values fitted to them (τ, "
        "the constant baseline) are tested on the same examples.",
        "Use validation examples that are in no other set.",
    ),
    "test-in-reference": Entry(
        "{shared} of {points} test examples are also in the training set ({reference}): the network was trained on "
        "them, so estimates are too optimistic.",
        "Remove these examples from the test set, or report that the estimates include training examples.",
    ),
    "ood-in-test": Entry(
        "{shared} of {points} examples of {set} are also in the test set ({test}): they cannot be separated from it, "
        "and draw the AUROC of {set} towards 0.5.",
        "Remove these examples from the OOD set, and check that --test and --ood name the sets that you mean.",
    ),
    "ood-in-reference": Entry(
        "{shared} of {points} examples of {set} are also in the training set ({reference}): the network was trained on "
        "them, so they are not out of distribution.",
        "Remove these examples from the OOD set, and check that --train and --ood name the sets that you mean.",
    ),
    "validation-in-reference": Entry(
        "{shared} of {points} validation examples are also in the training set ({reference}): what is fitted to "
        "them is too optimistic, as the network was trained on these examples.",
        "Use validation examples that the network was never trained on.",
    ),
    # checkpoints, and where the network runs
    "weights-in-entry": Entry("the weights were taken from its entry {entry!r}."),
    "averages-unused": Entry(
        lambda entry, key: (
            f"its entry {entry!r} holds averaged weights in another form than a state dict of the whole network, so "
            f"those {f'in {key!r}' if key else 'beside it'} were used. To evaluate the averaged ones, copy them into "
            "the network and save its state dict."
        )
    ),
    "averages-beside": Entry(
        "{count} second copies of its weights, which mmcv's EMAHook keeps next to the averaged ones, were left out: "
        "{names}."
    ),
    "prefix-removed": Entry("the prefix {prefix!r} was removed from the names of the weights."),
    "tensors-left-out": Entry("{count} tensors outside {prefix!r} were left out: {names}."),
    "architecture-unused": Entry("the file holds the whole network; the architecture {architecture} was not used."),
    "hub-config": Entry(
        "{settings:joined} {settings:was|were} read from its config.json ({architecture}); options and the run file "
        "override them."
    ),
    "architecture-recognised": Entry(
        lambda architecture, others, classes, releases: (
            f"its tensors have the names and shapes of {architecture} with {classes} classes, and of no other network "
            f"in {releases}{f' except {joined(others)}, which compute the same' if others else ''}, so this "
            "architecture was used. --arch names another."
        )
    ),
    "classes-from-file": Entry("the factory's {argument} was not given: it is {classes}, as in the file."),
    "gpu-unusable": Entry("the GPU cannot be used ({reason}), so everything ran on the CPU"),
    "entries-unchanged": Entry(
        lambda entry, others: (
            f"the statistics in its entry {entry!r} were changed; those in {', '.join(map(repr, others))} are unchanged"
        )
    ),
}
