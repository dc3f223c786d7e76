"""The published normalisations of images, by the name that settings use for them."""

from __future__ import annotations

PUBLISHED: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {  # mean and std per channel of pixels from 0 to 1
    "imagenet": ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)),
    "cifar10": ((0.4914, 0.4822, 0.4465), (0.2470, 0.2435, 0.2616)),
    "cifar10-0.2023": ((0.4914, 0.4822, 0.4465), (0.2023, 0.1994, 0.2010)),  # mean of the per-image stds
    "cifar100": ((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761)),
    "svhn": ((0.4377, 0.4438, 0.4728), (0.1980, 0.2010, 0.1970)),
    "clip": ((0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)),
    "mnist": ((0.1307,), (0.3081,)),
    "fashion-mnist": ((0.2860,), (0.3530,)),
}
