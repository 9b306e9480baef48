"""How a chunk's source is named in one line. Only the standard library: `proxy.tagging` writes it for any tool."""

from __future__ import annotations

import re
from collections.abc import Iterable


def source_line(title: str | None, uri: str | None, headings: str | None, pages: str | None) -> str | None:
    """A source in one line: `"Title" > Heading (uri), p. 3`, of what there is."""
    named = f'"{title}"' if title else ""
    if headings:
        named = f"{named} > {headings}" if named else headings
    if uri and uri != title:
        named = f"{named} ({uri})" if named else uri
    if pages:
        named = f"{named}, p. {pages}" if named else f"p. {pages}"
    return named or None


_TITLE = re.compile(r'"([^"]+)"')
_URI = re.compile(r"(?:^|[ (])((?:[a-z][a-z0-9+.-]*://|/)[^\s()]+)")


def title_and_uri(line: str | None, names: Iterable[str] = ()) -> tuple[str | None, str | None]:
    """The title and the URI that a source line names, or that are known by themselves (`names`), as far as told."""
    uris = [name for name in names if _URI.match(name)]
    titles = [name for name in names if name not in uris]
    title, uri = _TITLE.match(line or ""), _URI.search(line or "")
    return (titles[0] if titles else title[1] if title else None), (uris[0] if uris else uri[1] if uri else None)


def source_with(seen: str | None, title: str | None, uri: str | None) -> str | None:
    """A source line as the model saw it, with what is known of the document and does not stand there around it."""
    line = seen or ""
    if title and title not in line:
        line = f'"{title}" > {line}' if line else f'"{title}"'
    if uri and uri != title and uri not in line:
        line = f"{line} ({uri})" if line else uri
    return line or None
