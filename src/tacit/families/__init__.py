"""Exponential families: an instance is its natural parameters; a dict of families is their product."""

from tacit.families.base import (
    Family,
    entropy,
    inner,
    is_proper,
    kl,
    kl_up_to_constant,
    log_density,
    log_partition,
    mean_parameters,
    over_parts,
    power,
    product,
    project,
    quotient,
    register,
    sample,
)
from tacit.families.gaussian import DiagonalGaussian, FullGaussian, denoise

__all__ = [
    "DiagonalGaussian",
    "Family",
    "FullGaussian",
    "denoise",
    "entropy",
    "inner",
    "is_proper",
    "kl",
    "kl_up_to_constant",
    "log_density",
    "log_partition",
    "mean_parameters",
    "over_parts",
    "power",
    "product",
    "project",
    "quotient",
    "register",
    "sample",
]
