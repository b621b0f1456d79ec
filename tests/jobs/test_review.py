"""The review page as people use it: `python jobs/review.py` and a real browser."""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from raylab.annotation.outcome import HumanDecision, read_decision
from raylab.archive.store import Archive
from tests.annotation.outcomes import CODEBOOK
from tests.chromium import CHROMIUM
from tests.review.evaluators import HeldEvaluator, held_evaluator, wait_until
from tests.review.runs import NEITHER, ONE, UNCONFIRMED, annotation, make_run

ROOT = Path(__file__).parents[2]
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
SIZES = {"desktop": (1280, 800), "phone": (375, 740)}
HOSTILE = "<h1>Free</h1><script>document.title = 'taken'</script><img src='//evil.example/x'>"
CASES = {
    # A case for each test, since a lease outlives the tab.
    "pool": f"Schedules are bred. {ONE}",
    "valve": f"A valve is regulated. {NEITHER}",
    "drafted": f"It feeds back. {NEITHER}",
    "early": f"The script is late. {NEITHER}",
    "kept": f"Its server goes. {NEITHER}",
    "folded": f"It is folded. {UNCONFIRMED}",
    "checked": f"It is looked at. {UNCONFIRMED}",
    "hostile": f"{HOSTILE} {UNCONFIRMED}",
    "long": f"{'x' * 99_000} {ONE}",
    "refused": f"The evaluator refuses it. {ONE}",
    "slow": f"The evaluator takes its time. {ONE}",
    "plain": f"Without a script. {ONE}",
    "shared": f"Two look at it. {ONE}",
    "next for one": f"Where one goes on. {ONE}",
    "next for the other": f"Where the other goes on. {ONE}",
    # Enough that one is free whenever a decision is sent, whoever still keeps the others.
    **{f"spare {number}": f"Nobody decides it. {number} {ONE}" for number in range(8)},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def evaluator() -> Iterator[HeldEvaluator]:
    with held_evaluator() as evaluator:
        evaluator.release()
        yield evaluator


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, evaluator: HeldEvaluator) -> Path:
    storage = tmp_path_factory.mktemp("runs")
    make_run(annotation(storage, evaluator.url, "protocol.seed=5"), CASES)
    return storage


@pytest.fixture(scope="module")
def address(storage: Path) -> Iterator[str]:
    """Where the job serves the page; an interrupt is the ordinary end of it."""
    command = [sys.executable, f"{ROOT}/jobs/review.py", "name=systems", "port=0"]
    process = subprocess.Popen(
        [*command, f"storage={storage}", "lease_minutes=1"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=storage,
    )
    assert process.stdout is not None
    found = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    try:
        assert found is not None, process.communicate(timeout=10)
        yield found[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=60)
    assert (process.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def browser(address: str) -> Iterator[Browser]:
    # Playwright has an event loop run in this thread, so what needs one of its own comes before.
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        yield browser
        browser.close()


@pytest.fixture
def visit(browser: Browser, address: str) -> Iterator[Callable[..., Page]]:
    """Opens the page for a reviewer who has signed in, in a session of their own."""
    contexts: list[Any] = []
    complaints: list[str] = []

    def visit(name: str = "", **options: Any) -> Page:
        context = browser.new_context(base_url=address, **options)
        context.set_default_timeout(20_000)
        contexts.append(context)
        page: Page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto("/")
        if name:
            sign_in(page, name)
            arrive(page, "Open cases")
        return page

    yield visit
    for context in contexts:
        context.close()
    # The browser notes answers such as 401 and 409, which belong here.
    assert [text for text in complaints if "Failed to load resource" not in text] == []


def sign_in(page: Page, name: str) -> None:
    field = page.get_by_label("Your name")
    # Chromium complains of a field that has the focus before the one that asks for it.
    expect(field).to_be_focused()
    field.fill(name)
    page.keyboard.press("Enter")


def arrive(page: Page, heading: str) -> None:
    """Waits for a page and its script, without which keys do nothing."""
    page.get_by_role("heading", name=heading, level=1).wait_for()
    page.wait_for_load_state()


def open_case(page: Page, case: str) -> None:
    page.goto("/")
    page.get_by_role("link", name=case, exact=True).click()
    arrive(page, case)


def decided(storage: Path, case: str) -> list[HumanDecision]:
    with Archive.open(storage / "archive.db", create=False) as archive:
        return [read_decision(row.body, CODEBOOK) for row in archive.run("systems").decisions(case)]


def wait_for_draft(storage: Path, case: str, reviewer: str, text: str) -> None:
    """Waits until a draft is in the archive: what a closed tab sends last, nobody is told of."""
    with Archive.open(storage / "archive.db", create=False) as archive:
        sequence, leases = (
            archive.run("systems").sequences([case])[case],
            archive.run("systems").leases(),
        )
        deadline = time.monotonic() + 20
        while (draft := leases.draft(sequence, reviewer)) is None or draft.justification != text:
            assert time.monotonic() < deadline, draft
            time.sleep(0.1)


def test_a_case_is_settled_by_keyboard_alone(visit: Callable[..., Page], storage: Path) -> None:
    page = visit()
    page.keyboard.type("Ada")
    page.keyboard.press("Enter")
    arrive(page, "Open cases")
    page.keyboard.press("n")
    arrive(page, "pool")
    page.keyboard.press("c")
    page.keyboard.type("Evo/Lern")
    expect(page.locator("#reading")).to_contain_text("column 5: expected")
    page.keyboard.press("Escape")
    page.keyboard.press("j")
    page.keyboard.type("Bred, not learnt.")
    page.keyboard.press("Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("correct the code")
    page.wait_for_load_state()
    assert decided(storage, "pool") == []
    page.keyboard.press("c")
    page.keyboard.press("Control+a")
    page.keyboard.type("Evo")
    expect(page.locator("#reading")).to_contain_text("Reads as")
    page.keyboard.press("Control+Enter")
    arrive(page, "valve")
    expect(page.locator("#sent")).to_contain_text("pool is settled: OPT=Evo")
    (made,) = decided(storage, "pool")
    assert (made.reviewer, made.choice) == ("Ada", "own")
    assert made.justification == "Bred, not learnt."
    assert made.confirmation is not None and made.confirmation.acceptable
    page.get_by_role("button", name="Undo the decision on pool").click()
    arrive(page, "pool")
    expect(page.get_by_label("Your code")).to_have_value("OPT=Evo")
    assert [one.action for one in decided(storage, "pool")] == ["decide", "undo"]
    page.keyboard.press("a")
    expect(page.get_by_role("radio", name="A Evo")).to_be_checked()
    page.keyboard.press("n")
    arrive(page, "valve")


def test_keys_fold_show_and_can_be_turned_off(visit: Callable[..., Page]) -> None:
    page = visit("Fay")
    open_case(page, "folded")
    proposal = page.get_by_text("Prb Probion").first
    expect(proposal).not_to_be_visible()
    page.keyboard.press("p")
    expect(proposal).to_be_visible()
    page.keyboard.press("e")
    expect(page.get_by_text("As scripted.").first).not_to_be_visible()
    page.keyboard.press("?")
    keys = page.get_by_role("heading", name="Keys", exact=True)
    expect(keys).to_be_visible()
    page.get_by_label("Single keys work").uncheck()
    page.keyboard.press("Escape")
    expect(keys).not_to_be_visible()
    page.keyboard.press("p")
    expect(proposal).to_be_visible()
    page.reload()
    page.keyboard.press("a")
    expect(page.get_by_role("radio").first).not_to_be_checked()


def test_what_is_typed_outlives_reloads_lost_tabs_and_devices(
    visit: Callable[..., Page], storage: Path
) -> None:
    page = visit("Bo")
    open_case(page, "drafted")
    page.keyboard.press("b")
    page.keyboard.press("j")
    page.keyboard.type("It feeds back")
    expect(page.locator("#kept")).to_contain_text("Draft saved.")
    page.reload()
    why = page.get_by_label("Why?")
    expect(why).to_have_value("It feeds back")
    expect(page.get_by_role("radio", name="B Lrn / Ctl")).to_be_checked()
    why.press("Control+End")
    why.press_sequentially(" into the valve")
    page.goto("about:blank")
    wait_for_draft(storage, "drafted", "Bo", "It feeds back into the valve")
    page.close()
    other = visit("Bo")
    open_case(other, "drafted")
    expect(other.get_by_label("Why?")).to_have_value("It feeds back into the valve")


def test_what_is_typed_before_the_script_is_there_is_saved(visit: Callable[..., Page]) -> None:
    page = visit("Gil")
    open_case(page, "early")
    held: list[Route] = []
    page.route("**/review.js", lambda route: held.append(route))
    page.reload(wait_until="commit")
    page.get_by_label("Why?").fill("It came early")
    expect(page.locator("#kept")).not_to_contain_text("Draft saved.")
    held[0].continue_()
    expect(page.locator("#kept")).to_contain_text("Draft saved.")


def test_two_reviewers_never_have_the_same_case(visit: Callable[..., Page], storage: Path) -> None:
    bo, cy = visit("Bo"), visit("Cy")
    open_case(bo, "shared")
    open_case(cy, "shared")
    expect(cy.get_by_text("Bo works on this case.")).to_be_visible()
    cy.get_by_role("radio", name="A Evo").check()
    cy.get_by_label("Why?").fill("Mine")
    cy.keyboard.press("Control+Enter")
    expect(cy.get_by_role("alert")).to_contain_text("Not sent: Bo works on case shared now")
    expect(cy.get_by_label("Why?")).to_have_value("Mine")
    assert decided(storage, "shared") == []
    bo.get_by_role("button", name="Skip").click()
    cy.keyboard.press("Control+Enter")
    cy.wait_for_url(re.compile("done="))
    expect(cy.locator("#sent")).to_contain_text("shared is settled")
    assert [one.reviewer for one in decided(storage, "shared")] == ["Cy"]


def test_a_tab_that_is_cut_off_or_signed_out_keeps_its_text_and_goes_on(
    visit: Callable[..., Page],
) -> None:
    page = visit("Eve")
    open_case(page, "kept")
    why, kept = page.get_by_label("Why?"), page.locator("#kept")
    page.context.set_offline(True)
    page.get_by_role("radio", name="A Lrn", exact=True).check()
    why.fill("Still here")
    page.keyboard.press("Control+Enter")
    expect(kept).to_contain_text("The page cannot be reached. Your text stays here")
    page.context.set_offline(False)
    expect(kept).to_contain_text("Draft saved.", timeout=20_000)
    page.context.clear_cookies()
    why.fill("Still here after all")
    expect(kept).to_contain_text("You are signed out. Sign in in another tab")
    second = page.context.new_page()
    second.goto("/")
    sign_in(second, "Eve")
    expect(kept).to_contain_text("Draft saved.", timeout=20_000)
    open_case(second, "kept")
    expect(second.get_by_label("Why?")).to_have_value("Still here after all")


def test_a_hostile_description_is_inert_and_a_long_line_readable(
    visit: Callable[..., Page], address: str
) -> None:
    page = visit("Di")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    open_case(page, "hostile")
    assert HOSTILE in (page.locator(".description").text_content() or "")
    assert page.title() == "hostile · systems · raylab review"
    assert page.locator(".description *").count() == 0
    open_case(page, "long")
    for width, height in SIZES.values():
        page.set_viewport_size({"width": width, "height": height})
        box = page.locator(".description")
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
        assert box.evaluate("box => box.clientHeight < 600 && box.scrollHeight > 10000")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert all(url.startswith(address) for url in asked)


def test_the_page_works_without_a_script(visit: Callable[..., Page], storage: Path) -> None:
    page = visit("Gil", java_script_enabled=False)
    open_case(page, "plain")
    page.get_by_label("Another code").check()
    page.get_by_label("Your code").fill("Evo/")
    page.get_by_label("Why?").fill("Bred.")
    page.get_by_role("button", name="Send").click()
    expect(page.get_by_role("alert")).to_contain_text("correct the code")
    page.wait_for_load_state()
    page.get_by_role("radio", name="A Evo").check()
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(re.compile("done="))
    wait_until(lambda: decided(storage, "plain"))
    page.reload()
    expect(page.locator("#sent")).to_contain_text("plain is settled")
    assert [one.choice for one in decided(storage, "plain")] == ["A"]


def send(page: Page, choice: str) -> None:
    """Chooses by key, says why, and sends by key."""
    page.keyboard.press(choice)
    page.get_by_label("Why?").fill("Bred.")
    page.keyboard.press("Control+Enter")
    page.wait_for_url(re.compile("done="))
    page.wait_for_load_state()


def test_a_decision_waits_can_be_cancelled_and_is_shown_when_it_is_judged(
    visit: Callable[..., Page], storage: Path, evaluator: HeldEvaluator
) -> None:
    page = visit("Ivy")
    evaluator.hold()
    open_case(page, "slow")
    send(page, "a")
    sent = page.locator("#sent")
    expect(sent).to_contain_text("slow waits for the evaluator")
    assert_accessible(page)
    page.get_by_role("link", name="slow").click()
    arrive(page, "slow")
    expect(page.get_by_text("Your decision waits for the evaluator")).to_be_visible()
    assert_accessible(page)
    page.get_by_role("button", name="Cancel my decision").click()
    expect(page.get_by_label("Why?")).to_have_value("Bred.")
    expect(page.get_by_role("radio", name="A Evo")).to_be_checked()
    page.keyboard.press("Control+Enter")
    page.wait_for_url(re.compile("done="))
    expect(sent).to_contain_text("slow waits for the evaluator")
    page.get_by_label("Why?").fill("Typed meanwhile")
    assert decided(storage, "slow") == []
    evaluator.release()
    # The page is told, and what is typed on it stays.
    expect(sent).to_contain_text("slow is settled: OPT=Evo")
    expect(page.get_by_label("Why?")).to_have_value("Typed meanwhile")
    assert [one.reviewer for one in decided(storage, "slow")] == ["Ivy"]


def test_a_refused_decision_comes_back_to_its_reviewer(
    visit: Callable[..., Page], evaluator: HeldEvaluator
) -> None:
    page = visit("Jo")
    evaluator.hold()
    open_case(page, "refused")
    send(page, "b")
    page.get_by_role("link", name="refused").click()
    arrive(page, "refused")
    expect(page.get_by_text("Your decision waits for the evaluator")).to_be_visible()
    evaluator.release()
    expect(page.locator("#sent")).to_contain_text("refused came back: the evaluator refuses")
    expect(page.get_by_label("Why?")).to_have_value("Bred.")
    expect(page.get_by_role("heading", name="Decisions so far")).to_be_visible()
    assert_accessible(page)
    page.goto("/decided")
    expect(page.locator("#sent")).to_contain_text("refused came back")
    assert_accessible(page)


@pytest.mark.parametrize(("scheme", "size"), [("light", "phone"), ("dark", "desktop")])
def test_nothing_keeps_people_out(visit: Callable[..., Page], scheme: str, size: str) -> None:
    width, height = SIZES[size]
    viewport = {"width": width, "height": height}
    page = visit(color_scheme=scheme, viewport=viewport)
    assert_accessible(page)
    sign_in(page, "Hal")
    arrive(page, "Open cases")
    assert_accessible(page)
    open_case(page, "checked")
    page.keyboard.press("p")
    page.keyboard.press("c")
    page.keyboard.press("Control+a")
    page.keyboard.type("Evo+")
    expect(page.locator("#reading")).to_contain_text("column 5")
    assert_accessible(page)


def assert_accessible(page: Page) -> None:
    found = Axe().run(page, options=WCAG)
    assert found.violations_count == 0, found.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
