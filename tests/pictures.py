"""Takes the pictures of README.md: a pipeline's report, a diagnosis, a case on the review page.

python -m tests.pictures

The runs are small and stay in `runs/`, so that a second call finds them finished.
"""

import re
import shutil
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import urljoin

from playwright.sync_api import Page, sync_playwright

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
"""Path of the browser; empty where there is none."""
ROOT = Path(__file__).parents[1]
PICTURES = ROOT / "jobs" / "pictures"
WIDTH = 1280
HEIGHT = 800
SAME = "Both give the same code."
REPORTS = {
    "report": ("h3:has-text('Task') >> nth=1", "pipeline", "name=pictures", "scale=demo"),
    "diagnosis": ("h1", "quality", "name=pictures-quality", "example=true"),
}
"""What a picture begins with, and the job and keys that make its page."""
ANNOTATION = (
    "annotate",
    "name=pictures-review",
    "cases.take=12",
    "protocol.adjudicator=human",
)


def take_pictures() -> None:
    """Writes all pictures.

    Raises:
        subprocess.CalledProcessError: A job failed; its message is on stderr.
    """
    for job, *arguments in (*(made for _, *made in REPORTS.values()), ANNOTATION):
        subprocess.run(command(job, *arguments, "resume=true"), cwd=ROOT, check=True)
    with sync_playwright() as playwright, review_page() as address:
        browser = playwright.chromium.launch(executable_path=CHROMIUM)
        page = browser.new_page(viewport={"width": WIDTH, "height": HEIGHT})
        for picture, (first, _, name, _) in REPORTS.items():
            page.goto((ROOT / "runs" / name.removeprefix("name=") / "report.html").as_uri())
            page.locator(first).evaluate("element => element.scrollIntoView({behavior: 'instant'})")
            page.screenshot(path=PICTURES / f"{picture}.png")
        open_case(page, address)
        page.screenshot(path=PICTURES / "review.png")
        browser.close()


def open_case(page: Page, address: str) -> None:
    """Opens the first case whose answers differ, or else the last."""
    page.goto(address)
    page.get_by_label("Your name").fill("Ada")
    page.keyboard.press("Enter")
    cases = page.locator("h2 a")
    cases.first.wait_for()
    addresses = [link.get_attribute("href") or "" for link in cases.all()]
    for case in addresses:
        page.goto(urljoin(address, case))
        page.get_by_label("Why?").wait_for()
        if page.get_by_text(SAME).count() == 0:
            return


@contextmanager
def review_page() -> Generator[str]:
    """Address of the page of the annotation while it is served."""
    served = command("review", ANNOTATION[1], "port=0")
    with subprocess.Popen(served, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield re.findall(r"http://\S+", process.stdout.readline())[0]
        finally:
            process.terminate()


def command(job: str, *arguments: str) -> list[str]:
    return [sys.executable, f"jobs/{job}.py", *arguments]


if __name__ == "__main__":
    take_pictures()
