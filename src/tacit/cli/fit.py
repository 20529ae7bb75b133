"""tacit fit"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

import tacit
from tacit.basics.methods import METHODS
from tacit.basics.plain import finite
from tacit.cli.checks import check_level, check_positive, make_folder
from tacit.cli.options import MODELS, SCALINGS, AdjacencyOption, AsJsonOption, DeltaOption, LevelOption, among, either
from tacit.links import link_of

DataFileArgument = Annotated[Path, typer.Argument(help="A CSV or Parquet file with one record per line.")]
TargetOption = Annotated[str, typer.Option(help="The column to predict.")]
EpsilonOption = Annotated[float, typer.Option(help="The ε to stay within; inf for no privacy.")]
ModelOption = Annotated[str, typer.Option(help=f"{either(MODELS)}.", autocompletion=among(*MODELS))]
OutOption = Annotated[Path, typer.Option(help="Folder for the results; made if needed.")]
ColumnsOption = Annotated[str | None, typer.Option(help="Features, as a,b,c; by default all but target and unit.")]
UnitColumnOption = Annotated[
    str | None, typer.Option(help="The column with the person's id, if a person has several records.")
]
MostRecordsOption = Annotated[int | None, typer.Option(help="With --unit: records used of each person.")]
SlotsOption = Annotated[
    int | None, typer.Option(help="The public number of slots for records or persons; by default their number.")
]
SchemaOption = Annotated[
    Path | None, typer.Option(help="Public facts in TOML: [bounds] name = [low, high], [categories], classes.")
]
BoundsOption = Annotated[
    list[str] | None, typer.Option(metavar="<str>", help='Public bounds of a number, as "age=0:100". Repeatable.')
]
CategoriesOption = Annotated[
    list[str] | None,
    typer.Option(metavar="<str>", help='Public categories of a column, as "sex=F,M"; the first is the reference.'),
]
ClassesOption = Annotated[str | None, typer.Option(help="The target's public labels, as no,yes; 0 first.")]
ScalingOption = Annotated[
    str,
    typer.Option(
        help="How numbers are rescaled: moments (part of the budget) or bounds (free).",
        autocompletion=among(*SCALINGS),
    ),
]
MethodOption = Annotated[
    str | None,
    typer.Option(help=f"{either(tuple(METHODS))}; by default the model's.", autocompletion=among(*METHODS)),
]
StepsOption = Annotated[int | None, typer.Option(help="Number of noisy steps; by default a rule's.")]
ClipOption = Annotated[float | None, typer.Option(help="Limit on one unit's effect on a step; by default a rule's.")]
NoiseScaleOption = Annotated[
    float | None,
    typer.Option(help="linear: spread of the target around its mean, relative to the target's; learned by default."),
]
EvaluationOption = Annotated[
    float | None, typer.Option(help="Share of the budget that pays for scores on held-out records.")
]
PriorDeviationOption = Annotated[
    float, typer.Option(help="The prior's standard deviation for coefficients of standardised features.")
]
PolicyFileOption = Annotated[
    Path | None, typer.Option(help="Policy for all other settings, from 'tacit policy learn'.")
]
LedgerFileOption = Annotated[
    Path | None, typer.Option(help="The ledger to charge; by default the one beside the data, made at its first use.")
]
BudgetEpsilonOption = Annotated[
    float | None,
    typer.Option(help="The budget of a new ledger: ε of all fits together; by default this fit's own."),
]
BudgetDeltaOption = Annotated[float | None, typer.Option(help="The budget's δ; by default this fit's own.")]
NoLedgerOption = Annotated[
    bool, typer.Option("--no-ledger", help="Charge no ledger: this fit is not counted, and its statement says so.")
]
LargeDeltaOption = Annotated[
    bool, typer.Option("--allow-large-delta", help="Allow a δ of 1 / records or more; the statement says so.")
]
ForceOption = Annotated[
    bool, typer.Option("--force", help="Fit columns that look like ids, and overwrite results of other data.")
]
SeedOption = Annotated[int | None, typer.Option(help="Repeatable noise from a seed: not private.")]


def fit(
    data: DataFileArgument,
    target: TargetOption,
    epsilon: EpsilonOption,
    delta: DeltaOption,
    model: ModelOption = "logistic",
    out: OutOption = Path("fit-output"),
    columns: ColumnsOption = None,
    unit: UnitColumnOption = None,
    most_records: MostRecordsOption = None,
    slots: SlotsOption = None,
    schema: SchemaOption = None,
    bounds: BoundsOption = None,
    categories: CategoriesOption = None,
    classes: ClassesOption = None,
    scaling: ScalingOption = "moments",
    method: MethodOption = None,
    steps: StepsOption = None,
    clip: ClipOption = None,
    prior_deviation: PriorDeviationOption = 1.0,
    noise_scale: NoiseScaleOption = None,
    evaluation: EvaluationOption = None,
    policy: PolicyFileOption = None,
    adjacency: AdjacencyOption = "add-remove",
    level: LevelOption = 0.95,
    ledger: LedgerFileOption = None,
    budget_epsilon: BudgetEpsilonOption = None,
    budget_delta: BudgetDeltaOption = None,
    no_ledger: NoLedgerOption = False,
    allow_large_delta: LargeDeltaOption = False,
    force: ForceOption = False,
    insecure_seed: SeedOption = None,
    as_json: AsJsonOption = False,
) -> None:
    """Fit a private posterior of a regression to a file. The results use its records only through noise.

    Categories, classes and bounds are public facts that you give; ranges of numbers without bounds cost part of the
    budget. Each release is charged to a ledger beside the data before records are read for it; a fit that the ledger
    cannot pay for is refused. An interrupted fit keeps its charges and cannot be resumed. A refusal names columns,
    never values, but still reveals something about the records: keep it with the data. The statement in --out covers
    the files there.
    """
    from tacit.report.progress import watching

    with watching() as watch:
        from tacit.study.front import fit as fit_table
        from tacit.study.policy import Policy
        from tacit.study.settings import plan_of
        from tacit.tables.facts import Facts

        _check_fit(model, epsilon, delta, unit, most_records, level, insecure_seed)
        check_positive(steps=steps, clip=clip)
        settings: Any = {"scaling": scaling, "prior_deviation": prior_deviation, "method": method}
        settings |= {"steps": steps, "clip": clip, "noise_scale": noise_scale, "evaluation": evaluation or 0.0}
        settings |= {"adjacency": adjacency, "allow_large_delta": allow_large_delta}
        settings |= {} if unit is None else {"unit": "person", "most_records": most_records}
        settings["policy"] = None if policy is None else Policy.read(policy)
        plan_of(model, settings)  # refused before a file is read
        charging = _Charging.of(data, epsilon, ledger, budget_epsilon, budget_delta, no_ledger)
        facts = Facts.given(schema, bounds or (), categories or (), classes)
        make_folder(out)
        if not force:
            _refuse_other_data(out, data, charging.path)
        watch.say(f"Reading {data}")
        table = _table(data, target, model, unit, columns, facts, force)
        watch.budgets, watch.spent = {data.name: epsilon}, {data.name: 0.0}
        watch.say("Planning, compiling and running: some seconds")

        def observe(phase: str, done: int, total: int, spent: dict[str, float]) -> None:
            watch.step(phase, done, total, {data.name: sum(spent.values())})

        with charging.watched():
            more: dict[str, Any] = {"slots": slots, "insecure_seed": insecure_seed, "observe": observe}
            posterior = fit_table(model, table, epsilon, delta, **more, **settings, **charging.options)
        watch.spent = {data.name: posterior.epsilon}
        watch.say("Writing")
        from tacit.report import fitted

        # If persons have several records, the number of persons is public and the number of records is not.
        size = {"records": len(table.target)} if table.groups is None else {"persons": len(set(table.groups))}
        about = {
            "version": tacit.__version__,
            "file": data.name,
            "model": model,
            "method": posterior.plan["method"],
            "target": target,
            **(size if slots is None else {"slots": slots}),
            "epsilon": finite(posterior.epsilon),
            "epsilon_asked": finite(epsilon),
            "delta": delta,
            "adjacency": adjacency,
            "randomness": posterior.statement["randomness"],
            "ledger": posterior.statement["ledger"],
            **_released(posterior),
            "level": level,
        }
        result = fitted.write(out, posterior, about, level)
    if as_json:
        typer.echo(json.dumps(result))
    else:
        fitted.show(out, posterior, result)


def _released(posterior: Any) -> dict[str, Any]:
    """The entry of the result for scores on held-out records, if they were paid for."""
    return {"released": posterior.details["released"]} if "released" in posterior.details else {}


def _table(data: Path, target: str, model: str, unit: str | None, columns: str | None, facts: Any, force: bool) -> Any:
    """The records of a file, encoded by public facts. Remarks on them go only to this terminal."""
    from tacit.tables.facts import split_list
    from tacit.tables.files import read_frame
    from tacit.tables.table import Table

    frame = read_frame(data, facts.listed(target) | ({} if unit is None else {unit: ()}))
    chosen = None if columns is None else split_list(columns)
    table = Table.of_frame(frame, target, model, unit=unit, columns=chosen, facts=facts)
    for remark in table.remarks:
        typer.echo(f"tacit: for your eyes only: {remark}", err=True)
    _warn_of_ids(table, force)
    return table


def _check_fit(
    model: str,
    epsilon: float,
    delta: float,
    unit: str | None,
    most_records: int | None,
    level: float,
    insecure_seed: int | None,
) -> None:
    """Refuse wrong settings before a file is read."""
    from tacit.privacy.checks import check_delta
    from tacit.privacy.randomness import insecure_key

    link_of(model)
    if not epsilon > 0:
        raise ValueError(f"epsilon={epsilon}; expected a number above 0, or inf for no privacy")
    check_delta(delta)
    if unit is not None and (most_records is None or most_records < 1):
        given = "without --most-records" if most_records is None else f"with --most-records {most_records}"
        raise ValueError(f"--unit {unit} {given}; expected how many records of one person to use, at least 1")
    if unit is None and most_records is not None:
        raise ValueError(f"--most-records {most_records} without --unit; expected the column with the person's id")
    check_level(level)
    if insecure_seed is not None:
        insecure_key(insecure_seed)


@dataclass(frozen=True)
class _Charging:
    """The ledger that a fit charges (None for none), and the options of `tacit.fit` for it."""

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
        """Choose the given ledger, or the one beside the data. Refuses a folder where none can be made."""
        if no_ledger and (ledger, budget_epsilon, budget_delta) != (None, None, None):
            raise ValueError("--no-ledger with --ledger or a budget; expected one or the other")
        if no_ledger:
            return cls(None, {})
        import tempfile

        from tacit.study.charging import beside

        path = beside(data) if ledger is None else ledger
        if epsilon == float("inf"):
            if ledger is None and not path.exists():
                return cls(None, {})
            raise ValueError(
                f"epsilon=inf with the ledger {path}, which cannot count an exact result; expected a finite epsilon, "
                "or --no-ledger, which leaves this fit uncounted"
            )
        if not path.exists():
            if ledger is not None and budget_epsilon is None:
                raise ValueError(f"ledger={ledger} does not exist; check the path, or give --budget-epsilon to make it")
            try:
                tempfile.TemporaryFile(dir=path.parent).close()
            except OSError as error:
                raise ValueError(
                    f"ledger={path}: {error.strerror}; give --ledger, a file in a folder that can be written to, or "
                    "--no-ledger, which leaves this fit uncounted"
                ) from None
        budget = {"budget_epsilon": "first" if budget_epsilon is None else budget_epsilon, "budget_delta": budget_delta}
        return cls(path, {"ledger": path, **budget})

    @property
    def _words(self) -> str:
        """What an interrupted fit has cost, and what can be done then."""
        remedy = "a fit cannot be resumed: the same command begins a new one"
        if self.path is None:
            return remedy
        if not self.path.exists():
            return f"nothing is charged; {remedy}"
        from tacit.privacy.ledger import Ledger

        found = Ledger.open(self.path)
        return (
            f"the ledger {self.path} counts ε = {found.spent():.4g} of {found.epsilon:g} as spent, and charges stay; "
            f"{remedy}, which what is left must pay for (a smaller --epsilon, or 'tacit ledger extend')"
        )

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Tell of a ledger that is made meanwhile, and after Ctrl-C of what it counts."""
        try:
            with self._announced():
                yield
        except KeyboardInterrupt:
            typer.echo(f"tacit: interrupted; {self._words}", err=True)
            raise SystemExit(130) from None  # already reported

    @contextmanager
    def _announced(self) -> Iterator[None]:
        """If a ledger is made meanwhile, print its path and budget, and how to raise the budget."""
        is_new = self.path is not None and not self.path.exists()
        try:
            yield
        finally:
            if is_new and self.path is not None and self.path.exists():
                from tacit.privacy.ledger import Ledger
                from tacit.report.progress import tell

                found = Ledger.open(self.path)
                tell(
                    f"tacit: made the ledger {self.path}: all fits of these records together may spend "
                    f"ε = {found.epsilon:g} at δ = {found.delta!r}, and ε = {found.spent():.4g} is spent. To plan more "
                    "fits, raise the budget before you see a result: 'tacit ledger extend'"
                )


def _refuse_other_data(out: Path, data: Path, ledger: Path | None) -> None:
    """Refuse to overwrite results unless they are known to be of these records.

    Results hold the file's name and, if a ledger was charged, the name of the charge, which the ledger of the same data
    also has.
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
                "to another ledger; give another folder, or --force to overwrite them"
            )
    elif name == data.name:
        return
    of = f"of {name}" if isinstance(name, str) and name.isprintable() else "of another command"
    raise ValueError(f"out={out} holds results {of}; give another folder, or --force to overwrite them")


def _warn_of_ids(table: Any, force: bool) -> None:
    """Refuse features that look like ids of records: they predict nothing for others, and cost part of the budget."""
    if table.ids:
        names = ", ".join(map(repr, table.ids))
        words = f"{names}: every record has a different value, as ids have"
        if not force:
            raise ValueError(f"{words}; leave it out with --columns, name it with --unit, or give --force to fit it")
        typer.echo(f"tacit: for your eyes only: {words}", err=True)
