"""The command line of a study between machines. Nothing heavy is imported before a command runs."""

import json
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from tacit.cli.options import AsJsonOption

app = typer.Typer(
    no_args_is_help=True, rich_markup_mode=None, help="Studies between machines: kits, status and withdrawals."
)
NETWORK, OUT = Path("network"), Path("study-output")
StudyFileArgument = Annotated[Path, typer.Argument(help="The study file, in TOML: see docs/simulate.md.")]
NetworkOption = Annotated[Path, typer.Option(help="The folder that 'tacit network init' made.")]
OutOption = Annotated[Path, typer.Option(help="The study's folder; run the command again to resume from it.")]
DashboardPortOption = Annotated[
    int | None, typer.Option(help="The web page's port on this machine; any free one by default.", show_default=False)
]


@app.command(short_help="Make certificates, and a folder for each site.")
def init(
    study: StudyFileArgument,
    sites: Annotated[str | None, typer.Option(help="Names of sites, as a,b,c; by default all of the study.")] = None,
    out: Annotated[Path, typer.Option(help="The folder to make. Keep it safe: it can make certificates.")] = NETWORK,
    address: Annotated[
        str, typer.Option(help="The host name that sites connect to; by default this machine only.")
    ] = "localhost",
    port: Annotated[int, typer.Option(help="The coordinator's port, the only open one.")] = 8102,
    renew: Annotated[
        str | None, typer.Option(help="Make new keys and certificates for these, as a,coordinator.")
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Make certificates, and a start-up kit and a site file for each site.

    Send each site its folder under sites/ over a safe channel. Run the command again to add missing sites.
    """
    from tacit.files.study_file import read_study
    from tacit.tables.facts import split_list

    _need_flare()
    from tacit.network import provision

    if not 1 <= port <= 65535:
        raise ValueError(f"port={port}; expected a number from 1 to 65535")
    names, again = (split_list(text) if text else [] for text in (sites, renew))
    made = provision.init(read_study(study), out, names, address, port, again)
    if as_json:
        typer.echo(
            json.dumps({"network": str(out), "address": address, "port": port, "sites": [str(own) for own in made]})
        )
        return
    typer.echo(f"Kits for {len(made)} sites, which will connect to {address}:{port}:")
    for own in made:
        typer.echo(f"  {own}: edit site.toml there, then: tacit join {own / 'site.toml'}")
    typer.echo(f"{out / 'coordinator'} is for the coordinator, with {out / 'network.json'}.")
    typer.echo(f"{out / 'authority'} signs certificates: keep it off the network, and back it up.")


@app.command(short_help="Print the key with which a site signs in secure sums.")
def key(
    site: Annotated[Path, typer.Argument(help="The site's file, in TOML.")],
) -> None:
    """Print the key with which a site signs in secure sums. It is made at its first use.

    Send it directly to the people at the other sites, not via the coordinator: they put it into [peers] of their files.
    """
    from tacit.federated.secure_terms import public_identity
    from tacit.files.site_file import read_site
    from tacit.network.site_session import identity_of

    file = read_site(site)
    typer.echo(f'"{file.settings.name}" = "{public_identity(identity_of(file.state_folder)).hex()}"')


def serve(
    study: StudyFileArgument,
    network: NetworkOption = NETWORK,
    out: OutOption = OUT,
    patience: Annotated[float, typer.Option(help="Seconds that a round waits for a site that is away.")] = 60.0,
    longest: Annotated[float, typer.Option(help="Seconds that a site may work on one answer.")] = 3600.0,
    at_least: Annotated[int | None, typer.Option(help="Sites that must accept to begin; by default all.")] = None,
    is_watched: Annotated[
        bool, typer.Option("--dashboard", help="Show progress on a web page of this machine; prints the address.")
    ] = False,
    dashboard_port: DashboardPortOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Coordinate a study between machines: wait for its sites, and run it to the end.

    After an interruption, run the same command again to resume; sites repeat their earlier answers.
    """
    from tacit.report import dashboard, findings, studied
    from tacit.report.progress import PHASES, watching

    _need_flare()
    with _ended_by_signals(), dashboard.showing(is_watched, dashboard_port) as board, watching() as watch:
        from tacit.files.study_file import read_study
        from tacit.network import serve as serving

        if is_watched:
            found = read_study(study)
            given = found.settings
            board.about(findings.title(found.plan.name, given.model, given.target, len(found.names())))

        def say(words: str) -> None:
            watch.say(words)
            if is_watched:
                board.follow(out)
                board.say(words)

        def show(status: Mapping[str, Any]) -> None:
            sites = status.get("sites", {})
            watch.budgets = {name: site["epsilon"] for name, site in sites.items()}
            spent = {name: site["spent"] or 0.0 for name, site in sites.items()}
            if status.get("phase") in PHASES:
                watch.step(status["phase"], status["done"], status["of"], spent)
            if is_watched:
                board.follow(out)

        waits: dict[str, Any] = {"patience": patience, "longest": longest, "at_least": at_least}
        try:
            serving.serve(study, network, out, **waits, say=say, watch=show, dashboard=is_watched)
        except ValueError as error:  # safe to show: a coordinator has no records
            board.end("failed", f"Failed: {error}")
            raise
        result = json.loads((out / "result.json").read_text())
        if is_watched:
            board.finish(out)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        studied.show(out, result)


def join(
    site: Annotated[Path, typer.Argument(help="The site's file, in TOML: see docs/deploy.md.")],
) -> None:
    """Run a site of studies between machines, until stopped. Records stay here; no study can exceed this file's limits.

    After an interruption, run the same command again to resume. Spending is kept in the ledger.
    """
    _need_flare()

    from tacit.network import join as joining

    with _ended_by_signals():
        joining.join(site, lambda words: typer.echo(words))


@app.command(short_help="Show a study's progress: sites, round, ε spent, last heard.")
def status(
    out: Annotated[Path, typer.Argument(help="The study's folder, as given to 'tacit serve'.")] = OUT,
    as_json: AsJsonOption = False,
) -> None:
    """Show a study's progress: its sites, the round, ε spent, and when each site was last heard."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    from tacit.network import serve as serving

    found = _read_status(out)
    if as_json:
        typer.echo(json.dumps(found))
        return
    title = f"{found['study']}: {found['phase']}"
    if "of" in found:
        title += f", {found['done']} of {found['of']}"
    if (out / "result.json").exists():
        title = f"{found['study']}: finished"
    elif "failed" not in found and not serving.is_served(out):
        title += "; no coordinator is running: run 'tacit serve' again to resume"
    table = Table(title=Text(title), caption=Text(found.get("failed") or f"as of {found['time']}"))
    heads = ["site", "state", "updates", "ε of this study", "ε of its ledger", "last heard (UTC)"]
    heads += ["reason"] * any(row["reason"] for row in found["sites"].values())
    for j, name in enumerate(heads):
        table.add_column(name, justify="right" if j in (2, 3, 4) else "left", overflow="fold")
    for name, row in found["sites"].items():
        own, whole = _spent_of(row["spent"], row["epsilon"]), _spent_of(row.get("ledger_spent"), row.get("budget"))
        heard = _heard(row["heard"], found["time"])
        cells = (name, row["state"], str(row["updates"]), own, whole, heard, row["reason"])
        table.add_row(*map(Text, cells[: len(heads)]))
    Console().print(table)


def _heard(time: str | None, now: str) -> str:
    """When a site was last heard, without the day if it is today."""
    if time is None:
        return "never"
    day, _, clock = time.partition("T")
    return clock[:8] if now.startswith(day) else f"{day} {clock[:8]}"


def _spent_of(spent: float | None, budget: float | None) -> str:
    """Spending as "0.4997 of 0.5"; "not told" if the site does not tell it."""
    if budget is None:
        return "not told"
    return f"{'not told,' if spent is None else f'{spent:.4g}'} of {budget:g}"


def _sites(incomplete: str) -> list[str]:
    """Complete the name of a site of the study in the default folder."""
    try:
        return [name for name in _read_status(OUT)["sites"] if name.startswith(incomplete)]
    except ValueError:
        return []


@app.command(short_help="Take a site out of the posterior of a study.")
def withdraw(
    site: Annotated[str, typer.Argument(help="The site to take out of the posterior.", autocompletion=_sites)],
    out: Annotated[Path, typer.Option(help="The study's folder, as given to 'tacit serve'.")] = OUT,
) -> None:
    """Divide a site's factor out of the posterior of a running study, and stop asking the site.

    A site that only leaves stays in the posterior with its last factor. Released values stay released, so the site's
    ledger does not change.
    """

    from tacit.network import serve as serving

    _read_status(out)
    serving.withdraw(out, site)
    typer.echo(f"{site} is withdrawn before the next step of the study in {out}.")


def _read_status(out: Path) -> dict[str, Any]:
    try:
        return json.loads((out / "status.json").read_text())
    except (OSError, ValueError):
        raise ValueError(f"out={out} has no study that was begun; expected the folder of 'tacit serve'") from None


def _need_flare() -> None:
    from importlib.util import find_spec

    if find_spec("nvflare") is None:
        raise ValueError("studies between machines need NVIDIA FLARE; install it with: pip install 'tacit[network]'")


class _ended_by_signals:
    """SIGTERM ends a command as Ctrl-C does, so that its children end with it."""

    def __enter__(self) -> None:
        def end(number: int, frame: Any) -> None:
            del number, frame
            raise KeyboardInterrupt

        self.old = signal.signal(signal.SIGTERM, end)

    def __exit__(self, *error: Any) -> None:
        signal.signal(signal.SIGTERM, self.old)
