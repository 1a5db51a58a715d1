"""`python -m headway.cli`."""

from headway.cli import main

if __name__ == "__main__":
    main()
