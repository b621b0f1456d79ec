"""As much of a browser as forms need: cookies, fields, and where a request comes from."""

from html.parser import HTMLParser
from typing import Any

from httpx2 import Response
from starlette.testclient import TestClient

from raylab.annotation.reviews import Reviews
from raylab.review.access import Access
from raylab.review.app import create_app

BASE = "http://127.0.0.1:8700"
FROM_HERE = {"Origin": BASE, "Sec-Fetch-Site": "same-origin"}


class Page(HTMLParser):
    """A page as it is parsed.

    Attributes:
        tags: every element: its tag and attributes.
        text: all text.
        within: text by the id, or else the first class, of the elements around it.
    """

    VOID = frozenset({"meta", "link", "input", "img", "br"})

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.within: dict[str, str] = {}
        self._around: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.tags.append((tag, given))
        if tag not in self.VOID:
            name = given.get("id") or (given.get("class") or "").partition(" ")[0]
            self._around.append(name)
            self.within.setdefault(name, "")

    def handle_endtag(self, tag: str) -> None:
        self._around.pop()

    def handle_data(self, data: str) -> None:
        self.text += data
        for name in set(self._around):
            self.within[name] += data

    def count(self, tag: str) -> int:
        return sum(1 for found, _ in self.tags if found == tag)

    def field(self, name: str) -> dict[str, str | None]:
        """The attributes of the first field of this name."""
        return next(attrs for _, attrs in self.tags if attrs.get("name") == name)

    @property
    def choice(self) -> str | None:
        """The value of the option that is chosen."""
        fields = (attrs for _, attrs in self.tags if attrs.get("name") == "choice")
        return next((attrs["value"] for attrs in fields if "checked" in attrs), None)


class Browser:
    """A session with the page. `page` is the one that was got last."""

    def __init__(self, reviews: Reviews, access: Access) -> None:
        self.app = create_app(reviews, access)
        self.client = TestClient(self.app, base_url=BASE, follow_redirects=False)
        self.page = Page("")

    def sign_in(self, name: str, **fields: str) -> Response:
        self.get("/")
        answer = self.post("/sign-in", name=name, **fields)
        self.get("/")
        return answer

    def get(self, path: str, **headers: str) -> Response:
        return self._keep(self.client.get(path, headers=headers))

    def post(self, path: str, headers: dict[str, str] | None = None, **fields: Any) -> Response:
        """Sends a form of the page."""
        given = FROM_HERE if headers is None else headers
        return self._keep(self.client.post(path, data=fields, headers=given))

    def follow(self, answer: Response) -> Response:
        """Goes where a redirect points."""
        assert answer.status_code == 303, answer.text
        return self.get(answer.headers["location"])

    def _keep(self, answer: Response) -> Response:
        if answer.headers.get("content-type", "").startswith("text/html"):
            self.page = Page(answer.text)
        return answer
