"""``python -m resurgam``: the same as the command ``resurgam``."""

from resurgam.cli.main import main

if __name__ == "__main__":
    main(prog_name="resurgam")
