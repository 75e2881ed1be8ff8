"""`python -m fedsofim` is the command line."""

from fedsofim.cli.main import main

main()
