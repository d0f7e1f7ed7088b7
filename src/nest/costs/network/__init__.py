"""What collectives and hand-overs take on a network, by levels or by links.

`groups` says which devices form a group and how levels divide it: strides, alignment, place
classes. `collectives` has the seconds of each algorithm. `paths` prices the same on a graph of
links, where all tiles of a network send at once; `twins` names the compiled functions that it may
use. `fabric` is the entry: groups and pairs of a cluster, whichever it is. Read `groups`,
`collectives`, `fabric`, then `paths`.
"""
