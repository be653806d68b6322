"""The ``strandline`` command.

Rules: a command parses, calls one function of another package and prints. Anything heavy is
imported inside the command, so that ``--help`` is quick. Results go to standard output, progress
and errors to standard error. Exit codes: 0 done, 1 an error (or damage found), 2 wrong usage.
"""
