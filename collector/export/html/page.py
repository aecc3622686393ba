"""The file: the style, the modules and the data in one, which asks nothing of a network and lets nothing be asked.

Modules name each other by bare specifiers; an import map tells where each is: in this very file, as a ``data:``
address. The policy of the file lets those scripts run that carry its nonce, and their imports; nothing that stands in
the data can be one, and nothing is fetched. Data is compressed and in base64, so no name of it stands in the markup but
the title.
"""

from __future__ import annotations

import base64
import json
import secrets
from collections.abc import Iterator
from html import escape
from importlib.resources import files
from importlib.resources.abc import Traversable

_POLICY = ("default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; img-src data:; "
           "base-uri 'none'; form-action 'none'")
_LIBRARIES = {"preact": "preact.js", "preact/hooks": "hooks.js", "htm": "htm.js"}
_MAIN = "page/main"


def page(title: str, data: str) -> str:
    """The whole file. ``title`` is text; ``data`` what ``Packed.text`` made."""
    nonce = secrets.token_urlsafe(16)
    assets = files("collector.export.html") / "assets"
    modules = {name: _address(assets / "libraries" / file) for name, file in _LIBRARIES.items()}
    modules |= {f"page/{name}": _address(file) for name, file in _ours(assets)}
    style = (assets / "style.css").read_text("utf-8")
    licences = (assets / "libraries" / "LICENCES").read_text("utf-8")
    return "\n".join((
        "<!DOCTYPE html>", '<html lang="en">', "<head>", '<meta charset="utf-8">',
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY.format(nonce=nonce)}">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f"<title>{escape(title)}</title>",
        '<link rel="icon" href="data:,">',
        f'<style nonce="{nonce}">', style, "</style>",
        f'<script type="importmap" nonce="{nonce}">', _as_script({"imports": modules}), "</script>",
        "</head>", "<body>",
        f"<!--\n{escape(licences)}\n-->",
        '<div id="page"><p class="boot">Unpacking …</p><noscript><p class="boot">This page is drawn by its scripts: '
        "allow them, or read the experiment with er_print.</p></noscript></div>",
        f'<script type="text/plain" id="data" nonce="{nonce}">{data}</script>',
        f'<script type="module" nonce="{nonce}">import {json.dumps(_MAIN)};</script>',
        "</body>", "</html>", ""))


def _ours(assets: Traversable) -> Iterator[tuple[str, Traversable]]:
    for file in sorted(assets.iterdir(), key=lambda one: one.name):
        if file.name.endswith(".js"):
            yield file.name.removesuffix(".js"), file


def _address(file: Traversable) -> str:
    return "data:text/javascript;base64," + base64.b64encode(file.read_bytes()).decode("ascii")


def _as_script(value: object) -> str:
    """JSON that cannot end the element that it stands in."""
    return json.dumps(value).replace("<", "\\u003c")
