"""A browser for tests of pages. Without one, or without playwright, they are skipped."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.report.browsing import Watched, axe_source, chromium, findings, launched


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """One for all tests of a file: while it is open, its thread can run no other event loop."""
    pytest.importorskip("playwright")
    if chromium() is None:
        pytest.skip("no Chromium on this machine")
    with launched() as found:
        yield found


@pytest.fixture
def page_at(browser: Any) -> Iterator[Callable[..., Any]]:
    """`page_at(width, height, **more)`: a fresh page of that size, in a context of its own.

    more: such as color_scheme="dark", as playwright's `new_context` takes it. Whatever a test opened, the console of it
    had no error and no warning, and nothing was asked for outside of this machine.
    """
    opened: list[tuple[Any, Watched]] = []

    def page_at(width: int = 1280, height: int = 800, **more: Any) -> Any:
        context = browser.new_context(viewport={"width": width, "height": height}, **more)
        page = context.new_page()
        page.set_default_timeout(15_000)
        opened.append((context, Watched(page)))
        return page

    yield page_at
    for context, _ in opened:
        context.close()
    assert [error for _, watched in opened for error in watched.errors] == []
    assert [address for _, watched in opened for address in watched.strangers()] == []


@pytest.fixture
def axe() -> Callable[[Any], list[str]]:
    """`axe(page)`: what axe-core finds serious or critical there, one line each."""
    source = axe_source()
    if source is None:
        pytest.skip("axe-core is not in the cache, and npm cannot fetch it")
    return lambda page: findings(page, source)
