"""`python -m homeai` is the `homeai` command."""

from homeai.cli import main

if __name__ == "__main__":
    main()
