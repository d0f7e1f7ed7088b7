"""Compiled search of pipelines whose stages are alike: one block size, one set of degrees.

`asked` says which questions (a candidate, a way of ZeRO, a recompute policy) have a chance under an
outer choice. `search` asks the questions of
all pipelines; `work` has its arrays. `sums` over all layers say which pipelines have a chance,
`layouts` which layouts are worth a look (and what is known of them whatever they cost), where no
other policy has `decided` that, and `fits` which may be better than the best, each by a `bound` of
one stage and of the trips of micro-batches;
`cuts` are free where no layouts are listed, bounded by each of the `stages`, which also has the
figures of chunks; where too many stay below the best, `labels` find the best of them. What is left
gets its seconds in `price`. Proofs: docs/proofs.md, Lemma 30 (floor of a question) and those behind
it. Read `search`, then `fits`.

Shapes: C candidates, Z ways of ZeRO, R recompute policies, T kinds, Q pipelines, N layers, G
signatures, Y classes of places, S most stages, V most chunks a stage.

Names in all functions: `degrees` (``nest.records.tables.Degrees``), `places` (``Rings``),
`pipelines` and `legal` (``nest.records.problems``) are read, `work` is written. Indices: c a
candidate, z a way of ZeRO, r a recompute policy, k a pipeline, y a place, s a stage, d one of its
chunks, i the first layer of a chunk, j the cut behind it. Counts: p stages, v chunks a stage, m
micro-batches.
"""
