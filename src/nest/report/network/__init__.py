"""Maps of a network: which device does what.

`sketch` has the contents of the picture, `layout` places them on the page, close to their
neighbours or as the grid of a torus; `chart` colours them by a plan. Read `chart` first.
"""
