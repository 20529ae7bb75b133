"""tacit ledger"""

from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.checks import show
from tacit.cli.options import RULES, UNITS, AdjacencyOption, AsJsonOption, DeltaOption, among

ledger = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="A site's budget, and its spending.")
LedgerPathArgument = Annotated[Path, typer.Argument(help="The site's ledger.")]


@ledger.command("show")
def ledger_show(path: LedgerPathArgument, as_json: AsJsonOption = False) -> None:
    """Budget, spending and entries of a site's ledger."""
    from tacit.privacy.ledger import Ledger
    from tacit.study.folder import shortened

    found = Ledger.open(path).to_dict()
    lines = [
        f"{found['data_set']}: ε = {found['spent']:.6g} of {found['epsilon']:g} is spent at δ = {found['delta']:g} "
        f"({found['accountant']}, {found['adjacency']}, unit: {found['unit']})",
        *(
            f"{e['position']:>6}  {e['time'][:19]}Z  "
            + (
                f"ε = {e['spent']:.6g} after round {e['round']} of {shortened(e['study'])}"
                if e["budget"] is None
                else f"budget raised to ε = {e['budget']:g}"
            )
            + (f" ({e['note']})" if e["note"] else "")
            for e in found["entries"]
        ),
        f"Analyses chosen after seeing results: {found['adaptive_analyses']}",
        f"Head: {found['head']}",
    ]
    show(found, as_json, "\n".join(lines))


@ledger.command("create", short_help="Make a ledger before the first analysis.")
def ledger_create(
    path: Annotated[Path, typer.Argument(help="The ledger's file; 'tacit fit DATA' looks for DATA.ledger.sqlite.")],
    epsilon: Annotated[float, typer.Option(help="The budget: ε of all analyses of the data together.")],
    delta: DeltaOption,
    rule: Annotated[
        str,
        typer.Option(
            help="gaussian (tight; no sampling) or renyi (also for softmax and sgld, which sample).",
            autocompletion=among(*RULES),
        ),
    ] = "gaussian",
    unit: Annotated[str, typer.Option(help="The unit that is protected: record, or person for fits with --unit.")] = (
        "record"
    ),
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJsonOption = False,
) -> None:
    """Make a ledger with a budget for all analyses of a data set. Its rule covers adaptively chosen analyses."""
    from tacit.privacy.ledger import Ledger
    from tacit.study.charging import ENDING

    if rule not in RULES:
        raise ValueError(f"rule={rule!r}; expected {' or '.join(RULES)}")
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}; expected one of {', '.join(UNITS)}")
    name = path.name.removesuffix(ENDING)
    settings: dict[str, Any] = {"unit": unit, "adjacency": adjacency, "accountant": rule}
    found = Ledger.create(path, data_set=name, epsilon=epsilon, delta=delta, **settings).to_dict()
    show(found, as_json, f"Made {path}: ε = {epsilon:g} at δ = {delta:g} ({found['accountant']}, unit: {unit})")


@ledger.command("extend", short_help="Raise a ledger's budget: the data holder's decision.")
def ledger_extend(
    path: LedgerPathArgument,
    epsilon: Annotated[float, typer.Option(help="The new budget, above the present one.")],
    note: Annotated[str, typer.Option(help="Why, or by whom; it is kept in the ledger.")] = "",
    as_json: AsJsonOption = False,
) -> None:
    """Raise a ledger's budget. The change becomes an entry of the ledger, and statements mention it.

    Decide before you see results: a budget raised because of them is no bound, and the rule does not cover it.
    """
    from tacit.privacy.ledger import Ledger

    Ledger.open(path).extend(epsilon, note=note)
    found = Ledger.open(path).to_dict()
    words = f"The budget of {found['data_set']} is ε = {epsilon:g} now, of which {found['spent']:.6g} is spent"
    show(found, as_json, f"{words}\nHead: {found['head']}")


@ledger.command("verify", short_help="Check that a ledger is unchanged and complete.")
def ledger_verify(
    path: LedgerPathArgument,
    expected_head: Annotated[
        str | None, typer.Option(help="A head noted earlier: no entry up to it may be missing.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Check that a ledger's entries are unchanged, in order, complete and within the budget."""
    from tacit.privacy.ledger import Ledger

    opened = Ledger.open(path)
    head = opened.verify(expected_head)
    count = len(opened.entries())
    rule = {"accountant": opened.accountant, "adaptive_analyses": opened.rule_words}
    result = {"path": str(opened.path), "sound": True, "entries": count, "spent": opened.spent(), "head": head, **rule}
    words = (
        f"The ledger of {opened.data_set} is sound: {count} entries, ε = {result['spent']:.6g} of {opened.epsilon:g} "
        f"({opened.accountant})\nAnalyses chosen after seeing results: {opened.rule_words}"
    )
    show(result, as_json, f"{words}\nHead: {head}\nNote the head elsewhere: only it reveals entries that are cut off.")
