"""Become the vLLM server that a run would start for itself: ``python src/serve.py HOST PORT experiment=pocket``."""

from oblr.commands.scripts import serve

if __name__ == "__main__":
    serve()
