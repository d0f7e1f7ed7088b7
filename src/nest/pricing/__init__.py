"""The price of one configuration, independent of any search.

`stages` turns a stage of a configuration into what the cost functions take; `evaluation` prices the
whole configuration (`nest.evaluate`) and says why one is illegal or does not fit; `plans` is the
result; `confidence` says how near such prices were to measured runs; `even` makes a configuration
from plain degrees (tp 8, pp 4). Read `plans`, `stages`, `evaluation`.
"""
