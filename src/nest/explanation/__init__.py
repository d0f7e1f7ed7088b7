"""Why a plan is as it is, and why there is none.

`infeasible` finds the plan that lacks least memory and what would help; `explanation` asks what a
little more of each resource would change and how much slower simpler plans are (`nest.explain`).
"""
