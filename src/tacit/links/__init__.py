"""Links: each kind of regression, declared once. Everything that depends on the kind is read from this table."""

from tacit.links import regressions as _regressions
from tacit.links.link import (
    COUNT,
    INTERCEPT_SD,
    LABEL,
    LABELS,
    LINKS,
    NUMBER,
    Link,
    Simulator,
    TargetKind,
    declared,
    link_of,
    names,
)

del _regressions
__all__ = [
    "COUNT",
    "INTERCEPT_SD",
    "LABEL",
    "LABELS",
    "LINKS",
    "NUMBER",
    "Link",
    "Simulator",
    "TargetKind",
    "declared",
    "link_of",
    "names",
]
