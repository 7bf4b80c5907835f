"""The runbooks at ``/runbooks/NAME``, so that the link in a page opens on a host without internet."""

from __future__ import annotations

from functools import cache
from html import escape
from importlib.resources import files
from string import Template
from typing import TYPE_CHECKING, NoReturn

from aiohttp import web

from wattline.shipped import RUNBOOKS

if TYPE_CHECKING:
    from collections.abc import Mapping


def names() -> list[str]:
    """The names of all runbooks: those of the alerts."""
    return sorted(path.stem for path in RUNBOOKS.glob("*.md"))


def markdown(name: str) -> str:
    """One runbook as it is written.

    Raises:
        KeyError: no runbook has this name.
    """
    if name not in names():
        raise KeyError(name)
    return (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")


@cache
def page(name: str) -> str:
    """One runbook as a page; the list of all of them for an empty name.

    Raises:
        KeyError: no runbook has this name.
    """
    from markdown_it import MarkdownIt

    text = markdown(name) if name else "\n".join(("# Runbooks", "", *(f"- [{each}]({each}.md)" for each in names())))
    # Runbooks link to each other by file name, as they do in the repository.
    body = MarkdownIt("commonmark").enable("table").render(text).replace('.md"', '"')
    shell = files("wattline.publish").joinpath("static", "runbook.html").read_text(encoding="utf-8")
    return Template(shell).substitute(title=escape(name or "Runbooks"), body=body)


def add_runbooks(app: web.Application, headers: Mapping[str, str]) -> None:
    """Serve them.

    Args:
        app: where to.
        headers: of every answer.
    """

    async def to_list(_: web.Request) -> NoReturn:
        # Links in the list are relative to the folder.
        raise web.HTTPPermanentRedirect("runbooks/")

    async def one(request: web.Request) -> web.Response:
        name = request.match_info["name"].removesuffix(".md")
        try:
            return web.Response(text=page(name), content_type="text/html", headers=headers)
        except KeyError:
            return web.Response(
                status=404, text=f"There is no runbook {name!r}. These exist: {', '.join(names())}\n", headers=headers
            )

    app.router.add_get("/runbooks", to_list)
    app.router.add_get("/runbooks/{name:[^/]*}", one)
