"""A report is made of what was released, all of it and nothing else; it says what a reader must not miss."""

import json
import re
import shutil
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from html import unescape
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import html5lib
import numpy as np
import pytest
from tests.report.studies import PLAN, sites, table

from tacit.engines.coordinator import Answer
from tacit.federated.messages import Broadcast
from tacit.posterior.posterior import Posterior
from tacit.privacy.statement import rounded_up
from tacit.report import figures, findings, forest, page, studied
from tacit.report.findings import SHOWN, shown
from tacit.study.coordinator import StudyResult, coordinate
from tacit.study.local import LocalHost
from tacit.study.setup import Setup

pytestmark = pytest.mark.xdist_group("study")  # one process, so that a study is compiled once
SEED = 5
ABOUT = {"version": "1.2", "name": "hearts", "model": "logistic", "target": "ill", "data": "three made-up sites"}
LEFT_OUT = {"summary", "plan", "files", "history.factor_gap", "scores.test_set"}  # not shown, or by the posterior


class Heard(LocalHost):
    """Hosts sites, and writes down what the coordinator hears of them."""

    def __init__(self, setup: Setup, folder: Path) -> None:
        super().__init__(setup, folder, insecure_seed=SEED)
        self.answers: dict[str, list[tuple[int, Answer]]] = {}
        self.told: list[dict[str, float]] = []
        self.counts: list[dict[str, int]] = []

    def open(self, phase: str, study: str, scaling: Any) -> Any:
        transport, heard = super().open(phase, study, scaling), self.answers.setdefault(phase, [])

        class Listening:
            send = transport.send

            def receive(self) -> tuple[int, Answer]:
                heard.append(transport.receive())
                return heard[-1]

        return Listening()

    def spent(self) -> dict[str, float]:
        self.told.append(super().spent())
        return self.told[-1]

    def updates(self) -> dict[str, int]:
        self.counts.append(super().updates())
        return self.counts[-1]


class Told:
    """A host without sites: it says again what was heard."""

    is_remote, forgives = False, False

    def __init__(self, heard: Heard) -> None:
        self.heard, self.told, self.counts = heard, iter(heard.told), iter(heard.counts)

    def last_rounds(self, phase: str) -> dict[int, int]:
        return {}

    def open(self, phase: str, study: str, scaling: Any) -> Any:
        answers = deque(self.heard.answers[phase])

        class Repeating:
            def send(self, site: int, broadcast: Broadcast) -> None:
                pass

            def receive(self) -> tuple[int, Answer]:
                return answers.popleft()

        return Repeating()

    def spent(self) -> dict[str, float]:
        return next(self.told)

    def updates(self) -> dict[str, int]:
        return next(self.counts)

    def totals(self) -> dict[str, tuple[float, float]]:
        return self.heard.totals()

    def consents(self) -> Any:
        return dict.fromkeys(self.heard.consents(), "")

    def leave_out(self, refusing: Any) -> None:
        assert not refusing

    def statements(self, present: Any) -> Any:
        return self.heard.statements(present)


def left(folder: Path, found: StudyResult) -> Path:
    studied.write(folder, found, ABOUT, 40)
    return folder


@pytest.fixture(scope="module")
def heard(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Heard]:
    """The folder of a study, and what its coordinator heard."""
    folder = tmp_path_factory.mktemp("heard")
    setup = Setup(PLAN, sites())
    host = Heard(setup, folder)
    return left(folder, coordinate(setup, folder, host, test=table(40, seed=9))), host


@pytest.fixture(scope="module")
def done(heard: tuple[Path, Heard]) -> Path:
    return heard[0]


@pytest.fixture
def no_figures(monkeypatch: pytest.MonkeyPatch) -> None:
    """For tests of words: most of a page's time is in its figures."""
    monkeypatch.setattr(figures, "FIGURES", {})


def text_of(folder: Path, **changed: Any) -> str:
    """The page of a folder whose result says something else."""
    result = json.loads((folder / "result.json").read_text()) | changed
    return page.render(findings.of(result, folder))


# --- Released values, and nothing else ---------------------------------------------------------------------------


def test_who_has_only_the_messages_of_sites_makes_the_same_report(heard: tuple[Path, Heard], tmp_path: Path) -> None:
    folder, host = heard
    without = Setup(PLAN, sites(records=False), is_remote=True)  # no record, in no table
    told = left(tmp_path, coordinate(without, tmp_path, Told(host), test=table(40, seed=9)))
    for name in ("result.json", "posterior.json", "report.html"):
        assert (told / name).read_bytes() == (folder / name).read_bytes()


def test_a_report_opens_two_files_of_the_folder(done: Path) -> None:
    opened, is_over = set(), []

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        if event in ("open", "sqlite3.connect") and not is_over and isinstance(arguments[0], str | bytes | Path):
            path = Path(arguments[0].decode() if isinstance(arguments[0], bytes) else arguments[0])
            if done in path.parents:
                opened.add(str(path.relative_to(done)))

    sys.addaudithook(hook)  # which stays until the process ends
    page.write(done)
    (done / "sites" / "site-0" / "ledger.sqlite").read_bytes()
    is_over.append(True)
    opened.remove("sites/site-0/ledger.sqlite")  # so it is seen, whatever is opened
    assert opened == {"result.json", "posterior.json", "report.html.new"}


SECRET = "s3cret"


def planted(value: Any) -> Any:
    """A result with a secret in every dict that it holds."""
    if isinstance(value, Mapping):
        return {name: planted(inner) for name, inner in value.items()} | {SECRET: SECRET, "mean_age": SECRET}
    return [planted(inner) for inner in value] if isinstance(value, list) else value


@pytest.mark.usefixtures("no_figures")
def test_what_is_not_listed_cannot_be_reached(done: Path) -> None:
    result = json.loads((done / "result.json").read_text())
    whole = ("released", "environment", "calibration")  # listed as they are: all in them is
    dirty = {name: value if name in whole else planted(value) for name, value in result.items()}
    dirty["scores"]["calibration"] = result["scores"]["calibration"]
    names = ("spent", "updates")  # of each site
    dirty["history"] = [
        row | {name: clean[name] for name in names}
        for row, clean in zip(dirty["history"], result["history"], strict=True)
    ]
    assert SECRET in json.dumps(dirty)
    assert shown(dirty | {SECRET: SECRET}) == shown(result)
    assert SECRET not in page.render(findings.of(dirty | {SECRET: SECRET}, done))


def paths(value: Any, listed: Any, prefix: str = "") -> Iterator[str]:
    """Entries of a result that are not in the list."""
    rows = value if isinstance(value, list) else [value]
    for row in rows:
        for name, inner in row.items() if isinstance(row, Mapping) else ():
            if name not in listed:
                yield prefix + name
            elif isinstance(listed[name], dict):
                yield from paths(inner, listed[name], f"{prefix}{name}.")


def test_a_plan_holds_settings_alone(done: Path) -> None:
    plan = json.loads((done / "posterior.json").read_text())["plan"]
    assert set(plan) == set(type(PLAN).model_fields) | {"numbers", "releases"}


def test_every_entry_of_a_result_is_listed_or_left_out(done: Path) -> None:
    result = json.loads((done / "result.json").read_text())
    assert set(paths(result, SHOWN)) <= LEFT_OUT
    assert set(paths(result | {"mean_age": 54.2}, SHOWN)) - LEFT_OUT == {"mean_age"}


# --- What it says ------------------------------------------------------------------------------------------------


def test_it_says_the_question_the_promise_the_sites_and_how_to_do_it_again(done: Path) -> None:
    text = unescape((done / "report.html").read_text())
    statement = json.loads((done / "statement.json").read_text())
    attack = {row["at_false_positive_rate"]: row["at_most"] for row in statement["true_positive_rates"]}
    for words in (
        "hearts: a logistic regression of ill at 3 sites",
        "How does ill depend on 2 columns? Records: three made-up sites.",
        f"<td>{page.rounded_up(100 * attack[0.01])} %</td>",
        "Nobody is trusted with records or with noise",
        "On the public test set",
        "On records that sites held out",
        "SHA-256 of posterior.json",
        'aria-label="ε rises to',
        json.loads((done / "result.json").read_text())["study"],
    ):
        assert words, "an empty one is in every page"
        assert words in text, words


def changed(done: Path, folder: Path, change: Callable[[dict[str, Any], dict[str, Any]], None]) -> str:
    """The page of the study if its result and the statements of its sites were others."""
    result, plain = (json.loads((done / f"{name}.json").read_text()) for name in ("result", "posterior"))
    change(result, plain["statement"]["sites"])
    (folder / "posterior.json").write_text(json.dumps(plain))
    return unescape(page.render(findings.of(result, folder)))


def without_privacy(result: dict[str, Any], sites: dict[str, Any]) -> None:
    result.update(epsilon=None)
    for row, site in zip(result["sites"], sites.values(), strict=True):
        row.update(spent=None, epsilon=None, ledger_spent=None, budget=None)
        site.update(private=False, epsilon=None)


REDS: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], None], str]] = {
    "a seed": (lambda result, sites: result.update(randomness="seeded"), "Noise was SEEDED"),
    "no privacy": (without_privacy, "NOT differentially private"),
}


@pytest.mark.usefixtures("no_figures")
@pytest.mark.parametrize("which", [None, *REDS])
def test_what_must_not_be_missed_is_red(done: Path, tmp_path: Path, which: str | None) -> None:
    def change(result: dict[str, Any], sites: dict[str, Any]) -> None:
        result.update(randomness="secure")
        if which is not None:
            REDS[which][0](result, sites)

    text = changed(done, tmp_path, change)
    reds = re.findall(r'<p class="red">(.*?)</p>', text)
    assert len(reds) == (which is not None)
    assert which is None or reds[0].startswith(REDS[which][1])
    for words in (
        "is charged to the site's ledger",
        "secure source",
        "An attacker who knows",
        "is protected by the guarantee",
    ):
        assert (words in text) == (which != "no privacy" and (which is None or words != "secure source"))


@pytest.mark.usefixtures("no_figures")
def test_rows_of_coefficients_whose_interval_excludes_0_are_bold(done: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(done, tmp_path / "sure")
    plain = json.loads((done / "posterior.json").read_text())
    block = plain["blocks"]["coefficients"]
    block["mean"] = [0.0, *block["mean"][1:]]
    block["covariance"] = (1e-6 * np.asarray(block["covariance"])).tolist()  # whatever the noise was
    (folder / "posterior.json").write_text(json.dumps(plain))
    level = json.loads((done / "result.json").read_text())["level"]
    rows = Posterior.load(folder / "posterior.json").summary(level)
    clear = sum(row["low"] > 0 or row["high"] < 0 for row in rows)
    assert 0 < clear < len(rows)
    assert text_of(folder).count('<tr class="clear">') == clear


@pytest.mark.parametrize("name", ["x", "a column whose name is longer than that of most"])
@pytest.mark.parametrize("count", [3, 90])
def test_the_title_of_a_forest_is_within_the_figure(name: str, count: int) -> None:
    """At the width of a report, with all that a title may say."""
    rows = [{"name": f"{name}{j}", "mean": 0.1 * j, "low": 0.1 * j - 1, "high": 0.1 * j + 1} for j in range(count + 1)]
    plan = {"method": "vi", "noise_multiplier": 1.0}
    told = {"plan": plan, "details": {}, "classes": (0, 1), "link": "logistic", "summary": lambda level: rows}
    axes = forest.axes_of(SimpleNamespace(**told), width=2.8, most=figures.MOST_ROWS)
    drawn = axes.figure.canvas.get_renderer()
    axes.figure.draw(drawn)
    title, whole = axes.title.get_window_extent(drawn), axes.figure.bbox
    assert whole.x0 <= title.x0
    assert title.x1 <= whole.x1
    assert title.y1 <= whole.y1


def test_an_attack_is_one_on_the_site_where_it_reaches_most(done: Path, tmp_path: Path) -> None:
    """A site with a smaller ε at a larger δ can be the easier one to attack."""

    def change(result: dict[str, Any], sites: dict[str, Any]) -> None:
        sites["site-1"]["epsilon"] = 0.5 * sites["site-0"]["epsilon"]
        for row in sites["site-1"]["true_positive_rates"]:
            row["at_most"] = 0.987
        for row in sites["site-1"]["epsilons"]:
            row["epsilon"] = 7.0

    assert "<td>98.7 %</td>" in changed(done, tmp_path, change)
    found = findings.read(done)
    plain = findings.Findings(found.result, replace(found.posterior, statement=_statement(tmp_path)), {})
    assert set(plain.promises().values()) == {7.0}
    assert len(plain.promises()) == 4


def _statement(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "posterior.json").read_text())["statement"]


def test_what_a_site_spent_is_what_its_statement_says(done: Path) -> None:
    """Over a network a site may not tell what it spent, or tell what its ledger counts of other studies."""
    result, sites = (json.loads((done / f"{name}.json").read_text()) for name in ("result", "statement"))
    assert [row["spent"] for row in result["sites"]] == [site["epsilon"] for site in sites["sites"].values()]
    assert result["epsilon"] == max(row["spent"] for row in result["sites"])


@pytest.mark.usefixtures("no_figures")
def test_of_a_trusted_coordinator_nothing_is_said_that_is_not_so(done: Path, tmp_path: Path) -> None:
    plain = json.loads((done / "posterior.json").read_text())
    plain["plan"] |= {"unit": "site", "noise": "tied"}
    (tmp_path / "posterior.json").write_text(json.dumps(plain))
    text = unescape(page.render(findings.of(json.loads((done / "result.json").read_text()), tmp_path)))
    assert "charged to the coordinator's ledger" in text
    assert "The coordinator's ledger can be checked" in text
    assert "Each site has its own budget" not in text


@pytest.mark.usefixtures("no_figures")
def test_what_was_taken_from_records_is_red(done: Path, tmp_path: Path) -> None:
    note = "The scales were READ FROM THE RECORDS: they are not covered. Give bounds."
    plain = json.loads((done / "posterior.json").read_text())
    plain["statement"]["sites"]["site-1"]["notes"].append(note)
    (tmp_path / "posterior.json").write_text(json.dumps(plain))
    result = json.loads((done / "result.json").read_text())
    assert f'<p class="red">{note}</p>' in page.render(findings.of(result, tmp_path))


@pytest.mark.usefixtures("no_figures")
def test_a_site_that_was_left_out_has_its_reason_beside_it(done: Path) -> None:
    sites = json.loads((done / "result.json").read_text())["sites"]
    sites[1]["refused"] = "<b>epsilon=4</b> would be exceeded"
    text = text_of(done, sites=sites)
    assert "&lt;b&gt;epsilon=4&lt;/b&gt; would be exceeded" in text
    assert "left out, or late" in text
    assert "left out, or late" not in (done / "report.html").read_text()


@pytest.mark.usefixtures("no_figures")
def test_a_ledger_of_more_than_this_study_has_its_own_column(done: Path) -> None:
    """Its total beside the study's ε would read as a breach."""
    sites = json.loads((done / "result.json").read_text())["sites"]
    assert "its ledger, over all studies" not in (done / "report.html").read_text()
    sites[1].update(ledger_spent=5.25, budget=8.0)
    text = text_of(done, sites=sites)
    assert "its ledger, over all studies" in text
    assert f"<td>{rounded_up(sites[1]['spent'])}</td><td>4</td><td>5.25 of 8</td>" in text
    assert "Ledgers of the sites' own count all studies; with this one: site-1 ε = 5.25 of 8." in unescape(text)


def test_a_timeline_is_what_the_ledger_says_after_each_round(done: Path) -> None:
    history = json.loads((done / "result.json").read_text())["history"]
    spent = [row["spent"]["site-0"] for row in history]
    assert spent == sorted(spent)
    assert len(set(spent)) == PLAN.rounds
    result = {"history": [{"round": j + 1, "spent": {"a": j + 1.0}} for j in range(4)]}
    found = page._timeline(result, 4, {"name": "a", "epsilon": 4.0})
    assert found is not None
    assert found["dots"] == [("37.0", "20.5"), ("72.0", "15.0"), ("107.0", "9.5"), ("142.0", "4.0")]
    assert found["words"] == "ε rises to 4 of 4 in 4 of 4 rounds"
    assert page._timeline(result, 4, {"name": "b", "epsilon": 4.0}) is None
    elsewhere = {"history": [{"round": j + 1, "updates": {"a": j + 1}} for j in range(4)]}
    told = page._timeline(elsewhere, 4, {"name": "a", "epsilon": 9.0})
    assert told is not None
    assert (told["dots"], told["words"]) == (found["dots"], "updates rise to 4 of 4 in 4 of 4 rounds")


# --- One file ----------------------------------------------------------------------------------------------------


def test_it_is_sound_html_that_loads_and_runs_nothing(done: Path) -> None:
    text = (done / "report.html").read_text()
    html5lib.HTMLParser(strict=True).parse(text)
    with pytest.raises(html5lib.html5parser.ParseError):
        html5lib.HTMLParser(strict=True).parse(text.replace("</table>", "</div>", 1))
    assert not re.search(r"<script|https?://|<link|@import|url\(|\son\w+=", text)
    assert re.findall(r'src="(.{10})', text) == ["data:image"] * text.count("src=")
    assert len(text) < 2_000_000


def test_the_command_writes_the_same_page_and_figures(
    run: Callable[..., tuple[int, str, str]], done: Path, tmp_path: Path
) -> None:
    before = (done / "report.html").read_bytes()
    code, out, error = run("report", done, "--figures", "svg", "--json")
    assert (code, error) == (0, "")
    assert (done / "report.html").read_bytes() == before
    made = [Path(name) for name in json.loads(out)["files"][1:]]
    assert [path.stem for path in made] == [name for name in figures.FIGURES if name != "site_effects"]
    assert all(b"</svg>" in path.read_bytes() for path in made)
    for arguments, words in (
        ((tmp_path,), "has no result.json; expected the folder of a finished"),
        ((done, "--figures", "gif"), "figures='gif'; expected one of png, svg, pdf"),
    ):
        code, _, error = run("report", *arguments)
        assert code == 2
        assert words in error
    (tmp_path / "result.json").write_text('{"unrelated": 1}')
    code, _, error = run("report", tmp_path)
    assert (code, "is not from a fit or a study" in error) == (2, True)


# --- In a browser ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("width", [1280, 375])
def test_a_browser_shows_it_whole_and_anybody_can_read_it(
    page_at: Callable[..., Any], axe: Callable[[Any], list[str]], done: Path, width: int
) -> None:
    shown = page_at(width, 800)
    shown.goto((done / "report.html").as_uri())
    assert shown.evaluate("document.documentElement.scrollWidth") <= width
    assert shown.evaluate("[...document.images].every(image => image.complete && image.naturalWidth > 0)")
    assert axe(shown) == []
    shown.evaluate(
        "document.querySelector('.facts').outerHTML = '<img src=\"data:,\"><p style=\"color: #ddd\">pale</p>'"
    )
    assert len(axe(shown)) == 2, "a picture without words, and words that are too pale"


def test_on_paper_nothing_is_folded_away_or_cut_off(page_at: Callable[..., Any], done: Path) -> None:
    shown = page_at(794, 1123)  # A4
    shown.goto((done / "report.html").as_uri())
    assert not shown.get_by_text("prior_deviation", exact=True).is_visible()
    shown.emulate_media(media="print")
    assert shown.get_by_text("prior_deviation", exact=True).is_visible()
    assert shown.evaluate("document.documentElement.scrollWidth") <= 794
    assert shown.pdf(format="A4").startswith(b"%PDF")
