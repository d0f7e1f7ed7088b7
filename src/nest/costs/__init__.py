"""Seconds and bytes: one plain function for each term, with its source.

`compute` (products, attention, memory-bound kernels), `network` (collectives, groups, links) and
`memory` (bytes of a parameter) are the terms; `choices` turns degrees of parallelism into arrays;
`layer` adds the terms up for one layer under many configurations at once; `stage` does so for the
layers of a stage, with what hides under what; `schedules` make a step of stages. Read `choices`,
`layer`, `stage`, then `schedules/one_f_one_b`.
"""
