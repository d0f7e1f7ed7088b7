"""A set of planning problems for all planners, and scores of their answers.

`instance` writes the problems of `instances.yaml` as documents, `solving` finds their best
configurations, on the processes of an engine; `submission` is the file that a planner submits,
`planned` makes those of the planners of `nest compare`; `score` prices a submission, and lists what
searches leave out; `instances_text` shows both.
"""
