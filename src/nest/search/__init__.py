"""The search for the best configuration: costs as arrays, solved by compiled kernels.

What is asked is a `query`. `formulating` turns a part of it into a formulation in steps:
`candidates` lists outer choices and the configurations of a stage, `exchanges` finds which ways of
context parallelism are worth it, `starts` where blocks may start, `signatures` which stages cost
the same, `policies` which recompute policies there are, `expert_pairs` which degrees of expert
parallelism; `runnable` has the rules of the job's stack about `columns` of figures, with the
`wide_rules`, and `layouts` the cuts that they allow of each pipeline, from `cut_lists`;
`layer_prices` has the price of a layer under each candidate. `combined` and `dualpipe` derive from
it the formulations of two kinds of pipelines that are searched behind all others: passes that run
beside each other, and two copies of the model.

A formulation (`tensors`) fills `tables` and `problems`, the arrays that kernels take; `alike` has
the pipelines of identical stages, `totals` bounds them by sums over all layers, and
`question_bound` a whole question; `compiled` loads
the kernels of `_kernels` with their cache. `branch_and_bound` searches the parts of the space as
phases, after a `draft` over a part of the space; each phase is a `tree` of outer choices, visited
on `threads`, best bound first, and returns the best `solution`; `ways` does so for each way to
use the memory of the hosts and each of the `choices` of a stack worth trying; `batches` looks for a
batch near the given one that fits the devices better; `fitting` rules out nodes that memory
forbids, and `least_memory` finds where some plan fits; `progress` ends a search early and reports
its state; `left_out` says what is not searched.
Similar questions share, in the `cache`, what does not depend on prices, and `lower_bounds` of the
plans of an outer choice. Read `branch_and_bound` first, then `formulating`, `tensors`, `alike` and
`_kernels/uniform/search.py`, which find what a stack can run, then `_kernels/options.py` and
`_kernels/pipeline.py` for stages that may differ.

Where to find: replicas, strides and sizes of micro-batches in `candidates`; recompute is chosen in
`_kernels/uniform/search.py` for identical stages, among the questions of `totals`, and in
`_kernels/options.py` for stages that may differ; what makes a plan infeasible: rules of
`model/legality.py` and `runnable`, memory in `_kernels/uniform/fits.py` and `_kernels/options.py`;
lower bounds of all plans in `tree`; which of equal plans is taken in `solution`; the cache of
compiled kernels in `compiled`. `kept_code` names the folder of their code, `carried` writes it to a
file and takes it from one.
"""
