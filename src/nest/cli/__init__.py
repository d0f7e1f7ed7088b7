"""The command `nest`: its subcommands, each in a file named after it or after what it is about.

`main` lists the subcommands and turns errors into exit codes. `plan`, `evaluate` and `compare` are
files of their own, as are `sweep`, `design` and `bench`; `plan_commands` has what is done with a
plan, `report` its pages, `read` jobs that run today, `capture` their scripts, `measured`
measurements, `probe` a cluster's own, `learning` what own runs teach, `service` other programs,
`listing` the catalog and schemas, `doctor` the installation, `warm` compiled code.
`options` has the options that several subcommands share; `examples` end each help; `naming` names
options and files in messages; `present`, `progress` and `output` print.
"""
