"""The command `nest`: a file for each subcommand, named after it.

`main` lists the subcommands and turns errors into exit codes; `inputs` and `options` are the
arguments that several share, `present` and `output` print.
"""
