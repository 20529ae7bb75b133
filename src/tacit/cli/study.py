"""tacit study"""

import json
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Study files: their schema, and hashes of models.", no_args_is_help=True)


@app.command(short_help="The JSON schema of study files, for editors.")
def schema(
    is_of_site: Annotated[bool, typer.Option("--site-file", help="The schema of site files instead.")] = False,
    out: Annotated[Path | None, typer.Option(help="File to write; by default printed.")] = None,
) -> None:
    """Print the JSON schema of study files: names, types, limits, defaults and meanings of all settings.

    With the schema, an editor completes names and marks mistakes while you type. Write it beside the study file,
    `tacit study schema --out study.schema.json`, and begin the study file with `#:schema study.schema.json`, which
    editors with the TOML language server Taplo read.
    """
    from tacit.files.forms import SiteForm, StudyForm

    form = SiteForm if is_of_site else StudyForm
    plain = {"$schema": "https://json-schema.org/draft/2020-12/schema", **form.model_json_schema()}
    text = json.dumps(plain, indent=2, ensure_ascii=False)
    if out is None:
        typer.echo(text)
        return
    from tacit.basics import durable

    try:
        durable.write(out, text + "\n")
    except OSError as error:
        raise ValueError(f"out={out}: {error.strerror}; expected a file in a folder that can be written to") from None


@app.command("hash", short_help="The hash of the source of a model of your own.")
def digest(
    model: Annotated[str, typer.Argument(help='The model as "module:name", such as my_models:sepsis.')],
) -> None:
    """Print a line for [limits.own_models] of a site file: the model's name and the hash of its source.

    The module must be installed here. It is read and not executed. Read its source before you allow it.
    """
    from tacit.study.own_models import Source

    typer.echo(f'"{model}" = "{Source.of(model).digest}"')
