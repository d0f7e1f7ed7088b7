"""Maps of a network: which device does what.

`sketch` draws nodes near those that they are linked to, `grid` those of a torus; `layout` places
both on the page; `chart` colours them by a plan. Read `chart` first.
"""
