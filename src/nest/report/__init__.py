"""Text and pictures for people; nothing is priced here.

`plan_text` prints a plan, with `stages` (equal stages in one row) and `page` (tables and wrapping);
`summary_text` what fits a screen of it; `explanation_text`, `diagnosis_text`, `comparison_text`,
`replan_text`, `goodput_text`, `simulation_text`, `validation_text`, `calibration_text`,
`probe_text`, `learning_text`, `log_text`, `catalog_text` and `support_text` print what the other
commands found.
`figure` is what all pictures share: those of `comparison_text` and `validation_text`, and
`network`, maps of devices. `web` makes pages of figures. `files` writes ranks and traces.
"""
