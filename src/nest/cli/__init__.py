"""The command `nest`: a file for each subcommand, named after it.

`main` lists the subcommands and turns errors into exit codes; `naming` names options and files in
messages; `inputs` and `options` are the arguments that several subcommands share, `present` and
`output` print.
"""
