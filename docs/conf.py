"""How Sphinx makes these pages: ``make docs``. Offline: no page asks anything of another machine."""

import importlib
import inspect
import re
from pathlib import Path

import yaml
from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError

from oblr.settings.reference import reference

ROOT = Path(__file__).resolve().parent.parent

project, author, html_title = "OBLR-PO", "OBLR-PO", "OBLR-PO"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 3
default_role = "literal"  # what docstrings put into single backquotes
autodoc_default_options = {"show-inheritance": False}
autodoc_typehints = "none"
html_theme = "furo"
html_math_renderer = "mathml"
html_show_search_summary = False  # it would read pages by requests, which files do not answer
html_copy_source = html_show_sphinx = html_show_copyright = False
highlight_language = "none"


def options(group: str) -> str:
    """Every choice of a configuration group, with its settings and the docstring of its class, as reStructuredText."""
    lines, said = [], set()
    for path in sorted((ROOT / "conf" / group).glob("*.yaml")):
        lines += [f".. rubric:: {group}={path.stem}", "", ".. code-block:: yaml", ""]
        lines += [f"   {line}" for line in path.read_text().splitlines()] + [""]
        target = yaml.safe_load(path.read_text()).get("_target_", "")
        module, _, name = target.rpartition(".")
        if module.startswith("oblr.") and target not in said:
            said.add(target)
            if not inspect.getdoc(getattr(importlib.import_module(module), name)):
                raise ExtensionError(f"{target} has no docstring")
            lines += [f".. autoclass:: {target}", "   :no-index:", ""]
    return "\n".join(["```{eval-rst}", *lines, "```"])


def fill_in(app: Sphinx, page: str, source: list[str]) -> None:
    """Fill in ```` ```{options} GROUP``` ```` and ```` ```{settings}``` ````, and let links out of ``docs`` lead there.

    Comments are left out, in which cog is told what to write. The pages are built inside the clone, two folders below
    ``docs``'s neighbours.
    """

    def anchor(found: re.Match[str]) -> str:
        text, target = found.groups()
        path, _, line = target.partition("#L")
        if not (ROOT / path).exists() or (line and int(line) > len((ROOT / path).read_text().splitlines())):
            raise ExtensionError(f"{page}: there is no {target}")
        return f'<a href="../../{target}">{text}</a>'

    source[0] = re.sub(r"<!--.*?-->", "", source[0], flags=re.DOTALL)
    source[0] = re.sub(r"```\{options\} (\w+)\n```", lambda found: options(found[1]), source[0])
    source[0] = re.sub(r"```\{settings\}\n```", lambda found: reference(ROOT / "conf"), source[0])
    source[0] = re.sub(r"\[([^][]*)\]\(\.\./([^)\s]+)\)", anchor, source[0])


def requests_nothing(app: Sphinx, error: Exception | None) -> None:
    """Raises where a built page would load anything from elsewhere."""
    for path in Path(app.outdir).rglob("*.html") if error is None else ():
        if found := re.search(
            r"""<(?:script|img|link|iframe)\b[^>]*(?:src|href)=["'](?:https?:)?//[^>]*>""", path.read_text()
        ):
            raise ExtensionError(f"{path.name} loads {found[0]}")


def setup(app: Sphinx) -> None:
    def formula(self, node: nodes.math) -> None:
        tex = (
            node.astext().replace(r"\lt ", "<").replace(r"\gt ", ">")
        )  # which GitHub wants, and docutils does not know
        self.body.append(tex2mathml(tex, as_block=isinstance(node, nodes.math_block)))
        raise nodes.SkipNode

    app.add_html_math_renderer("mathml", (formula, None), (formula, None))
    app.connect("source-read", fill_in)
    app.connect("build-finished", requests_nothing)
