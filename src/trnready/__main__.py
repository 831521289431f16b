"""`python -m trnready` is the command `trnready`."""

from trnready.cli import main

main()
