"""The review page as people use it: `python jobs/review.py` and a real browser."""

import re
import signal
import subprocess
import sys
from collections.abc import Callable, Generator, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, Page, expect, sync_playwright

from raylab.label.archive.store import Archive
from raylab.label.codebooks.choose import recorded_codebook
from raylab.label.protocol.outcome import HumanDecision, read_decision
from tests.label.archive.rows import execute
from tests.label.review.office import (
    NEITHER,
    ONE,
    RECORDS,
    TICKETS,
    UNCONFIRMED,
    annotation,
    make_run,
    make_study,
)
from tests.pictures import CHROMIUM

ROOT = Path(__file__).parents[2]
WCAG = {"runOnly": ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"]}
DESKTOP, PHONE = ({"width": 1280, "height": 800}, {"width": 375, "height": 740})
HOSTILE = "<h1>Free</h1><script>document.title = 'taken'</script><img src='//evil.example/x'>"
LABELS = ", ".join(f"t{number:02}: Topic {number}." for number in range(1, 15))
MANY = f"""
name: many
task: What to do.
fields:
  topics: {{labels: {{{LABELS}}}, several: true}}
  grade: {{number: [1, 5]}}
"""
"""A codebook with a field of 14 labels."""
CASES = {
    # A case for each test, since a lease outlives the tab.
    "pool": f"Schedules are bred. {ONE}",
    "valve": f"A valve is regulated. {NEITHER}",
    "drafted": f"It feeds back. {NEITHER}",
    "folded": f"It is folded. {UNCONFIRMED}",
    "checked light": f"It is looked at. {UNCONFIRMED}",
    "checked dark": f"It is looked at. {UNCONFIRMED}",
    "hostile": f"{HOSTILE} {UNCONFIRMED}",
    "long": f"{'x' * 99_000} {ONE}",
    # Enough that one is free whenever a decision is sent, whoever still keeps the others.
    **{f"spare {number}": f"Nobody decides it. {number} {ONE}" for number in range(4)},
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not CHROMIUM, reason="no Chromium on this machine: apt-get install chromium"
    ),
]


@pytest.fixture(scope="module")
def storage(tmp_path_factory: pytest.TempPathFactory, chat: str) -> Path:
    storage = tmp_path_factory.mktemp("runs")
    make_run(annotation(storage, chat), CASES)
    return storage


@pytest.fixture(scope="module")
def address(storage: Path) -> Iterator[str]:
    with served(storage) as address:
        yield address


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory, chat: str) -> Iterator[tuple[Path, str]]:
    """Storage and page of a run whose cases two people judge."""
    storage = tmp_path_factory.mktemp("pairs")
    cases = {name: CASES[name] for name in ("pool", "valve", "drafted")}
    make_run(annotation(storage, chat, "review.people=2"), cases)
    with served(storage) as address:
        yield storage, address


@pytest.fixture(scope="module")
def forms(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, tuple[Path, str]]]:
    """Storage and page of runs with codebooks in files, by codebook; two people judge the case."""
    marks = ({"topics": ["t01"], "grade": 1}, {"topics": ["t02"], "grade": 1})
    texts: dict[str, tuple[Any, ...]] = {
        "sentiment": ("sentiment", "The box was torn.", ("positive", "negative")),
        "topics": ("topics", "A main burst.", (["water"], ["transport"])),
        "record": (TICKETS, "שתי חבילות אבדו", RECORDS),
        "many": (MANY, "It is dark.", marks),
    }
    with ExitStack() as stack:
        pages = dict[str, tuple[Path, str]]()
        for name, (codebook, text, answers) in texts.items():
            make_study(storage := tmp_path_factory.mktemp(name), codebook, text, answers, people=2)
            pages[name] = storage, stack.enter_context(served(storage))
        yield pages


@contextmanager
def served(storage: Path) -> Generator[str]:
    """Where the job serves the page; an interrupt is the ordinary end of it."""
    command = [sys.executable, f"{ROOT}/jobs/review.py", "name=systems", "port=0"]
    process = subprocess.Popen(
        [*command, f"storage={storage}"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=storage,
    )
    assert process.stdout is not None
    match = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
    try:
        assert match is not None, process.communicate(timeout=60)
        yield match[0]
    finally:
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=300)
    assert (process.returncode, errors) == (0, "")


@pytest.fixture(scope="module")
def browser(address: str, pair: tuple[Path, str], forms: dict[str, Any]) -> Iterator[Browser]:
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
        context = browser.new_context(**{"base_url": address, **options})
        context.set_default_timeout(60_000)
        contexts.append(context)
        page: Page = context.new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto("/")
        if name:
            sign_in(page, name)
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
    press(page, f"={name}", "Enter")
    arrive(page, "Open cases")


def arrive(page: Page, heading: str) -> None:
    """Waits for a page and its script, without which keys do nothing."""
    page.get_by_role("heading", name=heading, level=1).wait_for()
    page.wait_for_load_state()


def open_case(page: Page, case: str) -> None:
    page.goto("/")
    page.get_by_role("link", name=case, exact=True).click()
    arrive(page, case)


def press(page: Page, *keys: str) -> None:
    """Presses keys; types what follows an equals sign."""
    for key in keys:
        page.keyboard.type(key[1:]) if key[0] == "=" else page.keyboard.press(key)


def decided(storage: Path, case: str) -> list[HumanDecision]:
    with Archive.open(storage / "archive.db", create=False) as archive:
        run = archive.run("systems")
        book = recorded_codebook(run.row().config)
        return [read_decision(row.body, book) for row in run.decisions() if row.case == case]


def test_cases_are_settled_by_keyboard_alone(visit: Callable[..., Page], storage: Path) -> None:
    page = visit("Ada")
    press(page, "n")
    arrive(page, "pool")
    press(page, "o", "=Evo/Lern")
    expect(page.locator("#reading")).to_contain_text("Lern")
    press(page, "Escape", "j", "=Bred, not learnt.", "Control+Enter")
    expect(page.get_by_role("alert")).to_contain_text("correct the code")
    expect(page.get_by_label("Your code")).to_be_focused()
    page.wait_for_load_state()
    assert decided(storage, "pool") == []
    press(page, "o", "Control+a", "=Evo")
    expect(page.locator("#reading")).to_contain_text("Reads as")
    press(page, "Control+Enter")
    arrive(page, "valve")
    # What was sent is no draft any more.
    page.get_by_role("button", name="Undo the decision on the previous case").click()
    arrive(page, "pool")
    expect(page.get_by_label("Your code")).to_have_value("OPT=Evo")
    expect(page.locator("#kept")).to_be_empty()
    # Over the evaluator, and where no code is right.
    press(page, "b", "i", "Control+Enter")
    arrive(page, "valve")
    press(page, "u", "j", "=Two systems.", "Control+Enter")
    arrive(page, "drafted")
    own, _, insisted = decided(storage, "pool")
    assert (own.choice, own.justification) == ("own", "Bred, not learnt.")
    assert (insisted.choice, insisted.insisted) == ("B", True)
    (unclear,) = decided(storage, "valve")
    assert (unclear.choice, unclear.justification) == ("unclear", "Two systems.")


def test_keys_fold_show_and_can_be_turned_off(visit: Callable[..., Page]) -> None:
    page = visit("Fay")
    open_case(page, "folded")
    proposal = page.get_by_text("Prb Probion").first
    expect(proposal).not_to_be_visible()
    press(page, "p", "r")
    expect(proposal).to_be_visible()
    expect(page.get_by_text("As scripted.").first).not_to_be_visible()
    press(page, "?")
    keys = page.get_by_role("heading", name="Keys", exact=True)
    expect(keys).to_be_visible()
    page.get_by_label("Single keys work").uncheck()
    press(page, "Escape", "p")
    expect(keys).not_to_be_visible()
    expect(proposal).to_be_visible()
    page.reload()
    press(page, "a")
    expect(page.get_by_role("radio").first).not_to_be_checked()


def test_drafts_outlive_reloads_sessions_and_a_page_that_is_gone(
    visit: Callable[..., Page], storage: Path
) -> None:
    page = visit("Bo")
    open_case(page, "drafted")
    why = page.get_by_label("Why?")
    press(page, "b", "j", "=It feeds back")
    expect(page.locator("#kept")).to_contain_text("Draft kept in this browser.")
    page.reload()
    expect(why).to_have_value("It feeds back")
    expect(page.get_by_role("radio", name="B Lrn / Ctl")).to_be_checked()
    page.goto("/")
    expect(page.locator("li", has_text="drafted").get_by_text("your draft")).to_be_visible()
    expect(page.locator("li", has_text="spare 1").get_by_text("your draft")).to_be_hidden()
    # Sent while the page cannot be reached, and then without a session.
    for cut_off in (lambda: page.context.set_offline(True), page.context.clear_cookies):
        open_case(page, "drafted")
        why.press("End")
        why.press_sequentially(".")
        cut_off()
        press(page, "Control+Enter")
        page.wait_for_timeout(500)
        page.context.set_offline(False)
    page.goto("/")
    sign_in(page, "Bo")
    open_case(page, "drafted")
    expect(why).to_have_value("It feeds back..")
    assert decided(storage, "drafted") == []
    # Another reviewer at the same browser does not see it.
    page.get_by_role("button", name="Sign out").click()
    sign_in(page, "Cy")
    open_case(page, "drafted")
    expect(why).to_have_value("")


def test_a_hostile_description_is_inert_and_a_long_line_readable(
    visit: Callable[..., Page], address: str
) -> None:
    page = visit("Di")
    urls: list[str] = []
    page.on("request", lambda request: urls.append(request.url))
    open_case(page, "hostile")
    assert HOSTILE in (page.locator(".description").text_content() or "")
    assert page.title() == "hostile · systems · raylab review"
    assert page.locator(".description *").count() == 0
    open_case(page, "long")
    for size in (DESKTOP, PHONE):
        page.set_viewport_size(size)
        box = page.locator(".description")
        assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
        assert box.evaluate("box => box.scrollWidth <= box.clientWidth")
        assert box.evaluate("box => box.clientHeight < 600 && box.scrollHeight > 10000")
        expect(page.get_by_role("button", name="Send")).to_be_enabled()
    assert all(url.startswith(address) for url in urls)


@pytest.mark.parametrize(("scheme", "size"), [("light", PHONE), ("dark", DESKTOP)])
def test_nothing_keeps_people_out(
    visit: Callable[..., Page], scheme: str, size: dict[str, int]
) -> None:
    page = visit(color_scheme=scheme, viewport=size)
    assert_accessible(page)
    sign_in(page, "Hal")
    assert_accessible(page)
    open_case(page, f"checked {scheme}")
    press(page, "p", "c", "Control+a", "=Evo+")
    expect(page.locator("#reading")).to_contain_text("expected a root")
    assert_accessible(page)
    page.get_by_label("Why?").fill("Bred.")
    press(page, "Control+Enter")
    expect(page.get_by_role("alert")).to_be_visible()
    page.wait_for_load_state()
    assert_accessible(page)
    press(page, "Escape")
    page.get_by_label("None, or unclear").check()
    press(page, "Control+Enter")
    page.wait_for_url(re.compile("done="))
    page.goto("/decided")
    assert_accessible(page)


def test_two_people_judge_blind_and_a_third_settles_by_keyboard(
    visit: Callable[..., Page], pair: tuple[Path, str]
) -> None:
    storage, address = pair
    # Ada keeps the case that follows, so Bo gets the one after it.
    for name, code, following in (("Ada", "Evo", "valve"), ("Bo", "Sch", "drafted")):
        page = visit(name, base_url=address)
        press(page, "n")
        arrive(page, "pool")
        assert_accessible(page)
        press(page, "o", f"={code}")
        expect(page.locator("#reading")).to_contain_text("Reads as")
        press(page, "Control+Enter")
        arrive(page, following)
    page = visit("Cy", base_url=address)
    press(page, "n")
    arrive(page, "pool")
    assert_accessible(page)
    # Another code begins as the answer that was chosen before it.
    for key, code in (("1", "OPT=Evo"), ("2", "OPT=Sch")):
        press(page, key, "o", "Escape")
        expect(page.get_by_label("Your code")).to_have_value(code)
    press(page, "2", "j", "=It searches.", "Control+Enter")
    page.wait_for_url(re.compile("done="))
    assert [decision.reviewer for decision in decided(storage, "pool")] == ["Ada", "Bo", "Cy"]


@pytest.mark.parametrize(
    ("name", "judged", "values"),
    [
        ("sentiment", (["2"], ["3"]), ("neutral", "positive")),
        ("topics", (["1", "2", "2", "3"], ["3"]), ("transport, water", "water")),
        (
            "many",
            (["0", "h", "m", "Enter", "=4"], ["9", "k", "Enter", "=1"]),
            ("topics: [t10, t11, t14], grade: 4", "topics: [t09, t12], grade: 1"),
        ),
        (
            "record",
            (
                ["1", "Enter", "1", "3", "Enter", "2", "Enter", "=2", "Enter", "=40.5", "Enter",
                 "=אבדו: [x]", "Enter", "=so"],
                ["2", "Enter", "Enter", "1", "0", "Enter", "=0"],
            ),
            (
                "topic: tracking, areas: [depot, web], level: high, parcels: 2, amount: 40.5, "
                'quote: "אבדו: [x]"',
                'topic: damage, areas: [], level: null, parcels: 0, amount: null, quote: ""',
            ),
        ),
    ],
)  # fmt: skip
def test_forms_of_codebooks_are_filled_in_by_keyboard_and_settled_without_a_script(
    visit: Callable[..., Page],
    forms: dict[str, tuple[Path, str]],
    name: str,
    judged: tuple[list[str], list[str]],
    values: tuple[str, str],
) -> None:
    storage, address = forms[name]
    looks: Any = zip(("Ada", "Bo"), judged, ("light", "dark"), (DESKTOP, PHONE), strict=True)
    for person, keys, scheme, size in looks:
        page = visit(person, base_url=address, color_scheme=scheme, viewport=size)
        press(page, "n")
        arrive(page, "one")
        press(page, *keys)
        expect(page.get_by_role("button", name="Send")).to_be_in_viewport(ratio=1)
        # What was typed outlives a reload.
        page.reload()
        assert_accessible(page)
        press(page, "Control+Enter")
        page.wait_for_url(re.compile("done="))
    page = visit("Cy", base_url=address, java_script_enabled=False)
    open_case(page, "one")
    page.locator("[name=choice][value=second]").check()
    page.get_by_label("Why?").fill("So it is.")
    page.get_by_role("button", name="Send").click()
    page.wait_for_url(re.compile("done="))
    made = [str(decision.label) for decision in decided(storage, "one")]
    assert made == [*values, values[1]]


def test_a_lost_lease_is_told_and_what_was_typed_becomes_the_second_judgement(
    visit: Callable[..., Page], pair: tuple[Path, str]
) -> None:
    storage, address = pair
    ada, bo = (visit(name, base_url=address) for name in ("Ann", "Ben"))
    never = "1999-01-01T00:00:00.000000+00:00"
    execute(str(storage / "archive.db"), f"UPDATE leases SET expires = '{never}'")
    open_case(ada, "valve")
    execute(str(storage / "archive.db"), f"UPDATE leases SET expires = '{never}'")
    open_case(bo, "valve")
    press(ada, "o", "=Evo")
    expect(ada.locator("#held")).to_contain_text("Ben works on this case until")
    press(ada, "Control+Enter")
    expect(ada.get_by_role("alert")).to_contain_text("Not sent: Ben works on case valve now")
    ada.wait_for_load_state()
    press(bo, "u", "Control+Enter")
    bo.wait_for_url(re.compile("done="))
    press(ada, "Control+Enter")
    ada.wait_for_url(re.compile("done="))
    assert [decision.reviewer for decision in decided(storage, "valve")] == ["Ben", "Ann"]


def assert_accessible(page: Page) -> None:
    result = Axe().run(page, options=WCAG)
    assert result.violations_count == 0, result.generate_report()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
