"""`python -m bnuq`."""

from bnuq.cli import main

if __name__ == "__main__":
    main()
