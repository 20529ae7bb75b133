"""The dashboard in a real browser: it moves, it says why, it works by keyboard and on a phone, and loads nothing else.

`page_at` itself fails a test whose page had an error in its console, or asked for anything outside of this machine.
"""

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("starlette")
pytest.importorskip("uvicorn")

from playwright import sync_api
from tests.report.browsing import overflows

from tacit.report import dashboard
from tacit.report.dashboard import Board, Server

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("browser")]  # one browser for all
PHONE = (375, 667)
LONG = "a_name_that_has_no_place_to_break_and_that_goes_on_for_longer_than_a_phone_is_wide"
REASON = "epsilon=2 would be exceeded by this update: spent 1.9, price 0.2, δ=1e-05. Raise the site's budget."
MARKUP = '<img src="https://evil.example/x.png" onerror="document.title=1"><script>document.title=2</script>'


def expect(found: Any) -> Any:
    return sync_api.expect(found)


def site(name: str, spent: float | None = 0.5, state: str = "here", reason: str = "") -> dict[str, Any]:
    return {"name": name, "epsilon": 2.0, "updates": 1, "spent": spent, "state": state, "reason": reason}


def seen(done: int, *sites: dict[str, Any], coefficients: int = 3, name: str = "age", **more: Any) -> dict[str, Any]:
    """What `dashboard.plain` makes of a snapshot."""
    mean = done / 10
    rows = [
        {"name": f"{name}-{j}", "per": 1.0 + j, "mean": mean, "low": mean - 0.5 - j / 20, "high": mean + 0.5}
        for j in range(coefficients)
    ]
    posterior = {"effect": "change of the log-odds", "level": 0.95, "of": 40, "lacks_noise": False, "rows": rows}
    history = [{"round": k + 1, "communications": k, "accuracy": 0.7 + k / 100} for k in range(done)]
    found = {"phase": "inference", "done": done, "of": 10, "sites": list(sites) or [site("north"), site("south")]}
    return found | {"posterior": posterior, "history": history, "seeded": False} | more


@pytest.fixture
def board() -> Board:
    found = Board()
    found.about("clinics: a logistic regression of ill at 2 sites")
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as quick as for people."""
    monkeypatch.setattr(dashboard, "BEAT", dashboard.BEAT / 10)


@pytest.fixture
def server(board: Board) -> Iterator[Server]:
    found = Server(board)
    yield found
    found.close()


def width(page: Any, place: str) -> float:
    return page.locator(place).first.evaluate("bar => parseFloat(bar.style.width)")


def test_the_page_loads_and_says_what_is_being_done(server, board, page_at):
    page = page_at()
    board.say("Reading records")
    page.goto(server.address)
    expect(page.get_by_role("status")).to_have_text("Reading records")
    expect(page.get_by_role("heading", level=1)).to_have_text("clinics: a logistic regression of ill at 2 sites")
    expect(page.locator("#bar")).to_be_hidden()
    expect(page.locator("#seeded")).to_be_hidden()
    expect(page.locator("#time")).to_have_text(re.compile(r"^0:\d\d elapsed$"))


def test_bars_round_posterior_and_score_move_as_updates_arrive(server, board, page_at):
    page = page_at()
    page.goto(server.address)
    widths, means, curves = [], [], []
    for done in (1, 2, 3):
        board._show(seen(done, site("north", done / 2), site("south", done / 4)))
        expect(page.get_by_role("status")).to_have_text(f"Inference: round {done} of 10")
        widths.append((width(page, "#bar > div"), width(page, "#sites .bar > div")))
        mean, zero = (page.locator(f"#posterior tbody {part}").first for part in ("circle:not(.trail)", ".zero"))
        means.append(float(mean.get_attribute("cx")) - float(zero.get_attribute("x1")))
        curves.append(page.locator("#scores polyline").get_attribute("points").count(","))
    assert widths == [(10, 25), (20, 50), (30, 75)]
    assert 0 < means[0] < means[1] < means[2]
    assert curves == [1, 2, 3]
    expect(page.get_by_role("progressbar")).to_have_attribute("aria-valuenow", "3")
    expect(page.locator("#sites tbody tr").first).to_contain_text("1.50 of 2")
    expect(page.locator("#posterior tbody tr").nth(1)).to_contain_text("age-1 (per 2)")
    expect(page.locator("#posterior caption")).to_contain_text("change of the log-odds")
    assert page.locator("#posterior .trail").count() == 6, "two earlier rounds of three coefficients"
    expect(page.locator("figcaption")).to_have_text("Accuracy 0.7200 after round 3")
    assert page.title().startswith("3/10 · clinics")


def test_a_refused_site_shows_why_beside_its_bar_and_in_the_log(server, board, page_at):
    page = page_at()
    page.goto(server.address)
    board._show(seen(1, site("north"), site("south")))
    expect(page.locator("#log")).to_contain_text("None so far")
    board._show(seen(2, site("north"), site("south", 1.9, "left out", REASON)))
    row = page.get_by_role("row").filter(has_text="south")
    expect(row).to_contain_text(REASON)
    expect(row).to_contain_text("left out")
    expect(row.get_by_text(REASON)).to_be_visible()
    expect(page.locator("#log li")).to_contain_text(f"south was left out: {REASON}")
    expect(page.locator("#sites-summary")).to_have_text("Of 2: 1 here, 1 left out.")


def test_what_sites_say_is_text_and_never_markup(server, board, page_at):
    page = page_at()
    board.about(MARKUP)
    page.goto(server.address)
    board._show(seen(1, site("north"), site("odd")))
    board._show(seen(2, site("north"), site(MARKUP, 0.1, "refused", MARKUP), name=MARKUP))
    expect(page.locator("#sites tbody th").nth(1)).to_contain_text("<script>")
    expect(page.locator("#log li").first).to_contain_text(MARKUP)
    expect(page.get_by_role("heading", level=1)).to_have_text(MARKUP)
    assert page.locator("img").count() == 0
    assert page.locator("script").count() == 1
    assert page.title() == f"2/10 · {MARKUP}"


def test_what_is_not_private_is_said_in_red(server, board, page_at):
    page = page_at()
    page.goto(server.address)
    board._show(seen(1, *({**site(name, None), "epsilon": None} for name in ("a", "b")), seeded=True))
    expect(page.locator("#seeded")).to_be_visible()
    expect(page.locator("#open")).to_be_visible()
    expect(page.locator("#sites tbody tr").first).to_contain_text("no budget")


def test_when_the_command_ends_the_page_stays_and_says_so(board, page_at):
    """Without an error in the console: it does not try to reach a server that is not there."""
    server = Server(board)
    page = page_at()
    page.goto(server.address)
    board._show(seen(10))
    expect(page.get_by_role("status")).to_have_text("Inference: round 10 of 10")
    board.end("finished", "Finished: report.html is in study")
    server.close()
    expect(page.get_by_role("status")).to_have_text("Finished: report.html is in study")
    expect(page.locator("#time")).to_contain_text("The command has ended")
    page.wait_for_timeout(1500)  # longer than it waits before it comes again
    expect(page.locator("#sites tbody tr")).to_have_count(2)
    assert width(page, "#bar > div") == 100


def test_a_failure_is_said_in_its_words(server, board, page_at):
    page = page_at()
    page.goto(server.address)
    board.end("failed", "Failed: the study cannot go on: no site took part")
    expect(page.get_by_role("status")).to_have_text("Failed: the study cannot go on: no site took part")
    expect(page.locator("#now")).to_have_class("failed")


def test_a_lost_connection_is_said_and_found_again(browser, board, monkeypatch):
    """The console has errors meanwhile, so the page is not one of `page_at`."""
    monkeypatch.setattr(dashboard.secrets, "token_urlsafe", lambda length: "the-same")
    first = Server(board)
    page = browser.new_page()
    page.goto(first.address)
    board._show(seen(4))
    expect(page.get_by_role("status")).to_have_text("Inference: round 4 of 10")
    first.close()
    expect(page.get_by_role("status")).to_have_text("No connection to the command. Before: Inference: round 4 of 10")
    expect(page.locator("#sites tbody tr")).to_have_count(2)
    again = Board()
    again._show(seen(5))
    second = Server(again, first.port)
    expect(page.get_by_role("status")).to_have_text("Inference: round 5 of 10")
    page.close()
    second.close()


@pytest.mark.parametrize("size", [PHONE, (320, 568), (768, 1024), (1280, 800)], ids=str)
def test_nothing_is_wider_than_the_window(server, board, page_at, size):
    """Not even names and reasons that have no place to break."""
    page = page_at(*size)
    board.about(f"{LONG}: a study")
    page.goto(server.address)
    sites = [site(f"{LONG}-{j}", 0.5, "refused", LONG * 3) for j in range(20)]
    board._show(seen(3, *sites, coefficients=12, name=LONG, seeded=True))
    expect(page.get_by_role("status")).to_have_text("Inference: round 3 of 10")
    assert overflows(page) == []
    pictures = page.evaluate(
        """() => [...document.querySelectorAll("svg *")].filter(part => {
            const box = part.closest("section").getBoundingClientRect(), own = part.getBoundingClientRect();
            return own.left < box.left || own.right > box.right;
        }).map(part => part.outerHTML)"""
    )
    assert pictures == []
    columns = page.evaluate(
        "() => getComputedStyle(document.querySelector('main')).gridTemplateColumns.split(' ').length"
    )
    assert columns == (1 if size[0] < 800 else 2)


@pytest.mark.parametrize("sites", [2, 40])
def test_the_keyboard_reaches_all_that_scrolls_and_shows_where_it_is(server, board, page_at, sites):
    page = page_at()
    page.goto(server.address)
    board._show(seen(1, *(site(f"site-{j}") for j in range(sites))))
    for done in (2, 3):
        state = ("here", "away")[done % 2]
        board._show(seen(done, *(site(f"site-{j}", 0.5, state, "gone") for j in range(sites))))
    expect(page.get_by_role("status")).to_have_text("Inference: round 3 of 10")
    scrolled = page.evaluate(
        """() => [...document.querySelectorAll("body *")].filter(e => e.scrollHeight > e.clientHeight + 1
            && ["auto", "scroll"].includes(getComputedStyle(e).overflowY)).map(e => e.parentElement.id)"""
    )
    reached = []
    for _ in range(10):
        page.keyboard.press("Tab")
        focus = page.evaluate(
            """() => { const e = document.activeElement;
                return e === document.body ? null : [e.parentElement.id, getComputedStyle(e).outlineStyle]; }"""
        )
        if focus is None or focus in reached:
            break
        reached.append(focus)
    assert set(scrolled) <= {name for name, _ in reached}
    assert {name for name, _ in reached} == ({"sites", "log"} if sites > 12 else {"log"})
    assert all(outline == "solid" for _, outline in reached)
    # Chromium reaches what scrolls by itself; other browsers need to be told.
    assert page.locator("#sites .box").get_attribute("tabindex") == ("0" if sites > 12 else None)


def test_many_sites_are_summed_up_with_those_that_are_not_here_first(server, board, page_at):
    page = page_at()
    page.goto(server.address)
    sites = [site(f"site-{j}", j / 100, "away" if j == 77 else "here") for j in range(100)]
    board._show(seen(1, *sites))
    expect(page.locator("#sites-summary")).to_contain_text("at least 0 %, median 25 %, at most 50 % of their budgets")
    expect(page.locator("#sites tbody tr").first).to_contain_text("site-77")


def test_motion_is_left_out_for_those_who_want_none(server, page_at):
    durations = {}
    for wish in ("no-preference", "reduce"):
        page = page_at(reduced_motion=wish)
        page.goto(server.address)
        durations[wish] = page.evaluate(
            "() => getComputedStyle(document.querySelector('#bar > div')).transitionDuration"
        )
    assert durations == {"no-preference": "0.4s", "reduce": "0s"}


@pytest.mark.parametrize(("size", "scheme"), [(PHONE, "dark"), ((1280, 800), "light")], ids=str)
def test_axe_finds_nothing_serious(server, board, page_at, axe: Callable[[Any], list[str]], size, scheme):
    page = page_at(*size, color_scheme=scheme)
    page.goto(server.address)
    assert axe(page) == []
    board._show(seen(2, *(site(f"site-{j}") for j in range(20)), seeded=True))
    board._show(seen(3, site("north"), site("south", None, "refused", REASON), seeded=True))
    expect(page.get_by_role("status")).to_have_text("Inference: round 3 of 10")
    page.wait_for_timeout(500)  # for bars to arrive
    assert axe(page) == []
    board.end("failed", "Failed. The terminal says why.")
    expect(page.get_by_role("status")).to_have_text("Failed. The terminal says why.")
    assert axe(page) == []


def test_the_events_of_a_page_are_those_of_the_board(server, board, page_at):
    """What the browser was sent is what `Board.event` says, but for the clock."""
    page = page_at()
    page.goto(server.address)
    board._show(seen(2))
    expect(page.get_by_role("status")).to_have_text("Inference: round 2 of 10")
    held = page.evaluate("() => JSON.stringify(state)")
    clock = {"elapsed", "left"}
    sent, said = ({k: v for k, v in json.loads(text).items() if k not in clock} for text in (held, board.event()[1]))
    assert sent == said
