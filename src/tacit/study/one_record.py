"""Refuse a model whose likelihood could see more than one record, or act on what it sees.

The mechanism clips what each record contributes. That bounds a record's influence only if the likelihood is a function
of one record. JAX has ways around it: a rule for batches of one's own sees all records, and a callback is Python code
that can remember, send or fail by what it is given. A loop that ends by a value takes longer for some records, which
those who wait can see. All of them show in the likelihood's own program before a record is read.
"""

from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tacit.basics.trees import Tree
from tacit.families import over_parts

WHOLE = frozenset({"custom_vmap_call", "custom_partitioning", "shard_map"})  # rules for many records at once
OUTSIDE = frozenset({"ffi_call", "infeed", "outfeed"})  # and every callback
TIMED = frozenset({"while"})


def check_one_record(model: Any, record: Tree) -> None:
    """Refuse such a likelihood, and such derivatives of it. record: the shapes of one record.

    Only shapes are used; nothing is computed.

    Guarantee: what passes is a composition of JAX's own operations, which `vmap` applies to each record by itself.
    """
    theta = jax.eval_shape(lambda: over_parts(model.prior, lambda part: part.mean))
    programs: list[tuple[str, Callable[..., Any], tuple[Any, ...]]] = [
        ("log_likelihood", model.log_likelihood, (theta, record)),
        ("log_likelihood", jax.grad(model.log_likelihood), (theta, record)),
    ]
    number = jax.ShapeDtypeStruct((), jnp.result_type(float))
    if hasattr(model, "of_linear"):
        programs.append(("of_linear", _derivatives(model.of_linear), (number, record[-1])))
    if hasattr(model, "log_evidence"):
        programs.append(("log_evidence", _derivatives(model.log_evidence), (number, number, record[-1])))
    if hasattr(model, "match"):
        full = jax.eval_shape(lambda: over_parts(model.prior, lambda part: part.full()))
        programs.append(("match", model.match, (full, record)))
    for name, program, arguments in programs:
        _check(name, jax.make_jaxpr(program)(*arguments))


def _derivatives(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of a number with its first and second derivatives, as solvers take them."""

    def found(z: Any, *others: Any) -> Any:
        slope = jax.grad(lambda z: function(z, *others))
        return function(z, *others), jax.jvp(slope, (z,), (jnp.ones_like(z),))

    return found


def _check(name: str, program: Any) -> None:
    names = {equation.primitive.name for equation in _equations(program.jaxpr)}
    calls = {found for found in names if "callback" in found}
    for found, why in (
        (sorted(names & WHOLE), "which can see all records at once"),
        (sorted(calls | names & OUTSIDE), "which runs code outside of the program"),
        (sorted(names & TIMED), "whose time depends on the record"),
        (sorted(map(str, program.effects)), "which acts on what it sees"),
    ):
        if found:
            raise ValueError(
                f"the model's {name} uses {found[0]}, {why}; expected a function of one record in jax.numpy, without "
                "callbacks, rules for batches and loops of unknown length (use lax.scan, or fori_loop over a fixed "
                "range)"
            )


def _equations(program: Any) -> Iterator[Any]:
    """All equations of a program, also of those inside them."""
    for equation in program.eqns:
        yield equation
        for value in equation.params.values():
            for part in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(part, "jaxpr", part)
                if hasattr(inner, "eqns"):
                    yield from _equations(inner)


def shapes_of_one(records: Tree) -> Tree:
    """The shapes of one record of a tree of arrays, in the types that JAX gives them."""

    def one(leaf: Any) -> jax.ShapeDtypeStruct:
        array = np.asarray(leaf)
        return jax.ShapeDtypeStruct(array.shape[1:], jax.dtypes.canonicalize_dtype(array.dtype))

    return jax.tree.map(one, records)
