"""Differential privacy: what is released, what it costs, and the randomness behind it.

Files are the parts of the theorem. `clipping`, `sampling`, `noise` and `events` do not know each other; `mechanism`
couples them and states the joint guarantee; `released` carries the receipt; `accounting` prices it; `statement` puts
it in words; `ledger` holds what was spent of a budget.
"""
