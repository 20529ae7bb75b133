"""tacit simulate"""

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit
from tacit.cli import network
from tacit.cli.checks import make_folder
from tacit.cli.options import AsJsonOption


def simulate(
    study: Annotated[Path, typer.Argument(help="The study file, in TOML: see docs/simulate.md.")],
    out: Annotated[Path, typer.Option(help="The study's folder; run the command again to resume from it.")],
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    at_least: Annotated[int | None, typer.Option(help="Sites that must accept to begin; by default all.")] = None,
    is_watched: Annotated[
        bool, typer.Option("--watch", help="Show progress on a web page of this machine; prints the address.")
    ] = False,
    dashboard_port: network.DashboardPortOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Run a federated study in one process: every site has its own records, budget, ledger and noise.

    After an interruption, run the same command again to resume. Spending is kept in the sites' ledgers, in --out.
    A finished study prints its result again and spends nothing.
    """
    from tacit.report import dashboard, findings, studied
    from tacit.report.progress import tell, watching

    with dashboard.showing(is_watched, dashboard_port) as board, watching() as watch:
        from tacit.files.study_file import read_study

        def say(words: str) -> None:
            watch.say(words)
            board.say(words)

        found = read_study(study)
        if insecure_seed is not None:
            from tacit.privacy.randomness import insecure_key

            insecure_key(insecure_seed)  # refused before anything is made
        make_folder(out)
        say("Reading records")
        sites, test = _gathered(found)
        from tacit.study.front import federate
        from tacit.study.program import Program
        from tacit.study.sites import accounts

        if found.plan.secure_sum:
            Program(found.plan).tolerance(len(sites))  # refused before the folder is claimed
        watch.budgets = {account.name: account.epsilon for account in accounts(found.plan, sites)}
        given = found.settings
        title = findings.title(found.plan.name, given.model, given.target, len(sites))
        board.about(title, seeded=insecure_seed is not None)
        say("Planning and compiling: some seconds")
        found.claim(out)
        try:
            with _stop_after_round() as stop:

                def observe(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
                    watch.step(phase, done, total, spent)
                    stop()

                more: dict[str, Any] = {"observe": observe, "show": board.see if is_watched else None}
                more |= {"at_least": at_least, "say": lambda words: tell(f"tacit: {words}")}
                done = federate(found.plan, sites, out=out, test=test, insecure_seed=insecure_seed, **more)
        except KeyboardInterrupt:
            typer.echo("tacit: interrupted; run the same command again to resume", err=True)
            raise SystemExit(130) from None  # already reported
        say("Writing")
        about = {
            "version": tacit.__version__,
            "name": found.plan.name,
            "model": given.model,
            "target": given.target,
            "data": found.data_words,
        }
        result = studied.write(out, done, about, 0 if test is None else len(test.target))
        if is_watched:
            board.finish(out)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        studied.show(out, result)


def _gathered(found: Any) -> tuple[Any, Any]:
    """The records of all sites and the public test set. Remarks on records go to this terminal alone."""
    sites, test = found.gather()
    for site in sites:
        for remark in site.table.remarks:
            typer.echo(f"tacit: for your eyes only: site {site.name}: {remark}", err=True)
    return sites, test


@contextmanager
def _stop_after_round() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the round to end, because an interrupted update is paid for and lost. A second does not wait."""
    import signal

    pressed = False

    def press(*_: Any) -> None:
        nonlocal pressed
        if pressed:
            raise KeyboardInterrupt
        pressed = True
        typer.echo("tacit: stopping after this round; Ctrl-C again stops at once and may lose an update", err=True)

    def stop() -> None:
        if pressed:
            raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, press)
    try:
        yield stop
    finally:
        signal.signal(signal.SIGINT, before)
