"""Which packages of this environment belong together, by what they say that they need."""

import tomllib
from collections.abc import Iterable
from importlib.metadata import packages_distributions, requires
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

#: What the library takes, by ``pyproject.toml``.
REQUIREMENTS = tomllib.loads(Path(__file__).parents[2].joinpath("pyproject.toml").read_text())["project"][
    "dependencies"
]
#: What can be imported by its first name → the packages that have it.
PROVIDERS = packages_distributions()
INSTALLED = {canonicalize_name(name) for names in PROVIDERS.values() for name in names}


def needed(requirements: Iterable[str]) -> set[str]:
    """Packages that pip installs for them, by what is installed here."""
    found, left = set(), [Requirement(requirement) for requirement in requirements]
    while left:
        package = left.pop()
        key = (canonicalize_name(package.name), *sorted(package.extras))
        if key in found or canonicalize_name(package.name) not in INSTALLED:
            continue
        found.add(key)
        for line in requires(package.name) or []:
            further = Requirement(line)
            extras = package.extras or {""}
            if further.marker is None or any(further.marker.evaluate({"extra": extra}) for extra in extras):
                left.append(further)
    return {name for name, *_ in found}
