"""Become the vLLM server that a run would start for itself: ``python src/serve.py HOST PORT experiment=pocket``."""

from oblr.commands.launch import one_line_errors
from oblr.commands.serve import main

if __name__ == "__main__":
    with one_line_errors():
        main()
