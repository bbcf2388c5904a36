"""What is typed comes through here first: without the project's environment it ends in one line."""

from oblr.run.installed import require

require("hydra", "lightning", "torch")
