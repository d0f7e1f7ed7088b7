"""Maps of a network: which device does what.

`sketch` draws nodes close to their neighbours, `grid` those of a torus; `layout` places
both on the page; `chart` colours them by a plan. Read `chart` first.
"""
