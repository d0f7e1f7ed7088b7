"""The price of one configuration, independent of any search.

`stages` prices one stage, for `evaluate`, the planners and the simulation; `evaluation` prices the
whole configuration (`nest.evaluate`); `feasibility` says why one is illegal or does not fit,
`breakdown` where its seconds go; `plans` is the result; `confidence` says how sure it is, by the
measured runs in `evidence`; `uneven` what of samples of many lengths was never measured; `even`
makes a configuration from degrees (tp 8, pp 4), `divisions` divides its layers; `plan_file` reads
plans back, `ranks` gives the place of each rank, `problems` folds what is wrong with many stages.
Read `plans`, `stages`, `evaluation`.

Where to find: the bubble as a part of the step in `breakdown`; micro-batches of a step (gradient
accumulation) in `stages`; what makes a plan infeasible in `feasibility`.
"""
