"""What limits a plan, and why nothing fits.

`infeasible` finds the plan that lacks the least memory, and changes that would make it fit;
`explanation` finds the effect of 1 % more of each resource, and how much slower simpler plans are
(`nest.explain`); `neighbours` prices plans that differ in one choice, without a search.
"""
