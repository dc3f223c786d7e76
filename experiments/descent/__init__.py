"""Residual networks trained by SGD: statistics of BatchNorm over training, and the ResNet-32 of the MCBN paper."""
