"""The search for the best configuration: costs as arrays, solved by compiled kernels.

`candidates` lists outer choices and the configurations of a stage, `starts` where blocks may start,
`signatures` which stages cost the same; `tensors` prices all of that and fills `tables` and
`problems`, the arrays that kernels take; `compiled` loads the kernels of `_kernels` with their
cache; `alike` has the pipelines whose stages are alike, `runnable` what the job's stack can run of
them; `rounds` visits the outer choices on `threads`, best bound first, after a `draft` over a part
of the space, and returns the best `solution`; `offloads` does so for each way to use the memory of
the hosts; `batches` looks for a batch near the given one that fits the devices better; `fitting`
rules out those that memory forbids, `progress` ends a search early and tells how far it is. Near
questions share, in `kept`, what no price decides: the `frame` of outer choices and candidates, the
`layouts` of pipelines, and `floors`, what plans of an outer choice take at the least. Read `rounds`
first, then `tensors`, then `_kernels/options.py` and `_kernels/pipeline.py`.
"""
