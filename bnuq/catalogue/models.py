"""Notes on how a checkpoint was read or written, and on where the network runs."""

from __future__ import annotations

from collections.abc import Sequence

from bnuq.findings import Catalogue, Entry


def _entries_unchanged(entry: str, others: Sequence[str]) -> str:
    names = ", ".join(map(repr, others))
    return f"the statistics in its entry {entry!r} were changed; those in {names} are what they were"


MODELS: Catalogue = {
    "weights-in-entry": Entry("the weights were taken from its entry {entry!r}."),
    "prefix-removed": Entry("the prefix {prefix!r} was taken off the names of the weights."),
    "tensors-left-out": Entry("{count} tensors outside {prefix!r} were left out: {names}."),
    "entries-left-out": Entry("{count} entries that are no tensors were left out: {names}."),
    "architecture-unused": Entry("the file holds the whole network; the architecture {architecture} was not used."),
    "weights-converted": Entry("{stored} weights were converted to {used}."),
    "no-batch-counters": Entry(
        "{layers} BatchNorm layers have no num_batches_tracked, as before torch 0.4.1; nothing here needs it."
    ),
    "gpu-unusable": Entry("the GPU cannot be used ({reason}), so everything ran on the CPU"),
    "entry-shared": Entry("its entry {shared!r} holds the very tensors of {entry!r}, and changed with it"),
    "entries-unchanged": Entry(_entries_unchanged),
}
