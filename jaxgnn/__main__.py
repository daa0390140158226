"""``python -m jaxgnn``: the command ``jaxgnn``."""

from jaxgnn._command_line import main

if __name__ == "__main__":
    main()
