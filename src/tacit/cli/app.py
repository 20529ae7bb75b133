"""The command line: `tacit COMMAND`. A refusal is one sentence on standard error and exit code 2."""

import re
import sys
from typing import Annotated

import typer

import tacit
from tacit.cli.account import account
from tacit.cli.audit import audit
from tacit.cli.calibrate import calibrate
from tacit.cli.demo import demo
from tacit.cli.doctor import doctor
from tacit.cli.fit import fit
from tacit.cli.ledger import ledger
from tacit.cli.network import app as network
from tacit.cli.network import join, serve
from tacit.cli.plan import plan
from tacit.cli.policy import policies
from tacit.cli.predict import predict
from tacit.cli.report import report
from tacit.cli.reproduce import reproduce
from tacit.cli.simulate import simulate
from tacit.cli.study import app as study

app = typer.Typer(
    name="tacit",
    help="Bayesian posteriors from data that may not be shared: federated and differentially private.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"tacit {tacit.__version__}")
        raise typer.Exit()


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


for command, short in (
    (account, None),
    (calibrate, None),
    (demo, "A demonstration: Adult over ten sites, each with its own ε = 1."),
    (reproduce, "Run a published figure again and compare."),
    (fit, None),
    (plan, "Forecast what a budget buys, without data."),
    (simulate, "Run a federated study in one process."),
    (predict, "Predict for new records with a saved posterior."),
    (report, "Remake the report of a finished study or fit."),
    (audit, None),
    (doctor, "Check that tacit works on this machine."),
    (serve, "Coordinate a study between machines."),
    (join, None),
):
    app.command(short_help=short)(command)
app.add_typer(study, name="study")
app.add_typer(network, name="network")
app.add_typer(ledger, name="ledger")
app.add_typer(policies, name="policy")


# What the command line library says of text in a number.
_NUMBERS = re.compile(r"Input should be a valid (?:integer|number), unable to parse string as an? (integer|number)")

_KINDS = {"integer": "a whole number", "number": "a number"}


def _usage(error: Exception, arguments: list[str]) -> str:
    """The command line library's usage errors (wrong options and the like) in one line; others are raised again."""
    if not hasattr(error, "format_message"):
        raise error
    words = error.format_message().strip()  # type: ignore[attr-defined]
    if words.startswith("Usage:"):  # no command at all
        return words
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in arguments[:-1]:  # the library's message leaves out the given value
            value = arguments[len(arguments) - arguments[::-1].index(option)]
            words = _NUMBERS.sub(lambda found: f"expected {_KINDS[found[1]]}", words.partition(": ")[2])
            words = f"{option}={value!r} is not valid: {words}"
    context = getattr(error, "ctx", None)
    command = " ".join(["tacit", *(context.command_path.split()[1:] if context is not None else [])])
    ending = "" if words.endswith("?") else "."
    return f"tacit: {' '.join(words.split()).rstrip('.')}{ending} See '{command} --help'."


def main(arguments: list[str] | None = None) -> None:
    """Run a command; a refusal is one sentence on standard error and exit code 2, never a traceback."""
    try:
        code = app(args=arguments, standalone_mode=False)
    except KeyboardInterrupt:
        typer.echo("tacit: interrupted", err=True)
        sys.exit(130)
    except ValueError as error:
        typer.echo(f"tacit: {error}", err=True)
        sys.exit(2)
    except Exception as error:
        typer.echo(_usage(error, sys.argv[1:] if arguments is None else arguments), err=True)
        sys.exit(2)
    if code == 130:  # the command line library has caught Ctrl-C
        typer.echo("tacit: interrupted", err=True)
    sys.exit(code if isinstance(code, int) else 0)
