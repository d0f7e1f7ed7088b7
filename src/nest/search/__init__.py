"""The search for the best configuration: costs as arrays, solved by compiled kernels.

`candidates` lists outer choices and the configurations of a stage, `exchanges` finds which ways of
context parallelism are worth it, `starts` where blocks may start, `signatures` which stages cost
the same, `policies` which recompute policies there are, `expert_pairs` which degrees of expert
parallelism; `layer_prices` has the price of a layer with each of them, and `tensors` fills `tables`
and `problems`, the arrays that kernels take; `compiled` loads the kernels of `_kernels` with their
cache; `alike` has the pipelines of identical stages, `totals` bounds them by sums over all layers;
two kinds are searched behind all others: those of `beside`, whose passes run beside each other, and
those of `crossed`, which hold two copies of the model; `runnable` has those that the job's stack
can run, by its rules about `columns` of figures, the `wide_rules` among them; `left_out` says what
is not searched; `distinct` says which rows of arrays differ; `rounds` visits the outer choices on
`threads`, best bound first, after a `draft` over a part of the space, and returns the best
`solution`; `offloads` does so for each way to use the memory of the hosts; `batches` looks for a
batch near the given one that fits the devices better; `fitting` rules out those that memory
forbids, where no plan is found, `progress` ends a search early and reports its state. Similar
questions share, in `kept`, data that does not depend on prices: the `frame` of outer choices and
candidates, the `cut_lists` of a model, the `layouts` of pipelines, and `floors`, lower bounds of
the plans of an outer choice. Read `rounds` first, then `tensors`, `alike` and
`_kernels/alike/search.py`, which find what a stack can run, then `_kernels/options.py` and
`_kernels/pipeline.py` for stages that may differ.

Where to find: replicas, strides and sizes of micro-batches in `candidates`; recompute is chosen in
`_kernels/alike/search.py` for identical stages, among the questions of `totals`, and in
`_kernels/options.py` for stages that may differ; what makes a plan infeasible: rules of
`model/legality.py` and `runnable`, memory in `_kernels/alike/fits.py` and `_kernels/options.py`;
lower bounds of all plans in `rounds`; which of equal plans is taken in `solution`; the cache of
compiled kernels in `compiled`.
"""
