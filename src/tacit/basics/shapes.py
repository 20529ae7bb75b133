"""Shapes of a schedule of noise, declared once: their names, and which settings each takes.

Importing it loads neither NumPy nor JAX. `privacy.schedules.shaped` computes them.
"""

from typing import Any, Literal, get_args

ShapeName = Literal["constant", "linear", "polynomial", "exponential", "stepwise", "influence"]
SHAPES: tuple[str, ...] = get_args(ShapeName)
MOST_RATIO = 1e3  # of the largest relative noise to the least: beyond, a step costs a millionth and tells nothing
SETTINGS = ("noise_end", "power", "stages", "contraction", "momentum")


def check_shape(shape: str, given: dict[str, Any]) -> None:
    """Refuse settings that a shape does not take, or lacks. given: those that are not None, of `SETTINGS`."""
    if shape not in SHAPES:
        raise ValueError(f"shape={shape!r}; expected one of {', '.join(SHAPES)}")
    needed = {"constant": None, "influence": "contraction"}.get(shape, "noise_end")
    also = {"polynomial": "power", "stepwise": "stages", "influence": "momentum"}.get(shape)
    for name, value in given.items():
        if name not in (needed, also):
            raise ValueError(f"{name}={value} is not a setting of shape={shape!r}; leave it out, or give another shape")
    if needed is not None and needed not in given:
        example = "noise_end = 0.5, the last step's noise relative to the first's"
        example = example if needed == "noise_end" else "contraction = 0.9"
        raise ValueError(f"shape={shape!r} without {needed}; say how its noise changes, as in {example}")
    if not 1 / MOST_RATIO <= given.get("noise_end", 1.0) <= MOST_RATIO:
        raise ValueError(f"noise_end={given['noise_end']}; expected a number from 0.001 to 1000")
    if not 0 <= given.get("momentum", 0.0) < 1:
        raise ValueError(f"momentum={given['momentum']}; expected a number of at least 0 and below 1")
