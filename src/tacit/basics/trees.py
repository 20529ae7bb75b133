"""The type of a tree: arrays in dicts, tuples and registered classes, nested as JAX allows."""

from typing import Any

Tree = Any
