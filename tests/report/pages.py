"""Pages and tables as their tests see them."""

from html.parser import HTMLParser
from io import StringIO

from rich.console import Console

from raylab.report.table import Table, as_rich

VOID = {"meta", "link", "br", "wbr"}


def rows_of(table: Table) -> list[list[str]]:
    """The cells of a table as the terminal shows them."""
    out = StringIO()
    Console(file=out, width=400).print(as_rich(table))
    lines = out.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


class Page(HTMLParser):
    """The text, tables, ids and links of a page, and whether its elements close in order."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self._cells: list[list[str]] = []
        self.ids: list[str] = []
        self.loads: list[str] = []
        self.targets: list[str] = []
        self.tags: list[str] = []
        self.open: list[str] = []
        self.sections: list[str] = []
        self.words: list[str] = []
        self.feed(html)
        self.close()

    @property
    def rows(self) -> list[list[str]]:
        return [[" ".join(cell.split()) for cell in row] for row in self._cells]

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = {name: value or "" for name, value in attrs}
        self.tags.append(tag)
        self.ids += [values["id"]] if "id" in values else []
        self.sections += [values["id"]] if tag == "section" else []
        for name in ("src", "href", "xlink:href", "srcset", "data", "action", "poster"):
            if name in values:
                (self.targets if values[name].startswith("#") else self.loads).append(values[name])
        if tag == "tr":
            self._cells.append([])
        elif tag in ("td", "th"):
            self._cells[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open:
            return
        self.words.append(data)
        if {"td", "th"} & set(self.open):
            self._cells[-1][-1] += data
