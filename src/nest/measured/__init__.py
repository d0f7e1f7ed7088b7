"""What runs, collectives and layers were measured at, read, compared and fitted to.

`validation`: runs against their prices; `calibration`: figures of devices, networks and stacks,
fitted to measurements; `profiles`: layers that other tools have measured; `logs`: what a run
printed of its configuration, steps and memory; `learning`: what own runs teach; `table`: rows of
CSV.
"""
