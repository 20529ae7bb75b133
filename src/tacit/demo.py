"""The demonstration: one private linear regression, what it costs, and what the noise does to it."""

import json
import math
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from rich.console import Console
from rich.table import Table

import tacit

RECORDS, COEFFICIENTS, NOISE_SCALE = 20_000, (0.8, -0.5, 0.3, 0.0, -0.2), 0.5
DELTA = 1e-6
EPSILONS = (0.1, 1.0, math.inf)
HEADLINE = 1.0


def run(out: Path, insecure_seed: int | None, as_json: bool) -> None:
    """Fit at several ε, print a table, and write result, posterior, statement and figure into `out`."""
    key = tacit.secure_key() if insecure_seed is None else tacit.insecure_key(insecure_seed)
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a folder that can be written to") from None
    records = _simulate()
    model = tacit.LinearRegression(tacit.FullGaussian.standard(len(COEFFICIENTS)), NOISE_SCALE)
    target = tacit.Target(model.prior, model.prior, model)
    exact = model.exact_posterior(records)
    # Public bounds: ‖x‖ ≤ 1 and |y| ≤ 2, so one record's (xy, xxᵀ)/s² has at most this norm and nothing is clipped.
    clip = math.sqrt(2.0**2 + 1.0) / NOISE_SCALE**2

    rows: list[dict[str, Any]] = []
    fits: dict[float, Any] = {}
    for index, epsilon in enumerate(EPSILONS):
        mechanism: tacit.SubsampledGaussian | tacit.Exact = tacit.Exact()
        if math.isfinite(epsilon):
            noise = tacit.calibrate(epsilon, DELTA).noise_multiplier
            mechanism = tacit.SubsampledGaussian(clip, noise)
        access = tacit.Access.of(records, mechanism)
        promised = tacit.price(tacit.conjugate, key, target, access)  # before a record is read
        release = jax.jit(tacit.conjugate)(jax.random.fold_in(key, index), target, access)
        assert release.event == promised
        q = release.value
        error = np.asarray(q.mean) - np.asarray(exact.mean)
        rows.append(
            {
                "epsilon": epsilon if math.isfinite(epsilon) else None,
                "mean": np.asarray(q.mean).tolist(),
                "deviation": np.asarray(q.deviation).tolist(),
                "kl_to_exact": _kl(q, exact),
                "largest_error_in_deviations": float(np.max(np.abs(error) / np.asarray(exact.deviation))),
            }
        )
        fits[epsilon] = release

    headline = fits[HEADLINE]
    notes = (f"The number of records, {RECORDS}, is treated as public.", "Bounds ‖x‖ ≤ 1 and |y| ≤ 2 are public.")
    statement = tacit.Statement.of(headline.event, DELTA, seeded=headline.seeded, notes=notes)
    result = {
        "version": tacit.__version__,
        "model": "linear regression, simulated data",
        "records": RECORDS,
        "delta": DELTA,
        "truth": list(COEFFICIENTS),
        "exact": {"mean": np.asarray(exact.mean).tolist(), "deviation": np.asarray(exact.deviation).tolist()},
        "fits": rows,
    }
    (out / "result.json").write_text(json.dumps(result, indent=2) + "\n")
    q = headline.value
    natural = {"precision_mean": np.asarray(q.precision_mean).tolist(), "precision": np.asarray(q.precision).tolist()}
    (out / "posterior.json").write_text(json.dumps({"family": "FullGaussian", **natural}, indent=2) + "\n")
    (out / "statement.txt").write_text(statement.text())
    (out / "statement.json").write_text(statement.to_json())
    drawn = _draw(out / "posterior.png", fits)
    if as_json:
        print(json.dumps(result))
    else:
        _print(exact, fits, rows, statement, out, drawn)


def _simulate() -> tuple[jax.Array, jax.Array]:
    """Made-up records within the public bounds; the seed is part of the demonstration, not of its noise."""
    rng = np.random.default_rng(2019)
    x = rng.normal(size=(RECORDS, len(COEFFICIENTS)))
    x /= np.maximum(1, np.linalg.norm(x, axis=1, keepdims=True))
    y = np.clip(x @ np.array(COEFFICIENTS) + NOISE_SCALE * rng.normal(size=RECORDS), -2, 2)
    return jnp.asarray(x, jnp.float32), jnp.asarray(y, jnp.float32)


def _kl(q: Any, p: Any) -> float:
    """KL(q ‖ p) in double precision: in single, the parts of about 1e4 that cancel leave an error of 1e-3."""
    precisions = [np.asarray(f.precision, float) for f in (q, p)]
    means = [np.linalg.solve(a, np.asarray(f.precision_mean, float)) for a, f in zip(precisions, (q, p), strict=True)]
    ratio, gap = precisions[1] @ np.linalg.inv(precisions[0]), means[1] - means[0]
    return float(np.trace(ratio) + gap @ precisions[1] @ gap - len(gap) - np.linalg.slogdet(ratio)[1]) / 2


def _name(epsilon: float) -> str:
    return "exact" if math.isinf(epsilon) else f"ε = {epsilon:g}"


def _print(exact: Any, fits: dict[float, Any], rows: Any, statement: Any, out: Path, drawn: bool) -> None:
    console = Console()
    table = Table(title=f"A linear regression on {RECORDS:,} simulated records: posterior mean ± sd")
    private = {e: r for e, r in fits.items() if math.isfinite(e)}
    for name in ("", "truth", "exact", *(_name(e) for e in private)):
        table.add_column(name, justify="right")
    for j, truth in enumerate(COEFFICIENTS):
        cells = [f"{r.value.mean[j]:.3f} ± {r.value.deviation[j]:.3f}" for r in private.values()]
        table.add_row(f"x{j + 1}", f"{truth:.1f}", f"{exact.mean[j]:.3f} ± {exact.deviation[j]:.3f}", *cells)
    table.add_section()
    table.add_row("KL to exact", "", "", *(f"{row['kl_to_exact']:.3g}" for row in rows if row["epsilon"]))
    errors = (f"{row['largest_error_in_deviations']:.2f} sd" for row in rows if row["epsilon"])
    table.add_row("worst error", "", "", *errors)
    console.print(table)
    console.print("The sd is the data's own: it does not yet include the privacy noise, which shows at ε = 0.1.\n")
    console.print(f"The statement at ε = {HEADLINE:g}:\n", style="bold")
    console.print(statement.text(), highlight=False)
    figure = "posterior.png, " if drawn else ""
    console.print(f"Written to {out}: result.json, posterior.json, {figure}statement.txt, statement.json")


def _draw(path: Path, fits: dict[float, Any]) -> bool:
    """A forest plot; False if matplotlib is not there."""
    from tacit.report.style import figure, save

    try:
        axes = figure("Coefficients: mean and 95 % interval", "value", "", height=4.5)
    except ValueError:
        return False
    series = [(_name(e), r.value) for e, r in sorted(fits.items(), reverse=True)]
    for i, (name, q) in enumerate(series):
        places = np.arange(len(COEFFICIENTS)) + (i - (len(series) - 1) / 2) * 0.2
        spread = 1.96 * np.asarray(q.deviation)
        axes.errorbar(np.asarray(q.mean), places, xerr=spread, fmt="o", markersize=4, capsize=2, label=name)
    for j, truth in enumerate(COEFFICIENTS):
        axes.plot([truth, truth], [j - 0.4, j + 0.4], color="black", linestyle=":", label="truth" if j == 0 else None)
    axes.set_yticks(range(len(COEFFICIENTS)), [f"x{j + 1}" for j in range(len(COEFFICIENTS))])
    axes.invert_yaxis()
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0), frameon=False)
    save(axes, path)
    return True
