"""Text and pictures for people; nothing is priced here.

`plan_text` prints a plan, with `stages` (equal stages in one row), `defaults` (figures without a
measurement) and `page` (tables and wrapping); `explanation_text`, `comparison_text`,
`replan_text`, `simulation_text`, `validation_text`, `calibration_text`, `capabilities_text` and
`catalog_text` print what the other commands found. `figure` is what all pictures share: `parity`,
`comparison_chart`, and `network` with maps of devices. `ranks` and `trace` write files.
"""
