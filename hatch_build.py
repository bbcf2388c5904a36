"""What a wheel has beside code: configuration, pages, the demo's policy, the revision. ``oblr.run.paths`` finds them.

An editable install has none of it, since it reads the clone.
"""

import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface


class Data(BuildHookInterface):
    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if version == "editable":
            return
        root = Path(self.root)
        sys.path.insert(0, str(root / "src"))
        from oblr.run.provenance import REVISION, revision  # the standard library is all it needs

        self.folder = TemporaryDirectory()  # as long as the build
        of_this = Path(self.folder.name) / REVISION
        of_this.write_text(revision(root) + "\n")
        build_data["force_include"] |= {
            str(root / "conf"): "oblr/_conf",
            **{str(path): f"oblr/_docs/{path.name}" for path in sorted((root / "docs").glob("*.[mp][dn]*"))},
            str(of_this): f"oblr/{REVISION}",
            str(root / "models" / "pocket"): "oblr/_models/pocket",
        }
