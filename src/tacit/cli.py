"""The command line. Every command: `--help`, `--json` where it prints a result, exit code 2 and a sentence if refused.

Nothing heavy is imported here: commands import what they need when they run.
"""

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit
from tacit.network import commands as network

app = typer.Typer(
    name="tacit",
    help="Bayesian posteriors from data that may not be shared: federated and differentially private.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)

Delta = Annotated[float, typer.Option(help="δ: the probability with which the guarantee may fail. Below 1 / records.")]
RATE = "Probability with which each record is in a step's sample; 1, the default, is all."
STEPS = "How many noisy steps; 1 by default."
# What may be given, for completion: the parts that know it themselves are slow to load.
ACCOUNTANTS = ("pld", "rdp", "moments", "zcdp", "tcdp", "advanced", "basic")
ADJACENCIES = ("add-remove", "replace-one")
RULES = ("gaussian", "renyi")  # of ledgers
MODELS = ("logistic", "linear", "poisson", "probit", "softmax")
PLANNED_MODELS = ("logistic", "linear", "probit", "poisson")
METHODS = ("vi", "ep", "sep", "sgld")
SCALINGS = ("moments", "bounds")
AUDITED = ("fit", "vi", "sites", "mechanism")
UNITS = ("record", "person", "site")
CANARIES = ("worst", "mislabelled", "outlying", "row")
SHAPES = ("constant", "linear", "polynomial", "exponential", "stepwise", "influence")


def _among(*words: str) -> Callable[[str], list[str]]:
    """Completes one of these words."""
    return lambda incomplete: [word for word in words if word.startswith(incomplete)]


def _reproductions(incomplete: str) -> list[tuple[str, str]]:
    from tacit.reproduce import REPRODUCTIONS

    return [(name, found.title) for name, found in REPRODUCTIONS.items() if name.startswith(incomplete)]


def _kinds(incomplete: str) -> list[str]:
    """The last of a list with commas."""
    before, comma, last = incomplete.rpartition(",")
    return [before + comma + word for word in PLANNED_MODELS if word.startswith(last)]


Accountant = Annotated[
    str,
    typer.Option(help="pld (tight), rdp, moments, zcdp, tcdp, advanced or basic.", autocompletion=_among(*ACCOUNTANTS)),
]
AdjacencyOption = Annotated[
    str, typer.Option(help="add-remove (one record) or replace-one.", autocompletion=_among(*ADJACENCIES))
]
Level = Annotated[float, typer.Option(help="The probability that an interval holds.")]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
LEVEL_COLUMNS = ("noise_multiplier", "sampling_rate", "steps")  # of a schedule's file


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


@app.command()
def account(
    delta: Delta,
    noise_multiplier: Annotated[float | None, typer.Option(help="Noise relative to the clip.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    steps: Annotated[int | None, typer.Option(help=STEPS)] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A CSV file of levels: noise_multiplier, sampling_rate, steps.")
    ] = None,
    accountant: Accountant = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJson = False,
    plot: Annotated[Path | None, typer.Option(help="Draw ε against steps into this PNG, SVG or PDF file.")] = None,
) -> None:
    """What a plan costs: ε at a given δ."""
    from tacit.config import read_schedule
    from tacit.privacy import accounting
    from tacit.privacy.events import compose

    plan: dict[str, Any]
    levels: list[Any]
    if schedule is not None:
        if (noise_multiplier, sampling_rate, steps) != (None, None, None):
            raise ValueError(
                "give either --noise-multiplier, --sampling-rate and --steps, or --schedule with all of them"
            )
        levels = read_schedule(schedule)
        plan = {"schedule": str(schedule), "levels": len(levels), "steps": sum(level.steps for level in levels)}
    elif noise_multiplier is not None:
        rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
        levels = [accounting.subsampled_plan(noise_multiplier, rate, count)]
        plan = {"noise_multiplier": noise_multiplier, "sampling_rate": rate, "steps": count}
    else:
        raise ValueError("give either --noise-multiplier (with --sampling-rate and --steps) or --schedule FILE.csv")
    event = compose(*levels)
    epsilon = accounting.epsilon(event, delta, accountant, adjacency)  # type: ignore[arg-type]  # checked there
    if plot is not None:
        _plot_steps(levels, delta, accountant, adjacency, plot)
    result = {"epsilon": epsilon, "delta": delta, "accountant": accountant, "adjacency": adjacency, **plan}
    _show(result, as_json, f"ε = {epsilon:.6g} at δ = {delta:g} ({accountant}, {adjacency})")


@app.command()
def calibrate(
    epsilon: Annotated[float, typer.Option(help="The ε to stay within.")],
    delta: Delta,
    sampling_rate: Annotated[float | None, typer.Option(help=RATE)] = None,
    steps: Annotated[int | None, typer.Option(help=STEPS)] = None,
    shape: Annotated[
        str | None,
        typer.Option(help=f"How noise changes over the steps: {', '.join(SHAPES)}.", autocompletion=_among(*SHAPES)),
    ] = None,
    noise_end: Annotated[float | None, typer.Option(help="The last step's noise, relative to the first's.")] = None,
    power: Annotated[
        float | None, typer.Option(help="Of shape polynomial; above 1 it changes late. 2 by default.")
    ] = None,
    stages: Annotated[int | None, typer.Option(help="Of shape stepwise: how many. 4 by default.")] = None,
    contraction: Annotated[
        float | None, typer.Option(help="Of shape influence: what a step leaves of an earlier error, in the loss.")
    ] = None,
    momentum: Annotated[float | None, typer.Option(help="Of shape influence: the decay, where there is one.")] = None,
    rate_end: Annotated[
        float | None, typer.Option(help="The last step's sampling rate, if it changes from --sampling-rate.")
    ] = None,
    schedule: Annotated[
        Path | None, typer.Option(help="A CSV file of levels, as account reads it; their noise is scaled together.")
    ] = None,
    accountant: Accountant = "pld",
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJson = False,
    out: Annotated[Path | None, typer.Option(help="Write the levels to this CSV file, for account --schedule.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Draw noise against steps into this PNG, SVG or PDF file.")] = None,
) -> None:
    """The least noise that keeps a plan within ε.

    With --shape or --schedule, noise changes over the steps in at most 32 levels, and its scale is found.
    """
    from tacit.privacy import accounting

    rate, count = 1.0 if sampling_rate is None else sampling_rate, 1 if steps is None else steps
    settings = {
        "noise_end": noise_end,
        "power": power,
        "stages": stages,
        "contraction": contraction,
        "momentum": momentum,
    }
    given = {name: value for name, value in settings.items() if value is not None}
    if schedule is not None:
        others = {"sampling_rate": sampling_rate, "steps": steps, "shape": shape, "rate_end": rate_end, **given}
        refused = [f"--{name.replace('_', '-')}" for name, value in others.items() if value is not None]
        if refused:
            raise ValueError(f"{', '.join(refused)} with --schedule, whose file says all of it; give either")
        found_schedule, about = _read_levels(schedule), {"schedule": str(schedule)}
    elif (shape, rate_end, out, plot) != (None, None, None, None):
        found_schedule, about = _shaped(shape or "constant", given, rate, rate_end, count)
    elif given:
        name, value = next(iter(given.items()))
        raise ValueError(f"{name}={value} without --shape; expected one of {', '.join(SHAPES)}")
    else:
        found_schedule, about = None, {"sampling_rate": rate, "steps": count}
    found = accounting.calibrate(
        epsilon,
        delta,
        sampling_rate=rate,
        steps=count,
        plan=None if found_schedule is None else found_schedule.event,
        accountant=accountant,  # type: ignore[arg-type]  # checked there
        adjacency=adjacency,  # type: ignore[arg-type]
    )
    result = {
        "noise_multiplier": found.noise_multiplier,
        "epsilon": found.epsilon,
        "target_epsilon": epsilon,
        "delta": delta,
        "accountant": accountant,
        "adjacency": adjacency,
        **about,
    }
    what = "noise multiplier" if found_schedule is None else "scale of the noise"
    words = f"{what} {found.noise_multiplier:.6g}: ε = {found.epsilon:.6g} at δ = {delta:g}"
    words = f"{words} ({accountant}, {adjacency})"
    if found_schedule is not None:
        multipliers = found_schedule.noise_multipliers(found.noise_multiplier)
        levels = list(zip(multipliers, found_schedule.sampling_rate, found_schedule.steps, strict=True))
        result |= {
            "steps": found_schedule.total,
            "levels": [dict(zip(LEVEL_COLUMNS, level, strict=True)) for level in levels],
            "quantisation_error": found_schedule.error,
            "largest_difference": found_schedule.largest,
        }
        words = "\n".join(_words_of_levels(words, levels, found_schedule.error, found_schedule.largest))
        if out is not None:
            _write_levels(out, levels)
            result["out"] = str(out)
            words = f"{words}\nWritten to {out}"
        if plot is not None:
            _plot_levels(levels, delta, found.epsilon, plot)
    _show(result, as_json, words)


@app.command(short_help="Adult over ten sites, each with ε = 1 of its own, in one go.")
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the results; made if it is not there.")] = Path("demo-output"),
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    as_json: AsJson = False,
) -> None:
    """Adult over ten uneven sites, each with ε = 1 of its own, against no privacy and against each site alone."""
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.demo import run, show

        _make_folder(out)
        result = run(out, insecure_seed, watch)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        show(out, result)


@app.command(short_help="A published figure run again: ours beside theirs.")
def reproduce(
    name: Annotated[
        str | None,
        typer.Argument(help="What to run again; --list shows the names.", autocompletion=_reproductions),
    ] = None,
    names: Annotated[bool, typer.Option("--list", help="Print the names and what they are.")] = False,
    quick: Annotated[bool, typer.Option("--quick", help="Smaller and within half a minute.")] = False,
    seeds: Annotated[int | None, typer.Option(help="How many runs to average; as published by default.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for CSV, JSON and PNG; made if needed.")] = Path("reproduce-output"),
    page: Annotated[Path | None, typer.Option(help="Also write a page of the documentation into this folder.")] = None,
    as_json: AsJson = False,
) -> None:
    """A published figure run again: a table of ours beside theirs, data and picture. For research: noise is seeded."""
    from tacit.reproduce import REPRODUCTIONS, run

    if names:
        titles = {name: f"{found.source}. {found.title}" for name, found in REPRODUCTIONS.items()}
        _show(titles, as_json, "\n".join(f"{name}  {REPRODUCTIONS[name].title}" for name in titles))
    else:
        run(name, out, quick, seeds, as_json, page)


@app.command()
def fit(
    data: Annotated[Path, typer.Argument(help="A CSV or Parquet file, one record a line.")],
    target: Annotated[str, typer.Option(help="The column to explain.")],
    epsilon: Annotated[float, typer.Option(help="The ε to stay within; inf for no privacy.")],
    delta: Delta,
    model: Annotated[
        str, typer.Option(help="logistic, linear, poisson, probit or softmax.", autocompletion=_among(*MODELS))
    ] = "logistic",
    out: Annotated[Path, typer.Option(help="Folder for the results; made if it is not there.")] = Path("fit-output"),
    columns: Annotated[str | None, typer.Option(help="Features, as a,b,c; all but target and unit by default.")] = None,
    unit: Annotated[
        str | None, typer.Option(help="The column that says whose record it is, if a person has several.")
    ] = None,
    most_records: Annotated[int | None, typer.Option(help="With --unit: how many of one person are used.")] = None,
    slots: Annotated[
        int | None,
        typer.Option(help="The public number of places for records, or persons; without it theirs is public."),
    ] = None,
    schema: Annotated[
        Path | None, typer.Option(help="Public facts in TOML: [bounds] name = [low, high], [categories], classes.")
    ] = None,
    bounds: Annotated[
        list[str] | None, typer.Option(metavar="TEXT", help='Public bounds of a number, as "age=0:100". Repeatable.')
    ] = None,
    categories: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help='Public categories of a column, as "sex=F,M"; the first is the reference.'),
    ] = None,
    classes: Annotated[str | None, typer.Option(help="The target's public labels, as no,yes; 0 first.")] = None,
    scaling: Annotated[
        str,
        typer.Option(
            help="How numbers are rescaled: moments (part of the budget) or bounds (free).",
            autocompletion=_among(*SCALINGS),
        ),
    ] = "moments",
    method: Annotated[
        str,
        typer.Option(help="vi, ep, sep (expectation propagation) or sgld (samples).", autocompletion=_among(*METHODS)),
    ] = "vi",
    steps: Annotated[int | None, typer.Option(help="How many noisy steps; by a rule otherwise.")] = None,
    clip: Annotated[float | None, typer.Option(help="The most one unit moves a step; by a rule otherwise.")] = None,
    prior_deviation: Annotated[
        float, typer.Option(help="The prior's standard deviation, of coefficients of standardised features.")
    ] = 1.0,
    policy: Annotated[
        Path | None, typer.Option(help="What decides the rest: a file that 'tacit policy learn' wrote.")
    ] = None,
    adjacency: AdjacencyOption = "add-remove",
    level: Level = 0.95,
    ledger: Annotated[
        Path | None, typer.Option(help="The ledger to charge; by default that beside the data, made at its first use.")
    ] = None,
    budget_epsilon: Annotated[
        float | None,
        typer.Option(help="The budget of a ledger that is made: ε of all fits together; by default this fit's own."),
    ] = None,
    budget_delta: Annotated[float | None, typer.Option(help="The budget's δ; by default this fit's own.")] = None,
    no_ledger: Annotated[
        bool, typer.Option("--no-ledger", help="Charge no ledger: nobody counts this fit, and its statement says so.")
    ] = False,
    allow_large_delta: Annotated[
        bool, typer.Option("--allow-large-delta", help="Take a δ of 1 / records or more; the statement says so.")
    ] = False,
    force: Annotated[
        bool, typer.Option("--force", help="Fit columns that look like ids, and write over results of other data.")
    ] = False,
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    as_json: AsJson = False,
) -> None:
    """A private posterior of a regression on a file. Nothing is taken from the records but through noise.

    Categories, classes and bounds are public facts that you give; numbers without bounds pay for their range. The
    price is charged in a ledger beside the data before they are used. A refusal names columns, never values, but says
    something about the records to whoever sees this terminal: keep it with the data. The files in --out are covered
    by the statement there.
    """
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.data.tables import Facts, Table, read_frame, split_list
        from tacit.fitting import check_method
        from tacit.fitting import fit as fit_table
        from tacit.policy import Policy

        _check_fit(model, epsilon, delta, scaling, adjacency, unit, most_records, level, insecure_seed)
        check_method(method)
        _check_positive(steps=steps, clip=clip, prior_deviation=prior_deviation)
        chosen_policy = None if policy is None else Policy.read(policy)
        charging = _Charging.of(data, epsilon, ledger, budget_epsilon, budget_delta, no_ledger)
        facts = Facts.given(schema, bounds or (), categories or (), classes)
        _make_folder(out)
        if not force:
            _refuse_other_data(out, data, charging.path)
        watch.say(f"Reading {data}")
        frame = read_frame(data, facts.listed(target) | ({} if unit is None else {unit: ()}))
        chosen = None if columns is None else split_list(columns)
        table = Table.of_frame(frame, target, model, unit=unit, columns=chosen, facts=facts)
        for remark in table.remarks:
            typer.echo(f"tacit: for your eyes only: {remark}", err=True)
        _warn_of_ids(table, force)
        watch.budgets, watch.spent = {data.name: epsilon}, {data.name: 0.0}
        watch.say("Planning, compiling and running: some seconds")
        with charging.announced():
            posterior = fit_table(
                model,
                table,
                epsilon,
                delta,
                scaling=scaling,  # type: ignore[arg-type]  # checked above
                most_records=most_records,
                slots=slots,
                prior_deviation=prior_deviation,
                method=method,  # type: ignore[arg-type]
                steps=steps,
                clip=clip,
                adjacency=adjacency,  # type: ignore[arg-type]
                policy=chosen_policy,
                allow_large_delta=allow_large_delta,
                insecure_seed=insecure_seed,
                **charging.options,
            )
        watch.spent = {data.name: posterior.epsilon}
        watch.say("Writing")
        from tacit.report import fitted

        # Where persons have several records, the number of persons is public and that of records is not.
        size = {"records": len(table.target)} if table.groups is None else {"persons": int(table.groups.max()) + 1}
        if slots is not None:
            size = {"slots": slots}
        result = {
            "version": tacit.__version__,
            "file": data.name,
            "model": model,
            "method": method,
            "target": target,
            **size,
            "epsilon": _finite(posterior.epsilon),
            "epsilon_asked": _finite(epsilon),
            "delta": delta,
            "adjacency": adjacency,
            "randomness": posterior.statement["randomness"],
            "ledger": posterior.statement["ledger"],
            "level": level,
        }
        result = fitted.write(out, posterior, result, level)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        fitted.show(out, posterior, result, level)


@app.command(short_help="What a budget buys, before any data is touched.")
def plan(
    records: Annotated[int, typer.Option(help="How many there are, at all sites together.")],
    features: Annotated[int, typer.Option(help="Columns, a category counted as one less than it has values.")],
    epsilon: Annotated[float, typer.Option(help="The ε to spend; a range around it is tried.")],
    delta: Delta,
    sites: Annotated[int, typer.Option(help="How many sites; each protects its own records with ε.")] = 1,
    model: Annotated[
        str,
        typer.Option(help="logistic, linear, probit, or for one site poisson.", autocompletion=_among(*PLANNED_MODELS)),
    ] = "logistic",
    numbers: Annotated[int | None, typer.Option(help="How many features are measured; all by default.")] = None,
    rounds: Annotated[str | None, typer.Option(help="Rounds to compare, as 5,10,20; a range by default.")] = None,
    policy: Annotated[Path | None, typer.Option(help="A policy that 'tacit policy learn' wrote, for one site.")] = None,
    out: Annotated[Path, typer.Option(help="Folder for figure and table; made if needed.")] = Path("plan-output"),
    as_json: AsJson = False,
) -> None:
    """What a budget buys, before any data is touched: accuracy and interval widths to expect, from simulations."""
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.planning import Question, forecast
        from tacit.policy import Policy

        chosen = () if rounds is None else _whole_numbers("rounds", rounds)
        if policy is not None and sites > 1:
            raise ValueError(f"policy={policy} with sites={sites}; a policy is for one site, so leave it out")
        found = None if policy is None else Policy.read(policy)
        question = Question(model, records, features, epsilon, delta, sites, numbers, chosen)
        _make_folder(out)
        watch.say(f"Simulating {len(question.epsilons)} values of ε around {epsilon:g}", "numbers of rounds")
        rows = forecast(question, found, watch.move)
        watch.say("Writing")
        from tacit.report import planned

        result = planned.write(out, question, rows)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        planned.show(question, rows, out)


@app.command(short_help="A federated study in one process, each site with its budget.")
def simulate(
    study: Annotated[Path, typer.Argument(help="The study file, in TOML: docs/simulate.md says what may be in it.")],
    out: Annotated[Path, typer.Option(help="The study's folder; the same command goes on from what is there.")],
    insecure_seed: Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")] = None,
    at_least: Annotated[int | None, typer.Option(help="How many sites must accept to begin; all by default.")] = None,
    is_watched: Annotated[
        bool, typer.Option("--watch", help="Show it on a web page of this machine while it runs; prints the address.")
    ] = False,
    dashboard_port: network.DashboardPort = None,
    as_json: AsJson = False,
) -> None:
    """A federated study in one process: every site with its own records, budget, ledger and noise.

    Stopped or killed, the same command goes on from where it was; what was spent stays in the sites' ledgers, in --out.
    A study that is finished prints its result again and spends nothing.
    """
    from tacit.report import dashboard, findings, studied
    from tacit.report.progress import watching

    with dashboard.showing(is_watched, dashboard_port) as board, watching() as watch:
        from tacit.config import read_study

        def say(words: str) -> None:
            watch.say(words)
            board.say(words)

        found = read_study(study)
        if insecure_seed is not None:
            from tacit.privacy.randomness import insecure_key

            insecure_key(insecure_seed)  # refused before anything is made
        _make_folder(out)
        say("Reading records")
        members, test = found.gather()
        for member in members:
            for remark in member.table.remarks:
                typer.echo(f"tacit: for your eyes only: site {member.name}: {remark}", err=True)
        from tacit.study import federate, owners

        if found.plan.secure_sum:
            found.plan.trust(len(members))  # refused before the folder is claimed
        watch.budgets = {party.name: party.epsilon for party in owners(found.plan, members)}
        given = found.settings
        title = findings.title(found.plan.name, given.model, given.target, len(members))
        board.about(title, seeded=insecure_seed is not None)
        say("Planning and compiling: some seconds")
        found.claim(out)
        try:
            with _stop_after_round() as stop:

                def observe(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
                    watch.step(phase, done, total, spent)
                    stop()

                more: dict[str, Any] = {"observe": observe, "look": board.see if is_watched else None}
                more |= {"at_least": at_least, "say": lambda words: typer.echo(f"tacit: {words}", err=True)}
                done = federate(found.plan, members, out=out, test=test, insecure_seed=insecure_seed, **more)
        except KeyboardInterrupt:
            typer.echo("tacit: interrupted; give the same command again to go on from here", err=True)
            raise SystemExit(130) from None  # it has been said
        say("Writing")
        about = {
            "version": tacit.__version__,
            "name": found.plan.name,
            "model": found.settings.model,
            "target": found.settings.target,
            "data": found.data_words,
        }
        result = studied.write(out, done, about, 0 if test is None else len(test.target))
        if is_watched:
            board.finish(out)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        studied.show(out, result)


@app.command(short_help="Predictions for new records by a saved posterior.")
def predict(
    fitted: Annotated[Path, typer.Argument(help="The folder that 'tacit fit' wrote.")],
    data: Annotated[Path, typer.Argument(help="New records, a CSV or Parquet file with the columns of the fit.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write, one line a record, in their order.")],
    level: Level = 0.95,
    as_json: AsJson = False,
) -> None:
    """Predictions for new records by a saved posterior, with intervals of what the model expects.

    It costs the records of the fit nothing; what is written is as private as the new records.
    """
    import numpy as np

    from tacit.data.tables import encode, read_frame
    from tacit.posterior import Posterior

    _check_level(level)
    posterior = Posterior.load(fitted / "posterior.json" if fitted.is_dir() else fitted)
    schema = posterior.details.get("schema")
    if not schema:
        raise ValueError(f"{fitted} does not say how columns were encoded; use posterior.predict in Python")
    listed = {kind["name"]: kind["categories"] for kind in schema["columns"] if kind["kind"] == "category"}
    features = encode(read_frame(data, listed), schema)
    found = posterior.predict(features)
    if posterior.link == "softmax":
        labels = posterior.classes or ()
        columns = {f"probability_{label}": found[:, j] for j, label in enumerate(labels)}
        columns["predicted"] = np.array(labels)[np.argmax(found, axis=1)]
    else:
        low, high = posterior.predict_interval(features, level)
        is_label = posterior.link in ("logistic", "probit")
        columns = {"probability" if is_label else "mean": found, "low": low, "high": high}
        if is_label:
            columns["predicted"] = np.array(posterior.classes or (0, 1))[(found >= 0.5).astype(int)]
    import pandas

    try:
        pandas.DataFrame(columns).to_csv(out, index=False)
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror or 'no such folder'}; expected a file to write") from None
    result = {"records": len(features), "columns": list(columns), "out": str(out)}
    _show(result, as_json, f"Written to {out}: {len(features)} predictions ({', '.join(columns)})")


@app.command(short_help="Make the report of a finished study or fit anew.")
def report(
    folder: Annotated[Path, typer.Argument(help="The folder of a finished fit, simulate, serve or demo.")],
    figures: Annotated[
        str | None, typer.Option(help="Also draw every figure into FOLDER/figures, as png, svg or pdf.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Make report.html anew, and figures for print, from what was released. It reads no record."""
    from tacit.report import figures as drawn
    from tacit.report import findings, page

    found, made = findings.read(folder), []
    if figures is not None:
        made = drawn.save(found, folder / "figures", figures)
        if not made:
            raise ValueError("figures need matplotlib; install tacit[report]")
    made = [page.write(folder), *made]
    _show({"files": list(map(str, made))}, as_json, "Written: " + ", ".join(map(str, made)))


@app.command()
def audit(
    what: Annotated[
        str,
        typer.Argument(
            help="fit, vi (by Adam, on samples), sites, mechanism, or a study file in TOML.",
            autocompletion=_among(*AUDITED),
        ),
    ] = "fit",
    epsilon: Annotated[float, typer.Option(help="The ε that is planned for and claimed.")] = 1.0,
    delta: Delta = 1e-5,
    runs: Annotated[int | None, typer.Option(help="How often it is run, half without the canary.")] = None,
    canary: Annotated[
        str,
        typer.Option(
            help="worst (for the clip), mislabelled or outlying (records that could be), or row (of a study's file).",
            autocompletion=_among(*CANARIES),
        ),
    ] = "worst",
    steps: Annotated[int | None, typer.Option(help="Of vi and mechanism: how many noisy steps.")] = None,
    sampling_rate: Annotated[float | None, typer.Option(help="Of vi and mechanism: that of each record.")] = None,
    site: Annotated[str | None, typer.Option(help="With --canary row: at which site; the first by default.")] = None,
    row: Annotated[int | None, typer.Option(help="With --canary row: which row, from 0; or by the seed.")] = None,
    one_run: Annotated[
        bool, typer.Option("--one-run", help="One run with many canaries, where it cannot be repeated.")
    ] = False,
    canaries: Annotated[int | None, typer.Option(help="With --one-run: how many; 2000 by default.")] = None,
    confidence: Annotated[float, typer.Option(help="The probability that the lower bound holds.")] = 0.999,
    seed: Annotated[int, typer.Option(help="The attack's seed; records are made up, and noise is seeded.")] = 0,
    out: Annotated[Path, typer.Option(help="Folder for result.json and roc.png.")] = Path("audit-output"),
    as_json: AsJson = False,
) -> None:
    """Attack what tacit runs, and bound its ε from below. Exit code 3 if the claim is refuted.

    It runs the mechanisms, solvers and plans of fits and studies, thousands of times on made-up records, with and
    without one record, the canary. No data is read. Of a study file, the plan and the largest budget are used, on
    three made-up sites; its records are not read.

    With --canary row they are: the study runs on its own files, with one row and without it. The noise is seeded
    and nothing is charged, so that what it writes is private to nobody: for public or made-up records alone.
    """
    from tacit.report import audited
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit import auditing

        _check_positive(steps=steps)
        _make_folder(out)
        if one_run:
            given = (runs, steps, sampling_rate, site, row)
            if what != "fit" or canary != "worst" or any(setting is not None for setting in given):
                raise ValueError("--one-run is of a fit with the worst canaries; leave the other settings out")
            many = {} if canaries is None else {"canaries": canaries}
            watch.say("One run with many canaries: planning, compiling and running")
            result = auditing.once(epsilon, delta, confidence=confidence, seed=seed, **many)
            found = None
        else:
            if canaries is not None:
                raise ValueError(f"canaries={canaries} is a setting of --one-run; leave it out")
            chosen: dict[str, Any] = {"site": site, "row": row, "seed": seed}
            subject, usual = auditing.named(what, epsilon, delta, canary, steps, sampling_rate, **chosen)
            watch.say(f"Attacking {subject.name}, which claims ε = {epsilon:g}", "runs")
            count = usual if runs is None else runs
            found = subject.audit(count, seed=seed, confidence=confidence, observe=watch.move)
            result = audited.result_of(found) | {"subject": subject.name, "canary": canary}
        watch.say("Writing")
        result = audited.write(out, {"version": tacit.__version__, **result}, found)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        audited.show(out, result)
    if result["refuted"]:
        raise typer.Exit(3)


@app.command(short_help="What of tacit works on this machine.")
def doctor(
    folder: Annotated[Path, typer.Option(help="Where to try whether a ledger can be kept.")] = Path(),
    as_json: AsJson = False,
) -> None:
    """What of tacit works on this machine: packages, randomness, ledger, one private step. Exit code 1 if not all.

    Each part is tried and not only looked up. What is optional may be missing; how to install it is said.
    """
    from tacit import doctor
    from tacit.report.progress import watching

    with watching() as watch:
        findings = doctor.examine(folder, lambda name: watch.say(f"Trying: {name}"))
    if as_json:
        typer.echo(json.dumps(doctor.result_of(findings)))
    else:
        doctor.show(findings)
    if faults := doctor.faults(findings):
        typer.echo(f"tacit: {faults[0].name}: {faults[0].words}; {faults[0].remedy}", err=True)
        raise typer.Exit(1)


app.add_typer(network.app, name="network")
app.command(short_help="Coordinate a study between machines.")(network.serve)
app.command()(network.join)
ledger = typer.Typer(no_args_is_help=True, rich_markup_mode=None, help="What a site has spent of its budget.")
app.add_typer(ledger, name="ledger")
LedgerPath = Annotated[Path, typer.Argument(help="The site's ledger.")]


@ledger.command("show")
def ledger_show(path: LedgerPath, as_json: AsJson = False) -> None:
    """Budget, spending and entries of a site's ledger."""
    from tacit.privacy.ledger import Ledger

    found = Ledger.open(path).to_dict()
    lines = [
        f"{found['data_set']}: ε = {found['spent']:.6g} of {found['epsilon']:g} is spent at δ = {found['delta']:g} "
        f"({found['accountant']}, {found['adjacency']}, unit: {found['unit']})",
        *(
            f"{e['position']:>6}  {e['time'][:19]}Z  "
            + (
                f"ε = {e['spent']:.6g} after round {e['round']} of {e['study']}"
                if e["budget"] is None
                else f"budget raised to ε = {e['budget']:g}"
            )
            + (f" ({e['note']})" if e["note"] else "")
            for e in found["entries"]
        ),
        f"Analyses chosen after seeing results: {found['adaptive_analyses']}",
        f"Head: {found['head']}",
    ]
    _show(found, as_json, "\n".join(lines))


@ledger.command("create", short_help="Make a ledger before the first analysis.")
def ledger_create(
    path: Annotated[Path, typer.Argument(help="The ledger's file; 'tacit fit DATA' looks for DATA.ledger.sqlite.")],
    epsilon: Annotated[float, typer.Option(help="The budget: ε of all analyses of the data together.")],
    delta: Delta,
    rule: Annotated[
        str,
        typer.Option(
            help="gaussian (tight; no sampling) or renyi (also for softmax and sgld, which sample).",
            autocompletion=_among(*RULES),
        ),
    ] = "gaussian",
    unit: Annotated[str, typer.Option(help="Whom the budget protects: record, or person for fits with --unit.")] = (
        "record"
    ),
    adjacency: AdjacencyOption = "add-remove",
    as_json: AsJson = False,
) -> None:
    """Make a ledger with a budget for all analyses of a data set, by a rule that covers adaptive choices."""
    from tacit.privacy.ledger import Ledger
    from tacit.spending import ENDING

    if rule not in RULES:
        raise ValueError(f"rule={rule!r}; expected {' or '.join(RULES)}")
    if unit not in UNITS:
        raise ValueError(f"unit={unit!r}; expected one of {', '.join(UNITS)}")
    name = path.name.removesuffix(ENDING)
    settings: dict[str, Any] = {"unit": unit, "adjacency": adjacency, "accountant": rule}
    found = Ledger.create(path, data_set=name, epsilon=epsilon, delta=delta, **settings).to_dict()
    _show(found, as_json, f"Made {path}: ε = {epsilon:g} at δ = {delta:g} ({found['accountant']}, unit: {unit})")


@ledger.command("extend", short_help="Raise a ledger's budget: the data holder's decision.")
def ledger_extend(
    path: LedgerPath,
    epsilon: Annotated[float, typer.Option(help="The new budget, above the present one.")],
    note: Annotated[str, typer.Option(help="Why, or by whom: it stands in the ledger.")] = "",
    as_json: AsJson = False,
) -> None:
    """Raise a ledger's budget. Nothing is forgotten: it is an entry of the ledger, and statements say it.

    Decide it before results are seen: a bound that follows them is no bound, and the rule does not cover it.
    """
    from tacit.privacy.ledger import Ledger

    Ledger.open(path).extend(epsilon, note=note)
    found = Ledger.open(path).to_dict()
    words = f"The budget of {found['data_set']} is ε = {epsilon:g} now, of which {found['spent']:.6g} is spent"
    _show(found, as_json, f"{words}\nHead: {found['head']}")


@ledger.command("verify", short_help="Check that a ledger is unchanged and complete.")
def ledger_verify(
    path: LedgerPath,
    expected_head: Annotated[
        str | None, typer.Option(help="A head noted before: nothing up to it may be missing.")
    ] = None,
    as_json: AsJson = False,
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
    _show(result, as_json, f"{words}\nHead: {head}\nNote the head elsewhere: a tail cut off shows only against it.")


policies = typer.Typer(no_args_is_help=True, help="Policies: what fit decides for itself, learned on public tasks.")
app.add_typer(policies, name="policy")


@policies.command("learn")
def policy_learn(
    out: Annotated[Path, typer.Option(help="The policy file to write.")],
    tasks: Annotated[
        Path | None,
        typer.Option(help="Public or simulated tasks, in TOML (docs/policies.md); the default's if left out."),
    ] = None,
    kinds: Annotated[
        str | None,
        typer.Option(
            help="Kinds of regression, as logistic,linear; all that the tasks have by default.", autocompletion=_kinds
        ),
    ] = None,
    trials: Annotated[int, typer.Option(help="How many rules to try for each kind.")] = 150,
    start: Annotated[Path | None, typer.Option(help="A policy to begin from; the default one otherwise.")] = None,
    seed: Annotated[int, typer.Option(help="The search's seed.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Learn a policy on public or simulated tasks. Never on private records: what is learned from is not protected.

    Ctrl-C ends the search and writes the best rules so far.
    """
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.learning import learn_policy, read_tasks
        from tacit.policy import Policy

        begin = None if start is None else Policy.read(start)
        lessons = read_tasks(tasks, None if kinds is None else [kind.strip() for kind in kinds.split(",")])
        if tasks is not None:
            typer.echo(f"tacit: what {tasks} names is taken for public; policy and losses tell of it", err=True)
        if not out.parent.is_dir():
            raise ValueError(f"out={out}: there is no folder {out.parent}; make it first")

        def observe(kind: str, done: int, loss: float) -> None:
            place = f"Kind {list(lessons).index(kind) + 1} of {len(lessons)}, {kind}"
            watch.move(done, trials, f"{place}: " + (f"loss {loss:.3f}" if done else "compiling"))

        watch.say("Learning", "rules tried")
        found = learn_policy(lessons, trials, begin, seed, observe)
        found.write(out)
    lines = [
        f"{kind}: loss {made['loss']:.3f}, where the policy it began from has {made['start']:.3f}"
        for kind, made in found.made["kinds"].items()
    ]
    _show(found.to_dict(), as_json, "\n".join([*lines, f"Written: {out}"]))


@policies.command("show")
def policy_show(
    path: Annotated[
        Path | None, typer.Argument(help="A policy file; the one that comes with tacit if left out.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """A policy's rules, and how they were made."""
    from tacit.policy import Policy, default_policy

    found = (default_policy() if path is None else Policy.read(path)).to_dict()
    lines: list[str] = []
    for kind, rule in found["rules"].items():
        lines += [kind, *(f"  {name} = {value}" for name, value in rule.items())]
    lines += ["made", *(f"  {name!r}: {value!r}" for name, value in found["made"].items())]  # a file may say anything
    _show(found, as_json, "\n".join(lines))


def _whole_numbers(name: str, text: str) -> tuple[int, ...]:
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"{name}={text!r}; expected whole numbers, as 5,10,20") from None


def _check_fit(
    model: str,
    epsilon: float,
    delta: float,
    scaling: str,
    adjacency: str,
    unit: str | None,
    most_records: int | None,
    level: float,
    insecure_seed: int | None,
) -> None:
    """Refuse before a file is read."""
    from tacit.privacy.accounting import check_delta
    from tacit.privacy.events import check_adjacency
    from tacit.privacy.randomness import insecure_key
    from tacit.regression import LINKS

    if model not in LINKS:
        raise ValueError(f"model={model!r}; expected one of {', '.join(LINKS)}")
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon}; expected a number above 0, or inf for no privacy")
    check_delta(delta)
    check_adjacency(adjacency)
    if scaling not in ("moments", "bounds"):
        raise ValueError(f"scaling={scaling!r}; expected 'moments' or 'bounds'")
    if unit is not None and (most_records is None or most_records < 1):
        given = "no --most-records" if most_records is None else f"most_records={most_records}"
        raise ValueError(f"unit={unit!r} with {given}; expected how many records of one person to use, at least 1")
    if unit is None and most_records is not None:
        raise ValueError(
            f"most_records={most_records} without --unit; expected the column that says whose record it is"
        )
    _check_level(level)
    if insecure_seed is not None:
        insecure_key(insecure_seed)


def _check_level(level: float) -> None:
    if not 0 < level < 1:
        raise ValueError(f"level={level}; expected a probability between 0 and 1")


def _check_positive(**given: float | None) -> None:
    for name, number in given.items():
        if number is not None and not 0 < number < float("inf"):
            raise ValueError(f"{name}={number}; expected a finite number above 0")


@dataclass(frozen=True)
class _Charging:
    """The ledger that a fit charges, None for none, and the options of `tacit.fit` that say so."""

    path: Path | None
    options: dict[str, Any]

    @classmethod
    def of(
        cls,
        data: Path,
        epsilon: float,
        ledger: Path | None,
        budget_epsilon: float | None,
        budget_delta: float | None,
        no_ledger: bool,
    ) -> "_Charging":
        """That which was given, or that beside the data. Refuses a place where none can be made."""
        if no_ledger and (ledger, budget_epsilon, budget_delta) != (None, None, None):
            raise ValueError("--no-ledger with --ledger or a budget; expected one or the other")
        if no_ledger:
            return cls(None, {})
        import tempfile

        from tacit.spending import beside

        path = beside(data) if ledger is None else ledger
        if epsilon == float("inf"):
            if ledger is None and not path.exists():
                return cls(None, {})
            raise ValueError(
                f"epsilon=inf with the ledger {path}, which cannot count what is published exactly; expected a finite "
                "epsilon, or --no-ledger, with which nobody counts this fit"
            )
        if not path.exists():
            if ledger is not None and budget_epsilon is None:
                raise ValueError(f"ledger={ledger} does not exist; check the path, or give --budget-epsilon to make it")
            try:
                tempfile.TemporaryFile(dir=path.parent).close()
            except OSError as error:
                raise ValueError(
                    f"ledger={path}: {error.strerror}; give --ledger, a file in a folder that can be written to, or "
                    "--no-ledger, with which nobody counts this fit"
                ) from None
        budget = {"budget_epsilon": "first" if budget_epsilon is None else budget_epsilon, "budget_delta": budget_delta}
        return cls(path, {"ledger": path, **budget})

    @contextmanager
    def announced(self) -> Iterator[None]:
        """Say of a ledger that is made meanwhile where it is, what its budget is, and how it is raised."""
        is_new = self.path is not None and not self.path.exists()
        try:
            yield
        finally:
            if is_new and self.path is not None and self.path.exists():
                from tacit.privacy.ledger import Ledger

                found = Ledger.open(self.path)
                typer.echo(
                    f"tacit: made the ledger {self.path}: all fits of these records together may spend "
                    f"ε = {found.epsilon:g} at δ = {found.delta!r}, and ε = {found.spent():.4g} is spent. If there are "
                    "to be more of them, say so before you see a result: 'tacit ledger extend'",
                    err=True,
                )


def _refuse_other_data(out: Path, data: Path, ledger: Path | None) -> None:
    """Refuse to write over results that are not known to be of these records.

    Results hold the file's name and, where a ledger was charged, the charge's: it is in the ledger of the same data.
    """
    path = out / "result.json"
    if not path.exists():
        return
    try:
        plain = json.loads(path.read_text(encoding="utf-8"))
        name, charged = plain.get("file"), (plain.get("ledger") or {}).get("charge")
    except (OSError, ValueError, AttributeError):
        name, charged = None, None
    if ledger is not None and charged is not None:
        from tacit.privacy.ledger import Ledger

        if ledger.exists() and Ledger.open(ledger).find(str(charged), 0) is not None:
            return
        if name == data.name:
            raise ValueError(
                f"out={out} holds results that are not in the ledger {ledger}: they are of other data, or charged "
                "in another ledger; give another folder, or --force to write over them"
            )
    elif name == data.name:
        return
    of = f"of {name}" if isinstance(name, str) and name.isprintable() else "of another command"
    raise ValueError(f"out={out} holds results {of}; give another folder, or --force to write over them")


def _warn_of_ids(table: Any, force: bool) -> None:
    """Refuse features that look like names of records: they tell nothing of others, and take part of the budget."""
    if table.ids:
        names = ", ".join(map(repr, table.ids))
        words = f"{names}: every record has another value, as ids have"
        if not force:
            raise ValueError(f"{words}; leave it out by --columns, name it by --unit, or give --force to fit it")
        typer.echo(f"tacit: for your eyes only: {words}", err=True)


def _make_folder(out: Path) -> None:
    """Refuse a folder that cannot be written to before any budget is spent."""
    import tempfile

    try:
        out.mkdir(parents=True, exist_ok=True)
        tempfile.TemporaryFile(dir=out).close()
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None


def _finite(number: float) -> float | None:
    return None if number == float("inf") else number


@contextmanager
def _stop_after_round() -> Iterator[Callable[[], None]]:
    """Ctrl-C waits for the round to end: an update that is cut off is paid for and lost. A second one does not wait."""
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


def _show(result: dict[str, Any], as_json: bool, words: str) -> None:
    if as_json:
        result = {k: (None if isinstance(v, float) and v == float("inf") else v) for k, v in result.items()}
    typer.echo(json.dumps(result) if as_json else words)


def _shaped(
    shape: str, given: dict[str, Any], rate: float, rate_end: float | None, steps: int
) -> tuple[Any, dict[str, Any]]:
    """The schedule of a shape, relative to its first step's noise, and its settings."""
    from tacit.privacy import schedules
    from tacit.privacy.events import check_sampling_rate

    if shape not in SHAPES:
        raise ValueError(f"shape={shape!r}; expected one of {', '.join(SHAPES)}")
    needed = {"constant": None, "influence": "contraction"}.get(shape, "noise_end")
    also = {"polynomial": "power", "stepwise": "stages", "influence": "momentum"}.get(shape)
    for name, value in given.items():
        if name not in (needed, also):
            raise ValueError(f"{name}={value} is no setting of shape={shape!r}; leave it out, or give another shape")
    if needed is not None and needed not in given:
        raise ValueError(f"shape={shape!r} without --{needed.replace('_', '-')}; say how its noise changes")
    check_sampling_rate(rate)
    if rate_end is not None and not 0 < rate_end <= 1:
        raise ValueError(f"rate_end={rate_end}; expected a number above 0 and at most 1")
    if "noise_end" in given and not 1 / schedules.MOST_RATIO <= given["noise_end"] <= schedules.MOST_RATIO:
        raise ValueError(f"noise_end={given['noise_end']}; expected a number from 0.001 to 1000")

    def between(start: float, end: float) -> Any:
        match shape:
            case "polynomial":
                return schedules.polynomial(steps, start, end, given.get("power", 2.0))
            case "exponential":
                return schedules.exponential(steps, start, end)
            case "stepwise":
                return schedules.stepwise(steps, start, end, given.get("stages", min(4, steps)))
        return schedules.linear(steps, start, end)

    rates = rate if rate_end is None else between(rate, rate_end)
    if shape == "influence":
        decay = given.get("momentum", 0.0)
        if not 0 <= decay < 1:
            raise ValueError(f"momentum={decay}; expected a number of at least 0 and below 1")
        noise = schedules.optimal(schedules.momentum_influence(steps, given["contraction"], decay))
        noise = noise / noise[0]
    else:
        noise = between(1.0, given.get("noise_end", 1.0))
    about = {"shape": shape, **given, "sampling_rate": rate, **({} if rate_end is None else {"rate_end": rate_end})}
    return schedules.Schedule.of(noise, rates), about


def _read_levels(path: Path) -> Any:
    """The levels of a file as a schedule."""
    from tacit.config import read_schedule
    from tacit.privacy.events import PoissonSampled
    from tacit.privacy.schedules import Schedule

    noise, rates, steps = [], [], []
    for level in read_schedule(path):
        step: Any = level.event  # type: ignore[attr-defined]  # each is a Repeated
        rates.append(1.0)
        if isinstance(step, PoissonSampled):
            rates[-1], step = step.sampling_rate, step.event
        noise.append(step.noise_multiplier)  # type: ignore[attr-defined]  # and of Gaussian noise
        steps.append(level.steps)  # type: ignore[attr-defined]
    return Schedule(tuple(steps), tuple(noise), tuple(rates), (1.0,) * len(steps))


def _write_levels(path: Path, levels: list[tuple[float, float, int]]) -> None:
    """As `account --schedule` reads them: each number in all its digits."""
    rows = [",".join(LEVEL_COLUMNS), *(f"{noise!r},{rate!r},{count}" for noise, rate, count in levels)]
    try:
        path.write_text("\n".join(rows) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"out={path}: {error.strerror}; expected a file to write") from None


def _words_of_levels(first: str, levels: list[tuple[float, float, int]], error: float, largest: float) -> Iterator[str]:
    yield first
    yield f"{len(levels)} {'level' if len(levels) == 1 else 'levels'}:"
    yield f"{'noise multiplier':>18}{'sampling rate':>15}{'steps':>9}"
    for noise, rate, count in levels:
        yield f"{noise:>18.6g}{rate:>15.6g}{count:>9}"
    yield f"Quantisation error: {error:.2g} of the noise's effect; the largest difference of one step is {largest:.2g}"


def _plot_levels(levels: list[tuple[float, float, int]], delta: float, epsilon: float, path: Path) -> None:
    """Noise at each step, and the sampling rate beside it if it changes."""
    from tacit.report.style import panels, save

    ends = [0]
    for *_, count in levels:
        ends.append(ends[-1] + count)
    labels = [(f"ε = {epsilon:.3g} at δ = {delta:g}", "step", "noise multiplier")]
    if len({rate for _, rate, _ in levels}) > 1:
        labels.append(("Sampling", "step", "sampling rate"))
    found = panels(*labels, width=6.0 if len(labels) == 1 else 5.0)
    for axes, values in zip(found, zip(*levels, strict=True), strict=False):  # the counts of steps are not drawn
        axes.stairs(values, ends, baseline=None, linewidth=1.5)
        axes.set_ylim(bottom=0)
        axes.set_xlim(left=0)
    save(found[0], path)


def _plot_steps(levels: list[Any], delta: float, accountant: str, adjacency: str, path: Path) -> None:
    """ε after each of some thirty step counts, through the levels in order."""
    from tacit.privacy import accounting
    from tacit.privacy.events import Repeated, compose
    from tacit.report.style import figure, save

    total = sum(level.steps for level in levels)
    counts = sorted({max(1, round(total * i / 30)) for i in range(1, 31)})
    prices = []
    for count in counts:
        done, left = [], count
        for level in levels:
            now = min(left, level.steps)
            if now:
                done.append(Repeated(level.event, now))
            left -= now
        prices.append(accounting.epsilon(compose(*done), delta, accountant, adjacency))  # type: ignore[arg-type]
    axes = figure(f"Privacy cost at δ = {delta:g}", "steps", f"ε ({accountant}, {adjacency})")
    axes.plot(counts, prices, marker="o", markersize=3)
    axes.set_ylim(bottom=0)
    axes.set_xlim(left=0)
    save(axes, path)


def _usage(error: Exception, arguments: list[str]) -> str:
    """The command line library's usage errors (wrong options and the like) in one line; others are raised again."""
    if not hasattr(error, "format_message"):
        raise error
    words = error.format_message().strip()  # type: ignore[attr-defined]
    if words.startswith("Usage:"):  # no command at all
        return words
    for option in getattr(getattr(error, "param", None), "opts", []):
        if option in arguments[:-1]:  # its words leave out what was given
            value = arguments[len(arguments) - arguments[::-1].index(option)]
            words = f"{option}={value!r} is not valid: {words.partition(': ')[2]}"
    return f"tacit: {' '.join(words.split()).rstrip('.')}. See 'tacit --help'."


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
