"""What an installed package is started by: ``oblr-train``, ``oblr-eval``, ``oblr-sweep``, ``oblr-report``.

They do what the scripts of that name in a clone's ``src/`` do.
"""

from oblr.commands.launch import launch, one_line_errors


def train() -> None:
    launch("train", "oblr.commands.train")


def evaluate() -> None:
    launch("eval", "oblr.commands.evaluate")


def sweep() -> None:
    with one_line_errors():
        from oblr.commands.sweep import main

        main()


def report() -> None:
    with one_line_errors():
        from oblr.commands.report import main

        main()


if __name__ == "__main__":  # a sweep's runs
    train()
