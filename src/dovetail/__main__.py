"""`python -m dovetail` is the command line."""

from dovetail.cli.main import main

if __name__ == "__main__":
    raise SystemExit(main())
