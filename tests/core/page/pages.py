"""Pages and tables as their tests see them."""

from io import StringIO

from bs4 import BeautifulSoup
from rich.console import Console

from raylab.core.page.table import Table, as_rich


def rows_of(table: Table) -> list[list[str]]:
    """The cells of a table as the terminal shows them."""
    out = StringIO()
    Console(file=out, width=400).print(as_rich(table))
    lines = out.getvalue().replace("┃", "│").splitlines()
    return [[cell.strip() for cell in line.strip("│").split("│")] for line in lines if "│" in line]


class Page:
    """The text, tables, ids and links of a page."""

    def __init__(self, html: str) -> None:
        page = BeautifulSoup(html, "html.parser")
        for style in page.select("style"):
            style.decompose()
        elements = page.find_all(True)
        self.tags = [element.name for element in elements]
        self.ids = [str(element["id"]) for element in elements if element.has_attr("id")]
        self.sections = [str(section["id"]) for section in page.select("section")]
        self.words = list(page.stripped_strings)
        self.text = " ".join(" ".join(self.words).split())
        self.rows = [
            [" ".join(cell.get_text().split()) for cell in row.select("td, th")]
            for row in page.select("tr")
        ]
        names = ("src", "href", "xlink:href", "srcset", "data", "action", "poster")
        links = [
            str(element[name]) for element in elements for name in names if name in element.attrs
        ]
        self.targets = [link for link in links if link.startswith("#")]
        self.loads = [link for link in links if not link.startswith("#")]
