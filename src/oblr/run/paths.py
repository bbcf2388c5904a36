"""Where things are: in a clone beside the code, in an installed package inside it."""

from pathlib import Path

from oblr.errors import SettingError

_PACKAGE = Path(__file__).resolve().parents[1]
#: Whether this is a wheel's copy of the code; hatch_build.py says what that holds.
INSTALLED = (_PACKAGE / "_conf").is_dir()
#: The folder whose revision is the code's.
CODE = _PACKAGE if INSTALLED else _PACKAGE.parents[1]
#: The configuration files.
CONF = CODE / ("_conf" if INSTALLED else "conf")
#: The pages for users.
DOCS = CODE / ("_docs" if INSTALLED else "docs")
#: What ``runs/`` lies in: the clone, or the folder that a script is started in.
ROOT = Path.cwd() if INSTALLED else CODE


def models_of(root: str) -> Path:
    """The policies that come along: in the package, or in the clone ``root``, which a job's copy of the code lacks."""
    return CODE / "_models" if INSTALLED else Path(root, "models")


def check_comes_along(path: str) -> None:
    """Raises SettingError where ``path`` is of a policy that the clone has and the package has not."""
    if INSTALLED and Path(path).parent == models_of("") and not Path(path).exists():
        raise SettingError(
            "policy.path",
            f"{Path(path).name} is in models/ of the repository, and does not come with the package",
            "clone the repository, and give paths.models=CLONE/models",
        )


def with_page(line: str, name: str) -> str:
    """An error that ends with the page that says more; in a clone it is called as the README calls it."""
    return f"{line}; see {DOCS / name if INSTALLED else f'docs/{name}'}"
