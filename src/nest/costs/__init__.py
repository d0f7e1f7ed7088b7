"""Seconds and bytes: one plain function for each term, with its source.

`compute` (products, attention, memory-bound kernels), `network` (collectives, groups, links),
`memory` (bytes of a parameter), `muon` (its matrices), `loss` (its forms), `imbalance` (of samples
of many lengths) and `host` (what is kept there) are the terms; `choices` turns degrees of
parallelism into arrays; `operators`, `activations` (with backwards in two parts) and `traffic`
(tensor, context, expert parallel) apply them to a layer, and `layer` adds them up, under many
configurations at once; `zero` does so for parameters, gradients and optimizer states; `stage` for
the layers of a stage, with the overlap of traffic and compute; `distinct` finds alike rows, so that
each is priced once; `learned` has what runs taught. The time of a step from its stages is in
`nest.schedules`. Read `choices`, `layer`, `zero`, `stage`.

Where to find: activation memory, that of logits and loss included, in `activations`; dispatch of
tokens to experts (all-to-all) in `traffic`, their imbalance and capacity in `operators`;
hand-overs between stages, and overlap of ZeRO traffic and gradient reduction with computing, in
`stage`.
"""
