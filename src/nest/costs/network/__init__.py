"""Seconds of collectives and hand-overs on a network, by levels or by links.

`placement` says where blocks lie in the levels (alignment, strides, place classes), which devices
form a group, and how the levels divide it. `collectives` has the seconds of each algorithm. `paths`
prices the same on a graph of links, where all tiles of a network send at once. `fabric` is the
entry: groups and pairs of a cluster, priced by levels or by links. Read `placement`, `collectives`,
`fabric`, `paths`.

Where to find: rings, trees and all-to-all in `collectives`; what a tile is (blocks of one size side
by side, which send at once) in `paths`, which tile a block is in by `placement`.
"""
