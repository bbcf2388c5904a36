"""Command lines that are read without Hydra."""

import argparse


class Parser(argparse.ArgumentParser):
    """Its ``--help`` begins with what the program does, and examples.

    Args:
        what: the docstring of the module; its first sentence is about the program.
        examples: lines that can be typed.
    """

    def __init__(self, what: str | None, *examples: str):
        super().__init__()
        self.what = "\n".join([(what or "").replace("``", "").strip(), "", *(f"  {line}" for line in examples)])

    def format_help(self) -> str:
        return f"{self.what}\n\n{super().format_help()}"
