"""The documentation: it builds without a warning, its links lead somewhere, and what it says of the code is so."""

import importlib
import importlib.util
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import tacit
from tacit.cli.app import main
from tacit.privacy import accounting
from tacit.privacy.events import Gaussian, Repeated
from tacit_reproduce import REPRODUCTIONS, Result, pages

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
RESULTS = DOCS / "results"
MADE_BY_THE_BUILD = {"api/commands.md", "repository/CHANGELOG.md"}
MOST_BYTES = 100_000  # of a picture of a result
LINK = re.compile(r"\]\(([^)\s]+)\)")
FENCE = re.compile(r"^(```|~~~).*?^\1", re.DOTALL | re.MULTILINE)
CODE = re.compile(r"`[^`\n]+`")
Run = Callable[..., tuple[int, str, str]]


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def hooks() -> ModuleType:
    """What the build adds to mkdocs."""
    pytest.importorskip("mkdocs", reason="the documentation needs tacit[docs]")
    spec = importlib.util.spec_from_file_location("hooks", DOCS / "hooks.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- The site ----------------------------------------------------------------------------------------------------


def build(out: Path) -> subprocess.CompletedProcess[str]:
    """What `make docs` does, into another folder."""
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(out)]
    settings = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    return subprocess.run(command, capture_output=True, encoding="utf-8", cwd=ROOT, env=settings, timeout=400)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("mkdocs", reason="the documentation needs tacit[docs]")
    out = tmp_path_factory.mktemp("site")
    done = build(out)
    assert done.returncode == 0, done.stdout + done.stderr
    return out


class Resources(HTMLParser):
    """What a browser loads for a page without being asked."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag == "link" and given.get("rel") not in ("canonical", "next", "prev"):
            self.found.append(given.get("href") or "")
        if tag in ("script", "img", "iframe", "source", "video", "audio", "embed"):
            self.found.append(given.get("src") or "")


def strangers(site: Path) -> list[str]:
    """Resources of any page or style sheet that are somewhere else."""
    found = []
    for page in site.rglob("*.html"):
        found += [name for name in Resources(text_of(page)).found if re.match(r"(https?:)?//", name)]
    for sheet in site.rglob("*.css"):
        found += re.findall(r"url\([\"']?((?:https?:)?//[^)]+)|@import", text_of(sheet))
    return found


@pytest.mark.xdist_group("site")
def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(site: Path) -> None:
    assert strangers(site) == []
    assert len(list(site.rglob("*.html"))) > 30


@pytest.mark.xdist_group("site")
def test_formulas_are_mathml_and_none_is_left(site: Path) -> None:
    for name in ("epsilon", "api/families", "api/accounting"):
        assert text_of(site / f"{name}.html").count("<math") >= 2
    for page in site.rglob("*.html"):
        words = re.sub(r"<(script|code).*?</\1>", "", text_of(page), flags=re.DOTALL)
        assert not re.search(r'class="arithmatex"|\\\(|\\\[|\$\$', words), page


@pytest.mark.xdist_group("site")
def test_docstrings_reach_the_reference_with_their_tables_and_examples(site: Path) -> None:
    page = text_of(site / "api/mechanisms.html")
    assert 'id="tacit.privacy.mechanism.Access.sum"' in page
    assert "&gt;&gt;&gt;" not in re.sub(r"<pre.*?</pre>", "", page, flags=re.DOTALL)  # examples are blocks of code
    assert "<table>" in text_of(site / "api/solvers.html")
    commands = text_of(site / "api/commands.html")
    assert 'id="tacit-ledger-show"' in commands
    assert "--noise-multiplier" in commands


@pytest.mark.xdist_group("site")
def test_links_out_of_the_folder_become_pages(site: Path) -> None:
    assert "repository/examples/adult-c.toml.html" in text_of(site / "simulate.html")
    assert "distribution C" in text_of(site / "repository/examples/adult-c.toml.html")
    assert (site / "repository/CHANGELOG.html").exists()
    assert 'href="../fitting.html"' in text_of(site / "repository/readme-page.html")


def test_a_resource_from_elsewhere_would_be_found(tmp_path: Path) -> None:
    planted = '<script src="https://unpkg.com/iframe-worker/shim"></script><a href="https://a.example">no resource</a>'
    (tmp_path / "index.html").write_text(planted, encoding="utf-8")
    assert strangers(tmp_path) == ["https://unpkg.com/iframe-worker/shim"]


@pytest.mark.slow
@pytest.mark.xdist_group("site")
def test_pages_open_as_files_on_a_desk_and_on_a_phone_and_can_be_searched(site: Path) -> None:
    from tests.report.browsing import Watched, axe_source, chromium, findings, launched, overflows

    pytest.importorskip("playwright")
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with launched() as browser:
        for width in (1280, 390):
            page = browser.new_page(viewport={"width": width, "height": 800})
            watched = Watched(page)
            for path in sorted(set(site.rglob("*.html")) - {site / "404.html"}):  # that one is a server's
                page.goto(path.as_uri())
                assert overflows(page) == [], f"{path.name} at {width}"
            assert (watched.errors, watched.strangers()) == ([], [])
        page = browser.new_page(viewport={"width": 1280, "height": 800})
        page.goto((site / "index.html").as_uri())
        page.click("input[name=query]")
        page.keyboard.type("canary", delay=50)
        page.wait_for_selector(".md-search-result__link:visible", timeout=60_000)
        source = axe_source()
        for name in ("index", "epsilon", "sources", "api/accounting", "results/index") if source else ():
            page.goto((site / f"{name}.html").as_uri())
            assert findings(page, source) == [], name


@pytest.mark.slow
def test_the_first_example_runs(tmp_path: Path) -> None:
    (block,) = re.findall(r"^```python\n(.*?)^```", text_of(DOCS / "index.md"), flags=re.DOTALL | re.MULTILINE)
    subprocess.run([sys.executable, "-W", "error", "-c", block], check=True, cwd=tmp_path, timeout=300)


# --- Navigation and links ----------------------------------------------------------------------------------------


def entries(nav: list[Any]) -> Iterator[str]:
    for entry in nav:
        inner = next(iter(entry.values())) if isinstance(entry, dict) else entry
        yield from entries(inner) if isinstance(inner, list) else [inner]


def navigation(hooks: ModuleType) -> list[str]:
    import yaml

    settings = re.sub(r"!!python\S+ \{.*\}", "x", text_of(ROOT / "mkdocs.yml"))
    return list(entries(hooks._expanded(yaml.safe_load(settings)["nav"])))


def test_every_page_is_in_the_navigation_and_every_entry_is_a_page(hooks: ModuleType) -> None:
    shown = navigation(hooks)
    assert len(shown) == len(set(shown))
    there = {path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md")} | MADE_BY_THE_BUILD
    assert set(shown) == there


def anchors(path: Path) -> set[str]:
    """Of headings, as GitHub makes them, and those that are written out."""
    text = FENCE.sub("", text_of(path))
    headings = [re.sub(r"<[^>]+>|[`*]", "", line) for line in re.findall(r"^#+ +(.+)$", text, re.MULTILINE)]
    made = [re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings]
    return {*made, *re.findall(r'id="([^"]+)"', text)}


def broken(path: Path) -> list[str]:
    """Links of a page that lead nowhere."""
    found = []
    for target in LINK.findall(CODE.sub("", FENCE.sub("", text_of(path)))):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = (path.parent / name).resolve() if name else path
        made = file.is_relative_to(DOCS) and file.relative_to(DOCS).as_posix() in MADE_BY_THE_BUILD
        if not made and (not file.is_file() or (anchor and anchor not in anchors(file))):
            found.append(target)
    return found


PAGES = [*sorted(DOCS.rglob("*.md")), *sorted(ROOT.glob("*.md"))]


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path: Path) -> None:
    assert broken(path) == []


def test_a_broken_link_would_be_found(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text("## 2 · The ε of it\n", encoding="utf-8")
    page = tmp_path / "a.md"
    page.write_text(
        "[1](b.md#2--the-ε-of-it) [2](b.md#the) [3](c.md) `[4](d.md)` [5](https://e.example)", encoding="utf-8"
    )
    assert broken(page) == ["b.md#the", "c.md"]


BASES = (ROOT, ROOT / "src", ROOT / "src/tacit")  # what names of files on pages are relative to
OURS = ("src/", "tests/", "docs/", "benchmarks/", "examples/", ".github/", ".ci/")


def missing(path: Path) -> list[str]:
    """Files and folders that a page names as code and that are not in the repository. NAME stands for any name."""
    words = re.findall(r"`([\w./-]+)`", FENCE.sub("", text_of(path)))
    ours = {word for word in words if word.startswith(OURS) or ("/" in word and word.endswith(".py"))}
    return sorted(w for w in ours if not re.search(r"\bNAME\b", w) and not any((base / w).exists() for base in BASES))


SAYING_WHERE = [
    *sorted(DOCS.glob("*.md")),
    *(path for path in sorted(ROOT.glob("*.md")) if path.name != "CHANGELOG.md"),
]


@pytest.mark.parametrize("path", SAYING_WHERE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_files_that_pages_name_are_there(path: Path) -> None:
    assert missing(path) == []


def test_a_file_that_is_not_there_would_be_found(tmp_path: Path) -> None:
    page = tmp_path / "a.md"
    page.write_text("`src/tacit/gone.py` `tests/gone/` `models/gone.py` `models/glm.py` `src/tacit/cli/NAME.py`")
    assert missing(page) == ["models/gone.py", "src/tacit/gone.py", "tests/gone/"]


# --- What pages say of the code ----------------------------------------------------------------------------------


def named(name: str) -> Any:
    """What a dotted name stands for."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            found: Any = importlib.import_module(".".join(parts[:count]))
        except ModuleNotFoundError:
            continue
        for part in parts[count:]:
            found = getattr(found, part)
        return found
    raise ModuleNotFoundError(name)


@pytest.mark.parametrize("page", ["sources.md", "api/index.md", "index.md", "epsilon.md"])
def test_every_name_exists(page: str) -> None:
    for name in set(re.findall(r"`(tacit(?:\.\w+)+)`", text_of(DOCS / page))):
        named(name)


def test_a_name_that_is_not_there_would_be_found() -> None:
    for name in ("tacit.solvers.Nothing", "tacit.privacy.nothing", "tacit.VI.nothing"):
        with pytest.raises((AttributeError, ModuleNotFoundError)):
            named(name)


@pytest.mark.parametrize("page", ["sources.md", "index.md", "epsilon.md"])
def test_every_command_exists_with_its_options(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    text = text_of(DOCS / page)
    blocks = "\n".join(re.findall(r"^```sh\n(.*?)^```", text, flags=re.DOTALL | re.MULTILINE))
    shown = {*re.findall(r"`(tacit [^`]+)`", text), *re.findall(r"^(tacit [^#\n]+)", blocks, flags=re.MULTILINE)}
    assert shown
    for line in sorted(shown):
        words = line.split()[1:]
        names = words[:2] if words[0] in ("ledger", "network", "policy") else words[:1]
        with pytest.raises(SystemExit) as stop:
            main([*names, "--help"])
        told = capsys.readouterr()
        assert stop.value.code == 0, f"{line}: {told.err}"
        for option in re.findall(r"--[a-z-]+", line):
            assert option in told.out, f"{line}: no {option}"
        if words[0] == "reproduce":
            assert words[1] in REPRODUCTIONS


def test_all_reproductions_are_on_the_map_of_sources() -> None:
    ours = {"methods", "methods-coverage", "policies"}  # of no one source
    shown = set(re.findall(r"`tacit reproduce ([\w-]+)`", text_of(DOCS / "sources.md")))
    assert shown == set(REPRODUCTIONS) - ours


def test_all_errata_are_on_the_map_of_sources() -> None:
    all_of_them = set(re.findall(r'id="(erratum-\d+)"', text_of(DOCS / "errata.md")))
    assert set(re.findall(r"errata\.md#(erratum-\d+)", text_of(DOCS / "sources.md"))) == all_of_them


def test_the_reference_has_every_public_name() -> None:
    overview = text_of(DOCS / "api/index.md")
    assert {name for name in tacit.__all__ if f"`tacit.{name}`" not in overview} == {"__version__"}
    documented = "\n".join(text_of(path) for path in (DOCS / "api").glob("*.md"))
    for folder in ("families", "models", "solvers", "privacy", "data"):
        for path in (ROOT / "src/tacit" / folder).glob("[a-z]*.py"):
            assert f"::: tacit.{folder}.{path.stem}\n" in documented, path


# --- Numbers of epsilon.md ---------------------------------------------------------------------------------------


def tables(page: str) -> list[list[list[str]]]:
    """The tables of a page: rows of cells, without the line below the headers."""
    found: list[list[list[str]]] = [[]]
    for line in [*text_of(DOCS / page).splitlines(), ""]:
        if line.startswith("|"):
            found[-1].append([cell.strip() for cell in line.strip("|").split("|")])
        elif found[-1]:
            found.append([])
    return [[row for row in table if not set("".join(row)) <= set("-:")] for table in found if table]


def test_what_an_attacker_gains_is_what_tacit_computes() -> None:
    attack, *_ = tables("epsilon.md")
    rates = [float(header.split()[-1]) / 100 for header in attack[0][2:6]]
    assert rates == [0.001, 0.01, 0.05, 0.1]
    for row in attack[1:]:
        epsilon = float(row[0])
        found = tacit.calibrate(epsilon=epsilon, delta=1e-5)
        best = accounting.true_positive_rates(found.event, rates)
        anyone = min(math.exp(epsilon) * 0.01 + 1e-5, 1 - math.exp(-epsilon) * (1 - 1e-5 - 0.01))
        numbers = [f"{found.noise_multiplier:.3f}", *(f"{100 * rate:.2f}" for rate in (*best, anyone))]
        assert row[1:] == numbers


def test_deltas_neighbours_units_and_studies_cost_what_tacit_computes() -> None:
    _, deltas, neighbours, persons, studies, shares, _ = tables("epsilon.md")
    noise = tacit.calibrate(epsilon=1.0, delta=1e-5).noise_multiplier

    def check(table: list[list[str]], cost: Callable[[float], float]) -> None:
        heads, cells = (row[1:] for row in table)
        assert cells == [f"{cost(float(head)):.2f}" for head in heads]

    def replaced(epsilon: float) -> float:
        return tacit.epsilon(tacit.calibrate(epsilon=epsilon, delta=1e-5).event, 1e-5, adjacency="replace-one")

    check(deltas, lambda delta: tacit.epsilon(Gaussian(noise), delta))
    check(neighbours, replaced)
    check(persons, lambda records: tacit.epsilon(Gaussian(noise / records), 1e-5))
    check(studies, lambda count: tacit.epsilon(Repeated(Gaussian(noise), int(count)), 1e-5))
    check(shares, lambda count: tacit.epsilon(Gaussian(noise * math.sqrt(count)), 1e-5))


# --- Results -----------------------------------------------------------------------------------------------------


def test_the_index_of_results_is_what_the_command_writes() -> None:
    assert text_of(RESULTS / "index.md") == pages.index(RESULTS)


def test_every_page_of_a_result_was_written_by_its_command() -> None:
    for page in RESULTS.glob("*.md"):
        if page.name != "index.md":
            assert page.stem in REPRODUCTIONS
            assert f"written by `tacit reproduce {page.stem}" in text_of(page)
            assert re.search(r"^\| made \| \d{4}-\d\d-\d\d, tacit \d", text_of(page), re.MULTILINE)
            assert page.with_suffix(".png").stat().st_size < MOST_BYTES


def test_a_page_has_table_settings_picture_and_the_command(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from tacit.report.style import figure

    axes = figure("made up", "x", "y", width=30)
    row = {"method": "a|b", "accuracy": 0.5, "accuracy_standard_error": 0.01}
    outcome = Result([row], [], {"method": "noise", "accuracy": "accuracy, %"}, axes)
    text = text_of(pages.write(tmp_path, "sep-table", outcome, 3, 61.4, ["costs $5 | or more"]))
    assert text.startswith("# Clusters")
    for line in (
        f", tacit {tacit.__version__} |",
        "| seeds | 3; the full run has 10 |",
        "| took | 61 s by the wall clock |",
        "| again | `tacit reproduce sep-table --seeds 3` |",
        "![Clusters: F-norm and KL proxy by ε](sep-table.png)",
        "| noise | accuracy, % |\n| --- | ---: |\n| a\\|b | 50 ± 1 |\n",
        "- costs \\$5 \\| or more\n",
    ):
        assert line in text
    assert (tmp_path / "sep-table.png").stat().st_size < MOST_BYTES
    index = text_of(tmp_path / "index.md")
    assert f"1 of {len(REPRODUCTIONS)} have a page" in index
    assert "[Clusters: F-norm and KL proxy by ε](sep-table.md)" in index
    assert re.search(r"^\| `tacit reproduce methods` \| .* \| no page \|$", index, re.MULTILINE)


def test_a_quick_run_makes_no_page(run: Run, tmp_path: Path) -> None:
    code, _, err = run("reproduce", "liu-fig33", "--quick", "--page", tmp_path)
    assert code != 0
    assert "a page needs a full run" in err
    assert list(tmp_path.iterdir()) == []


def test_a_run_makes_its_page(run: Run, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    code, out, _ = run("reproduce", "liu-fig33", "--page", tmp_path / "docs", "--out", tmp_path / "out")
    assert code == 0
    assert "liu-fig33.md" in out
    assert {path.name for path in (tmp_path / "docs").iterdir()} == {"index.md", "liu-fig33.md", "liu-fig33.png"}


# --- What the build adds -----------------------------------------------------------------------------------------


def test_formulas_become_mathml(hooks: ModuleType) -> None:
    span = '<p><span class="arithmatex">\\(a &lt; \\frac{1}{2}\\)</span></p>'
    made = hooks.on_page_content(span, None, None, None)
    assert "<mfrac>" in made
    assert 'display="inline"' in made
    assert "arithmatex" not in made


def test_pictures_lead_to_themselves_once(hooks: ModuleType) -> None:
    made = '<a href="a.png"><img alt="" src="a.png"></a>'
    for before in (made, '<img alt="" src="a.png">'):
        assert hooks.on_page_content(before, None, None, None) == made


def test_lists_are_read_as_github_reads_them(hooks: ModuleType) -> None:
    import markdown

    text = "- one\n\n      code\n\n  more of one\n- two\n\nwords\n- three\n\n    - code"
    made = markdown.markdown(text, extensions=[hooks.NarrowLists()])
    first, second = made.split("<p>words</p>")
    assert first.count("<li>") == 2
    assert "<pre><code>code\n</code></pre>\n<p>more of one</p>" in first
    assert second.count("<li>") >= 1


def test_links_are_turned_to_where_the_site_has_the_file(hooks: ModuleType) -> None:
    class Here:
        def __init__(self, src_uri: str) -> None:
            self.file = self
            self.src_uri = src_uri

    def turned(here: str, text: str) -> str:
        return hooks.on_page_markdown(text, Here(here), None, None)

    assert turned("simulate.md", "[a](../examples/a.toml)") == "[a](repository/examples/a.toml.md)"
    assert turned("tutorials/one.md", "[a](../../CHANGELOG.md#x)") == "[a](../repository/CHANGELOG.md#x)"
    assert turned("index.md", "[a](../README.md)") == "[a](repository/readme-page.md)"
    assert turned("repository/readme-page.md", "[a](docs/fitting.md)") == "[a](../fitting.md)"
    assert turned("repository/readme-page.md", "[a](LICENSE)") == "[a](LICENSE)"
    assert turned("a.md", "see docs/errata.md, 5") == "see [docs/errata.md, 5](errata.md#erratum-5)"
    assert turned("results/a.md", "see docs/privacy.md, too") == "see [docs/privacy.md](../privacy.md), too"
    for text in (
        "[docs/privacy.md](privacy.md)",
        "`docs/privacy.md`",
        "docs/nothing.md",
        "[a](errata.md#b)",
        "[a](https://b.example)",
        "[a](#b)",
        "```\n[a](../b)\n```",
    ):
        assert turned("a.md", text) == text


def test_a_link_to_what_is_no_file_of_the_repository_is_refused(hooks: ModuleType) -> None:
    for path in ("examples", "nothing.md", "../elsewhere.md"):
        with pytest.raises(Exception, match="link to a file"):
            hooks._content(path)


def test_examples_and_errata_in_docstrings_become_markdown(hooks: ModuleType) -> None:
    made = hooks.as_markdown("As (docs/errata.md, 5).\n\n>>> 1 + 1\n2\n\nEnd.")
    assert made == "As ([docs/errata.md, 5](../errata.md#erratum-5)).\n\n```pycon\n>>> 1 + 1\n2\n```\n\nEnd."
