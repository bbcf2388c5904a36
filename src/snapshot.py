"""Copy the code and the composed configuration: ``python src/snapshot.py FOLDER experiment=pocket``."""

from oblr.commands.launch import one_line_errors
from oblr.commands.snapshot import main

if __name__ == "__main__":
    with one_line_errors():
        main()
