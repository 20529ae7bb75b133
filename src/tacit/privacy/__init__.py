"""Differential privacy: what is released, what it costs, and the randomness behind it.

Each file is one part of the theorem. `clipping`, `sampling`, `noise` and `events` do not import each other;
`mechanism` couples them and states the joint guarantee; `released` carries the receipt; `accounting` prices it;
`statement` puts it in words; `ledger` records what was spent of a budget.
"""
