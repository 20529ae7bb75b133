"""tacit policy"""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import compute_in_one_thread, show
from tacit.cli.options import AsJsonOption, kinds

policies = typer.Typer(no_args_is_help=True, help="Policies: learned rules for the settings of fits and studies.")


@policies.command("learn")
def policy_learn(
    out: Annotated[Path, typer.Option(help="The policy file to write.")],
    tasks: Annotated[
        Path | None,
        typer.Option(help="Public or simulated tasks, in TOML (docs/policies.md); by default those of tacit."),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of regression, as logistic,linear; by default all in the tasks.", autocompletion=kinds
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="Number of rules to try for each kind.")] = 100,
    start: Annotated[Path | None, typer.Option(help="A policy to start from; by default tacit's own.")] = None,
    seed: Annotated[int, typer.Option(help="The search's seed.")] = 0,
    as_json: AsJsonOption = False,
) -> None:
    """Learn a policy on public or simulated tasks. Never use private records: learning does not protect them.

    Ctrl-C ends the search and writes the best rules so far.
    """
    from tacit.report.progress import watching

    compute_in_one_thread()
    with watching() as watch:
        from tacit.planning.learning import learn_policy, read_tasks
        from tacit.study.policy import Policy

        begin = None if start is None else Policy.read(start)
        lessons = read_tasks(tasks, None if kinds is None else [kind.strip() for kind in kinds.split(",")])
        if tasks is not None:
            typer.echo(f"tacit: all data in {tasks} are treated as public: policy and losses reveal them", err=True)
        if not out.parent.is_dir():
            raise ValueError(f"out={out}: there is no folder {out.parent}; make it first")

        def observe(kind: str, done: int, loss: float) -> None:
            place = f"Kind {list(lessons).index(kind) + 1} of {len(lessons)}, {kind}"
            watch.move(done, trials, f"{place}: " + (f"loss {loss:.3f}" if done else "compiling"))

        watch.say("Learning", "rules tried")
        found = learn_policy(lessons, trials, begin, seed, observe)
        found.write(out)
    lines = [
        f"{kind}: loss {made['loss']:.3f}; the starting policy has {made['start']:.3f}"
        for kind, made in found.made["kinds"].items()
    ]
    show(found.to_dict(), as_json, "\n".join([*lines, f"Written: {out}"]))


@policies.command("show")
def policy_show(
    path: Annotated[
        Path | None, typer.Argument(help="A policy file; the one that comes with tacit if left out.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Show a policy's rules, and how they were made."""
    from tacit.study.policy import Policy, default_policy

    found = (default_policy() if path is None else Policy.read(path)).to_dict()
    lines: list[str] = []
    for kind, rule in found["rules"].items():
        lines += [kind, *(f"  {name} = {value}" for name, value in rule.items())]
    lines += ["made", *(f"  {name!r}: {value!r}" for name, value in found["made"].items())]  # a file may say anything
    show(found, as_json, "\n".join(lines))
