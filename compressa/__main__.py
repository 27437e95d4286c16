"""`python -m compressa`: the command line, where a launcher such as torchrun wants a module."""

from compressa.cli import main

if __name__ == "__main__":
    main()
