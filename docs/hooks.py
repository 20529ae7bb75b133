"""What `make docs` adds to mkdocs: pages from outside of docs/, commands, settings, docstrings, lists, formulas.

Links in the pages are those of the repository, so that they work where it is browsed. A file outside of docs/ that some
page links to becomes a page `repository/PATH` of the site, and links are turned to it.
"""

import html
import posixpath
import re
from pathlib import Path
from typing import Any

import griffe
import latex2mathml.converter
from markdown import Extension, Markdown
from markdown.blockprocessors import ListIndentProcessor, OListProcessor, UListProcessor
from markdown.preprocessors import Preprocessor
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
OUTSIDE = "repository"  # the folder of the site for files that are not under docs/
COMMANDS = "api/commands.md"
BAR = "\\|"  # a bar that is no end of a cell
CHANGELOG, README = "CHANGELOG.md", "README.md"
LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "sh", ".yml": "yaml", ".json": "json"}
_LINK = re.compile(r"(\]\()([^)\s]+)(\))")
_FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
_ITEM = re.compile(r" {0,3}([-*+]|1\.) ")
_MENTION = re.compile(r"(?<!\]\()(?<![\[`/\w])docs/(\w+)\.md(?:, (\d+))?")
_EXAMPLE = re.compile(r"^( *)>>> .*(?:\n\1\S.*)*", re.MULTILINE)
_PICTURE = re.compile(r'(?<!">)(<img [^>]*src="([^":]+)"[^>]*>)')
_SETTINGS = re.compile(r"^<!-- settings: (.+) -->$", re.MULTILINE)
_FORMULA = re.compile(r'<(span|div) class="arithmatex">(.*?)</\1>', re.DOTALL)


# --- Pages -------------------------------------------------------------------------------------------------------


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Name all pages of the navigation, and read lists as GitHub does."""
    config.markdown_extensions.append(NarrowLists())  # type: ignore[arg-type]  # Markdown takes names and instances
    config.nav = _expanded(config.nav or [])
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what pages link to outside of docs/, the changelog, and the page of commands."""
    files.append(File.generated(config, COMMANDS, content=commands()))
    wanted, seen = [CHANGELOG], set[str]()
    wanted += [path for file in files.documentation_pages() for path in _outside(file.src_uri, file.content_string)]
    while wanted:
        path = wanted.pop()
        if path not in seen:
            seen.add(path)
            content = _content(path)
            shown = InclusionLevel.UNDEFINED if path == CHANGELOG else InclusionLevel.NOT_IN_NAV
            files.append(File.generated(config, _place(path), content=content, inclusion=shown))
            if path.endswith(".md") and isinstance(content, str):
                wanted += _outside(_place(path), content)
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Fill in tables of settings, turn links of the repository into links of the site, and link pages by name."""
    del config, files
    here = page.file.src_uri

    def turn(match: re.Match[str]) -> str:
        target, mark, anchor = match[2].partition("#")
        path = _repository_path(here, target)
        if path is None:
            return match[0]
        return f"{match[1]}{posixpath.relpath(_place(path), posixpath.dirname(here))}{mark}{anchor}{match[3]}"

    def change(text: str) -> str:
        return _LINK.sub(turn, mentions(_SETTINGS.sub(_settings_of, text), posixpath.dirname(here)))

    parts, last = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [change(markdown[last : fence.start()]), fence[0]]
        last = fence.end()
    return "".join([*parts, change(markdown[last:])])


def mentions(text: str, folder: str) -> str:
    """Pages that are named in passing, as docs/privacy.md or docs/errata.md, 5, as links from a folder of docs/."""

    def link(match: re.Match[str]) -> str:
        page, number = match[1], match[2]
        if not (ROOT / "docs" / f"{page}.md").exists():
            return match[0]
        anchor = f"#erratum-{number}" if number and page == "errata" else ""
        return f"[{match[0]}]({posixpath.relpath(f'{page}.md', folder or '.')}{anchor})"

    return _MENTION.sub(link, text)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Set formulas as MathML, which browsers draw without a script; a picture leads to itself in full size."""
    del page, config, files
    return _PICTURE.sub(r'<a href="\2">\1</a>', _FORMULA.sub(_set, html))


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Name the theme's search box, for those who hear the page."""
    del page, config
    return output.replace('role="dialog">', 'role="dialog" aria-label="Search">')


def _set(match: re.Match[str]) -> str:
    latex = html.unescape(match[2].strip())[2:-2].strip()  # without \( \) or \[ \]
    return latex2mathml.converter.convert(latex, display="block" if match[1] == "div" else "inline")


def _expanded(nav: list[Any]) -> list[Any]:
    """Entries as "folder/*.md" become one for each page of the folder but its index, called by its file."""
    found = []
    for entry in nav:
        if isinstance(entry, dict):
            ((title, inner),) = entry.items()
            found.append({title: _expanded(inner) if isinstance(inner, list) else inner})
        elif entry.endswith("/*.md"):
            pages = sorted((ROOT / "docs" / entry).parent.glob("*.md"))
            found += [{page.stem: f"{entry[:-4]}{page.name}"} for page in pages if page.name != "index.md"]
        else:
            found.append(entry)
    return found


def _outside(here: str, text: str) -> list[str]:
    """Files of the repository that this page links to and that are not under docs/."""
    targets = (_repository_path(here, match[2].partition("#")[0]) for match in _LINK.finditer(_FENCE.sub("", text)))
    return [path for path in targets if path is not None and not path.startswith("docs/")]


def _repository_path(here: str, target: str) -> str | None:
    """The file of the repository that a link leads to if it leaves the folder of the site; None for other links."""
    if not target or ":" in target or target.startswith("/"):
        return None
    source = here.removeprefix(f"{OUTSIDE}/") if here.startswith(f"{OUTSIDE}/") else f"docs/{here}"
    path = posixpath.normpath(posixpath.join(posixpath.dirname(source), target))
    if path.startswith("docs/") and source.startswith("docs/"):
        return None
    return path


def _place(path: str) -> str:
    """Where a file of the repository is in the site's sources."""
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path == README:
        return f"{OUTSIDE}/readme-page.md"  # a page called README would be the folder's index
    return f"{OUTSIDE}/{path}.md" if Path(path).suffix in LANGUAGES else f"{OUTSIDE}/{path}"


def _content(path: str) -> str | bytes:
    file = ROOT / path
    if not file.is_file() or ROOT not in file.resolve().parents:
        raise PluginError(f"a page links to {path}, which is no file of this repository; link to a file")
    if file.suffix in LANGUAGES:
        title = f"# {path}\n\nA file of the repository.\n\n"
        return f"{title}````{LANGUAGES[file.suffix]}\n{file.read_text(encoding='utf-8')}````\n"
    return file.read_text(encoding="utf-8") if file.suffix == ".md" else file.read_bytes()


# --- Commands ----------------------------------------------------------------------------------------------------


def commands() -> str:
    """All commands with what they take, from the command line itself."""
    import typer

    from tacit.cli.app import app

    lines = ["# Commands", "Made from the command line itself: `tacit COMMAND --help` says the same."]
    lines += _command("tacit", typer.main.get_command(app))
    return "\n\n".join(lines) + "\n"


def _command(name: str, command: Any) -> list[str]:
    if hasattr(command, "commands"):
        inner = [_command(f"{name} {part}", found) for part, found in command.commands.items() if not found.hidden]
        return [line for lines in inner for line in lines]
    rows = []
    for parameter in command.params:
        if getattr(parameter, "hidden", False):
            continue
        is_argument = parameter.param_type_name == "argument"
        names = parameter.name.upper() if is_argument else ", ".join(parameter.opts)
        about = (getattr(parameter, "help", None) or "").replace("|", BAR).replace("$", "\\$")
        rows.append(f"| `{names}` | {'must be given' if parameter.required else ''} | {about} |")
    table = "\n".join(["| | | what |", "| --- | --- | --- |", *rows])
    return [f"## {name}", command.help or "", *([table] if rows else [])]


# --- Settings ----------------------------------------------------------------------------------------------------


def _settings_of(match: re.Match[str]) -> str:
    return settings(match[1])


def settings(name: str) -> str:
    """The table of a section of a study, site or tasks file, from its schema.

    A page asks for it with the line `<!-- settings: NAME -->`. Settings of the plan are not in the table of the study.
    """
    from tacit.basics.schema import rows_of
    from tacit.files import forms, task_file
    from tacit.study.plan import Plan, VISettings

    known = {
        "study": forms.StudyForm,
        "plan": Plan,
        "[vi]": VISettings,
        "[data]": forms.DataEntry,
        "[[site]]": forms.SiteEntry,
        "[test]": forms.TestEntry,
        "site": forms.SiteForm,
        "[limits]": forms.Limits,
        "[shares]": forms.Shares,
        "tasks": task_file.TasksFile,
        "[[task]]": task_file.TaskEntry,
    }
    if name not in known:
        raise PluginError(f"a page asks for the settings of {name!r}; expected one of {', '.join(known)}")
    form, elsewhere = known[name], Plan.model_fields if name == "study" else {}
    lines = ["| setting | default | meaning | expected |", "| --- | --- | --- | --- |"]
    for field, default, *words in rows_of(form):
        if field not in elsewhere:
            shown = "must be given" if form.model_fields[field].is_required() else default and f"`{default}`"
            meaning, expected = (text.replace("|", BAR) for text in words)
            lines.append(f"| `{field}` | {shown} | {meaning} | {expected} |")
    return "\n".join(lines)


# --- Docstrings --------------------------------------------------------------------------------------------------


class Docstrings(griffe.Extension):
    """Docstrings are Markdown but for their examples."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


def as_markdown(text: str) -> str:
    """Examples (`>>>`) in fences, and pages that are mentioned as links from docs/api/."""
    return mentions(_EXAMPLE.sub(lambda match: f"```pycon\n{match[0]}\n```", text), "api")


# --- Lists -------------------------------------------------------------------------------------------------------


class NarrowLists(Extension):
    """Lists as GitHub reads them.

    What belongs to an item is indented by two spaces, where Markdown asks for four; and an item may follow a paragraph
    without an empty line.
    """

    def extendMarkdown(self, md: Markdown) -> None:
        wide, md.tab_length = md.tab_length, 2
        md.parser.blockprocessors.register(ListIndentProcessor(md.parser), "indent", 90)
        md.parser.blockprocessors.register(OListProcessor(md.parser), "olist", 40)
        md.parser.blockprocessors.register(UListProcessor(md.parser), "ulist", 30)
        md.tab_length = wide
        md.preprocessors.register(_Apart(md), "apart", 15)  # after fences and HTML were put aside


class _Apart(Preprocessor):
    """An empty line between a paragraph and the list that follows it."""

    def run(self, lines: list[str]) -> list[str]:
        found: list[str] = []
        in_words = False  # in a paragraph that is not an item's first
        for line in lines:
            is_item = _ITEM.match(line) is not None
            if is_item and in_words:
                found.append("")
            if not line.strip() or is_item:
                in_words = False
            elif not found or not found[-1].strip():
                in_words = True
            found.append(line)
        return found
