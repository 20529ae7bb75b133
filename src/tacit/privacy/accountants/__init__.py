"""Accountants: each is a function from a count of parts, δ and the adjacency to ε."""

from typing import Literal, get_args

Accountant = Literal["pld", "rdp", "moments", "zcdp", "tcdp", "advanced", "basic"]
ACCOUNTANTS: tuple[Accountant, ...] = get_args(Accountant)
