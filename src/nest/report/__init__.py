"""Text and pictures for people; nothing is priced here.

`plan_text` prints a plan, with `stages` (equal stages in one row) and `page` (tables and wrapping);
`explanation_text`, `comparison_text`, `replan_text`, `simulation_text`, `validation_text`,
`calibration_text`, `learning_text`, `log_text` and `catalog_text` print what the other commands
found. `figure` is what all pictures share: those of `comparison_text` and `validation_text`, and
`network`, maps of devices. `files` writes ranks and traces.
"""
