"""tacit predict"""

from pathlib import Path
from typing import Annotated

import typer

from tacit.cli.checks import check_level, show
from tacit.cli.options import AsJsonOption, LevelOption


def predict(
    fitted: Annotated[Path, typer.Argument(help="The folder that 'tacit fit' wrote.")],
    data: Annotated[Path, typer.Argument(help="New records, a CSV or Parquet file with the columns of the fit.")],
    out: Annotated[Path, typer.Option(help="The CSV file to write, one line per record, in the same order.")],
    level: LevelOption = 0.95,
    site: Annotated[
        str | None,
        typer.Option(help="With site effects: the site that the records are from. By default they are from a new one."),
    ] = None,
    as_json: AsJsonOption = False,
) -> None:
    """Predict for new records with a saved posterior, with intervals for the expected value.

    Predictions cost the records of the fit nothing. The output is as private as the new records.
    """
    import numpy as np

    from tacit.links import link_of
    from tacit.posterior.posterior import Posterior
    from tacit.tables.encoding import encode
    from tacit.tables.files import read_frame

    check_level(level)
    posterior = Posterior.load(fitted / "posterior.json" if fitted.is_dir() else fitted)
    schema = posterior.details.get("schema")
    if not schema:
        raise ValueError(
            f"{fitted} does not say how columns were encoded; expected the folder of a `tacit fit`, or use "
            "Posterior.predict in Python"
        )
    listed = {kind["name"]: kind["categories"] for kind in schema["columns"] if kind["kind"] == "category"}
    features = encode(read_frame(data, listed), schema)
    found = posterior.predict(features, site=site)
    target = link_of(posterior.link).target
    if target.classes is None:
        labels = posterior.classes or ()
        columns = {f"probability_{label}": found[:, j] for j, label in enumerate(labels)}
        columns["predicted"] = np.array(labels)[np.argmax(found, axis=1)]
    else:
        low, high = posterior.predict_interval(features, level, site=site)
        columns = {"probability" if target.has_two_classes else "mean": found, "low": low, "high": high}
        if target.has_two_classes:
            columns["predicted"] = np.array(posterior.classes or (0, 1))[(found >= 0.5).astype(int)]
    import pandas

    try:
        pandas.DataFrame(columns).to_csv(out, index=False)
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror or 'no such folder'}; expected a file to write") from None
    result = {"records": len(features), "columns": list(columns), "out": str(out)}
    show(result, as_json, f"Written to {out}: {len(features)} predictions ({', '.join(columns)})")
