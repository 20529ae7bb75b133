"""The scales of columns by which a site reads its records for a study: the first that it is sent, which then stay.

| phase                   | what the coordinator must send                | where it is kept at the site |
|-------------------------|-----------------------------------------------|------------------------------|
| `ranges`                | nothing                                       |                              |
| `scaling`               | the ranges, if they were released             | `ranges.tree`                |
| `inference`, `residual` | ranges, locations and scales                  | `scaling.tree`               |
| later phases            | the same, and the residual, if it was learned | `residual.tree`              |

What later phases need besides, the mean or the posterior found so far, is in the content of their messages. All of it
is made of released numbers, is checked for its form and for finite numbers, and enters no price.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.basics import durable
from tacit.federated.messages import decode_tree, encode_tree
from tacit.study.setup import Setup
from tacit.tables.scaling import Range, Scaling

RESIDUAL = "residual"
UNSCALED = ("ranges", "scaling")  # phases that read records as they are
BEFORE = (*UNSCALED, "inference", RESIDUAL)  # phases in which no residual is known
DIFFER = "the scales of columns differ from those that this study began with; begin a new study"
ODD = "the scales of columns are not of this study's form; begin a new study"


class StudyRefused(ValueError):
    """A refusal by a site, in words that may leave it."""


def asdict_of(scaling: Scaling) -> dict[str, Any]:
    """Scales of columns as a message carries them, with the residual if it is known."""
    found = {"low": scaling.range.low, "high": scaling.range.high, "location": scaling.location, "scale": scaling.scale}
    return found if scaling.residual is None else found | {RESIDUAL: scaling.residual}


class Scales:
    """The scales of one study at a site. folder: the study's, in which the first ones sent are kept."""

    def __init__(self, folder: Path, setup: Setup) -> None:
        self.folder, self.setup = folder, setup

    def checked(self, phase: str, sent: Any) -> Scaling | None:
        """The scales that were sent for a phase, or `StudyRefused`. They may differ from none that were kept."""
        names = self._names(phase)
        if not isinstance(sent, dict) or not _is_like(sent, self._form(names)):
            raise StudyRefused(ODD)
        if not all(np.all(np.asarray(sent[name]) > 0) for name in ("scale", RESIDUAL) if name in sent):
            raise StudyRefused(ODD)
        for name in names:
            path = self._path(name)
            if path.exists() and path.read_bytes() != encode_tree(_part(name, sent)):
                raise StudyRefused(DIFFER)
        return _scaling_of(sent) if names else None

    def keep(self, phase: str, scaling: Scaling | None) -> None:
        """Note the scales of a phase, if none of an earlier message are there."""
        for name in self._names(phase):
            assert scaling is not None
            if not self._path(name).exists():
                plain = jax.tree.map(np.asarray, asdict_of(scaling))
                durable.write(self._path(name), encode_tree(_part(name, plain)))

    def has(self, phase: str) -> bool:
        """Whether all scales that a phase needs are kept."""
        return all(self._path(name).exists() for name in self._names(phase))

    def kept(self, phase: str) -> Scaling | None:
        """The scales of a phase as they were kept."""
        found: dict[str, Any] = {}
        for name in self._names(phase):
            found |= decode_tree(self._path(name).read_bytes())
        return _scaling_of(found) if found else None

    def _names(self, phase: str) -> tuple[str, ...]:
        """The files with the scales of a phase."""
        if phase == "ranges" or (phase == "scaling" and "ranges" not in self.setup.phases):
            return ()
        if phase == "scaling":
            return ("ranges",)
        is_learned = self.setup.plan.learns_residual and phase not in BEFORE
        return ("scaling", RESIDUAL) if is_learned else ("scaling",)

    def _path(self, name: str) -> Path:
        return self.folder / f"{name}.tree"

    def _form(self, names: tuple[str, ...]) -> dict[str, Any]:
        """Arrays of the shapes and types that must be sent."""
        if not names:
            return {}
        like = self.setup.public_scaling()
        if RESIDUAL in names:
            like = replace(like, residual=jnp.ones((), like.scale.dtype))
        return jax.tree.map(np.asarray, asdict_of(like))


def _part(name: str, plain: dict[str, Any]) -> dict[str, Any]:
    """What is kept under a name."""
    return {part: value for part, value in plain.items() if (part == RESIDUAL) == (name == RESIDUAL)}


def _is_like(sent: dict[str, Any], like: dict[str, Any]) -> bool:
    """Whether arrays have the form of others, and finite numbers."""
    return jax.tree.structure(sent) == jax.tree.structure(like) and all(
        np.shape(a) == np.shape(b) and np.asarray(a).dtype == b.dtype and bool(np.all(np.isfinite(a)))
        for a, b in zip(jax.tree.leaves(sent), jax.tree.leaves(like), strict=True)
    )


def _scaling_of(plain: dict[str, Any]) -> Scaling:
    found = jax.tree.map(jnp.asarray, plain)
    return Scaling(Range(found["low"], found["high"]), found["location"], found["scale"], found.get(RESIDUAL))
